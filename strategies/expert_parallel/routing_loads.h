// What the workload says of routing, as loads of the Program (sim/program/load.h).
//
// Sources: a recorded trace gives each layer its counts; a pattern or preset gives its popularities, for kDrawnLayers
// layers, which the model's take in turn. Both of the workload's step. Tokens that are counted of all ranks together
// come evenly from all.
//
// Micro-batches: those of a trace, or as many as differ by routing_micro_batch_noise, kMostDrawnMicroBatches at most,
// are taken in turn by those of the step. Of a trace that has more than the step each of the step's has several, cut in
// order: as each waited for the busiest rank of its own, ranks in the order of their rows, which may be others each
// time, have the mean of those. Where a balancer works, and where rows have a fixed number of slots, micro-batches are
// one. Every expert group has the same: of a trace with the source ranks of all
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
// Micro-batches that differ become classes of the Program (Program::micro_batch_class), kMostMicroBatchClasses at most:
// of more, those that are nearest by what their busiest ranks have in all layers are joined, as loads are. Loads are
// then of layers and micro-batches together, kMostLoadsByMicroBatch at most. A module of multi-token prediction has the
// same in all classes, that which is nearest to the last layer's mean.
// Balanced routing leaves the Program as it is. With moe_pad_to_busiest_expert rows have as many slots as the layer's
// busiest expert needs, and loads say how many (Load::padded).
void lay_loads(const Scenario& scenario, Program& program);

inline constexpr std::size_t kMostLoads = 4, kMostLoadsByMicroBatch = 8, kDrawnLayers = 4;
inline constexpr std::size_t kMostMicroBatchClasses = 16;
inline constexpr std::int64_t kMostDrawnMicroBatches = 16;

// The step that routing is of: the workload's, or the last at which it has changed by routing_interval.
std::int64_t routing_step(const Workload& workload);
// What routers choose at the workload's step, of each layer of the source. Empty: balanced.
std::vector<RoutingMatrix> routing_of(const Scenario& scenario);
// Steps of a scenario for which this is the same route the same.
std::int64_t routing_state(const Scenario& scenario);

}  // namespace orrery::expert_parallel
