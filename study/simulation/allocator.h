// What PyTorch's allocator makes of a simulated step, on the pipeline stage that has the most.
#pragma once

#include "sim/memory/allocation_trace.h"
#include "study/simulation/simulation.h"

namespace orrery {

// The first two steps leave behind what the third one finds.
inline constexpr int kAllocatorSteps = 3;

// REQUIRES: the report has stages.
const StageReport& fullest_stage(const Simulation& simulation);
AllocationTrace allocations(const Simulation& simulation);
// Of a device without what driver, libraries and communicators hold.
CachingAllocator::Options allocator_options(const Simulation& simulation, bool expandable_segments);

}  // namespace orrery
