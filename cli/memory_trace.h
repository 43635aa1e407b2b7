// What PyTorch's allocator makes of a step's memory, on the pipeline stage that has the most.
#pragma once

#include <string>

#include "sim/simulation/simulation.h"

namespace orrery {

// A table: reserved, allocated and what is lost between them, with fixed and with expandable segments.
std::string allocator_text(const Simulation& simulation);

// The contents of a snapshot file (sim/memory/memory_snapshot.h).
std::string memory_trace(const Simulation& simulation, bool expandable_segments);

}  // namespace orrery
