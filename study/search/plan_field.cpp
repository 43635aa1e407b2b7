#include "study/search/plan_field.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sim/base/error.h"
#include "sim/base/json_reader.h"
#include "sim/base/json_writer.h"

namespace orrery {
namespace {

struct WrittenField {
  nlohmann::ordered_json value;
  std::optional<std::int64_t> number;
  std::vector<std::string> all;  // names of all fields
};

WrittenField written(Plan plan, std::string_view name) {
  WrittenField result;
  FieldValues values([&](const FieldValue& field) {
    result.all.emplace_back(field.name);
    if (field.name != name) return;
    result.value = field.value;
    result.number = field.number;
  });
  plan.visit_fields(values);
  return result;
}

}  // namespace

std::string plan_field_named(std::string_view text, const std::string& file) {
  constexpr std::string_view kPlan = "plan.";
  std::string field(text.starts_with(kPlan) ? text.substr(kPlan.size()) : text);
  const std::vector<std::string> names = plan_field_names();
  if (std::find(names.begin(), names.end(), field) == names.end())
    throw InputError({file, "/plan/" + field}, "no field of a plan", "one of them (orrery list fields)",
                     nearest_name(field, names));
  return field;
}

nlohmann::ordered_json field_of(const Plan& plan, std::string_view field) { return written(plan, field).value; }

std::optional<std::int64_t> number_of(const Plan& plan, std::string_view field) { return written(plan, field).number; }

std::vector<std::string> plan_field_names() { return written({}, "").all; }

void set_field(Plan& plan, std::string_view field, const nlohmann::json& value) {
  const nlohmann::json object{{std::string(field), value}};
  JsonReader reader(object, {"", "/plan"});
  plan.visit_fields(reader);
  reader.finish();
}

}  // namespace orrery
