#include <nlohmann/json.hpp>

#include "sim/base/json_reader.h"
#include "tests/fuzz/predicted.h"
#include "tests/fuzz/targets.h"

void orrery::fuzz::scenario_sets(std::string_view input) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < input.size() && lines.size() < 8;) {
    const std::size_t end = std::min(input.find('\n', begin), input.size());
    lines.emplace_back(input.substr(begin, end - begin));
    begin = end + 1;
  }
  if (lines.empty() || lines.front() == "-") return;  // standard input is the fuzzer's
  ScenarioSource source;
  const std::vector<std::string> sets(lines.begin() + 1, lines.end());
  const nlohmann::json document = load_scenario_document(lines.front(), sets, source);
  ScenarioReader reader;
  const JobsDocument jobs = reader.read_jobs(document, source);
  for (const Job& job : jobs.jobs) predicted(job.scenario);
}
