// ZeRO++'s hierarchical partitioning (hpZ: Wang et al. 2023, arXiv 2306.10209, section 3.2): after the forward has
// gathered weights over the whole shard group, it keeps a second copy divided over neighbouring ranks only. The
// backward gathers that copy.
#pragma once

#include "strategies/strategy.h"

namespace orrery::zeropp {

void check(const Scenario& scenario);
// Adds the digit of dp_shard whose ranks divide the second copy.
void add_digits(const Scenario& scenario, Mesh& mesh);
void shard(const Scenario& scenario, const Plan& plan, const Mesh& mesh, data_parallel::Sharding& sharding);
void disable(Plan& plan);
std::span<const PlanWord> words();
std::span<const SearchAxis> search_axes();

}  // namespace orrery::zeropp
