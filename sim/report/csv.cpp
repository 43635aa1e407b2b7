#include "sim/report/csv.h"

#include "sim/report/columns.h"
#include "sim/report/format.h"

namespace orrery {

std::string csv_header() {
  std::string line = "scenario";
  for (const ReportColumn& column : report_columns()) line += ',' + column.name;
  return line + '\n';
}

std::string csv_row(const std::string& scenario, const Report& report) {
  std::string line = csv_text(scenario);
  for (const ReportColumn& column : report_columns()) {
    line += ',';
    append_csv(column.value(report), line);
  }
  return line + '\n';
}

}  // namespace orrery
