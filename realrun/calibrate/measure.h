// Times one point of a sweep on a backend.
#pragma once

#include <cstdint>
#include <optional>

#include "realrun/backend.h"
#include "realrun/calibrate/sweep.h"

namespace orrery {

struct Measurement {
  double seconds = 0;  // per op
  double spread = 0;         // (75th - 25th percentile) / seconds over the repetitions
  double issue_seconds = 0;  // time that the host needs to issue an op; a CPU runs ops while it issues them
  std::int64_t repetitions = 0;
};

// Reads a clock that never goes back.
double wall_seconds();

struct OverlapMeasurement {
  Measurement compute_alone, copy_alone, compute_beside, copy_beside;
};

// Ops rotate over several sets of operands, together as large as `footprint_bytes` if a few sets reach that. A step
// touches more memory than caches hold, so a kernel rarely finds its weights in a cache.
//
// CUDA: the median repetition, by the device's clock. CPU: the 10th percentile, by the thread's processor time, so that
// time in which other processes have the core does not count; their effect on caches shows in the spread.
class Meter {
 public:
  Meter(Backend& backend, double footprint_bytes) : backend_(backend), footprint_bytes_(footprint_bytes) {}

  // Measures for about `seconds`, but at least a few repetitions. Throws DeviceError if memory is short.
  Measurement measure(const KernelPoint& point, double seconds);

  // Measures two points on different streams, alone and at the same time. The part of each that lies outside their
  // overlap ran at full speed, so `beside` is the time of an op that overlaps completely: with durations D, work W (its
  // time alone) and overlap O, the speed within the overlap is (W - (D - O)) / O. Medians over repetitions. Returns
  // nothing if the streams took turns instead. Throws as measure() does. REQUIRES: asynchronous streams.
  std::optional<OverlapMeasurement> measure_overlap(const KernelPoint& compute, const KernelPoint& copy, double seconds);

 private:
  Backend& backend_;
  double footprint_bytes_;
};

}  // namespace orrery
