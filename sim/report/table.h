// A report as an aligned table for the terminal.
#pragma once

#include <string>
#include <vector>

#include "sim/report/report.h"

namespace orrery {

struct TableStyle {
  bool colour = false;  // ANSI escapes
};

// `title`: lines that say what was simulated. Ends with a newline.
std::string report_table(const Report& report, const std::vector<std::string>& title, TableStyle style);

// Two reports side by side, and the terms that make the difference.
struct ComparisonNames {
  std::string a = "A", b = "B";
};
std::string comparison_table(const Report& a, const Report& b, const std::vector<std::string>& title, TableStyle style,
                             const ComparisonNames& names = {});

// The results of the discrete-event engine, which report_table() includes: links, contention, critical path, waits.
// Empty for other engines.
std::string discrete_event_table(const Report& report, TableStyle style);

}  // namespace orrery
