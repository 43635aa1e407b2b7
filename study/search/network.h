// The network bandwidth that a plan needs.
#pragma once

#include "sim/cost/user_calibration.h"
#include "strategies/scenario.h"

namespace orrery {

struct NetworkNeed {
  // Per NIC: the smallest rate, to 1 %, at which the step takes at most `allowed` longer (a share).
  double bytes_per_second = 0;
  double nic_bytes_per_second = 0;  // the cluster's rate
  double allowed = 0;
  // False: the step uses one node only, or even a thousandth of the rate does not slow it by that much.
  bool any = true;
};

// By the analytical engine. All other properties of the network, latencies included, stay the same. Throws InputError.
NetworkNeed network_need(const Scenario& scenario, double allowed, const UserCalibration& user = {});

}  // namespace orrery
