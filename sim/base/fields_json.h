// Reads a table of fields (sim/base/fields.h) as JSON values, in the form that its reader takes.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>

#include "sim/base/fields.h"

namespace orrery {

struct FieldValue {
  const char* name;
  const nlohmann::json& value;
  std::optional<std::int64_t> number;  // of integers, truths (0, 1) and enumerators
  Scope scope;

  // Whether it is an empty text or list, the readers' default.
  bool is_empty() const { return value == "" || (value.is_array() && value.empty()); }
};

// Returns a visitor that calls take(FieldValue) for each field.
template <class Take>
auto field_values(Take take) {
  return EachField([take](const VisitedField& field, const auto& value) {
    using Value = std::decay_t<decltype(value)>;
    nlohmann::json json = value;
    std::optional<std::int64_t> number;
    if constexpr (std::is_integral_v<Value>) number = static_cast<std::int64_t>(value);
    if constexpr (std::is_same_v<Value, std::size_t>) json = field.names[value];
    if constexpr (std::is_same_v<Value, std::vector<std::int64_t>>)
      for (std::size_t i = 0; i < value.size() && !field.names.empty(); ++i)
        json[i] = field.names[static_cast<std::size_t>(value[i])];
    take(FieldValue{field.name, json, number, field.scope});
  });
}

// Returns a visitor that makes `object` a JSON object of the fields, without empty texts and lists.
inline auto fields_json(nlohmann::json& object) {
  object = nlohmann::json::object();
  return field_values([&object](const FieldValue& field) {
    if (!field.is_empty()) object[field.name] = field.value;
  });
}

}  // namespace orrery
