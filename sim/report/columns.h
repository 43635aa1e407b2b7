// The figures of a report that are a single value, by name: the columns of CSV, and what a batch's --fields chooses.
// Reports as rows of comma-separated values (RFC 4180).
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

using ColumnValue = std::variant<double, std::int64_t, bool, std::string_view>;  // NaN: the report has none

struct ReportColumn {
  std::string name;  // "step_seconds", "memory_fits", "exposed_tensor_communication_seconds"
  std::function<ColumnValue(const Report&)> value;  // texts are the report's
  bool of_ops = false;                              // 0 unless the engine has filled Report::ops
};

// In the order of CSV.
const std::vector<ReportColumn>& report_columns();
// The column of that name, or nullptr.
const ReportColumn* find_report_column(std::string_view name);

// Numbers as the shortest text that reads back as the same one, nothing of NaN; texts are quoted where RFC 4180 asks for
// it.
void append_csv(const ColumnValue& value, std::string& out);
void write_json(const ColumnValue& value, JsonWriter& writer);

// Both end with a newline. First column: "scenario"; last: `more`.
std::string csv_header(std::span<const std::string_view> more = {});
std::string csv_row(const std::string& scenario, const Report& report, std::span<const std::string> more = {});

// A row for each of those columns that is not of ops: "column,a,b,difference", the last b - a, empty for what is no
// number.
std::string comparison_csv(const Report& a, const Report& b);

}  // namespace orrery
