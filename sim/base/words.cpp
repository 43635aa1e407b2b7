#include "sim/base/words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "sim/base/error.h"

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

double share_of_text(std::string_view text, const char* option) {
  constexpr double kPercent = 100;
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const bool percent = error == std::errc() && std::string_view(rest, static_cast<std::size_t>(end - rest)) == "%";
  if (error != std::errc() || !(percent || rest == end) || !(value >= 0) || !std::isfinite(value))
    throw InputError({option, ""}, fmt::format("\"{}\"", text), "a share: 5% or 0.05");
  return percent ? value / kPercent : value;
}

std::vector<std::string> list_of_text(std::string_view text) {
  std::vector<std::string> parts;
  for (std::string_view part : split(text, ',')) {
    part.remove_prefix(std::min(part.find_first_not_of(' '), part.size()));
    parts.emplace_back(part.substr(0, part.find_last_not_of(' ') + 1));
  }
  return parts;
}

}  // namespace orrery
