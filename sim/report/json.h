// A report as one JSON object: snake_case keys with the unit in the name, in a fixed order.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "sim/report/report.h"

namespace orrery {

nlohmann::ordered_json report_json(const Report& report);

// {"a": report, "b": report, "change": {"step_seconds": b - a, ..., "time": {...}}}
nlohmann::ordered_json comparison_json(const Report& a, const Report& b);

}  // namespace orrery
