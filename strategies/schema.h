// The JSON Schema (draft 2020-12) of scenarios, made from the same tables of fields that read them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace orrery {

nlohmann::ordered_json scenario_schema();

// All fields of a scenario of one job that are called by keys alone, parts included.
struct ScenarioField {
  std::string name;     // "plan.tensor_parallel"
  std::string summary;  // may be empty
};
std::vector<ScenarioField> scenario_fields();

}  // namespace orrery
