#include <nlohmann/json.hpp>

#include "sim/base/json_reader.h"
#include "tests/fuzz/predicted.h"
#include "tests/fuzz/targets.h"

// A line that is read by its parts is the scenario that the whole document is.
void orrery::fuzz::scenario_lines(std::string_view input) {
  ScenarioReader reader;
  ScenarioSource source{"scenarios.jsonl", {}};
  for (std::size_t begin = 0, lines = 0; begin < input.size() && lines < 2; ++lines) {
    const std::size_t end = std::min(input.find('\n', begin), input.size());
    const std::string_view line = input.substr(begin, end - begin);
    begin = end + 1;
    const std::optional<ScenarioReader::Parts> read = reader.read_parts(line, source);
    if (!read) continue;  // it takes read() to tell
    const Scenario by_parts{.model = *read->model,
                            .cluster = *read->cluster,
                            .workload = *read->workload,
                            .plan = *read->plan,
                            .perturbations = {}};
    const nlohmann::json document = parse_json(line, source.file);
    require(read->digest == scenario_digest(written_out(document, source)), "a line's digest is that of its document");
    const Scenario whole = reader.read(document, source);
    std::string a, b;
    try {
      a = predicted(by_parts);
    } catch (const InputError& error) {
      a = error.what();
    }
    try {
      b = predicted(whole);
    } catch (const InputError& error) {
      b = error.what();
    }
    require(a == b, "a line read by its parts is the scenario of its document");
  }
}
