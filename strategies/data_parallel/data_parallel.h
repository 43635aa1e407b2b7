// Data parallelism and its sharded forms.
//   zero_stage 0  gradients are all-reduced bucket by bucket under the last micro-batch's backward (Li et al. 2020,
//                 arXiv 2006.15704)
//   1             optimizer states are sharded: gradients reduce-scattered, updated parameters gathered (Rajbhandari
//                 et al. 2020, arXiv 1910.02054; Megatron-LM's distributed optimizer)
//   2             gradients are sharded too
//   3             parameters are sharded too, gathered layer by layer (FSDP: Zhao et al. 2023, arXiv 2304.11277) or,
//                 of large layers, matrix by matrix (DeepSpeed: gather_order.h)
// zero_shard_degree < data-parallel degree replicates the shard groups (HSDP): gradients are then all-reduced between
// the replicas as well. Context-parallel ranks hold the same parameters and take part in both.
//
// Gradients are reduced once a step, and are whole on every rank until then, or in every micro-batch
// (reduce_gradients): then a rank keeps no more of them than its part of the sum, and stages 1 and 2 are the same
// Program.
//
// All this is one pass with values: over which ranks a parameter set's weights, gradients, states and a second copy of
// the weights are divided (Sharding). Other strategies change the values (Strategy::shard) and write no pass.
#pragma once

#include <span>

#include "sim/program/program.h"
#include "strategies/framework/framework.h"
#include "strategies/layer_plans.h"
#include "strategies/strategy.h"

namespace orrery::data_parallel {

// Over which ranks a parameter set is divided, and when what they have meets. Of a frozen set only weights count.
struct Sharding {
  MeshGroup ranks;  // hold the same parameters: gradients are summed over them
  // weights within states; gradients as far as `reduced` goes, within states too and no less than weights.
  ShardGroups over;
  MeshGroup reduced;  // of ranks, over which gradients are summed in every micro-batch; over the rest once a step
  MeshGroup gathered_first;       // of over.weights' outer digits: a gather of its own, before the one over the rest
  bool keeps_parameters = false;  // gathered once a step
  // Divided weights are fp32 and what the optimizer updates, with no copy beside them; what is gathered is cast first.
  bool fp32_weights = false;
  bool stays_gathered = false;  // what the forward gathers is whole to the end of the step
  bool fp8_gathers = false;     // what is gathered is cast to fp8 first, and is what products read
  // Each parameter set is gathered for its own ops (gather_order.h) and its gradients are reduced when they are there;
  // no limit: all sets are gathered before the block, and reduced behind it.
  framework::GatherLimits in_turn;
  // Where gradients are summed whole and once a step: what part of a layer's is sent in the next layer's backward,
  // behind what leaves for its experts, and what part behind what comes back from them; the rest before the update.
  struct Pieces {
    double beside_experts = 0, beside_dense = 0;
    bool any() const { return beside_experts > 0 || beside_dense > 0; }
  } pieces;
  // Updated parts are gathered once for all layers, also where the plan overlaps it: of what fills no bucket.
  bool gathered_after_update = false;
};
// As zero_stage and reduce_gradients have it, and then as other strategies do.
Sharding sharding_of(const Scenario& scenario, const Plan& plan, const Program& program);
// The same of experts, which other ranks hold alike (expert_parallel::expert_replicas).
Sharding expert_sharding_of(const Scenario& scenario, const Plan& plan, const Program& program);

// Lays a piece's parameter sets out: the i-th by the i-th sharding, or by the last; all pieces by the same. Throws
// std::logic_error for groups that do not hold one another.
void lay_out(std::span<const Sharding> by_set, const Options& options, double bucket_bytes, const Mesh& mesh,
             Piece& piece);

// Numbers the parameter sets of a piece, of which not all are gathered at once, or held by the same ranks; to be called
// before they are laid out.
void divide_into_sets(const Scenario& scenario, const Sharding& sharding, Piece& piece);

// Whether the products' weights of layers of this plan are kept quantised and in no wider copy (fp8_param_gather,
// fp4_param_gather): the optimizer's fp32 copies are cast to them once a step.
bool keeps_weights_quantised(const Scenario& scenario, const Plan& layers);
// What reduce_gradients, or the stack where it is automatic, comes to. Of one micro-batch stages 2 and 3 keep nothing
// whole in either case.
bool reduces_in_every_micro_batch(const Scenario& scenario, std::int64_t micro_batches);
// Whether a rank keeps nothing of a micro-batch's gradients but its part of their sum: of a single rank it is all of
// it.
bool keeps_parts_of_gradients(const Scenario& scenario, std::int64_t micro_batches);

}  // namespace orrery::data_parallel
