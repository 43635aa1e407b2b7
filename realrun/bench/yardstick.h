// How fast is the machine right now? Fixed work that has nothing to do with what is measured.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "realrun/bench/run_file.h"

namespace orrery::bench {

// Independent chains of multiply-adds in registers, and the sum of an array that is larger than a core's own caches.
// Each is done a few times, and the fastest counts: a single interruption is not what repetitions suffer from.
class Yardsticks {
 public:
  Yardsticks();
  // Seconds each, in the order of kYardsticks. On the thread's CPU clock, or with `real_time` by the wall.
  std::array<double, kYardsticks.size()> measure(bool real_time);

 private:
  std::vector<std::uint64_t> array_;
};

}  // namespace orrery::bench
