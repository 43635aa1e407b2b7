#include "sim/base/json_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "sim/base/input_file.h"
#include "sim/base/json_writer.h"
#include "sim/base/one_line.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

std::string line_and_column(std::string_view text, std::size_t offset) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t line_start = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  return fmt::format("line {}, column {}", line, before.size() - line_start + 1);
}

// Rewrites the library's "[...] parse error at line 1, column 2: syntax error while parsing value - unexpected ']';
// expected ...".
InputError syntax_error(const Json::parse_error& error, std::string_view text, const std::string& file) {
  std::string_view message = error.what();
  for (const std::string_view lead : {"] ", "column ", ": ", " - "})
    if (const auto at = message.find(lead); at != std::string_view::npos) message.remove_prefix(at + lead.size());
  std::string_view expected = "valid JSON";
  if (const auto at = message.find("; expected "); at != std::string_view::npos) {
    expected = message.substr(at + 11);
    message = message.substr(0, at);
  }
  const std::size_t offset = error.byte > 0 ? error.byte - 1 : 0;
  return InputError({file, ""}, fmt::format("a syntax error at {} ({})", line_and_column(text, offset), message),
                    std::string(expected));
}

constexpr int kMostDepth = 200;

bool is_documentation(std::string_view key) {
  return std::ranges::find(documentation_keys(), key) != documentation_keys().end();
}

}  // namespace

Json parse_json(std::string_view text, const std::string& file) {
  std::istringstream characters{std::string(text)};
  // The parser's callback does not get the position.
  const auto offset = [&] {
    return static_cast<std::size_t>(characters.rdbuf()->pubseekoff(0, std::ios::cur, std::ios::in)) - 1;
  };
  std::vector<std::set<std::string, std::less<>>> open_objects;
  const auto callback = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMostDepth)
      throw InputError({file, ""}, fmt::format("values nested {} deep", depth), fmt::format("at most {}", kMostDepth));
    if (event == Json::parse_event_t::object_start) {
      open_objects.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      open_objects.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_objects.back().insert(key).second)
        throw InputError(
            {file, ""},
            fmt::format("the key {} a second time at {}", describe(parsed), line_and_column(text, offset())),
            "each key once");
    }
    return true;
  };
  try {
    return Json::parse(characters, callback, /*allow_exceptions=*/true, /*ignore_comments=*/true);
  } catch (const Json::parse_error& error) {
    throw syntax_error(error, text, file);
  } catch (const Json::exception&) {  // the only other one: a number beyond the range of a double
    throw InputError({file, ""}, "a number too large at " + line_and_column(text, offset()), "a number of 64 bits");
  }
}

nlohmann::json parse_embedded(const char* path) { return parse_json(embedded_files(path).front().text, path); }

Json parse_json_file(const std::string& path) {
  return parse_json(read_file(path, "a readable JSON file"), path == "-" ? "<stdin>" : path);
}

Json parse_python_json_file(const std::string& path) {
  const std::string text = read_file(path, "a readable JSON file");
  std::string strict;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size();) {
    const std::string_view rest = std::string_view(text).substr(i);
    std::size_t taken = 1;
    if (in_string) {
      if (text[i] == '\\' && rest.size() > 1) taken = 2;
      in_string = text[i] != '"';
    } else {
      in_string = text[i] == '"';
      for (const std::string_view word : {"-Infinity", "Infinity", "NaN"})
        if (rest.starts_with(word)) taken = word.size();
    }
    strict += taken > 2 ? std::string_view("null") : rest.substr(0, taken);
    i += taken;
  }
  return parse_json(strict, path == "-" ? "<stdin>" : path);
}

Json json_or_text(const std::string& text) {
  Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_discarded() ? Json(text) : value;
}

JsonReader::JsonReader(const Json& object, InputError::Where where) : object_(object), where_(std::move(where)) {
  if (!object.is_object()) throw InputError(where_, describe(object), "an object");
}

