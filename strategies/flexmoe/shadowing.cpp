#include "strategies/flexmoe/shadowing.h"

#include <algorithm>
#include <numeric>

namespace orrery::flexmoe {
namespace {

double compute_seconds(double tokens, const ShadowingProfile& p) {
  return 3 * 4 * tokens * p.hidden_ratio * p.hidden * p.hidden / p.flops_per_second;
}
double exchange_seconds(double tokens, const ShadowingProfile& p) {
  return 4 * tokens * p.hidden * p.element_bytes / p.bytes_per_second;
}
// Sends an expert once.
double expert_seconds(const ShadowingProfile& p) {
  return 2 * p.hidden_ratio * p.hidden * p.hidden * p.element_bytes / p.bytes_per_second;
}

}  // namespace

double imbalanced_seconds(double most_tokens, const ShadowingProfile& profile) {
  return compute_seconds(most_tokens, profile) + exchange_seconds(most_tokens, profile);
}

std::vector<std::int64_t> shadowed_experts(std::span<const double> tokens_of_experts, const ShadowingProfile& profile) {
  std::vector<std::int64_t> order(tokens_of_experts.size());
  std::iota(order.begin(), order.end(), 0);
  const auto tokens = [&](std::int64_t e) { return tokens_of_experts[static_cast<std::size_t>(e)]; };
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return tokens(a) > tokens(b); });
  std::size_t shadowed = 0;
  double seconds = order.empty() ? 0 : imbalanced_seconds(tokens(order.front()), profile);
  for (; shadowed + 1 < order.size(); ++shadowed) {
    const double now = imbalanced_seconds(tokens(order[shadowed + 1]), profile) +
                       static_cast<double>(shadowed + 1) * expert_seconds(profile);
    if (now >= seconds) break;
    seconds = now;
  }
  order.resize(shadowed);
  return order;
}

}  // namespace orrery::flexmoe
