// What PyTorch's allocator makes of a step's memory, on the pipeline stage that has the most.
#pragma once

#include <string>
#include <string_view>

#include "study/simulation/simulation.h"

namespace orrery {

// A table: reserved, allocated and what is lost between them, with fixed and with expandable segments.
std::string allocator_text(const Simulation& simulation);

// `--explain memory_plan`: the same requests, laid out before the step runs (sim/memory/bi_level_plan.h).
inline constexpr std::string_view kMemoryPlan = "memory_plan";
// REQUIRES: built_with_cbc().
std::string memory_plan_text(const Simulation& simulation);
// orrery-des in place of this program, where the solver is not linked (built_with_cbc()). Throws InputError (`option`:
// found `asked`, expected `instead`) where there is none beside it.
void become_program_with_cbc(const char* option, const char* asked, const char* instead);

// The contents of a snapshot file (sim/memory/memory_snapshot.h), of PyTorch's allocator.
std::string memory_trace(const Simulation& simulation, bool expandable_segments);
// Of the plan. REQUIRES: built_with_cbc().
std::string planned_memory_trace(const Simulation& simulation);

}  // namespace orrery