const Json* JsonReader::take(const char* name) {
  known_.emplace_back(name);
  const auto at = object_.find(name);
  return at == object_.end() ? nullptr : &*at;
}

const Json& JsonReader::need(const char* name, const char* expected) {
  const Json* const value = take(name);
  if (value == nullptr) fail(name, expected);
  return *value;
}

void JsonReader::each(const char* name, const char* expected, const std::function<void(JsonReader&)>& read) {
  const Json& values = need(name, expected);
  if (!values.is_array()) fail(name, expected);
  for (std::size_t i = 0; i < values.size(); ++i) {
    JsonReader reader(values[i], {where_.file, pointer_to(at(name).pointer, std::to_string(i))});
    read(reader);
    reader.finish();
  }
}

double JsonReader::number(const char* name, NumberRange range) {
  double value = 0;
  field(name, value, range, "");
  return value;
}

std::string JsonReader::text(const char* name, bool needed) {
  std::string value;
  field(name, value, "");
  if (needed && value.empty()) fail(name, "a text");
  return value;
}

bool JsonReader::has(const char* name) const { return object_.contains(name); }

const Json* JsonReader::value_of(const VisitedField& field) {
  if (!of_layers_) return take(field.name);
  if (field.scope != Scope::layer) {
    if (has(field.name)) refused_.push_back({field.name, field.scope});
    return nullptr;
  }
  of_layer_.emplace_back(field.name);
  return take(field.name);
}

namespace {

const char* reason(Scope scope) {
  switch (scope) {
    case Scope::mesh:
      return "all layers share one mesh";
    case Scope::stream:
      return "all layers divide the residual stream in the same way";
    case Scope::buckets:
      return "buckets of gradients span several layers";
    default:
      return "it holds for the whole step";
  }
}

// The reader's keys; it may have been asked for one of them twice.
std::string joined_once(const std::vector<std::string>& keys) {
  std::vector<std::string> once;
  for (const std::string& key : keys)
    if (std::ranges::find(once, key) == once.end()) once.push_back(key);
  return fmt::format("{}", fmt::join(once, ", "));
}

}  // namespace

void JsonReader::refuse(const Refused& field) const {
  fail(field.name, fmt::format("no {} for a range of layers: {}; ranges may give {}", field.name, reason(field.scope),
                               joined_once(known_)));
}

void JsonReader::finish() const {
  if (!refused_.empty()) refuse(refused_.front());
  for (const auto& [key, value] : object_.items()) {
    if (std::ranges::find(known_, key) != known_.end() || is_documentation(key)) continue;
    const std::string nearest = nearest_name(key, known_);
    const std::string found = "the unknown key " + describe(Json(key));
    if (nearest.empty()) throw InputError(at(key), found, "one of: " + joined_once(known_));
    throw InputError(at(key), found, "a known key", nearest);
  }
  const auto given = [&](const std::string& field) { return has(field.c_str()); };
  if (of_layers_ && std::none_of(of_layer_.begin(), of_layer_.end(), given))
    throw InputError(where_, "a range of layers that changes no field",
                     fmt::format("the fields that differ there, one of: {}", fmt::join(of_layer_, ", ")));
}

InputError::Where JsonReader::at(std::string_view key) const { return {where_.file, pointer_to(where_.pointer, key)}; }

void JsonReader::fail(std::string_view key, std::string expected, std::string nearest) const {
  const auto value = object_.find(std::string(key));
  throw InputError(at(key), value == object_.end() ? "nothing" : describe(*value), std::move(expected),
                   std::move(nearest));
}

