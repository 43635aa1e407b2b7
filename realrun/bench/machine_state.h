// What the yardsticks of a run say of its machine.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "realrun/bench/run_file.h"

namespace orrery::bench {

// A yardstick that took so much more than usual says that something else had the machine. Memory is restless, and most
// kernels feel little of it.
inline constexpr std::array<double, kYardsticks.size()> kDisturbance{0.05, 0.1};

// A shared machine is slow for tens of seconds at a time, most of a run if it must be: usual is what the quickest
// twentieth of the repetitions saw.
inline constexpr double kUsualQuantile = 0.05;

struct MachineState {
  std::array<double, kYardsticks.size()> usual_seconds{};  // over the whole run; 0: not measured

  explicit MachineState(const BenchmarkRun& run);
  // The series' repetitions that nothing disturbed. What is usual beside a benchmark may be more than over the run:
  // wide vector instructions lower the clock for a millisecond or so after the benchmark that used them.
  std::vector<Repetition> undisturbed(const Series& series) const;
};

// The benchmarks of a run with less than so many repetitions that nothing disturbed, and the most that one lacks.
struct Lacking {
  std::vector<std::string> names;
  std::size_t repetitions = 0;
};
Lacking lacking_repetitions(const BenchmarkRun& run, std::size_t wanted);

}  // namespace orrery::bench
