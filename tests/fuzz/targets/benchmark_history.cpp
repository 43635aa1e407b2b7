#include "realrun/bench/drift.h"
#include "realrun/bench/history.h"
#include "tests/fuzz/file_of_input.h"
#include "tests/fuzz/targets.h"

void orrery::fuzz::benchmark_history(std::string_view input) {
  const FileOfInput file(input);
  const bench::History history(file.path(), bench::History::Mode::read);
  history.runs();
  for (const std::string& name : history.benchmarks()) {
    const std::vector<bench::HistoryPoint> points = history.points(name);
    bench::history_text(name, points);
    bench::history_csv(name, points);
    bench::history_json(name, points);
    bench::history_svg(name, points);
  }
  constexpr std::size_t kRuns = 10;
  const bench::Drift drift = bench::find_drift(history.last_runs(kRuns), {});
  bench::drift_text(drift, /*colour=*/false);
  bench::drift_markdown(drift);
  bench::drift_json(drift);
  bench::drift_csv(drift);
}
