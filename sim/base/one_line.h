// Prepares texts from outside for a terminal or a message.
#pragma once

#include <cstddef>
#include <exception>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace orrery {

inline constexpr std::size_t kMostMessageBytes = 4000;  // the text that was found may be a megabyte long

// Returns the text, or its first `most_bytes` and "..." if it is longer. It is never cut inside a UTF-8 character.
std::string clipped(std::string_view text, std::size_t most_bytes);

// Returns whether a text has characters that control a terminal or end a C string: Unicode's C0 and C1, delete,
// characters that set the direction of text or end a line, and bytes that are not UTF-8.
bool has_control_characters(std::string_view text);

bool is_utf8(std::string_view text);

// Returns the text with its control characters as escapes: \x1b, \u202e. Characters of one byte that are in `kept`
// stay. `as_json`: all escapes are those of JSON, \u001b.
std::string written_out(std::string_view text, std::string_view kept = {}, bool as_json = false);

// Returns the text with each character that `escapes` lists replaced by the text beside it.
std::string escaped(std::string_view text, std::initializer_list<std::pair<char, std::string_view>> escapes);

// Returns the text on one line: it is clipped, line breaks become spaces, other control characters become escapes.
std::string one_line(std::string_view text, std::size_t most_bytes = kMostMessageBytes);

// Returns the message for an exception that neither the input nor a rank has caused: "internal: ...", or a sentence
// that memory ran out.
std::string error_text(const std::exception& internal);

}  // namespace orrery
