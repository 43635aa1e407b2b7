#include "sim/report/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "sim/base/one_line.h"
#include "sim/base/words.h"

namespace orrery {
namespace {

// Four significant digits for values of at least 1.
std::string digits(double value) {
  const double size = std::fabs(value);
  return fmt::format("{:.{}f}", value, size >= 999.95 ? 0 : size >= 99.995 ? 1 : size >= 9.9995 ? 2 : 3);
}

struct Column {
  std::string_view heading;
  bool right = true;  // alignment
};
std::vector<Column> columns_of(std::string_view text) {
  std::vector<Column> columns;
  for (std::string_view heading : split(text, '|')) {
    const bool left = heading.starts_with('<');
    if (left) heading.remove_prefix(1);
    columns.push_back({heading, !left});
  }
  return columns;
}

std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

}  // namespace

std::string seconds_text(double seconds) {
  const double size = std::fabs(seconds);
  if (size == 0) return "0 s";
  if (size >= 1) return digits(seconds) + " s";
  if (size >= 1e-3) return digits(seconds * 1e3) + " ms";
  return digits(seconds * 1e6) + " us";
}

std::string bytes_text(double bytes) {
  constexpr std::array units{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  while (std::fabs(bytes) >= 1024 && unit + 1 < units.size()) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 2, units[unit]);
}

std::string rate_text(double per_second) {
  constexpr std::array units{"", " k", " M", " G", " T", " P"};
  std::size_t unit = 0;
  // Counts of up to six digits are still readable at a glance.
  if (std::fabs(per_second) < 1e6) return fmt::format("{:.{}f}", per_second, std::fabs(per_second) < 100 ? 2 : 0);
  while (std::fabs(per_second) >= 1000 && unit + 1 < units.size()) {
    per_second /= 1000;
    ++unit;
  }
  return digits(per_second) + units[unit];
}

std::string percent_text(double share) { return fmt::format("{:.1f} %", share * 100); }

std::string left(std::string_view text, std::size_t columns) { return fmt::format("{:<{}}", text, columns); }

std::string signed_percent_text(double share) {
  constexpr double kShownAsZero = 0.05;
  const double percent = kPercent * share;
  return fmt::format("{:+.1f} %", std::fabs(percent) < kShownAsZero ? 0.0 : percent);
}

std::string right(std::string_view text, std::size_t columns) { return fmt::format("{:>{}}", text, columns); }

std::string grid(std::string_view headings, const std::vector<std::vector<std::string>>& rows) {
  const std::vector<Column> columns = columns_of(headings);
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    widths.push_back(width_of(columns[c].heading));
    if (c + 1 < columns.size())
      for (const auto& row : rows) widths[c] = std::max(widths[c], width_of(row[c]));
  }
  std::string text;
  const auto append = [&](std::size_t c, std::string_view cell) {
    text += "  ";
    if (columns[c].right) {
      text += right(cell, widths[c]);
    } else {
      text += c + 1 < columns.size() ? left(cell, widths[c]) : cell;
    }
  };
  const auto end_line = [&] {
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  };
  for (std::size_t c = 0; c < columns.size(); ++c) append(c, columns[c].heading);
  end_line();
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < columns.size(); ++c) append(c, row[c]);
    end_line();
  }
  return text;
}

std::string markdown_grid(std::string_view headings, const std::vector<std::vector<std::string>>& rows) {
  const std::vector<Column> columns = columns_of(headings);
  std::string text;
  for (const Column& column : columns) text += fmt::format("| {} ", column.heading);
  text += "|\n";
  for (const Column& column : columns) text += column.right ? "|---:" : "|---";
  text += "|\n";
  for (const auto& row : rows) {
    for (const std::string& cell : row) text += "| " + cell + " ";
    text += "|\n";
  }
  return text;
}

std::string xml_text(std::string_view text) {
  return escaped(written_out(text, "\t\n"), {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}});
}

std::string csv_text(std::string_view text) {
  // OWASP, "CSV Injection": an apostrophe makes a spreadsheet read the cell as text.
  constexpr std::string_view kFormulaStarts = "=+-@\t\r";
  if (!text.empty() && kFormulaStarts.find(text.front()) != std::string_view::npos)
    return csv_text("'" + std::string(text));
  const std::string shown = written_out(text, "\t\r\n");
  if (shown.find_first_of(",\"\r\n") == std::string::npos) return shown;
  return '"' + escaped(shown, {{'"', "\"\""}}) + '"';
}

double tick_step(double span, int most) {
  const double raw = span / most, power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= raw) return factor * power;
  return 10 * power;
}

std::string bar(double share, int columns) {
  constexpr std::array eighths{"", "\u258f", "\u258e", "\u258d", "\u258c", "\u258b", "\u258a", "\u2589"};
  const double length = std::clamp(share, 0.0, 1.0) * columns * 8;
  const int filled = std::isfinite(length) ? static_cast<int>(std::lround(length)) : 0;
  std::string result;
  for (int i = 0; i < filled / 8; ++i) result += "\u2588";
  return result + eighths[static_cast<std::size_t>(filled % 8)];
}

}  // namespace orrery
