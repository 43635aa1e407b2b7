#include "sim/cost/scale_cost.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "sim/base/json_reader.h"

namespace orrery {
namespace {

struct ScaleFile {
  double spread = 0, interval_per_doubling = 0;
  std::int64_t calibrated_devices = 1;
  ProductionSlowdown production;
};

const ScaleFile& figures() {
  static const ScaleFile read = [] {
    const nlohmann::json json = parse_embedded("results/calibration/scale.json");
    return ScaleFile{.spread = json.at("device_spread").at("value"),
                     .interval_per_doubling = json.at("interval_per_doubling").at("value"),
                     .calibrated_devices = json.at("calibrated_devices").at("value"),
                     .production = {.median = json.at("production").at("median"),
                                    .sigma_of_logarithm = json.at("production").at("sigma_of_logarithm")}};
  }();
  return read;
}

constexpr double kTenth = 1.2815515655446004;  // standard deviations that a normal number exceeds one time in ten

}  // namespace

double expected_largest(std::int64_t n) {
  if (n <= 1) return 0;
  // The integral over x > 0 of P(largest > x) - P(largest < -x), by Simpson's rule.
  constexpr int kSteps = 400;
  constexpr double kEnd = 10;
  const auto ranks = static_cast<double>(n);
  const auto at = [&](double x) {
    const double beyond = std::erfc(x / std::sqrt(2.0)) / 2;
    return -std::expm1(ranks * std::log1p(-beyond)) - std::pow(beyond, ranks);
  };
  double sum = at(0) + at(kEnd);
  for (int i = 1; i < kSteps; ++i) sum += (i % 2 == 1 ? 4 : 2) * at(kEnd * i / kSteps);
  return sum * kEnd / kSteps / 3;
}

double slowest_device_loss(std::int64_t devices, double spread) {
  const std::int64_t seen = figures().calibrated_devices;
  if (devices <= seen || spread <= 0) return 0;
  static const double of_seen = expected_largest(seen);
  return spread * (expected_largest(devices) - of_seen);
}

double device_spread() { return figures().spread; }
std::int64_t calibrated_devices_of_steps() { return figures().calibrated_devices; }
double interval_per_doubling() { return figures().interval_per_doubling; }

double ProductionSlowdown::better_tenth() const { return median * std::exp(-kTenth * sigma_of_logarithm); }
double ProductionSlowdown::worse_tenth() const { return median * std::exp(kTenth * sigma_of_logarithm); }
const ProductionSlowdown& production_slowdown() { return figures().production; }

}  // namespace orrery
