// Texts that somebody else wrote, on the way to a terminal or into a message.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace orrery {

inline constexpr std::size_t kMostMessageBytes = 4000;  // what was found may be a megabyte of it

// Its first `most_bytes` and "..." where it is longer; never cut inside a character of UTF-8.
std::string clipped(std::string_view text, std::size_t most_bytes);

// Characters that act on a terminal, or end a C string: of Unicode's C0 and C1, and delete.
bool has_control_characters(std::string_view text);

// On one line, clipped: control characters written out (\x1b), line breaks as spaces.
std::string one_line(std::string_view text, std::size_t most_bytes = kMostMessageBytes);

}  // namespace orrery
