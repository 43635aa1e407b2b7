#include "study/validation/published.h"

#include <nlohmann/json.hpp>

#include "sim/base/json_reader.h"
#include "tests/fuzz/targets.h"

void orrery::fuzz::published(std::string_view input) {
  const PublishedSource source = read_published(parse_json(input, "steps/source.json"), "steps/source.json");
  for (const PublishedPoint& point : source.points) {
    require(point.scenario != nullptr || !point.not_predicted.empty(), "a point has a scenario, or says why not");
    value_text(point.quantity, point.value);
  }
}
