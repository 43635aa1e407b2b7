// The heading of a table: what was simulated or run.
#pragma once

#include <string>
#include <vector>

#include "strategies/scenario.h"

namespace orrery {

// Returns the parts of the scenario, then the plan's fields that are not at their default.
std::vector<std::string> title_of(const Scenario& scenario);

}  // namespace orrery
