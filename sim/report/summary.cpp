#include "sim/report/summary.h"

namespace orrery {

void summarise_bounding_stage(Report& report) {
  const TimeBreakdown& time = report.stages[static_cast<std::size_t>(report.bounding_stage)].time;
  report.bubble_fraction = time.bubble / report.step_seconds;
  report.exposed_communication_seconds = 0;
  for (const StreamRow& row : kStreamRows)
    if (row.occupies == Occupies::fabric)
      report.exposed_communication_seconds += time.exposed[static_cast<std::size_t>(row.stream)];

  double largest = -1;
  const auto consider = [&](double term, const char* words, const char* kind = "") {
    if (term <= largest) return;
    largest = term;
    report.bound_by = kind;
    report.bound_by += words;
  };
  consider(time.matmul, "matrix products");
  consider(time.attention, "attention");
  consider(time.memory_bound, "memory-bound kernels");
  consider(time.recompute, "recomputation");
  consider(time.slowest_device, "the slowest device");
  consider(time.host_issue, "the host's launches");
  consider(time.bubble, "pipeline bubble");
  consider(time.optimizer, "optimizer");
  consider(time.production, "production slow-down");
  for (const StreamRow& row : kStreamRows)
    if (is_account(row.stream)) consider(time.exposed[static_cast<std::size_t>(row.stream)], row.label, "exposed ");
}

}  // namespace orrery
