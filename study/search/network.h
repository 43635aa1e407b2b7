// What a plan needs of the network.
#pragma once

#include "sim/cost/user_calibration.h"
#include "strategies/scenario.h"

namespace orrery {

struct NetworkNeed {
  double bytes_per_second = 0;      // of a NIC: the least, to 1 %, with which the step takes at most `allowed` longer
  double nic_bytes_per_second = 0;  // what the cluster has
  double allowed = 0;
  bool any = true;  // false: a step of one node, or that a thousandth of the rate does not slow by that much
};

// By the analytical engine; all else of the network, latencies included, stays. Throws InputError.
NetworkNeed network_need(const Scenario& scenario, double allowed, const UserCalibration& user = {});

}  // namespace orrery
