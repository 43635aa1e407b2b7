#include "realrun/bench/machine_state.h"

#include <algorithm>

#include "sim/base/statistics.h"

namespace orrery::bench {

MachineState::MachineState(const BenchmarkRun& run) {
  for (std::size_t y = 0; y < usual_seconds.size(); ++y) {
    std::vector<double> all;
    for (const Series& series : run.series)
      for (const Repetition& r : series.repetitions)
        if (r.yardstick_seconds[y] > 0) all.push_back(r.yardstick_seconds[y]);
    if (!all.empty()) usual_seconds[y] = quantile(std::move(all), kUsualQuantile);
  }
}

bool MachineState::disturbed(const Repetition& repetition) const {
  for (std::size_t y = 0; y < usual_seconds.size(); ++y)
    if (usual_seconds[y] > 0 && repetition.yardstick_seconds[y] > (1 + kDisturbance[y]) * usual_seconds[y]) return true;
  return false;
}

Lacking lacking_repetitions(const BenchmarkRun& run, std::size_t wanted) {
  const MachineState machine(run);
  Lacking lacking;
  for (const Series& series : run.series) {
    if (!series.error.empty()) continue;
    const auto good =
        static_cast<std::size_t>(std::count_if(series.repetitions.begin(), series.repetitions.end(),
                                               [&](const Repetition& r) { return !machine.disturbed(r); }));
    if (good >= wanted) continue;
    lacking.names.push_back(series.name);
    lacking.repetitions = std::max(lacking.repetitions, wanted - good);
  }
  return lacking;
}

}  // namespace orrery::bench
