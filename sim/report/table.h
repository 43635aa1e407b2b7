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
std::string comparison_table(const Report& a, const Report& b, const std::vector<std::string>& title, TableStyle style);

}  // namespace orrery
