// What a planner must know of a scenario and would not see in its figures: what was assumed where nothing was said,
// and groups that lie across nodes by their size.
#pragma once

#include <string>
#include <vector>

#include "sim/hardware/cluster.h"
#include "sim/program/program.h"
#include "strategies/scenario.h"

namespace orrery {

// For Report::notes of either engine. `program`: lowered from the scenario, its ranks on the cluster's devices in
// order.
std::vector<std::string> planning_notes(const Scenario& scenario, const Program& program);

}  // namespace orrery
