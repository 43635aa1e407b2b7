// Times one point of a sweep on a backend.
#pragma once

#include <cstdint>
#include <optional>

#include "realrun/backend.h"
#include "realrun/calibrate/sweep.h"

namespace orrery {

struct Measurement {
  double seconds = 0;        // of one op
  double spread = 0;         // (75th - 25th percentile) / seconds over the repetitions
  double issue_seconds = 0;  // of the host, to issue it; a CPU's ops run while they are issued
  std::int64_t repetitions = 0;
};

// Of a clock that never goes back.
double wall_seconds();

struct OverlapMeasurement {
  Measurement compute_alone, copy_alone, compute_beside, copy_beside;
};

// Ops go round over several sets of operands, together as large as `footprint_bytes` where a few sets reach that: a
// step touches more memory than caches hold, so a kernel rarely finds its weights there.
//
// CUDA: the median repetition, by the device's clock. CPU: the 10th percentile, by the processor time of the thread, so
// that time in which other processes have the core does not count; what they do to caches is in the spread.
class Meter {
 public:
  Meter(Backend& backend, double footprint_bytes) : backend_(backend), footprint_bytes_(footprint_bytes) {}

  // For about so long, but with at least a few repetitions. Throws DeviceError when memory is short.
  Measurement measure(const KernelPoint& point, double seconds);

  // Two points of different streams, alone and at the same time. Of the time that each takes beside the other, what
  // lies outside their overlap ran at full speed; so `beside` is the time of one op of which all is overlapped: with
  // durations D, work W (its time alone) and overlap O, the speed within is (W - (D - O)) / O. Medians over
  // repetitions. Nothing where the streams took turns instead. Throws as measure(). REQUIRES: asynchronous streams.
  std::optional<OverlapMeasurement> measure_overlap(const KernelPoint& compute, const KernelPoint& copy, double seconds);

 private:
  Backend& backend_;
  double footprint_bytes_;
};

}  // namespace orrery
