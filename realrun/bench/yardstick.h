// Measures how fast the machine is right now, with fixed work that is independent of the benchmarks.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "realrun/bench/run_file.h"

namespace orrery::bench {

// The work: independent chains of multiply-adds in registers, and the sum of an array that is larger than a core's own
// caches. Each is done a few times and the fastest counts, so that a single interruption does not matter.
class Yardsticks {
 public:
  Yardsticks();
  // Returns the seconds of each, in the order of kYardsticks: of the thread's CPU clock, or with `real_time` of wall
  // time.
  std::array<double, kYardsticks.size()> measure(bool real_time);

 private:
  std::vector<std::uint64_t> array_;
};

}  // namespace orrery::bench
