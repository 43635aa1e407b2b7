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

// Two reports side by side and which terms make the difference.
struct ComparisonNames {
  std::string a = "A", b = "B";
};
std::string comparison_table(const Report& a, const Report& b, const std::vector<std::string>& title, TableStyle style,
                             const ComparisonNames& names = {});

// What only the discrete-event engine says, which report_table has too: links, contention, critical path, waits.
// Empty without it.
std::string discrete_event_table(const Report& report, TableStyle style);

}  // namespace orrery
