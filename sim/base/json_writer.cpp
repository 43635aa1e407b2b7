#include "sim/base/json_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "sim/base/one_line.h"

namespace orrery {
namespace {

template <class Json>
std::string dumped(const Json& value, int indent) {
  return written_out(value.dump(indent, ' ', false, Json::error_handler_t::replace), "\n", true);
}

}  // namespace

std::string json_text(const nlohmann::json& value, int indent) { return dumped(value, indent); }
std::string json_text(const nlohmann::ordered_json& value, int indent) { return dumped(value, indent); }

void JsonWriter::value(double number) {
  separate();
  if (!std::isfinite(number)) {
    out_ += "null";
    return;
  }
  const std::size_t begin = out_.size();
  fmt::format_to(std::back_inserter(out_), "{}", number);
  if (out_.find_first_of(".e", begin) == std::string::npos) out_ += ".0";
}

void JsonWriter::value(std::int64_t number) {
  separate();
  fmt::format_to(std::back_inserter(out_), "{}", number);
}

void JsonWriter::value(std::string_view text) {
  separate();
  const bool plain =
      std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; });
  if (plain) {
    out_ += '"';
    out_ += text;
    out_ += '"';
  } else {
    out_ += json_text(nlohmann::json(text));
  }
}

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
