// Fits a calibration of collectives to measured ones: the model of sim/cost/collective_cost.h, evaluated by that code.
// The same fit serves a user's own curves and the published ones (published.h).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "realrun/calibrate/nccl_log.h"
#include "sim/cost/collective_calibration.h"
#include "sim/hardware/cluster.h"

namespace orrery {

// A fit misses a point where the larger of prediction and measurement is more than kMissedFactor times the smaller. It
// misses a curve where it misses more than kMissedPart of the points, or one point by more than kMissedByFar times. The
// bundled calibration is within some percent of its own curves.
inline constexpr double kMissedFactor = 2, kMissedByFar = 10;
inline constexpr double kMissedPart = 0.25;

struct MissedPoint {
  CollectivePoint point;
  double predicted_seconds = 0;
};

struct CurveError {
  std::string id;
  std::int64_t points = 0;
  // Median of |predicted / measured - 1| with the calibration that the fit starts from, and with the fitted one.
  double before = 0, after = 0;
  std::vector<MissedPoint> missed;  // with the fitted calibration
  bool is_missed() const;
};

struct CollectiveFit {
  CollectiveClasses classes;  // of nodes from curves within a node, of networks from curves across nodes
  std::vector<CurveError> errors;
  std::vector<std::string> fitted;  // parameters, "node: ring_share"
};

// Sets curve.nodes: the number of nodes of `cluster` that the curve's hosts correspond to. A host is one node, unless a
// node is a rack of several hosts (devices_per_host): then it is the smallest number of nodes that holds all hosts.
// Throws InputError if hosts or ranks do not fit into the cluster, if the hosts do not divide evenly over these nodes,
// or if the log names another device than the cluster's.
void place_on(const Cluster& cluster, CollectiveCurve& curve);

// Fits the parameters of the collective model to the curves; its shares are of the rates of `cluster`. The fit starts
// from the bundled calibration that the cluster would get, with a small pull towards it: parameters that the curves do
// not determine keep their values, except that no algorithm keeps a larger share of a link than rings were measured to
// get. `source` is kept in the fitted classes. REQUIRES: the curves fit into the cluster, as after place_on().
CollectiveFit fit_collectives(const Cluster& cluster, const std::vector<CollectiveCurve>& curves,
                              const std::string& source);

// In the format of results/calibration/collectives.json.
nlohmann::ordered_json collectives_json(const CollectiveFit& fit, const std::string& method);
// In the format of results/published/collectives.json.
std::string curves_text(const Cluster& cluster, const std::vector<CollectiveCurve>& curves, const std::string& method);

}  // namespace orrery
