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

nlohmann::json field_json(const VisitedField& field, const AnyFieldValue& value) {
  const auto name_of = [&](auto index) { return field.names[static_cast<std::size_t>(index)]; };
  return std::visit(
      [&](const auto& its) -> nlohmann::json {
        using Value = std::decay_t<decltype(its)>;
        if constexpr (std::is_same_v<Value, std::size_t>) return name_of(its);
        if constexpr (std::is_same_v<Value, std::vector<std::int64_t>>) {
          if (!field.names.empty()) {
            nlohmann::json list = nlohmann::json::array();
            for (const std::int64_t chosen : its) list.push_back(name_of(chosen));
            return list;
          }
        }
        return its;
      },
      value);
}

bool is_empty_field(const nlohmann::json& value) { return value == "" || (value.is_array() && value.empty()); }

nlohmann::json visited_json(const std::function<void(FieldVisitor&)>& visit_fields) {
  nlohmann::json object = nlohmann::json::object();
  EachField each([&](const VisitedField& field, const auto& value) {
    nlohmann::json json = field_json(field, value);
    if (!is_empty_field(json)) object[field.name] = std::move(json);
  });
  visit_fields(each);
  return object;
}

}  // namespace orrery
