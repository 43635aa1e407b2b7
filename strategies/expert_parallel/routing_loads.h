// What the workload says of routing, as loads of the Program (sim/program/load.h).
//
// Sources: a recorded trace gives each layer its counts, the micro-batches of its first step together; a pattern or
// preset gives counts of so many tokens that they are its popularities, for kDrawnLayers layers, which the model's take
// in turn. Tokens that are counted of all ranks together come evenly from all. Every expert group has the same.
#pragma once

#include "sim/program/program.h"
#include "strategies/scenario.h"

namespace orrery::expert_parallel {

bool has_experts(const Piece& piece);

// Throws InputError for routing that is not of this model and plan.
void check_routing(const Scenario& scenario);

// Program::loads, and which rows have which: layers of unlike loads become variants of their piece. At most kMostLoads:
// of more, layers are ordered by their busiest rank and cut into so many runs of equal length, and all of a run take
// the load of the one that is nearest to the mean of its busiest ranks, so that the time of all changes the least.
// Rows that have a fixed number of slots (moe_expert_capacity_factor) take no load: what finds no slot is dropped.
// Balanced routing leaves the Program as it is.
void lay_loads(const Scenario& scenario, Program& program);

inline constexpr std::size_t kMostLoads = 4, kDrawnLayers = 4;

}  // namespace orrery::expert_parallel
