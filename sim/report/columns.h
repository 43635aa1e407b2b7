// The figures of a report that are a single value, by name: the columns of CSV, and what a batch's --fields chooses.
#pragma once

#include <cstdint>
#include <functional>
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

}  // namespace orrery
