// ZeRO++'s hierarchical partitioning (hpZ: Wang et al. 2023, arXiv 2306.10209, section 3.2): what the forward has
// gathered over the whole shard group leaves a second copy, divided over neighbouring ranks only, and the backward
// gathers that.
#pragma once

#include "strategies/strategy.h"

namespace orrery::zeropp {

void check(const Scenario& scenario);
// Of dp_shard, the ranks that divide the second copy.
void add_digits(const Scenario& scenario, Mesh& mesh);
void shard(const Scenario& scenario, const Plan& plan, const Mesh& mesh, data_parallel::Sharding& sharding);
void disable(Plan& plan);
std::span<const PlanWord> words();
std::span<const SearchAxis> search_axes();

}  // namespace orrery::zeropp
