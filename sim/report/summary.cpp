#include "sim/report/summary.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "sim/report/terms.h"

namespace orrery {

void summarise_bounding_stage(Report& report) {
  const TimeBreakdown& time = report.stages[static_cast<std::size_t>(report.bounding_stage)].time;
  report.bubble_fraction = time.bubble / report.step_seconds;
  report.exposed_communication_seconds = 0;
  for (const StreamRow& row : kStreamRows)
    if (row.occupies == Occupies::fabric)
      report.exposed_communication_seconds += time.exposed[static_cast<std::size_t>(row.stream)];

  double largest = -1;
  for (const TimeTerm& term : time_terms()) {
    if (term.is_communication() || term.of(time) <= largest) continue;
    largest = term.of(time);
    report.bound_by = term.bound;
  }

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
