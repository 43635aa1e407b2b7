// The single-valued figures of a report, by name: the columns of CSV, and the choices of a batch's --fields. Reports as
// rows of comma-separated values (RFC 4180).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sim/base/json_writer.h"
#include "sim/report/report.h"

namespace orrery {

using ColumnValue = std::variant<double, std::int64_t, bool, std::string_view>;  // NaN: the report has no such value

struct ReportColumn {
  std::string name;  // "step_seconds", "memory_fits", "exposed_tensor_communication_seconds"
  std::function<ColumnValue(const Report&)> value;  // texts are views into the report
  bool of_ops = false;                              // 0 unless the engine has filled Report::ops
};

// Returns all columns, in the order of the CSV.
const std::vector<ReportColumn>& report_columns();
// Returns the column of that name, or nullptr.
const ReportColumn* find_report_column(std::string_view name);

// Numbers become the shortest text that reads back as the same number; NaN becomes nothing. Texts are quoted where RFC
// 4180 requires it.
void append_csv(const ColumnValue& value, std::string& out);
void write_json(const ColumnValue& value, JsonWriter& writer);

// Both return a line that ends with a newline. The first column is "scenario"; `more` are the last columns.
std::string csv_header(std::span<const std::string_view> more = {});
std::string csv_row(const std::string& scenario, const Report& report, std::span<const std::string> more = {});

// Returns CSV with the header "column,a,b,difference" and a row for each report column, except those of ops. The
// difference is b - a; it is empty for values that are no numbers.
std::string comparison_csv(const Report& a, const Report& b);

}  // namespace orrery
