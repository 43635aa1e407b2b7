// Placements made anew from loads, which keep nothing of the last: DeepSeek's EPLB and SYMI's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strategies/flexmoe/placement.h"

namespace orrery::flexmoe {

// EPLB (github.com/deepseek-ai/EPLB, eplb.py): the expert of each of `replicas` slots, rank by rank. Groups of experts
// are packed to nodes, in each node the expert with the most load a replica is replicated until its slots are full, and
// replicas are packed to the node's ranks; where nodes do not divide groups, all is one node. Throws InputError where
// sizes do not divide each other, or there are fewer replicas than experts.
std::vector<std::int64_t> eplb(std::span<const std::int64_t> loads, std::int64_t replicas, std::int64_t groups,
                               std::int64_t nodes, std::int64_t ranks);

// SYMI (Skiadopoulos et al. 2025, arXiv 2504.19925) places anew in every iteration, by the tokens of the last one:
// slots in proportion to tokens, one at least for each expert, neighbours for an expert. How fractions are rounded is
// ours: the largest first. Throws InputError where there are fewer slots than experts.
std::vector<std::int64_t> slots_by_popularity(std::span<const std::int64_t> tokens_of_experts, std::int64_t slots);
Placement place_by_popularity(std::span<const std::int64_t> tokens_of_experts, std::int64_t ranks,
                              std::int64_t slots_per_rank);

}  // namespace orrery::flexmoe
