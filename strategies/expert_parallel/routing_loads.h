// Turns the workload's routing into loads of the Program (sim/program/load.h).
//
// Sources: a recorded trace gives each layer its counts. A pattern or preset gives popularities for kDrawnLayers
// layers, which the model's layers use in turn. Both are taken at the workload's step. Counts without a source rank are
// divided evenly over the source ranks.
//
// Micro-batches: routing differs between the micro-batches of a trace, or between those drawn with
// routing_micro_batch_noise (at most kMostDrawnMicroBatches). The step's micro-batches use them in turn. If a trace has
// more micro-batches than the step, each of the step's stands for several consecutive ones: ranks are ordered by their
// rows in each of these, and the rows of each position are averaged, since every micro-batch waits for its own busiest
// rank, which may be another one each time. With a balancer, or with a fixed number of slots, there is one micro-batch.
// Every expert group has the same routing: if a trace has source ranks of all groups, it is that of the group whose
// busiest ranks have the most rows, since the step ends with this group.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/program/program.h"
#include "strategies/scenario.h"
#include "traces/routing.h"

namespace orrery::expert_parallel {

bool has_experts(const Piece& piece);

// Throws InputError for routing that does not fit the model and plan.
void check_routing(const Scenario& scenario);

// Adds Program::loads and assigns them to rows. Layers with different loads become variants of their piece.
// At most kMostLoads loads are kept. If there are more, layers are ordered by their busiest rank and cut into runs of
// equal length. All layers of a run take the load that is nearest to the mean of the run's busiest ranks, so that the
// total time changes least. Rows with a fixed number of slots (moe_expert_capacity_factor) take no load: tokens without
// a slot are dropped.
// Micro-batches that differ become classes of the Program (Program::micro_batch_class), at most kMostMicroBatchClasses.
// If there are more, those whose busiest ranks are most alike in all layers are joined, as loads are. There is then one
// load per layer and class, at most kMostLoadsByMicroBatch. A module of multi-token prediction has the same load in all
// classes: the one nearest to the last layer's mean.
// Balanced routing leaves the Program as it is. With moe_pad_to_busiest_expert rows have as many slots as the layer's
// busiest expert needs, and loads say how many (Load::padded).
void lay_loads(const Scenario& scenario, Program& program);

inline constexpr std::size_t kMostLoads = 4, kMostLoadsByMicroBatch = 8, kDrawnLayers = 4;
inline constexpr std::size_t kMostMicroBatchClasses = 16;
inline constexpr std::int64_t kMostDrawnMicroBatches = 16;

// Returns the step that routing belongs to: the workload's step, rounded down to a multiple of routing_interval.
std::int64_t routing_step(const Workload& workload);
// Returns the routers' choices at the workload's step, for each layer of the source; empty if routing is balanced.
std::vector<RoutingMatrix> routing_of(const Scenario& scenario);
// Returns a number for the scenario's step: steps with the same number have the same routing.
std::int64_t routing_state(const Scenario& scenario);

}  // namespace orrery::expert_parallel
