// FasterMoE's dynamic shadowing (He et al. 2022, PPoPP '22): popular experts are broadcast to every rank for a step, so
// that their tokens stay where they are. Formulas count a multiply-add as two FLOPs; a worker is a rank with one
// expert.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace orrery::flexmoe {

struct ShadowingProfile {
  double hidden = 0;        // H, elements of a token
  double hidden_ratio = 0;  // a: an expert's inner width is a H
  double element_bytes = 0;
  double flops_per_second = 0;  // P, of a rank
  double bytes_per_second = 0;  // W_net, of a rank's link
};

// Returns the seconds of a layer, forward and backward, if the busiest worker has B = most_tokens: 3 x 4 B a H^2 / P +
// 4 B H / W_net.
double imbalanced_seconds(double most_tokens, const ShadowingProfile& profile);

// The policy of the published code (fmoe/fastermoe/shadow_policy.py): takes experts in descending order of tokens, as
// long as broadcasting one more makes the layer faster; the next expert's tokens are then the most. The least popular
// expert is never shadowed. `tokens_of_experts`: tokens of a micro-batch, or the mean over several. Returns the indices
// of the experts, the most popular first.
std::vector<std::int64_t> shadowed_experts(std::span<const double> tokens_of_experts, const ShadowingProfile& profile);

}  // namespace orrery::flexmoe
