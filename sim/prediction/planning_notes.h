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

// Whether up-links of leaf switches that are narrower than what hangs below them are on the way of so many ranks.
bool is_oversubscribed(const Cluster& cluster, std::int64_t ranks);
// The cluster with as much up as down.
Cluster without_oversubscription(Cluster cluster);
// For a step that takes as long without_oversubscription().
std::string placed_by_leaf_note(const Fabric& fabric);

}  // namespace orrery
