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

struct CurveError {
  std::string id;
  std::int64_t points = 0;
  double before = 0, after = 0;  // median of |predicted / measured - 1|, with the calibration started from, and fitted
};

struct CollectiveFit {
  CollectiveClasses classes;  // of nodes from curves within a node, of networks from curves across nodes
  std::vector<CurveError> errors;
  std::vector<std::string> fitted;  // parameters, "node: ring_share"
};

// On `cluster`, whose rates parameters are shares of. Starts from the bundled calibration that the cluster would get,
// with a small pull towards it: what the curves do not determine stays. Throws InputError for curves of more ranks than
// the cluster has.
CollectiveFit fit_collectives(const Cluster& cluster, const std::vector<CollectiveCurve>& curves,
                              const std::string& source);

// In the format of results/calibration/collectives.json.
nlohmann::ordered_json collectives_json(const CollectiveFit& fit, const std::string& method);
std::string collectives_text(const CollectiveFit& fit, const std::string& method);
// In the format of results/published/collectives.json, which realrun/calibrate/fit_collectives.py reads.
std::string curves_text(const Cluster& cluster, const std::vector<CollectiveCurve>& curves, const std::string& method);

}  // namespace orrery
