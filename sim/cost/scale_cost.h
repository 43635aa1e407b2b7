// What a step loses because many devices take part, beyond its collectives. Figures and sources:
// results/calibration/scale.json.
#pragma once

#include <cstdint>

namespace orrery {

// Mean of the largest of n independent standard normal numbers (in standard deviations): 0 for 1, 1.42 for 8, 3.97 for
// 16,384.
double expected_largest(std::int64_t n);

// A synchronous step goes at the pace of its slowest device. How much longer the products of `devices` take than those
// of as many as the step calibration has seen, when the devices' rates spread by `spread` (standard deviation / mean);
// 0 where they are no more.
double slowest_device_loss(std::int64_t devices, double spread);
double device_spread();                      // of scale.json
std::int64_t calibrated_devices_of_steps();  // likewise: as many as the step calibration has seen

double interval_per_doubling();  // of scale.json

// Of jobs on a shared production cluster: the share by which all steps of a job take longer than on a tuned one.
struct ProductionSlowdown {
  double median = 0, sigma_of_logarithm = 0;
  double better_tenth() const;  // nine of ten jobs lose more
  double worse_tenth() const;   // one of ten jobs loses more
};
const ProductionSlowdown& production_slowdown();

}  // namespace orrery