namespace {

std::string phrase(IntegerRange range) {
  if (range.most == std::numeric_limits<std::int64_t>::max())
    return fmt::format("an integer of at least {}", range.least);
  return fmt::format("an integer from {} to {}", range.least, range.most);
}

std::string phrase(NumberRange range) {
  const std::string none = range.or_zero ? "0 or " : "";
  const std::string least =
      fmt::format("{}a number {} {}", none, range.exclude_least ? "greater than" : "of at least", range.least);
  if (range.most == std::numeric_limits<double>::max()) return least;
  if (range.exclude_least) return fmt::format("{} and at most {}", least, range.most);
  return fmt::format("{}a number from {} to {}", none, range.least, range.most);
}

// As in JSON Schema, 8.0 is the integer 8.
bool read_integer(const Json& json, IntegerRange range, std::int64_t& value) {
  constexpr double kExact = 9007199254740992.0;  // 2^53: beyond it a double has lost units
  if (json.is_number_unsigned()) {
    const auto number = json.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return false;
    value = static_cast<std::int64_t>(number);
  } else if (json.is_number_integer()) {
    value = json.get<std::int64_t>();
  } else if (json.is_number_float()) {
    const double number = json.get<double>();
    if (std::trunc(number) != number || std::fabs(number) > kExact) return false;
    value = static_cast<std::int64_t>(number);
  } else {
    return false;
  }
  return value >= range.least && value <= range.most;
}

// Reads the value of a field, by its type.
struct FieldValueReader {
  const JsonReader& reader;
  const VisitedField& field;
  const Json& json;

  [[noreturn]] void fail(std::string expected, std::string nearest = {}) const {
    reader.fail(field.name, std::move(expected), std::move(nearest));
  }
  [[noreturn]] void fail_at(std::size_t i, std::string expected, std::string nearest = {}) const {
    auto where = reader.at(field.name);
    where.pointer += '/' + std::to_string(i);
    throw InputError(std::move(where), describe(json[i]), std::move(expected), std::move(nearest));
  }

  void operator()(std::int64_t* value) const {
    std::int64_t read = 0;
    if (!read_integer(json, field.integers, read)) fail(phrase(field.integers));
    *value = read;
  }
  void operator()(double* value) const {
    const NumberRange range = field.numbers;
    if (!json.is_number()) fail(phrase(range));
    const double read = json.get<double>();
    const bool enough = range.exclude_least ? read > range.least : read >= range.least;
    const bool none = range.or_zero && read == 0;
    if (!none && (!enough || read > range.most)) fail(phrase(range));
    *value = read;
  }
  void operator()(bool* value) const {
    if (!json.is_boolean()) fail("true or false");
    *value = json.get<bool>();
  }
  void operator()(std::string* value) const {
    if (!json.is_string()) fail("a string");
    const auto& read = json.get_ref<const std::string&>();
    std::string words = read;
    if (is_documentation(field.name))  // prose may have several lines
      std::ranges::replace_if(
          words, [](char c) { return c == '\n' || c == '\t'; }, ' ');
    // Names appear in titles and cells of tables, on terminals and in files.
    if (has_control_characters(words)) fail("a text without control characters");
    *value = read;
  }
  void operator()(std::vector<std::int64_t>* value) const {
    if (!field.names.empty()) return read_choices(*value);
    if (!json.is_array()) fail("an array of integers");
    std::vector<std::int64_t> read(json.size());
    for (std::size_t i = 0; i < read.size(); ++i)
      if (!read_integer(json[i], field.integers, read[i])) fail_at(i, phrase(field.integers));
    *value = std::move(read);
  }
  void operator()(std::size_t* index) const {
    const auto expected = [&] { return fmt::format("one of \"{}\"", fmt::join(field.names, "\", \"")); };
    if (!json.is_string()) fail(expected());
    const auto& wanted = json.get_ref<const std::string&>();
    const auto at = std::ranges::find(field.names, wanted);
    if (at == field.names.end()) fail(expected(), nearest_name(wanted, field.names));
    *index = static_cast<std::size_t>(at - field.names.begin());
  }

