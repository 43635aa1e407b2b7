#include "sim/base/byte_size.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

namespace orrery {

std::optional<double> bytes_of_text(std::string_view text) {
  constexpr std::string_view kUnits = "KMGT";
  constexpr double kMost = 1125899906842624.0;
  double bytes = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bytes, std::chars_format::fixed);
  if (error != std::errc()) return std::nullopt;
  std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (!unit.empty()) {
    const std::size_t power = kUnits.find(static_cast<char>(std::toupper(static_cast<unsigned char>(unit.front()))));
    if (power == std::string_view::npos || !(unit.size() == 1 || unit.substr(1) == "iB")) return std::nullopt;
    bytes *= std::pow(1024.0, static_cast<double>(power + 1));
  }
  if (!(bytes >= 1 && bytes <= kMost)) return std::nullopt;
  return bytes;
}

}  // namespace orrery
