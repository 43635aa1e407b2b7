#include "sim/base/one_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <new>

namespace orrery {
namespace {

struct Character {
  unsigned code = 0;
  std::size_t bytes = 1;
  bool is_utf8 = true;  // false: `code` is a single byte that is not UTF-8
};

// Returns the character with which `text` begins. Unicode 15, table 3-7 says which bytes are UTF-8.
Character first_of(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {lead};
  const std::size_t bytes = lead < 0xc2 || lead > 0xf4 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  const unsigned least = lead == 0xe0   ? 0xa0
                         : lead == 0xf0 ? 0x90
                                        : 0x80,
                 most = lead == 0xed   ? 0x9f
                        : lead == 0xf4 ? 0x8f
                                       : 0xbf;
  if (bytes == 0 || byte(1) < least || byte(1) > most) return {lead, 1, false};
  unsigned code = lead & (0xffU >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0U) != 0x80) return {lead, 1, false};
    code = (code << 6) + (byte(i) & 0x3fU);
  }
  return {code, bytes};
}

// Returns whether a character acts on a terminal: C0, delete, C1, or one that sets the direction of a text (Unicode's
// Bidi_Control) or ends its line. A byte that is not UTF-8 may be C1 for a terminal.
bool acts(const Character& c) {
  const unsigned code = c.code;
  return !c.is_utf8 || code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x061c || code == 0x200e ||
         code == 0x200f || (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

// There are millions of texts, and most are plain ASCII: a look at each byte settles these.
bool is_plain_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

}  // namespace

std::string clipped(std::string_view text, std::size_t most_bytes) {
  if (text.size() <= most_bytes) return std::string(text);
  while (most_bytes > 0 && (static_cast<unsigned char>(text[most_bytes]) & 0xc0) == 0x80) --most_bytes;
  return std::string(text.substr(0, most_bytes)) + "...";
}

bool has_control_characters(std::string_view text) {
  if (is_plain_ascii(text)) return false;
  for (Character c; !text.empty(); text.remove_prefix(c.bytes))
    if (acts(c = first_of(text))) return true;
  return false;
}

bool is_utf8(std::string_view text) {
  for (Character c; !text.empty(); text.remove_prefix(c.bytes))
    if (!(c = first_of(text)).is_utf8) return false;
  return true;
}

std::string written_out(std::string_view text, std::string_view kept, bool as_json) {
  if (is_plain_ascii(text)) return std::string(text);
  std::string out;
  for (Character c; !text.empty(); text.remove_prefix(c.bytes)) {
    c = first_of(text);
    if (!acts(c) || kept.find(text.front()) != std::string_view::npos) {
      out += text.substr(0, c.bytes);
    } else if (c.code < 0x100 && !as_json) {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", c.code);
    } else {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", c.code);
    }
  }
  return out;
}

std::string escaped(std::string_view text, std::initializer_list<std::pair<char, std::string_view>> escapes) {
  std::string out;
  for (const char c : text) {
    const auto* const escape = std::ranges::find(escapes, c, &std::pair<char, std::string_view>::first);
    out += escape == escapes.end() ? std::string_view(&c, 1) : escape->second;
  }
  return out;
}

std::string one_line(std::string_view text, std::size_t most_bytes) {
  std::string line = written_out(clipped(text, most_bytes), "\n");
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

std::string error_text(const std::exception& internal) {
  if (dynamic_cast<const std::bad_alloc*>(&internal) != nullptr)
    return "out of memory: this needs more than the machine has or a limit allows (ulimit -v)";
  return fmt::format("internal: {}", internal.what());
}

}  // namespace orrery
