#include "sim/base/one_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace orrery {
namespace {

// The control character that `text` begins with, and its bytes; 0 bytes: none.
struct Control {
  unsigned code = 0;
  std::size_t bytes = 0;
};
Control control_at(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x20 || byte(0) == 0x7f) return {byte(0), 1};
  // C1: two bytes of UTF-8.
  if (byte(0) == 0xc2 && text.size() > 1 && byte(1) >= 0x80 && byte(1) < 0xa0) return {byte(1), 2};
  return {};
}

}  // namespace

std::string clipped(std::string_view text, std::size_t most_bytes) {
  if (text.size() <= most_bytes) return std::string(text);
  while (most_bytes > 0 && (static_cast<unsigned char>(text[most_bytes]) & 0xc0) == 0x80) --most_bytes;
  return std::string(text.substr(0, most_bytes)) + "...";
}

bool has_control_characters(std::string_view text) {
  // Texts are read by the million: of most one look at each byte tells.
  const auto may_begin_one = [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x7f || byte == 0xc2;
  };
  for (auto at = std::find_if(text.begin(), text.end(), may_begin_one); at != text.end();
       at = std::find_if(at + 1, text.end(), may_begin_one))
    if (control_at(text.substr(static_cast<std::size_t>(at - text.begin()))).bytes > 0) return true;
  return false;
}

std::string one_line(std::string_view text, std::size_t most_bytes) {
  const std::string shown = clipped(text, most_bytes);
  std::string line;
  for (std::size_t i = 0; i < shown.size();) {
    const Control control = control_at(std::string_view(shown).substr(i));
    if (control.bytes == 0) {
      line += shown[i++];
      continue;
    }
    if (control.code == '\n') {
      line += ' ';
    } else {
      fmt::format_to(std::back_inserter(line), "\\x{:02x}", control.code);
    }
    i += control.bytes;
  }
  return line;
}

}  // namespace orrery
