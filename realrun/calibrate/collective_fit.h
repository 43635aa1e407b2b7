// From measured collectives to a calibration of collectives: the model of sim/cost/collective_cost.h, fitted with that
// very code. What realrun/calibrate/fit_collectives.py does for the published curves, for a user's own.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "realrun/calibrate/nccl_log.h"
#include "sim/cost/collective_calibration.h"
#include "sim/hardware/cluster.h"

namespace orrery {

// A point counts as missed where prediction and measurement differ by more than kMissedFactor; a curve where more than
// kMissedPart of its points are, or one by kMissedByFar. The bundled calibration misses its own curves by some percent.
inline constexpr double kMissedFactor = 2, kMissedByFar = 10;
inline constexpr double kMissedPart = 0.25;

struct MissedPoint {
  CollectivePoint point;
  double predicted_seconds = 0;
};

struct CurveError {
  std::string id;
  std::int64_t points = 0;
  double before = 0, after = 0;  // median of |predicted / measured - 1|, with the calibration started from, and fitted
  std::vector<MissedPoint> missed;  // by the fitted one
  bool is_missed() const;
};

struct CollectiveFit {
  CollectiveClasses classes;  // of nodes from curves within a node, of networks from curves across nodes
  std::vector<CurveError> errors;
  std::vector<std::string> fitted;  // parameters, "node: ring_share"
};

// Says how many nodes of `cluster` the hosts of a curve are: one each, but where a node is a rack of several hosts as
// few as hold them. Throws InputError where they do not fit, or where the log names another device than the cluster's.
void place_on(const Cluster& cluster, CollectiveCurve& curve);

// On `cluster`, whose rates parameters are shares of. Starts from the bundled calibration that the cluster would get,
// with a small pull towards it: what the curves do not determine stays, except that no algorithm keeps more of a link
// than rings were measured to get. Throws InputError for curves of more ranks than the cluster has.
CollectiveFit fit_collectives(const Cluster& cluster, const std::vector<CollectiveCurve>& curves,
                              const std::string& source);

// In the format of results/calibration/collectives.json.
nlohmann::ordered_json collectives_json(const CollectiveFit& fit, const std::string& method);
std::string collectives_text(const CollectiveFit& fit, const std::string& method);
// In the format of results/published/collectives.json, which realrun/calibrate/fit_collectives.py reads.
std::string curves_text(const Cluster& cluster, const std::vector<CollectiveCurve>& curves, const std::string& method);

}  // namespace orrery
