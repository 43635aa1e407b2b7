#include "realrun/bench/text.h"

#include <fmt/format.h>

#include <cmath>

namespace orrery::bench {

std::string change_text(double ratio) {
  constexpr double kShownAsZero = 0.05;
  const double percent = kPercent * (ratio - 1);
  return fmt::format("{:+.1f} %", std::abs(percent) < kShownAsZero ? 0.0 : percent);
}

std::string xml_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default: {
        const bool is_control = static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t';
        out += is_control ? '?' : c;
      }
    }
  }
  return out;
}

std::string csv_text(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + "\"";
}

std::string_view kernel_name(std::string_view benchmark) {
  for (const std::string_view suffix : {"/real_time", "/manual_time"})
    if (benchmark.ends_with(suffix)) benchmark.remove_suffix(suffix.size());
  return benchmark;
}

}  // namespace orrery::bench
