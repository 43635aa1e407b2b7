// A report as it was written: by `orrery simulate --json` or `orrery run --json`.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "sim/base/error.h"
#include "sim/report/report.h"

namespace orrery {

// Whether a document is a report, or a measured one beside its prediction ("measured"), and no scenario.
bool is_report(const nlohmann::json& json);

// Throws InputError where the document of `file` is a report and not what is `expected`.
void refuse_report(const nlohmann::json& document, const std::string& file, const std::string& expected);

// The figures, the terms of every stage and the ops; of two side by side, the measured one. Link tables and notes of
// the discrete-event engine are not read back. Throws InputError for what is missing or no number.
Report read_report(const nlohmann::json& json, const InputError::Where& where);

}  // namespace orrery
