// Yardsticks measure how fast the machine is right now, with fixed work that is independent of the benchmarks. A run's
// yardsticks show how the machine was disturbed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
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

// A yardstick that takes this much longer than usual shows that something else used the machine. Memory times vary
// more, and most kernels depend little on them.
inline constexpr std::array<double, kYardsticks.size()> kDisturbance{0.05, 0.1};

// A shared machine is slow for tens of seconds at a time, in the worst case for most of a run. Usual times are
// therefore this quantile: what the fastest twentieth of the repetitions saw.
inline constexpr double kUsualQuantile = 0.05;

struct MachineState {
  std::array<double, kYardsticks.size()> usual_seconds{};  // over the whole run; 0: not measured

  explicit MachineState(const BenchmarkRun& run);
  // Returns the series' undisturbed repetitions. The usual time beside a benchmark may be longer than over the run:
  // wide vector instructions lower the clock for about a millisecond after the benchmark that used them.
  std::vector<Repetition> undisturbed(const Series& series) const;
};

// The benchmarks of a run with fewer undisturbed repetitions than wanted, and the most that any one of them lacks.
struct Lacking {
  std::vector<std::string> names;
  std::size_t repetitions = 0;
};
Lacking lacking_repetitions(const BenchmarkRun& run, std::size_t wanted);

}  // namespace orrery::bench
