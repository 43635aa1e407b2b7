// What topics of strategies are told of a simulation (strategies/topic.h).
#pragma once

#include <memory>

#include "strategies/topic.h"
#include "study/simulation/simulation.h"

namespace orrery {

// Valid as long as what the simulation points to.
std::unique_ptr<Evaluated> evaluated(Simulation simulation);

}  // namespace orrery
