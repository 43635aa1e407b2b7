// One field of a plan by its name, as JSON: for fields that users name.
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
// `file`) where no plan has it, with the nearest name.
std::string plan_field_named(std::string_view text, const std::string& file = {});

// REQUIRES: the plan has it.
nlohmann::ordered_json field_of(const Plan& plan, std::string_view field);
// Throws InputError ("/plan/FIELD") where there is no such field, with the nearest name, or where it cannot hold that.
void set_field(Plan& plan, std::string_view field, const nlohmann::json& value);

// As a search counts (strategies/search_axis.h): a count, a flag as 0 or 1, a name's place; none of other fields.
std::optional<std::int64_t> number_of(const Plan& plan, std::string_view field);
// Of all fields.
std::vector<std::string> plan_field_names();

}  // namespace orrery
