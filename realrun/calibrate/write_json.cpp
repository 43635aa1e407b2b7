#include "realrun/calibrate/write_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sim/base/json_writer.h"

namespace orrery {
namespace {

using OrderedJson = nlohmann::ordered_json;

void write(const OrderedJson& json, std::size_t indent, std::string& text) {
  const bool nested =
      json.is_object() && (indent == 0 || std::any_of(json.begin(), json.end(), [](const OrderedJson& value) {
                             return value.is_object() || value.is_string();
                           }));
  const bool list_of_objects = json.is_array() && std::any_of(json.begin(), json.end(), [](const OrderedJson& value) {
                                 return value.is_object();
                               });
  if (!nested && !list_of_objects) {
    text += json_text(json);
    return;
  }
  const std::string pad(indent + 2, ' ');
  text += nested ? "{\n" : "[\n";
  bool first = true;
  for (const auto& [key, value] : json.items()) {
    if (!first) text += ",\n";
    first = false;
    text += pad;
    if (nested) text += json_text(OrderedJson(key)) + ": ";
    write(value, indent + 2, text);
  }
  text += "\n" + std::string(indent, ' ') + (nested ? "}" : "]");
}

}  // namespace

std::string written_json(const OrderedJson& json) {
  std::string text;
  write(json, 0, text);
  return text + "\n";
}

}  // namespace orrery
