#include "sim/base/fields_json.h"

#include <nlohmann/json.hpp>

namespace orrery {

bool FieldValue::is_empty() const { return value == "" || (value.is_array() && value.empty()); }

void FieldValues::pass(const char* name, const nlohmann::json& value, std::optional<std::int64_t> number) const {
  take_({name, value, number, scope()});
}

void FieldValues::integer(const char* name, std::int64_t& value, IntegerRange, const char*) {
  pass(name, value, value);
}
void FieldValues::number(const char* name, double& value, NumberRange, const char*) { pass(name, value); }
void FieldValues::boolean(const char* name, bool& value, const char*) { pass(name, value, value ? 1 : 0); }
void FieldValues::text(const char* name, std::string& value, const char*) { pass(name, value); }
void FieldValues::integers(const char* name, std::vector<std::int64_t>& value, IntegerRange, const char*) {
  pass(name, value);
}
void FieldValues::choice(const char* name, std::size_t& index, std::span<const std::string_view> names, const char*) {
  pass(name, names[index], static_cast<std::int64_t>(index));
}
void FieldValues::choices(const char* name, std::vector<std::int64_t>& chosen, std::span<const std::string_view> names,
                          const char*) {
  nlohmann::json list = nlohmann::json::array();
  for (const std::int64_t i : chosen) list.push_back(names[static_cast<std::size_t>(i)]);
  pass(name, list);
}

FieldsJson::FieldsJson(nlohmann::json& object)
    : FieldValues([&object](const FieldValue& field) {
        if (!field.is_empty()) object[field.name] = field.value;
      }) {
  object = nlohmann::json::object();
}

}  // namespace orrery
