#include "sim/report/csv.h"

#include <cstdint>
#include <type_traits>
#include <variant>

#include "sim/report/columns.h"
#include "sim/report/format.h"

namespace orrery {

std::string csv_header(std::span<const std::string_view> more) {
  std::string line = "scenario";
  for (const ReportColumn& column : report_columns()) line += ',' + column.name;
  for (const std::string_view name : more) (line += ',') += name;
  return line + '\n';
}

std::string csv_row(const std::string& scenario, const Report& report, std::span<const std::string> more) {
  std::string line = csv_text(scenario);
  for (const ReportColumn& column : report_columns()) {
    line += ',';
    append_csv(column.value(report), line);
  }
  for (const std::string& text : more) (line += ',') += csv_text(text);
  return line + '\n';
}

std::string comparison_csv(const Report& a, const Report& b) {
  std::string text = "column,a,b,difference\n";
  for (const ReportColumn& column : report_columns()) {
    if (column.of_ops) continue;
    const ColumnValue of_a = column.value(a), of_b = column.value(b);
    text += column.name + ',';
    append_csv(of_a, text);
    text += ',';
    append_csv(of_b, text);
    text += ',';
    std::visit(
        [&](const auto& value) {
          using Value = std::decay_t<decltype(value)>;
          if constexpr (std::is_same_v<Value, double> || std::is_same_v<Value, std::int64_t>)
            append_csv(std::get<Value>(of_b) - value, text);
        },
        of_a);
    text += '\n';
  }
  return text;
}

}  // namespace orrery
