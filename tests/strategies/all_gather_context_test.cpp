// Does gathering keys move what Llama 3's paper says, and divide the work?
#include "tests/strategies/divided_sequences.h"

namespace orrery {
namespace {

// Llama 3's: keys and values of all, gathered for the forward and again for the backward, their gradients scattered.
TEST(AllGatherContext, GathersKeysTwiceAndScattersTheirGradients) {
  const Program p = lowered_of(divided("llama-3-8b", 8, "all_gather"));
  constexpr double kKeys = 2 * kBsh / 4;
  EXPECT_DOUBLE_EQ(traffic(p, OpKind::all_gather).elements, 2 * kKeys);
  EXPECT_DOUBLE_EQ(traffic(p, OpKind::reduce_scatter).elements, kKeys);
  EXPECT_EQ(traffic(p, OpKind::all_gather).calls, 4);
  EXPECT_EQ(traffic(p, OpKind::reduce_scatter).calls, 2);
}

// The last rank of a contiguous deal sees all that is before it.
TEST(AllGatherContext, TheZigzagDealDividesACausalMaskEqually) {
  const double whole = layer_attention_flops(lowered_of(divided("llama-2-7b", 1, "ring")));
  using context_parallel::Balance;
  for (const Balance balance : {Balance::zigzag, Balance::contiguous}) {
    Scenario s = divided("llama-2-7b", 8, "all_gather");
    s.plan.context.balance = balance;
    EXPECT_DOUBLE_EQ(layer_attention_flops(lowered_of(s)) / whole,
                     balance == Balance::zigzag ? 1.0 / 8 : 15.0 / 8 / 8);
  }
}

}  // namespace
}  // namespace orrery
