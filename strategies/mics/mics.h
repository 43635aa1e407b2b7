// MiCS (Zhang et al. 2022, arXiv 2205.00119): all states divided over partition groups of few ranks, gradients reduced
// in two hops, weights gathered in two stages where a group spans nodes.
#pragma once

#include "strategies/strategy.h"

namespace orrery::mics {

void check(const Scenario& scenario);
// dp_shard, cut where a node ends if weights are gathered in two stages; dp_replicate.
void add_digits(const Scenario& scenario, Mesh& mesh);
void shard(const Scenario& scenario, const Plan& plan, const Mesh& mesh, data_parallel::Sharding& sharding);
void disable(Plan& plan);
std::span<const PlanWord> words();

}  // namespace orrery::mics
