// A report as one row of comma-separated values (RFC 4180).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "sim/report/report.h"

namespace orrery {

// Both end with a newline. First column: "scenario"; last: `more`.
std::string csv_header(std::span<const std::string_view> more = {});
std::string csv_row(const std::string& scenario, const Report& report, std::span<const std::string> more = {});

// A row for each of those columns that is not of ops: "column,a,b,difference", the last b - a, empty for what is no
// number.
std::string comparison_csv(const Report& a, const Report& b);

}  // namespace orrery
