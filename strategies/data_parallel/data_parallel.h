// Data parallelism and its sharded forms.
//   zero_stage 0  gradients are all-reduced bucket by bucket under the last micro-batch's backward (Li et al. 2020,
//                 arXiv 2006.15704)
//   1             optimizer states are sharded: gradients reduce-scattered, updated parameters gathered (Rajbhandari
//                 et al. 2020, arXiv 1910.02054; Megatron-LM's distributed optimizer)
//   2             gradients are sharded too
//   3             parameters are sharded too, gathered layer by layer (FSDP: Zhao et al. 2023, arXiv 2304.11277)
// zero_shard_degree < data-parallel degree replicates the shard groups (HSDP): gradients are then all-reduced between
// the replicas as well. Context-parallel ranks hold the same parameters and take part in both.
//
// Gradients are reduced once a step, and are whole on every rank until then, or in every micro-batch
// (reduce_gradients): then a rank keeps no more of them than its part of the sum, and stages 1 and 2 are the same
// Program.
#pragma once

#include "sim/program/program.h"
#include "strategies/layer_plans.h"
#include "strategies/strategy.h"

namespace orrery::data_parallel {

void check(const Scenario& scenario);
// dp_shard and, outside of it, dp_replicate.
void add_digits(const Scenario& scenario, Mesh& mesh);
void rewrite_piece(const Scenario& scenario, const Plan& plan, const Program& program, Piece& piece);
void disable(Plan& plan);
std::span<const PlanWord> words();

// What reduce_gradients, or the stack where it is automatic, comes to. Of one micro-batch stages 2 and 3 keep nothing
// whole in either case.
bool reduces_in_every_micro_batch(const Scenario& scenario, std::int64_t micro_batches);

}  // namespace orrery::data_parallel
