// A report as one row of comma-separated values (RFC 4180).
#pragma once

#include <string>

#include "sim/report/report.h"

namespace orrery {

std::string csv_header();  // ends with a newline; first column: "scenario"
std::string csv_row(const std::string& scenario, const Report& report);  // ends with a newline

// A row for each of those columns that is not of ops: "column,a,b,difference", the last b - a, empty for what is no
// number.
std::string comparison_csv(const Report& a, const Report& b);

}  // namespace orrery
