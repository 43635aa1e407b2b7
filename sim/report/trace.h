// A report's timeline in the Chrome trace event format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.
// One process per pipeline stage (of each job), one thread per stream, complete events "F 3" / "B 3" / "W 3" (forward,
// backward, weight gradient of micro-batch 3), flow arrows for messages, a counter of memory by category. From the
// analytical engine, stages that speak for their kind have threads "compute ops", "data_communication ops", ... with a
// slice for each op and wait of some of their slots; of long pipelines only those stages are written. "otherData" says
// how many slots there are, how many show their ops, and of which stages. From the
// discrete-event engine stages are called after the ranks that speak for them, other kinds of ranks that the report
// names have a process each, without memory and arrows, and a process "links" has a counter for each kind of link: how
// much of its rate the busiest one uses. Format: "Trace Event Format", Google, 2016
// (docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "sim/report/report.h"

namespace orrery {

// What a slot is called in traces and pictures: "F 3"; ops that have a name of their own keep it.
std::string interval_name(const Interval& interval);

// REQUIRES: the report was made with its timeline. Timestamps are in microseconds, sorted.
std::string report_trace(const Report& report);

// Jobs that ran at the same time, in one file: the processes of each carry its name.
struct TracedJob {
  std::string_view name;
  const Report* report = nullptr;
};
std::string jobs_trace(std::span<const TracedJob> jobs);

}  // namespace orrery
