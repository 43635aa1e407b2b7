// The fast way through PipelineWalker::walk: schedules whose slots form rows, each row depending on earlier rows only.
// Internal to sim/analytical; promises are in pipeline_walk.h.
#pragma once

#include <vector>

#include "sim/analytical/pipeline_walk.h"

namespace orrery {

// Kept from call to call.
struct RowStorage {
  std::vector<double> values;
  std::vector<double> forward_tokens, backward_tokens;
  std::vector<double> snapshot, far_snapshot;
};

// Seconds of the slot `micro_batch` of `micro_batches`.
inline double seconds_of(const SlotSeconds& s, std::int64_t micro_batch, std::int64_t micro_batches) {
  if (micro_batches == 1) return s.first + s.last - s.usual;
  return micro_batch == 0 ? s.first : micro_batch == micro_batches - 1 ? s.last : s.usual;
}
// Of micro-batches 0 .. micro_batches-1 together.
inline double total_seconds(const SlotSeconds& s, std::int64_t micro_batches) {
  return s.first + s.last + static_cast<double>(micro_batches - 2) * s.usual;
}

// Fills first_forward_begin, last_backward_end and finish of each stage. False, with nothing done, when the schedule is
// none of those it knows: it looks at the slots, not at a name.
bool walk_rows(const Schedule& schedule, const PipelineCosts& costs, RowStorage& storage, PipelineClock& out);

}  // namespace orrery
