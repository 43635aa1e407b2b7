// Writes a report's timeline: as a picture (report_svg), and in the Chrome trace event format, which Perfetto
// (ui.perfetto.dev) and chrome://tracing open. There is one process per pipeline stage (of each job) and one thread per
// stream. Complete events are named "F 3", "B 3", "W 3" (forward, backward, weight gradient of micro-batch 3). Flow
// arrows show messages; a counter shows memory by category. Analytical engine: stages that represent their kind have
// threads "compute ops", "data_communication ops", ... with a slice for each op and wait of some of their slots. Of
// long pipelines only those stages are written. "otherData" says how many slots there are, how many of them show ops,
// and of which stages. Discrete-event engine: stages are named after the ranks that represent them. Other kinds of
// ranks that the report names have a process each, without memory and arrows. A process "links" has a counter per kind
// of link: the share of its rate that the busiest link uses. Format: "Trace Event Format", Google, 2016
// (docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "sim/report/report.h"

namespace orrery {

// REQUIRES: the report was made with its timeline. Timestamps are in microseconds, in ascending order.
std::string report_trace(const Report& report);

// Jobs that ran at the same time, in one file: the processes of each job carry the job's name.
struct TracedJob {
  std::string_view name;
  const Report* report = nullptr;
};
std::string jobs_trace(std::span<const TracedJob> jobs);

// A picture of a pipeline schedule: stages down, time across, one box per slot with its micro-batch's number.

// A standalone SVG document. REQUIRES: the report was made with its timeline.
std::string report_svg(const Report& report, std::string_view title);

}  // namespace orrery
