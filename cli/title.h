// The head of a table: what was simulated or run.
#pragma once

#include <string>
#include <vector>

#include "strategies/scenario.h"

namespace orrery {

// The parts of the scenario, then the plan where it is not the default.
std::vector<std::string> title_of(const Scenario& scenario);

}  // namespace orrery
