// Memory of a step as PyTorch's allocator manages it, on the pipeline stage with the most.
#pragma once

#include <string>
#include <string_view>

#include "study/simulation/simulation.h"

namespace orrery {

// A table of reserved and allocated bytes and the difference lost, with fixed and with expandable segments.
std::string allocator_text(const Simulation& simulation);

// `--explain memory_plan`: the same requests, laid out before the step runs (sim/memory/address_layout.h).
inline constexpr std::string_view kMemoryPlan = "memory_plan";
// REQUIRES: built_with_cbc().
std::string memory_plan_text(const Simulation& simulation);

// Returns a snapshot file (sim/memory/allocation_trace.h) of PyTorch's allocator.
std::string memory_trace(const Simulation& simulation, bool expandable_segments);
// Returns a snapshot file of the memory plan. REQUIRES: built_with_cbc().
std::string planned_memory_trace(const Simulation& simulation);

}  // namespace orrery
