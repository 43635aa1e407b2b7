// What a planner must know of a scenario and would not see in its figures: what was assumed where nothing was said,
// and groups that lie across nodes by their size.
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

// For Report::notes of either engine. `program`: lowered from the scenario, its ranks on the cluster's devices in
// order.
std::vector<std::string> planning_notes(const Scenario& scenario, const Program& program);

// Of a share of the device's peak that is above it: why that can be, or that it cannot; "" where none is.
std::string utilisation_note(const Report& report);

// The same machine with something else about where its nodes lie.
enum class OtherPlacement : std::uint8_t {
  full_up_links,  // as much up as down
  scattered,      // the fabric's nodes in an order drawn at random
  rings_by_leaf,  // rings and trees join the nodes leaf by leaf; of nodes that lie leaf by leaf: scattered, with such
                  // rings
  leaf_by_leaf,   // the fabric's first nodes
};
inline constexpr int kOtherPlacements = 4;
Cluster placed(Cluster cluster, OtherPlacement other);

// What placement costs, or would cost where it hides the fabric's oversubscription; "" where there is nothing to say.
// `step_on`: seconds of the step of so many ranks, placed otherwise; asked for what the note needs.
std::string placement_note(const Cluster& cluster, std::int64_t ranks, double step_seconds,
                           const std::function<double(OtherPlacement)>& step_on);

}  // namespace orrery
