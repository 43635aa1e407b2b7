// Writes JSON: a table of fields as values, and directly into a text, where a tree of values would cost more than its
// contents.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

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

// Reads a table of fields (sim/base/fields.h) as JSON values, in the form that its reader takes.
struct FieldValue {
  const char* name;
  const nlohmann::json& value;
  std::optional<std::int64_t> number;  // of integers, truths (0, 1) and enumerators
  Scope scope;

  bool is_empty() const;  // an empty text or list, the readers' default
};

// Calls `take` for each field that it visits.
class FieldValues : public FieldVisitor {
 public:
  explicit FieldValues(std::function<void(const FieldValue&)> take) : take_(std::move(take)) {}

 protected:
  void integer(const char*, std::int64_t&, IntegerRange, const char*) override;
  void number(const char*, double&, NumberRange, const char*) override;
  void boolean(const char*, bool&, const char*) override;
  void text(const char*, std::string&, const char*) override;
  void integers(const char*, std::vector<std::int64_t>&, IntegerRange, const char*) override;
  void choice(const char*, std::size_t&, std::span<const std::string_view>, const char*) override;
  void choices(const char*, std::vector<std::int64_t>&, std::span<const std::string_view>, const char*) override;

 private:
  void pass(const char* name, const nlohmann::json& value, std::optional<std::int64_t> number = {}) const;

  std::function<void(const FieldValue&)> take_;
};

// Makes `object` a JSON object of the fields that it visits, without empty texts and lists.
class FieldsJson final : public FieldValues {
 public:
  explicit FieldsJson(nlohmann::json& object);
};

}  // namespace orrery
