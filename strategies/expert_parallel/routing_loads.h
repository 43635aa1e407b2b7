// What the workload says of routing, as loads of the Program (sim/program/load.h).
//
// Sources: a recorded trace gives each layer its counts; a pattern or preset gives its popularities, for kDrawnLayers
// layers, which the model's take in turn. Both of the workload's step. Tokens that are counted of all ranks together
// come evenly from all.
//
// Of several micro-batches of a trace each waits for the busiest rank of its own: ranks in the order of their rows,
// which may be others each time, have the mean of all micro-batches, and so has every micro-batch of the step. Where a
// balancer works, micro-batches are one. Every expert group has the same: of a trace with the source ranks of all
// groups what the one has whose busiest ranks have the most rows, which a step ends with.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/program/program.h"
#include "strategies/scenario.h"
#include "traces/routing.h"

namespace orrery::expert_parallel {

bool has_experts(const Piece& piece);

// Throws InputError for routing that is not of this model and plan.
void check_routing(const Scenario& scenario);

// Program::loads, and which rows have which: layers of unlike loads become variants of their piece. At most kMostLoads:
// of more, layers are ordered by their busiest rank and cut into so many runs of equal length, and all of a run take
// the load of the one that is nearest to the mean of its busiest ranks, so that the time of all changes the least.
// Rows that have a fixed number of slots (moe_expert_capacity_factor) take no load: what finds no slot is dropped.
// Balanced routing leaves the Program as it is. With moe_pad_to_busiest_expert rows have as many slots as the layer's
// busiest expert needs, and loads say how many (Load::padded).
void lay_loads(const Scenario& scenario, Program& program);

inline constexpr std::size_t kMostLoads = 4, kDrawnLayers = 4;

// The step that routing is of: the workload's, or the last at which it has changed by routing_interval.
std::int64_t routing_step(const Workload& workload);
// What routers choose at the workload's step, of each layer of the source. Empty: balanced.
std::vector<RoutingMatrix> routing_of(const Scenario& scenario);
// Steps of a scenario for which this is the same route the same.
std::int64_t routing_state(const Scenario& scenario);

}  // namespace orrery::expert_parallel
