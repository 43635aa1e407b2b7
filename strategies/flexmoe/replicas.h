// Placements computed from loads alone, independent of the previous placement: DeepSeek's EPLB and SYMI's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strategies/flexmoe/placement.h"

namespace orrery::flexmoe {

// EPLB (github.com/deepseek-ai/EPLB, eplb.py). Returns the expert of each of `replicas` slots, rank by rank. Groups of
// experts are packed into nodes. In each node, the expert with the most load per replica is replicated until the node's
// slots are full, and replicas are packed into the node's ranks. If `groups` is not a multiple of `nodes`, all ranks
// count as one node. Throws InputError if sizes do not divide each other, or there are fewer replicas than experts.
std::vector<std::int64_t> eplb(std::span<const std::int64_t> loads, std::int64_t replicas, std::int64_t groups,
                               std::int64_t nodes, std::int64_t ranks);

// SYMI (Skiadopoulos et al. 2025, arXiv 2504.19925) computes a placement in every iteration from the tokens of the last
// one: slots in proportion to tokens, at least one for each expert, an expert's slots side by side. How fractions are
// rounded is ours: the largest first. Throws InputError if there are fewer slots than experts.
std::vector<std::int64_t> slots_by_popularity(std::span<const std::int64_t> tokens_of_experts, std::int64_t slots);
ExpertPlacement place_by_popularity(std::span<const std::int64_t> tokens_of_experts, std::int64_t ranks,
                              std::int64_t slots_per_rank);

}  // namespace orrery::flexmoe
