// Runs PyTorch's allocator model on a simulated step, for the pipeline stage with the highest peak.
#pragma once

#include "sim/memory/allocation_trace.h"
#include "study/simulation/simulation.h"

namespace orrery {

// Number of steps to run. The first two bring the allocator into the steady state of the third, which is reported.
inline constexpr int kAllocatorSteps = 3;

// REQUIRES: the report has stages.
const StageReport& fullest_stage(const Simulation& simulation);
AllocationTrace allocations(const Simulation& simulation);
// The options for a device: its capacity without the memory of driver, libraries and communicators.
CachingAllocator::Options allocator_options(const Simulation& simulation, bool expandable_segments);

}  // namespace orrery
