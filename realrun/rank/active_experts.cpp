#include "realrun/rank/active_experts.h"

#include <algorithm>

namespace orrery::realrun {

void ActiveExperts::note(const OpCall& call) {
  const Op& op = call.op;
  if (op.kind != OpKind::route || !op.is_random() || op.phase != Phase::forward) return;
  const Tensor& weights = call.written(0);
  kept_.push_back({memory_.share(call, op.writes[0]), memory_.slice(call, op.writes[0], Access::read),
                   weights.elements() / weights.sizes[weights.rank - 1]});
}

// Inactive experts have no weight.
ActiveExperts::Sums ActiveExperts::take() {
  Sums sums;
  std::vector<float> weights;
  if (!kept_.empty()) memory_.backend().synchronize();
  for (const Kept& kept : kept_) {
    weights.resize(static_cast<std::size_t>(kept.slice.elements));
    memory_.backend().read(kept.slice, weights);
    sums.active += std::ranges::count_if(weights, [](float w) { return w > 0; });
    sums.tokens += kept.tokens;
  }
  kept_.clear();
  return sums;
}

}  // namespace orrery::realrun
