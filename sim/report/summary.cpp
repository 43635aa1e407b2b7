#include "sim/report/summary.h"

#include <algorithm>
#include <array>
#include <cstddef>

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
    if (is_account(row.stream) && row.occupies != Occupies::fabric)
      consider(time.exposed[static_cast<std::size_t>(row.stream)], row.label, "exposed ");

  // For a planner, all waiting for the fabric is one term, whatever kinds of groups it consists of.
  if (report.exposed_communication_seconds <= largest) return;
  std::array<const StreamRow*, kStreams> rows;
  std::size_t count = 0;
  for (const StreamRow& row : kStreamRows)
    if (is_account(row.stream) && row.occupies == Occupies::fabric) rows[count++] = &row;
  const auto seconds = [&](const StreamRow* row) { return time.exposed[static_cast<std::size_t>(row->stream)]; };
  std::stable_sort(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(count),
                   [&](const StreamRow* a, const StreamRow* b) { return seconds(a) > seconds(b); });
  report.bound_by = "exposed ";
  double named = 0;
  for (std::size_t i = 0; i < count && named <= largest; ++i) {
    if (i > 0) report.bound_by += " + ";
    report.bound_by += rows[i]->label;
    named += seconds(rows[i]);
  }
}

}  // namespace orrery
