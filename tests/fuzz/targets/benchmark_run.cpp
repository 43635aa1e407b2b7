#include "realrun/bench/compare.h"
#include "realrun/bench/run_file.h"
#include "tests/fuzz/targets.h"

void orrery::fuzz::benchmark_run(std::string_view input) {
  const bench::BenchmarkRun run = bench::parse_run(std::string(input), "run.json");
  const bench::Comparison comparison = bench::compare_runs(run, run, {});
  require(comparison.count(bench::Verdict::regression) == 0, "a run is no slower than itself");
  bench::comparison_text(comparison, /*colour=*/false);
  bench::comparison_markdown(comparison);
  bench::comparison_junit(comparison);
  bench::comparison_json(comparison);
  bench::comparison_csv(comparison);
}
