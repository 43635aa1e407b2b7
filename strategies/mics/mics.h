// MiCS (Zhang et al. 2022, arXiv 2205.00119): all states are divided over small partition groups. Gradients are reduced
// in two hops, and weights are gathered in two stages if a group spans nodes.
#pragma once

#include "strategies/strategy.h"

namespace orrery::mics {

void check(const Scenario& scenario);
// Adds dp_shard and dp_replicate. dp_shard is cut at the node's boundary if weights are gathered in two stages.
void add_digits(const Scenario& scenario, Mesh& mesh);
void shard(const Scenario& scenario, const Plan& plan, const Mesh& mesh, data_parallel::Sharding& sharding);
void disable(Plan& plan);
std::span<const PlanWord> words();

}  // namespace orrery::mics
