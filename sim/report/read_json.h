// Reads a report that `orrery simulate --json` or `orrery run --json` has written.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "sim/base/error.h"
#include "sim/report/report.h"

namespace orrery {

// Whether a document is a report, or a measured report with its prediction ("measured"), rather than a scenario.
bool is_report(const nlohmann::json& json);

// Throws InputError if the document of `file` is a report rather than what is `expected`.
void refuse_report(const nlohmann::json& document, const std::string& file, const std::string& expected);

// Reads the figures, the terms of every stage and the ops; if the document has a prediction and a measurement, those of
// the measurement. Link tables and notes of the discrete-event engine are not read. Throws InputError for a missing
// value or one that is not a number.
Report read_report(const nlohmann::json& json, const InputError::Where& where);

}  // namespace orrery
