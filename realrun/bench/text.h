// Texts and names that several parts of the benchmarks share.
#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "realrun/bench/compare.h"

namespace orrery::bench {

std::string change_text(double ratio);  // "+4.8 %"
std::string p_text(double p);           // "0.042", "3e-07"
// For one line of a terminal: replaces a newline by a blank, and other control characters by '?'.
std::string line_text(std::string_view text);
// Returns "12 of 300 repetitions are set aside: ..." (machine_state.h).
std::string set_aside_text(std::size_t set_aside, std::size_t repetitions);
// A report with a table, for a terminal or as Markdown.
struct TableRow {
  std::vector<std::string> cells;  // the last one is the verdict
  Verdict verdict = Verdict::unchanged;
  bool fails = false;
};
struct TableReport {
  std::string heading;
  std::vector<std::string> rules, remarks;  // sentences before and after the table
  std::string_view columns;                 // as grid() has them
  std::vector<TableRow> rows;
  std::string summary;  // "2 regressions, 1 improvement, 37 unchanged"
};
std::string terminal_text(const TableReport& report, bool colour);
std::string markdown_page(const TableReport& report);
// Adds "2 regressions" to a summary, unless the count is 0.
void add_count(std::string& summary, std::size_t count, Verdict verdict, std::string_view name);

// CSV with these columns, comma-separated: a row for each JSON object; a cell is empty where a member is absent.
std::string csv_rows(std::string_view columns, const nlohmann::ordered_json& objects);

// Returns whether a part of a name matches the regular expression (ECMAScript). Throws InputError if it is none.
std::function<bool(const std::string&)> matches(const std::string& filter);

}  // namespace orrery::bench
