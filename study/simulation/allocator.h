// Runs PyTorch's allocator model on a simulated step, for the pipeline stage with the highest peak.
#pragma once

#include "sim/memory/allocation_trace.h"
#include "study/simulation/simulation.h"

namespace orrery {

// Number of steps to run. The first two bring the allocator into the steady state of the third, which is reported.
inline constexpr int kAllocatorSteps = 3;

inline AllocationTrace allocations(const Simulation& simulation) {
  return allocation_trace(*simulation.program, static_cast<std::size_t>(simulation.report.fullest().stage));
}
// The options for a device: its capacity without the memory of driver, libraries and communicators.
inline CachingAllocator::Options allocator_options(const Simulation& simulation, bool expandable_segments) {
  const double own_bytes = simulation.report.memory_capacity_bytes - simulation.report.fullest().memory.framework_bytes;
  return {.expandable_segments = expandable_segments, .capacity = static_cast<std::int64_t>(own_bytes)};
}

}  // namespace orrery
