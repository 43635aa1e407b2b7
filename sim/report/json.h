// A report as one JSON object, and back: snake_case keys with the unit in the name, in a fixed order.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "sim/base/error.h"
#include "sim/base/json_writer.h"
#include "sim/report/report.h"

namespace orrery {

// Writes the report's members into an object that the caller has begun. `ops`: whether to write the list of ops.
void write_report(const Report& report, bool ops, JsonWriter& writer);
// Returns the report as one object.
nlohmann::ordered_json report_json(const Report& report, bool ops = true);

// Returns {"a": report, "b": report, "change": {"step_seconds": b - a, ..., "time": {...}}}
nlohmann::ordered_json comparison_json(const Report& a, const Report& b, bool ops = true);

// Whether a document is a report, or an object that holds a measured report beside its prediction ("measured").
bool is_report(const nlohmann::json& json);

// Throws InputError if the document of `file` is a report; `expected` says what should stand there.
void refuse_report(const nlohmann::json& document, const std::string& file, const std::string& expected);

// Reads back a report: its figures, the terms of every stage and the ops. From a document that holds a measured report
// and its prediction, it reads the measured one. It skips the link tables and notes of the discrete-event engine, and
// figures of kinds that are not in `figures`. Throws InputError for members that are missing or no numbers.
Report read_report(const nlohmann::json& json, const InputError::Where& where,
                   std::span<const FigureKind* const> figures = {});

}  // namespace orrery
