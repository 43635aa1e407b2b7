// Facts that a planner must know about a scenario and would not see in its figures: assumptions where the scenario says
// nothing, and groups that cross nodes because of their size.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/hardware/cluster.h"
#include "sim/program/program.h"
#include "sim/report/report.h"
#include "strategies/scenario.h"

namespace orrery {

// For Report::notes of either engine. REQUIRES: `program` was lowered from the scenario, with its ranks on the
// cluster's devices in order.
std::vector<std::string> planning_notes(const Scenario& scenario, const Program& program);

// If the report has a utilisation above the device's peak: why that is possible, or that it is not; otherwise "".
std::string utilisation_note(const Report& report);

// Variants of a machine in which its nodes lie differently on the fabric.
enum class OtherPlacement : std::uint8_t {
  full_up_links,  // no oversubscription: as much capacity up as down
  scattered,      // the fabric's nodes, in a random order
  rings_by_leaf,  // rings and trees join the nodes leaf by leaf; if the nodes lie leaf by leaf: scattered,
                  // with such rings
  leaf_by_leaf,   // the fabric's first nodes
};
inline constexpr int kOtherPlacements = 4;
Cluster placed(Cluster cluster, OtherPlacement other);

// The cost of the placement, or the cost that it would have if it hides the fabric's oversubscription; "" if there is
// nothing to say. `step_on`: seconds of a step of that many ranks under another placement; called only as the note
// needs it.
std::string placement_note(const Cluster& cluster, std::int64_t ranks, double step_seconds,
                           const std::function<double(OtherPlacement)>& step_on);

}  // namespace orrery
