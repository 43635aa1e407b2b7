// The fast path of PipelineWalker::walk(): schedules whose slots form rows, where each row depends on earlier rows
// only. Internal to sim/analytical; pipeline_walk.h has the contract.
#pragma once

#include <vector>

#include "sim/analytical/pipeline_walk.h"

namespace orrery {

// Working storage, kept between calls.
struct RowStorage {
  std::vector<double> values;
  std::vector<double> forward_tokens, backward_tokens;
  std::vector<double> snapshot, far_snapshot;
};

// Seconds of the slot of micro-batch `micro_batch` of `micro_batches`.
inline double seconds_of(const SlotSeconds& s, std::int64_t micro_batch, std::int64_t micro_batches) {
  if (micro_batches == 1) return s.first + s.last - s.usual;
  return micro_batch == 0 ? s.first : micro_batch == micro_batches - 1 ? s.last : s.usual;
}
// Seconds of the slots of all micro-batches together.
inline double total_seconds(const SlotSeconds& s, std::int64_t micro_batches) {
  return s.first + s.last + static_cast<double>(micro_batches - 2) * s.usual;
}

// Fills first_forward_begin, last_backward_end and finish of each stage. Returns false and changes nothing if the
// schedule is none of the known orders. It recognises the order by its slots, not by a name.
bool walk_rows(const Schedule& schedule, const PipelineCosts& costs, RowStorage& storage, PipelineClock& out);

}  // namespace orrery
