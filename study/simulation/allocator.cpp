#include "study/simulation/allocator.h"

namespace orrery {

const StageReport& fullest_stage(const Simulation& simulation) {
  return simulation.report.stages.at(static_cast<std::size_t>(simulation.report.memory_stage));
}

AllocationTrace allocations(const Simulation& simulation) {
  return allocation_trace(*simulation.program, static_cast<std::size_t>(fullest_stage(simulation).stage));
}

CachingAllocator::Options allocator_options(const Simulation& simulation, bool expandable_segments) {
  return {.expandable_segments = expandable_segments,
          .capacity = static_cast<std::int64_t>(simulation.report.memory_capacity_bytes -
                                                fullest_stage(simulation).memory.framework_bytes)};
}

}  // namespace orrery
