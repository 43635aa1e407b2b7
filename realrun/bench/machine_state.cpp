#include "realrun/bench/machine_state.h"

#include <algorithm>
#include <span>

#include "sim/base/statistics.h"

namespace orrery::bench {

namespace {

// 0: not measured.
double usual(std::size_t yardstick, std::span<const Series> all) {
  std::vector<double> seconds;
  for (const Series& series : all)
    for (const Repetition& r : series.repetitions)
      if (r.yardstick_seconds[yardstick] > 0) seconds.push_back(r.yardstick_seconds[yardstick]);
  return seconds.empty() ? 0 : quantile(std::move(seconds), kUsualQuantile);
}

}  // namespace

MachineState::MachineState(const BenchmarkRun& run) {
  for (std::size_t y = 0; y < usual_seconds.size(); ++y) usual_seconds[y] = usual(y, run.series);
}

std::vector<Repetition> MachineState::undisturbed(const Series& series) const {
  std::vector<Repetition> good = series.repetitions;
  for (std::size_t y = 0; y < usual_seconds.size(); ++y) {
    const double most = (1 + kDisturbance[y]) * std::max(usual_seconds[y], usual(y, {&series, 1}));
    if (most > 0) std::erase_if(good, [&](const Repetition& r) { return r.yardstick_seconds[y] > most; });
  }
  return good;
}

Lacking lacking_repetitions(const BenchmarkRun& run, std::size_t wanted) {
  const MachineState machine(run);
  Lacking lacking;
  for (const Series& series : run.series) {
    if (!series.error.empty()) continue;
    const std::size_t good = machine.undisturbed(series).size();
    if (good >= wanted) continue;
    lacking.names.push_back(series.name);
    lacking.repetitions = std::max(lacking.repetitions, wanted - good);
  }
  return lacking;
}

}  // namespace orrery::bench
