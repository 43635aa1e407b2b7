// Shows a simulation to the topics of strategies, through the interface that strategies know (strategies/topic.h).
#pragma once

#include <memory>

#include "strategies/topic.h"
#include "study/simulation/simulation.h"

namespace orrery {

// Returns the interface to a simulation. It is valid as long as the objects that the simulation points to.
std::unique_ptr<Evaluated> evaluated(Simulation simulation);

}  // namespace orrery
