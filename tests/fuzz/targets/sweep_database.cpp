#include "study/sweep/comparison.h"
#include "study/sweep/results.h"
#include "tests/fuzz/file_of_input.h"
#include "tests/fuzz/targets.h"

void orrery::fuzz::sweep_database(std::string_view input) {
  const FileOfInput file(input);
  const SweepComparison same = compare_sweeps(file.path(), file.path(), {});
  require(same.alike() && same.only_in_b.empty(), "a database is like itself");
  constexpr std::size_t kMost = 20;
  sweep_comparison_text(same, kMost);
  sweep_comparison_json(same);
  sweep_comparison_csv(same);
  const SweepResults results(file.path(), Database::Mode::read);
  const std::vector<std::string> names = results.names(0);
  std::int64_t rows = 0;
  results.for_each(0, names, /*as_json=*/true, [&](const std::string& row) {
    require(nlohmann::json::accept(row), "a row is JSON");
    ++rows;
  });
  require(rows <= results.count(0), "each row is of a point");
  results.for_each(0, names, /*as_json=*/false, [&](const std::string&) { --rows; });
  require(rows == 0, "as CSV there are as many rows");
}
