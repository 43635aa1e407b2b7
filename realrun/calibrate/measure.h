// Times one point of a sweep on a backend.
#pragma once

#include <cstdint>
#include <optional>

#include "realrun/backend.h"
#include "realrun/calibrate/sweep.h"

namespace orrery {

struct Measurement {
  double seconds = 0;        // per op
  double spread = 0;         // (75th - 25th percentile) / seconds over the repetitions
  double issue_seconds = 0;  // time that the host needs to issue an op; a CPU runs ops while it issues them
  std::int64_t repetitions = 0;
};

// Reads a clock that never goes back.
double wall_seconds();

// A kernel of the compute stream and a copy: the time per op of each alone, and while the other one runs all the time.
struct OverlapMeasurement {
  Measurement compute_alone, copy_alone, compute_beside, copy_beside;
};

// Measures ops as a training step runs them. A step touches more memory than caches hold, so a kernel rarely finds its
// weights in a cache. A meter therefore makes several sets of operands, which together take `footprint_bytes` if a few
// sets can, and uses them in turn.
//
// On a GPU, seconds are the median of the repetitions by the device's clock. On a CPU they are the 10th percentile of
// the thread's processor time. Time in which other processes have the core does not count there; what they do to the
// caches shows in the spread.
class Meter {
 public:
  Meter(Backend& backend, double footprint_bytes) : backend_(backend), footprint_bytes_(footprint_bytes) {}

  // Measures for about `seconds`, but at least a few repetitions. Throws DeviceError if memory is short.
  Measurement measure(const KernelPoint& point, double seconds);

  // Measures two points on different streams, alone and at the same time, and returns medians over repetitions. The two
  // overlap only in part, and outside of the overlap each runs at full speed. So the speed within the overlap, relative
  // to the speed alone, is (W - (D - O)) / O: W is the time that the work takes alone, D the time that it took here,
  // and O the length of the overlap. `beside` is the time of an op at that speed. Returns nothing if the streams took
  // turns in most repetitions. Throws as measure() does. REQUIRES: asynchronous streams.
  std::optional<OverlapMeasurement> measure_overlap(const KernelPoint& compute, const KernelPoint& copy,
                                                    double seconds);

 private:
  Backend& backend_;
  double footprint_bytes_;
};

}  // namespace orrery
