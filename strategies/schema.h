// The JSON Schema (draft 2020-12) of scenarios, made from the same tables of fields that read them.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace orrery {

nlohmann::ordered_json scenario_schema();

}  // namespace orrery
