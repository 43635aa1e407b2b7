// Splits texts into lines, words and numbers, and reads single-word arguments: sizes, shares, lists.
#pragma once

#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace orrery {

inline std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

// Returns the parts between separators. There is at least one part: an empty text has one empty part.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// Removes the first line from `text` and returns it without its end (a line feed, with or without a carriage return
// before it). Returns nothing if `text` is empty. The last line need not have an end.
inline std::optional<std::string_view> next_line(std::string_view& text) {
  if (text.empty()) return {};
  const std::size_t end = text.find('\n');
  std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

// Returns the parts between blanks; none of them is empty.
inline std::vector<std::string> words_of(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\v\f\r\n";
  std::vector<std::string> words;
  for (std::size_t at = 0; (at = line.find_first_not_of(kBlanks, at)) != std::string_view::npos;) {
    const std::size_t end = line.find_first_of(kBlanks, at);
    words.emplace_back(line.substr(at, end - at));
    at = end == std::string_view::npos ? line.size() : end;
  }
  return words;
}

// Returns the line without the escape sequences that colour or underline text on a terminal.
inline std::string without_escapes(std::string_view line) {
  std::string text;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b' && i + 1 < line.size() && line[i + 1] == '[') {
      i += 2;
      while (i < line.size() && (line[i] < '@' || line[i] > '~')) ++i;
    } else {
      text += line[i];
    }
  }
  return text;
}

// Returns the whole text as a decimal number; nothing if it is not one, is infinite or does not fit into a Number.
template <class Number = std::int64_t>
std::optional<Number> number_of(std::string_view text) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return {};
  if (!std::isfinite(static_cast<double>(number))) return {};
  return number;
}

// Bytes from "8", "64M", "70.5GiB", "8g", in powers of 1024 as in nccl-tests. Nothing if the text is not a size ("8GB"
// may mean powers of 1000) or lies outside 1 byte to 1 PiB (up to there, sums of whole counts are exact).
std::optional<double> bytes_of_text(std::string_view text);

// A share from "5%" or "0.05", not below 0. Throws InputError for other text; `option` names where it was given.
double share_of_text(std::string_view text, const char* option);

// The parts of "a,b" between commas, without surrounding blanks; "" has one part, which is empty.
std::vector<std::string> list_of_text(std::string_view text);

}  // namespace orrery
