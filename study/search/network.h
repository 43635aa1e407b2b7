// The network bandwidth that a plan needs.
#pragma once

#include "sim/cost/user_calibration.h"
#include "strategies/scenario.h"

namespace orrery {

struct NetworkNeed {
  double bytes_per_second = 0;      // per NIC: the least, to 1 %, with which the step takes at most `allowed` longer
  double nic_bytes_per_second = 0;  // the cluster's rate
  double allowed = 0;
  bool any = true;  // false: a single node, or a thousandth of the rate is still enough
};

// By the analytical engine. All other properties of the network, latencies included, stay the same. Throws InputError.
NetworkNeed network_need(const Scenario& scenario, double allowed, const UserCalibration& user = {});

}  // namespace orrery
