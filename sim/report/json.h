// A report as one JSON object, and back: snake_case keys with the unit in the name, in a fixed order.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "sim/base/error.h"
#include "sim/base/json_writer.h"
#include "sim/report/report.h"

namespace orrery {

// Writes into an object that has been begun. `ops`: includes the list of ops if the report has one.
void write_report(const Report& report, bool ops, JsonWriter& writer);
// The report as one object.
nlohmann::ordered_json report_json(const Report& report);

// {"a": report, "b": report, "change": {"step_seconds": b - a, ..., "time": {...}}}
nlohmann::ordered_json comparison_json(const Report& a, const Report& b);

// Whether a document is a report, or a measured one beside its prediction ("measured"), and no scenario.
bool is_report(const nlohmann::json& json);

// Throws InputError where the document of `file` is a report and not what is `expected`.
void refuse_report(const nlohmann::json& document, const std::string& file, const std::string& expected);

// The figures, the terms of every stage and the ops; of two side by side, the measured one. Link tables and notes of
// the discrete-event engine are not read back, nor figures of other kinds than `figures`. Throws InputError for what is
// missing or no number.
Report read_report(const nlohmann::json& json, const InputError::Where& where,
                   std::span<const FigureKind* const> figures = {});

}  // namespace orrery
