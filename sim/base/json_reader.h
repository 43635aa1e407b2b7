// Strict reading of JSON objects: every key is known, and every value has its type and range. Errors state the file,
// the pointer, what was found, what was expected and the nearest valid name.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/error.h"
#include "sim/base/fields.h"

namespace orrery {

// Parses JSON with // and /* */ comments. Duplicate keys, trailing text and syntax errors are InputErrors that name
// line and column.
nlohmann::json parse_json(std::string_view text, const std::string& file);
// Parses a compiled-in file (sim/base/input_file.h), given by its path in the repository. REQUIRES: the file exists.
nlohmann::json parse_embedded(const char* path);
// Reads and parses a file; "-" is standard input. Throws InputError if it cannot be read.
nlohmann::json parse_json_file(const std::string& path);
// The same for a file that Python's json module may have written. It reads as null the Infinity, -Infinity and NaN that
// this module writes and JSON does not have.
nlohmann::json parse_python_json_file(const std::string& path);

// Parses a value as users type it: text that is not JSON stands for itself.
nlohmann::json json_or_text(const std::string& text);

// Reads one object: first the fields of its structs (visit_fields(reader)) and its nested values (take), then finish().
// Fields that are absent keep their value. Keeps a reference to `object`.
class JsonReader final : public FieldVisitor {
 public:
  // Throws InputError if `object` is not a JSON object.
  JsonReader(const nlohmann::json& object, InputError::Where where);

  // The value of a key that is not a plain field, or nullptr; marks the key as known.
  const nlohmann::json* take(const char* name);
  bool has(const char* name) const;
  // As take(), for a value that must be there. Throws InputError if it is not; `expected` says what should be there.
  const nlohmann::json& need(const char* name, const char* expected);
  // Reads the object `name`, if it is there: all keys for which `read(JsonReader&)` asks. `needed`: if given, the
  // object must be there, and an error says that this was expected.
  template <class Read>
  void object(const char* name, Read&& read, const char* needed = nullptr) {
    const nlohmann::json* const value = needed != nullptr ? &need(name, needed) : take(name);
    if (value == nullptr) return;
    JsonReader reader(*value, at(name));
    read(reader);
    reader.finish();
  }
  // Reads the objects of the array `name`, which must be there, each as object() does. `expected`: what it holds.
  void each(const char* name, const char* expected, const std::function<void(JsonReader&)>& read);
  // The value of a single field; 0 or empty if it is absent. `needed`: throws InputError if the text is absent or
  // empty.
  double number(const char* name, NumberRange range = {});
  std::string text(const char* name, bool needed = false);
  // From now on the object is one for a range of layers. finish() then refuses fields of a wider scope and states the
  // scope as the reason, and refuses a range that sets no field of its own.
  void begin_layers() { of_layers_ = true; }
  // Throws InputError for the first key that nobody has asked for, with the nearest known name. Documentation keys are
  // always accepted.
  void finish() const;

  InputError::Where at(std::string_view key) const;  // this object's place, extended by `key`
  [[noreturn]] void fail(std::string_view key, std::string expected, std::string nearest = {}) const;

 private:
  struct Refused {
    std::string name;
    Scope scope;
  };
  void visit(const VisitedField& field, AnyFieldPointer value) override;
  const nlohmann::json* value_of(const VisitedField& field);
  [[noreturn]] void refuse(const Refused& field) const;

  const nlohmann::json& object_;
  InputError::Where where_;
  std::vector<std::string> known_;
  bool of_layers_ = false;
  std::vector<std::string> of_layer_;  // fields that a range of layers may set
  std::vector<Refused> refused_;
};

// Keys that document a file and change nothing: "source", "note", ...
std::span<const std::string_view> documentation_keys();

// `pointer` (RFC 6901) extended by a key.
std::string pointer_to(const std::string& pointer, std::string_view key);

// A short rendering of a value for messages: 3, "abc", an object, an array of 4.
std::string describe(const nlohmann::json& value);

// Splits a JSON object's text into its members, without parsing their values.
struct JsonMember {
  std::string_view key, text;  // views of the object's text; the key without its quotes
};

// Fills `members` with the members of the JSON object `object`. Returns false if this needs a real parser: the text is
// not an object, is not well-formed as far as this looks, or has keys with escapes, repeated keys or comments. Values
// are skipped, not checked: they may be invalid inside.
bool split_members(std::string_view object, std::vector<JsonMember>& members);

}  // namespace orrery
