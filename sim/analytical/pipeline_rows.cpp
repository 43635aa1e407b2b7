#include "sim/analytical/pipeline_rows.h"

#include "sim/analytical/rows.h"

namespace orrery {

bool walk_rows(const Schedule& schedule, const PipelineCosts& costs, RowStorage& storage, PipelineClock& out) {
  const rows::Order order = rows::recognise(schedule);
  if (order == rows::Order::other) return false;
  out.stages.assign(schedule.stages.size(), {});
  switch (order) {
    case rows::Order::gpipe:
      rows::walk_gpipe(schedule, costs, out);
      break;
    case rows::Order::one_f_one_b:
      rows::walk_one_f_one_b(schedule, costs, storage, out);
      break;
    default:
      rows::walk_interleaved(schedule, costs, storage, out, order == rows::Order::interleaved_forwards_first);
  }
  return true;
}

}  // namespace orrery
