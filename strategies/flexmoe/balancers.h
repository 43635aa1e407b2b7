// The balancers that FlexMoE is compared with. EPLB and SYMI compute placements from loads alone, independent of the
// previous placement; FasterMoE's dynamic shadowing broadcasts experts; SWIPE changes the routers' choices.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strategies/flexmoe/placement.h"
#include "traces/routing.h"

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

// FasterMoE's dynamic shadowing (He et al. 2022, PPoPP '22): popular experts are broadcast to every rank for a step, so
// that their tokens stay where they are. Formulas count a multiply-add as two FLOPs; a worker is a rank with one
// expert.
struct ShadowingProfile {
  double hidden = 0;        // H, elements of a token
  double hidden_ratio = 0;  // a: an expert's inner width is a H
  double element_bytes = 0;
  double flops_per_second = 0;  // P, of a rank
  double bytes_per_second = 0;  // W_net, of a rank's link
};

// Returns the seconds of a layer, forward and backward, if the busiest worker has B = most_tokens: 3 x 4 B a H^2 / P +
// 4 B H element_bytes / W_net.
double imbalanced_seconds(double most_tokens, const ShadowingProfile& profile);

// The policy of the published code (fmoe/fastermoe/shadow_policy.py): takes experts in descending order of tokens, as
// long as broadcasting one more makes the layer faster. With r experts broadcast it takes imbalanced_seconds(B') +
// r 2 a H^2 element_bytes / W_net, where B' are the tokens of the most popular expert left. The least popular expert is
// never shadowed. `tokens_of_experts`: tokens of a micro-batch, or the mean over several. Returns the indices
// of the experts, the most popular first.
std::vector<std::int64_t> shadowed_experts(std::span<const double> tokens_of_experts, const ShadowingProfile& profile);

// SWIPE: each worker takes as many tokens as it has room for, and tokens beyond that go to other workers (FastMoE's
// SwipeGate: fmoe/gates/swipe_gate.py, cuda/balancing.cu).
struct SwipePass {
  RoutingMatrix tokens;    // by worker, after balancing
  std::int64_t moved = 0;  // tokens that go to another worker than their router chose
};

// Makes one pass, over one choice of every token. `tokens`: how many tokens go from each source rank to each worker;
// RoutingMatrix::experts is the number of workers, as a worker's experts count together. `room`: how many tokens each
// worker still takes; it is updated. Source ranks are served in order; tokens that find no room go to the first workers
// that have some. `room` is for all passes, one for each of a token's top_k choices: with T x top_k for each worker,
// where T is the number of tokens of a rank, all workers end with equally many tokens. Throws InputError if sizes
// differ, or if there is less room than tokens.
SwipePass swipe_once(const RoutingMatrix& tokens, std::vector<std::int64_t>& room);

}  // namespace orrery::flexmoe
