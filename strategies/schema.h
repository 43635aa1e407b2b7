// The JSON Schema (draft 2020-12) of scenarios, generated from the tables of fields that also read them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace orrery {

nlohmann::ordered_json scenario_schema();

// A field of a scenario of one job, including the fields of its model, cluster, workload and plan. Fields of list
// entries are left out: a name consists of object keys only.
struct ScenarioField {
  std::string name;     // "plan.tensor_parallel"
  std::string summary;  // may be empty
};
std::vector<ScenarioField> scenario_fields();

}  // namespace orrery
