// The time that a step loses because many devices take part, beyond its collectives. Numbers and sources:
// results/calibration/scale.json.
#pragma once

#include <cstdint>

namespace orrery {

// Mean of the largest of n independent standard normal variables, in standard deviations: 0 for 1, 1.42 for 8, 3.97 for
// 16,384.
double expected_largest(std::int64_t n);

// A synchronous step runs at the pace of its slowest device. Returns the share by which products on `devices` devices
// take longer than on calibrated_devices_of_steps() devices; 0 if there are no more devices than that. `spread`:
// standard deviation of the devices' rates over their mean.
double slowest_device_loss(std::int64_t devices, double spread);
double device_spread();                      // from scale.json
std::int64_t calibrated_devices_of_steps();  // from scale.json: devices that the step calibration has seen

double interval_per_doubling();  // from scale.json

// Jobs on a shared production cluster: the share by which all steps of a job take longer than on a tuned cluster.
struct ProductionSlowdown {
  double median = 0, sigma_of_logarithm = 0;
  double better_tenth() const;  // nine of ten jobs lose more
  double worse_tenth() const;   // one of ten jobs loses more
};
const ProductionSlowdown& production_slowdown();

}  // namespace orrery
