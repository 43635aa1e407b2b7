// Quantities for people: three to four significant digits and a unit.
#pragma once

#include <span>
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

struct Column {
  std::string_view heading;
  bool right = true;  // aligned
};
// "<op|times|share": headings between bars; of a column that is aligned to the left behind '<'. They refer to `text`.
std::vector<Column> columns_of(std::string_view text);
// Rows under their headings, two spaces in, each column as wide as its widest cell. Cells of the last column may hold
// what has no width (colours). Ends with a newline.
std::string grid(std::span<const Column> columns, const std::vector<std::vector<std::string>>& rows);
std::string grid(std::string_view columns, const std::vector<std::vector<std::string>>& rows);

// The same rows as a table of GitHub's Markdown.
std::string markdown_grid(std::span<const Column> columns, const std::vector<std::vector<std::string>>& rows);
std::string markdown_grid(std::string_view columns, const std::vector<std::vector<std::string>>& rows);

// Both write control characters as escapes (sim/base/one_line.h), except tabs and line breaks.
std::string xml_text(std::string_view text);  // escaped for XML text and attributes
std::string csv_text(std::string_view text);  // quoted by RFC 4180; ' before what a spreadsheet takes for a formula

// The distance of ticks on an axis: 1, 2 or 5 times a power of ten, of which at most `most` lie in `span`.
double tick_step(double span, int most);

// A horizontal bar of `share` x `columns`, in eighths of a character.
std::string bar(double share, int columns);

}  // namespace orrery
