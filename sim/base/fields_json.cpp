#include "sim/base/fields_json.h"

#include <nlohmann/json.hpp>

namespace orrery {

FieldsJson::FieldsJson(nlohmann::json& object) : object_(object) { object_ = nlohmann::json::object(); }

void FieldsJson::integer(const char* name, std::int64_t& value, IntegerRange, const char*) { object_[name] = value; }
void FieldsJson::number(const char* name, double& value, NumberRange, const char*) { object_[name] = value; }
void FieldsJson::boolean(const char* name, bool& value, const char*) { object_[name] = value; }
void FieldsJson::text(const char* name, std::string& value, const char*) {
  if (!value.empty()) object_[name] = value;
}
void FieldsJson::integers(const char* name, std::vector<std::int64_t>& value, IntegerRange, const char*) {
  if (!value.empty()) object_[name] = value;
}
void FieldsJson::choice(const char* name, std::size_t& index, std::span<const std::string_view> names, const char*) {
  object_[name] = names[index];
}
void FieldsJson::choices(const char* name, std::vector<std::int64_t>& chosen, std::span<const std::string_view> names,
                         const char*) {
  for (const std::int64_t i : chosen) object_[name].push_back(names[static_cast<std::size_t>(i)]);
}

}  // namespace orrery
