#include "tests/fuzz/predicted.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "sim/program/check.h"
#include "sim/report/columns.h"
#include "sim/report/json.h"
#include "sim/report/table.h"
#include "sim/report/trace.h"
#include "study/prediction/planning_notes.h"
#include "study/prediction/prediction.h"
#include "tests/fuzz/targets.h"

namespace orrery::fuzz {

std::string predicted(const Scenario& scenario, const UserCalibration& user) {
  Calibrator calibrator(user);
  const Prepared prepared = calibrator.prepare(scenario);
  const std::vector<Violation> violations = check(*prepared.program);
  require(violations.empty(), violations.empty() ? "" : violations.front().text.c_str());
  Report report = predict(prepared, {.timeline = true, .ops = true});
  require(report.step_seconds > 0, "a step takes time");
  report.notes = planning_notes(prepared.scenario, *prepared.program);
  csv_row("a scenario", report);
  report_table(report, {"a title"}, {});
  report_trace(report);
  report_svg(report, "a title");
  return report_json(report).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace orrery::fuzz
