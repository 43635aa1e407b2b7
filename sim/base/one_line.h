// Texts that somebody else wrote, on the way to a terminal or into a message.
#pragma once

#include <cstddef>
#include <exception>
#include <string>
#include <string_view>

namespace orrery {

inline constexpr std::size_t kMostMessageBytes = 4000;  // what was found may be a megabyte of it

// Its first `most_bytes` and "..." where it is longer; never cut inside a character of UTF-8.
std::string clipped(std::string_view text, std::size_t most_bytes);

// Characters that act on a terminal, or end a C string: of Unicode's C0 and C1, delete, those that set the direction of
// what follows or end its line, and bytes that are no UTF-8.
bool has_control_characters(std::string_view text);

bool is_utf8(std::string_view text);

// With its control characters written out: \x1b, \u202e; but those of one byte that are `kept`. `as_json`: as in texts
// of JSON, \u001b.
std::string written_out(std::string_view text, std::string_view kept = {}, bool as_json = false);

// On one line, clipped: control characters written out, line breaks as spaces.
std::string one_line(std::string_view text, std::size_t most_bytes = kMostMessageBytes);

// What is said of an error that no input and no rank is to blame for: "internal: ...", or that memory is short.
std::string error_text(const std::exception& internal);

}  // namespace orrery
