#include <nlohmann/json.hpp>

#include "sim/base/json_reader.h"
#include "sim/report/columns.h"
#include "sim/report/json.h"
#include "sim/report/table.h"
#include "tests/fuzz/targets.h"

void orrery::fuzz::report(std::string_view input) {
  const nlohmann::json document = parse_json(input, "report.json");
  if (!is_report(document)) return;
  const Report report = read_report(document, {"report.json", ""});
  comparison_json(report, report).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  comparison_table(report, report, {"a title"}, {});
  comparison_csv(report, report);
  csv_row("a scenario", report);
  const nlohmann::json written = report_json(report);
  require(report_json(read_report(written, {"written.json", ""})) == report_json(report),
          "what is written reads as the same report");
}
