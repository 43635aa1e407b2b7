// A report's timeline in the Chrome trace event format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.
// One process per pipeline stage, one thread per stream, complete events "F 3" / "B 3" / "W 3" (forward, backward,
// weight gradient of micro-batch 3), flow arrows for messages, a counter of memory by category.
// Format: "Trace Event Format", Google, 2016 (docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
#pragma once

#include <string>

#include "sim/report/report.h"

namespace orrery {

// What a slot is called in traces and pictures: "F 3"; ops that have a name of their own keep it.
std::string interval_name(const Interval& interval);

// REQUIRES: the report was made with its timeline. Timestamps are in microseconds, sorted.
std::string report_trace(const Report& report);

}  // namespace orrery
