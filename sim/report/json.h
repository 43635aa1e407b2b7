// A report as one JSON object: snake_case keys with the unit in the name, in a fixed order.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "sim/base/json_writer.h"
#include "sim/report/report.h"

namespace orrery {

// Into an object that has been begun; `ops`: with the list of ops, if the report has one.
void write_report(const Report& report, bool ops, JsonWriter& writer);
// The whole object.
nlohmann::ordered_json report_json(const Report& report);

// {"a": report, "b": report, "change": {"step_seconds": b - a, ..., "time": {...}}}
nlohmann::ordered_json comparison_json(const Report& a, const Report& b);

}  // namespace orrery
