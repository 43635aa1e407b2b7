#include <nlohmann/json.hpp>

#include "sim/base/json_reader.h"
#include "tests/fuzz/predicted.h"
#include "tests/fuzz/targets.h"

void orrery::fuzz::scenario(std::string_view input) {
  const ScenarioSource source{"scenario.json", {}};
  ScenarioReader reader;
  const JobsDocument document = reader.read_jobs(parse_json(input, source.file), source);
  for (const Job& job : document.jobs) predicted(job.scenario);
}
