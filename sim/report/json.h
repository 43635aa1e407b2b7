// A report as one JSON object: snake_case keys with the unit in the name, in a fixed order.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "sim/base/json_writer.h"
#include "sim/report/report.h"

namespace orrery {

// Writes into an object that has been begun. `ops`: includes the list of ops if the report has one.
void write_report(const Report& report, bool ops, JsonWriter& writer);
// The report as one object.
nlohmann::ordered_json report_json(const Report& report);

// {"a": report, "b": report, "change": {"step_seconds": b - a, ..., "time": {...}}}
nlohmann::ordered_json comparison_json(const Report& a, const Report& b);

}  // namespace orrery
