// Expert parallelism: the experts of a layer are divided over ranks, each of which has tokens of its own. Tokens travel
// to their experts and back by all-to-all (Lepikhin et al. 2020, arXiv 2006.16668). The ranks of an expert group, and
// those that divide each expert's matrices, are folded over the tensor, context and data ranks of the rest of a layer
// (Liu et al. 2025, arXiv 2504.14960); what is left of them holds the same experts and reduces their gradients.
//
//   permute      a rank's tokens into slots           [experts, slots, hidden], of all experts
//   dispatch     redistribute over ep                 [experts / ep, slots x ep, hidden]
//                sort, by expert what came by rank    the same
//                all_gather over etp                  [experts / ep, slots x ep x etp, hidden]
//   experts      grouped products                     a part of the sum over etp
//   combine      the same way back: reduce_scatter over etp, sort, redistribute; then unpermute
//
// Where routing is unequal (sim/program/load.h), a rank has rows from each other one as the load of its layer says, and
// the sizes behind the exchange are those of the rank with the most.
//
// Each rank has `slots` for each expert: ceil(capacity factor x its tokens x experts_per_token / experts), at most its
// tokens; dropless: what balanced routing needs. A run, whose routing its data decide, has slots for all its tokens
// instead, and counts the rows that are there (make_runnable).
#pragma once

#include <memory>

#include "sim/program/program.h"
#include "strategies/strategy.h"

namespace orrery::expert_parallel {

void check_runnable(const Scenario& scenario);
// Of a training whose tokens are not routed to all experts alike: steps that route alike are alike.
std::unique_ptr<RunController> control(const Scenario& scenario);

// The plan's, or as many as tensor_parallel where it leaves them open.
std::int64_t expert_tensor_ranks(const Plan& plan);
// Ranks that hold the same experts: of all but those of pp.
MeshGroup expert_replicas(const Mesh& mesh);

// `--explain routing`.
std::span<const Topic> topics();

}  // namespace orrery::expert_parallel