  void read_choices(std::vector<std::int64_t>& chosen) const {
    const std::string expected =
        fmt::format("an array of names, each once, of \"{}\"", fmt::join(field.names, "\", \""));
    if (!json.is_array()) fail(expected);
    std::vector<std::int64_t> read;
    for (std::size_t i = 0; i < json.size(); ++i) {
      const std::string wanted = json[i].is_string() ? json[i].get<std::string>() : describe(json[i]);
      const auto at = std::ranges::find(field.names, wanted);
      const auto number = static_cast<std::int64_t>(at - field.names.begin());
      if (!json[i].is_string() || at == field.names.end() || std::ranges::find(read, number) != read.end())
        fail_at(i, expected, at == field.names.end() ? nearest_name(wanted, field.names) : "");
      read.push_back(number);
    }
    std::sort(read.begin(), read.end());
    chosen = std::move(read);
  }
};

}  // namespace

void JsonReader::visit(const VisitedField& field, AnyFieldPointer value) {
  if (const Json* const json = value_of(field)) std::visit(FieldValueReader{*this, field, *json}, value);
}

std::span<const std::string_view> documentation_keys() {
  static constexpr std::array<std::string_view, 5> keys{"$schema", "comment", "note", "source", "sources"};
  return keys;
}

std::string pointer_to(const std::string& pointer, std::string_view key) {
  constexpr std::size_t kLongest = 200;  // longer than any field; the beginning of a longer one shows its place
  return pointer + '/' + escaped(clipped(key, kLongest), {{'~', "~0"}, {'/', "~1"}});
}

std::string describe(const Json& value) {
  if (value.is_object()) return value.empty() ? "an empty object" : "an object";
  if (value.is_array()) return value.empty() ? "an empty array" : fmt::format("an array of {}", value.size());
  if (!value.is_string()) return json_text(value);
  constexpr std::size_t kLongest = 60;
  return Json(clipped(value.get_ref<const std::string&>(), kLongest))
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

namespace {

constexpr std::string_view kSpace = " \t\r\n";

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool take(char c) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool at_end() {
    skip_space();
    return at_ == text_.size();
  }

  // Reads a string, without its quotes. Returns false if it does not end.
  bool text(std::string_view& inside) {
    if (!take('"')) return false;
    const std::size_t begin = at_;
    for (;; ++at_) {
      at_ = text_.find_first_of("\"\\", at_);
      if (at_ == std::string_view::npos) return false;
      if (text_[at_] == '"') break;
      if (++at_ == text_.size()) return false;  // the escaped character
    }
    inside = text_.substr(begin, at_++ - begin);
    return true;
  }

  // Skips any value, up to the comma or brace after it.
  bool value(std::string_view& whole) {
    skip_space();
    const std::size_t begin = at_;
    std::size_t depth = 0, end = begin;
    std::string_view ignored;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (depth == 0 && (c == ',' || c == '}')) break;
      if (c == '/') return false;  // a comment
      if (c == '"') {
        if (!text(ignored)) return false;
      } else {
        if (c == '{' || c == '[') ++depth;
        if ((c == '}' || c == ']') && depth-- == 0) return false;
        ++at_;
      }
      if (kSpace.find(c) == std::string_view::npos) end = at_;
    }
    whole = text_.substr(begin, end - begin);
    return !whole.empty() && depth == 0;
  }

 private:
  void skip_space() { at_ = std::min(text_.find_first_not_of(kSpace, at_), text_.size()); }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

bool split_members(std::string_view object, std::vector<JsonMember>& members) {
  members.clear();
  Scanner scanner(object);
  if (!scanner.take('{')) return false;
  if (scanner.take('}')) return scanner.at_end();
  do {
    JsonMember member;
    if (!scanner.text(member.key) || member.key.find('\\') != std::string_view::npos) return false;
    const auto same = [&](const JsonMember& other) { return other.key == member.key; };
    if (std::any_of(members.begin(), members.end(), same)) return false;
    if (!scanner.take(':') || !scanner.value(member.text)) return false;
    members.push_back(member);
  } while (scanner.take(','));
  return scanner.take('}') && scanner.at_end();
}

}  // namespace orrery
