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
}
