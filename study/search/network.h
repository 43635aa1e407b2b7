// The network bandwidth that a plan needs, if its step may take longer by a given share.
#pragma once

#include "sim/cost/user_calibration.h"
#include "strategies/scenario.h"

namespace orrery {

struct NetworkNeed {
  // The least rate per NIC, to 1 %, at which the step takes at most (1 + allowed) times as long as at the cluster's
  // rate.
  double bytes_per_second = 0;
  double nic_bytes_per_second = 0;  // the cluster's rate per NIC
  double allowed = 0;               // 0.05: 5 % longer
  bool any = true;  // false: the need is not known, as there is a single node, or a thousandth of the rate is enough
};

// Finds the need with the analytical engine. It varies the NICs' rate alone: latencies and all other properties of the
// network stay the same. Throws InputError as a prediction does.
NetworkNeed network_need(const Scenario& scenario, double allowed, const UserCalibration& user = {});

}  // namespace orrery
