// A report as one row of comma-separated values (RFC 4180).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "sim/report/report.h"

namespace orrery {

// Both end with a newline. The first column is "scenario"; the last ones are `more`.
std::string csv_header(std::span<const std::string_view> more = {});
std::string csv_row(const std::string& scenario, const Report& report, std::span<const std::string> more = {});

// One row "column,a,b,difference" per column that does not come from ops. `difference` is b - a; it is empty if the
// column is not a number.
std::string comparison_csv(const Report& a, const Report& b);

}  // namespace orrery
