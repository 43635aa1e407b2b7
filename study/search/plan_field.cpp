#include "study/search/plan_field.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sim/base/error.h"
#include "sim/base/json_reader.h"
#include "sim/base/json_writer.h"

namespace orrery {

std::string plan_field_named(std::string_view text, const std::string& file) {
  constexpr std::string_view kPlan = "plan.";
  std::string field(text.starts_with(kPlan) ? text.substr(kPlan.size()) : text);
  const std::vector<std::string> names = plan_field_names();
  if (std::find(names.begin(), names.end(), field) == names.end())
    throw InputError({file, "/plan/" + field}, "no field of a plan", "one of them (orrery list fields)",
                     nearest_name(field, names));
  return field;
}

nlohmann::ordered_json field_of(const Plan& plan, std::string_view name) {
  nlohmann::ordered_json json;
  for_each_field(plan, [&](const VisitedField& field, const auto& value) {
    if (field.name == name) json = field_json(field, value);
  });
  return json;
}

std::optional<std::int64_t> number_of(const Plan& plan, std::string_view name) {
  std::optional<std::int64_t> number;
  for_each_field(plan, [&](const VisitedField& field, const auto& value) {
    if constexpr (std::is_integral_v<std::decay_t<decltype(value)>>)
      if (field.name == name) number = static_cast<std::int64_t>(value);
  });
  return number;
}

std::vector<std::string> plan_field_names() {
  std::vector<std::string> names;
  for_each_field(Plan(), [&](const VisitedField& field, const auto&) { names.emplace_back(field.name); });
  return names;
}

void set_field(Plan& plan, std::string_view field, const nlohmann::json& value) {
  const nlohmann::json object{{std::string(field), value}};
  JsonReader reader(object, {"", "/plan"});
  plan.visit_fields(reader);
  reader.finish();
}

}  // namespace orrery
