// Quantities for people: three to four significant digits and a unit.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace orrery {

inline constexpr double kPercent = 100;

std::string seconds_text(double seconds);       // "9.872 s", "12.34 ms", "5.6 us"
std::string bytes_text(double bytes);           // "71.3 GiB"
std::string rate_text(double per_second);       // "1.234 M", for counts per second
std::string percent_text(double share);         // "41.7 %"
std::string signed_percent_text(double share);  // "+4.8 %"; never "-0.0 %"

// Pads with spaces to `columns`; counts UTF-8 characters, not bytes.
std::string left(std::string_view text, std::size_t columns);
std::string right(std::string_view text, std::size_t columns);

// Returns the rows under their headings, which `columns` lists, separated by bars: "<op|times|share". '<' before a
// heading aligns its column to the left. Indented by two spaces; each column is as wide as its widest cell. Cells of
// the last column may contain characters without width (colours). Ends with a newline.
std::string grid(std::string_view columns, const std::vector<std::vector<std::string>>& rows);

// Returns the same rows as a GitHub Markdown table.
std::string markdown_grid(std::string_view columns, const std::vector<std::vector<std::string>>& rows);

// Both write control characters as escapes (sim/base/one_line.h), except tabs and line breaks.
std::string xml_text(std::string_view text);  // escaped for XML text and attributes
std::string csv_text(std::string_view text);  // quoted by RFC 4180; ' before text that looks like a formula

// Returns the distance between ticks on an axis: 1, 2 or 5 times a power of ten, such that at most `most` ticks lie
// within `span`.
double tick_step(double span, int most);

// Returns a horizontal bar of length `share` x `columns`, drawn in eighths of a character.
std::string bar(double share, int columns);

}  // namespace orrery
