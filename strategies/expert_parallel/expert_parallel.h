// Expert parallelism: the experts of a layer are divided over ranks, each of which has its own tokens. An all-to-all
// sends tokens to their experts, another one sends results back (Lepikhin et al. 2020, arXiv 2006.16668). The axes ep
// (ranks of an expert group) and etp (ranks that divide each expert's matrices) are folded over the tensor, context and
// data ranks of the other parts of a layer (Liu et al. 2025, arXiv 2504.14960). The remaining ranks hold the same
// experts and reduce their gradients.
//
//   permute      a rank's tokens into slots               [experts, slots, hidden] for all experts
//   dispatch     redistribute over ep                     [experts / ep, slots x ep, hidden]
//                sort rows that came by rank, by expert   same shape
//                all_gather over etp                      [experts / ep, slots x ep x etp, hidden]
//   experts      grouped products                         partial sums over etp
//   combine      the reverse: reduce_scatter over etp, sort, redistribute; then unpermute
//
// If routing is unequal (sim/program/load.h), the load of a layer says how many rows a rank gets from each other rank.
// Tensors after the exchange have the sizes of the rank with the most rows.
//
// Each rank has `slots` slots for each expert: ceil(capacity factor x its tokens x experts_per_token / experts), at
// most its tokens. Dropless plans have the slots that balanced routing needs. In a dropless run the data decide the
// routing; the run has slots for all its tokens and counts the rows that are filled (make_runnable).
#pragma once

#include <memory>

#include "sim/program/program.h"
#include "strategies/strategy.h"

namespace orrery::expert_parallel {

// Returns the controller of a training with unequal routing; null if routing is balanced. Steps with the same routing
// have the same state.
std::unique_ptr<TrainingController> control(const Scenario& scenario);

// How unequal the work of experts is, over the layers with experts.
struct RoutedWork {
  double busiest_rank = 1, busiest_expert = 1;  // rows over the mean, in the most unequal layer
  double mean_busiest_rank = 1;                 // rows of each layer's busiest rank over the mean, averaged over layers
  double dropped_share = 0;                     // share of rows that find no slot, averaged over layers
};
std::span<const FigureKind> figure_kinds();
void append_figures(const RoutedWork& work, std::vector<Figure>& figures);
// Appends the figures of a Program whose routing is unequal; none if routing is balanced.
void figures(const Scenario& scenario, const Program& program, std::vector<Figure>& figures);

// Returns the plan's expert_tensor_parallel, or tensor_parallel if the plan leaves it at 0.
std::int64_t expert_tensor_ranks(const Plan& plan);
// Returns the group of ranks, within a pipeline stage, that hold the same experts.
MeshGroup expert_replicas(const Mesh& mesh);

// Returns the topic of `--explain routing`.
std::span<const Topic> topics();

}  // namespace orrery::expert_parallel
