#include "study/search/network.h"

#include <cmath>

#include "study/prediction/prediction.h"

namespace orrery {

NetworkNeed network_need(const Scenario& scenario, double allowed, const UserCalibration& user) {
  Calibrator calibrator(user);
  const double rate = scenario.cluster.node.nic_bytes_per_second;
  const auto step_at = [&](double share) {
    Scenario slower = scenario;
    slower.cluster.node.nic_bytes_per_second = share * rate;
    return predict(calibrator.prepare(std::move(slower))).step_seconds;
  };
  NetworkNeed need{.nic_bytes_per_second = rate, .allowed = allowed};
  constexpr double kLeastShare = 1e-3, kPrecision = 0.01;
  const double most_seconds = step_at(1) * (1 + allowed);
  double low = kLeastShare, high = 1;
  if (!(rate > 0) || scenario.cluster.nodes < 2 || step_at(low) <= most_seconds) {
    need.any = false;
    return need;
  }
  while (high > low * (1 + kPrecision)) {
    const double middle = std::sqrt(low * high);
    (step_at(middle) <= most_seconds ? high : low) = middle;
  }
  need.bytes_per_second = high * rate;
  return need;
}

}  // namespace orrery
