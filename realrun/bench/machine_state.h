// Detects disturbances of the machine from a run's yardsticks.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "realrun/bench/run_file.h"

namespace orrery::bench {

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
