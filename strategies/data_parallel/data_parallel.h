// Data parallelism and its sharded forms.
//   zero_stage 0  gradients are all-reduced bucket by bucket during the last micro-batch's backward (Li et al. 2020,
//                 arXiv 2006.15704)
//   1             optimizer states are sharded: gradients are reduce-scattered, updated parameters gathered
//                 (Rajbhandari et al. 2020, arXiv 1910.02054; Megatron-LM's distributed optimizer)
//   2             gradients are sharded too
//   3             parameters are sharded too, and gathered layer by layer (FSDP: Zhao et al. 2023, arXiv 2304.11277)
//                 or, in large layers, matrix by matrix (DeepSpeed: gather_order.h)
// zero_shard_degree < data-parallel degree replicates the shard groups (HSDP): gradients are then all-reduced between
// the replicas as well. Context-parallel ranks hold the same parameters and take part in both.
//
// Gradients are reduced once a step, and are whole on every rank until then; or they are reduced in every micro-batch
// (reduce_gradients). In the second case a rank keeps only its part of the sum, and stages 1 and 2 give the same
// Program.
//
// One pass implements all forms. Its parameters (Sharding) say over which ranks the weights, gradients, optimizer
// states and a second copy of the weights of a parameter set are divided. Other strategies change these parameters
// (Strategy::shard) and have no pass of their own.
#pragma once

#include <span>

#include "sim/program/program.h"
#include "strategies/framework/framework.h"
#include "strategies/layer_plans.h"
#include "strategies/strategy.h"

namespace orrery::data_parallel {

// How numbers travel: as codes of this dtype, of which at most `group` share a scale (OpKind::quantise). With a group
// of 0 they travel as they are. With `feedback` what codes lose is kept, and added to what is sent next: for sums only.
struct Wire {
  Dtype codes = Dtype::int8;
  std::int64_t group = 0;
  bool feedback = false;
  bool quantised() const { return group > 0; }
};

// How a parameter set is divided over ranks, and when it is reduced and gathered. Frozen sets use only weights' values.
struct Sharding {
  MeshGroup ranks;  // ranks with the same parameters: gradients are summed over them
  // The groups of weights lie within those of states. The groups of gradients contain those of weights, and lie within
  // `reduced` and those of states.
  ShardGroups over;
  // The part of `ranks` over which gradients are summed in every micro-batch; over the rest they are summed once a
  // step.
  MeshGroup reduced;
  // Outer digits of over.weights. Weights are gathered over them first, and over the other digits in a second gather.
  MeshGroup gathered_first;
  bool keeps_parameters = false;  // gathered parameters stay whole; they are gathered once a step
  // Sharded weights are fp32, with no copy beside them, and the optimizer updates them. They are cast before a gather.
  bool fp32_weights = false;
  bool stays_gathered = false;  // what the forward gathers stays whole until the end of the step
  Wire weights_wire;            // gathers of weights, also from a second copy
  Wire secondary_wire;          // the second copy of the weights is kept in these codes, and gathered from them
  // The reduction in every micro-batch: all-to-alls of codes, first over digits of `first_hop`, then over the others,
  // with a sum after each. In each level of over.gradients the digits of first_hop are the minor ones; otherwise
  // lay_out() throws std::logic_error.
  Wire gradients_wire;
  MeshGroup first_hop;
  bool fp8_gathers = false;  // parameters are cast to fp8 before a gather, and matrix products read the fp8 copy
  // Each parameter set is gathered when its own ops need it (gather_order.h), and its gradients are reduced as soon as
  // they exist. Without a limit all sets are gathered before the block, and reduced after it.
  framework::GatherLimits in_turn;
  // For gradients that are summed whole and once a step: the share of a layer's gradients that is sent in the backward
  // of the next layer after its dispatch to experts (`beside_experts`), and after its last combine (`beside_dense`).
  // The rest is sent before the update.
  struct Pieces {
    double beside_experts = 0, beside_dense = 0;
    bool any() const { return beside_experts > 0 || beside_dense > 0; }
  } pieces;
  // True for sets that are too small to fill a bucket: updated parts are gathered for all layers at once after the
  // update, even if the plan overlaps the gathers with the forward.
  bool gathered_after_update = false;
};
// Returns the sharding by zero_stage and reduce_gradients, as changed by other strategies.
Sharding sharding_of(const Scenario& scenario, const Plan& plan, const Program& program);
// Returns the sharding of experts, whose replicas are other ranks (expert_parallel::expert_replicas).
Sharding expert_sharding_of(const Scenario& scenario, const Plan& plan, const Program& program);

// Applies shardings to a piece: by_set[i] to its i-th parameter set, and the last one to all further sets. Call it for
// all pieces with the same values. Throws std::logic_error if the groups are not nested.
void lay_out(std::span<const Sharding> by_set, const Options& options, double bucket_bytes, const Mesh& mesh,
             Piece& piece);

// Numbers a piece's parameter sets that are gathered at different times or held by different ranks, before lay_out().
void divide_into_sets(const Scenario& scenario, const Sharding& sharding, Piece& piece);

// Adds digits of dp_shard until it has `end` ranks, if that is a multiple of what it has. If a node's `in_node` ranks
// end in between, the next ones have a digit of their own.
void add_shard_digits(std::int64_t end, std::int64_t in_node, const char* name, Mesh& mesh);

// Whether the products' weights of layers of this plan are kept quantised and in no wider copy (fp8_param_gather,
// fp4_param_gather): the optimizer's fp32 copies are cast to them once a step.
bool keeps_weights_quantised(const Scenario& scenario, const Plan& layers);
// Returns what reduce_gradients means; `automatic` is resolved by the training framework. With one micro-batch, stages
// 2 and 3 keep no whole gradients in either case.
bool reduces_in_every_micro_batch(const Scenario& scenario, std::int64_t micro_batches);
// Whether a rank keeps only its part of the sum of a micro-batch's gradients; a single rank's part is the whole sum.
bool keeps_parts_of_gradients(const Scenario& scenario, std::int64_t micro_batches);

}  // namespace orrery::data_parallel
