// Writes JSON: a table of fields as values, and directly into a text, where a tree of values would cost more than its
// contents.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "sim/base/fields.h"

namespace orrery {

// Returns a value as text, compact or indented. Bytes that are not UTF-8 become U+FFFD, where dump() would throw: a
// path or an argument may be any bytes. Control characters beyond ASCII become escapes, although JSON allows them.
std::string json_text(const nlohmann::json& value, int indent = -1);
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);

// Writes compact JSON with keys in the order of the calls. The calls must nest correctly; this is not checked. Numbers
// read back as equal ones, doubles as doubles (2.0); numbers that JSON lacks become null. Bytes of a text that are not
// UTF-8 become U+FFFD.
class JsonWriter {
 public:
  // Appends to `out`, which must outlive the writer.
  explicit JsonWriter(std::string& out) : out_(out) {}

  void begin_object() { begin('{'); }
  void end_object() { end('}'); }
  void begin_array() { begin('['); }
  void end_array() { end(']'); }
  void key(std::string_view name) {
    value(name);
    out_ += ':';
    comma_ = false;
  }

  void value(double number);
  void value(std::int64_t number);
  void value(std::string_view text);
  void value(const char* text) { value(std::string_view(text)); }
  template <std::same_as<bool> Bool>
  void value(Bool truth) {
    separate();
    out_ += truth ? "true" : "false";
  }

  template <class Value>
  void field(std::string_view name, const Value& its) {
    key(name);
    value(its);
  }
  // `json`: the value, already as JSON.
  void json_field(std::string_view name, std::string_view json) {
    key(name);
    separate();
    out_ += json;
  }

 private:
  void separate() {
    if (comma_) out_ += ',';
    comma_ = true;
  }
  void begin(char bracket) {
    separate();
    out_ += bracket;
    comma_ = false;
  }
  void end(char bracket) {
    out_ += bracket;
    comma_ = true;
  }

  std::string& out_;
  bool comma_ = false;  // whether a comma precedes the next item
};

// The value of a visited field (sim/base/fields.h), in the form that its reader takes.
nlohmann::json field_json(const VisitedField& field, const AnyFieldValue& value);
// Returns whether `value` is an empty text or list. Readers take these for fields that are left out.
bool is_empty_field(const nlohmann::json& value);

// A JSON object of the fields that `visit_fields` visits, or that a struct has, without those that are empty.
nlohmann::json visited_json(const std::function<void(FieldVisitor&)>& visit_fields);
template <class Struct>
auto json_of_fields(Struct its) {  // a copy, because tables of fields take references
  return visited_json([&](FieldVisitor& v) { its.visit_fields(v); });
}

}  // namespace orrery
