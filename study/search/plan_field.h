// Access to one field of a plan by its name, as JSON: for fields that users name.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "strategies/plan.h"

namespace orrery {

// The field that a user means by "tensor_parallel" or "plan.tensor_parallel". Throws InputError ("/plan/FIELD" of
// `file`) with the nearest name if plans have no such field.
std::string plan_field_named(std::string_view text, const std::string& file = {});

// REQUIRES: the plan has the field.
nlohmann::ordered_json field_of(const Plan& plan, std::string_view field);
// Throws InputError ("/plan/FIELD") if there is no such field, with the nearest name, or if it cannot hold the value.
void set_field(Plan& plan, std::string_view field, const nlohmann::json& value);

// The value as a search counts it (strategies/strategy.h): a count; 0 or 1 for a flag; the index of a name. Nothing
// for other fields.
std::optional<std::int64_t> number_of(const Plan& plan, std::string_view field);
// The names of all fields.
std::vector<std::string> plan_field_names();

}  // namespace orrery
