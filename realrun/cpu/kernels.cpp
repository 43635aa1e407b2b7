#include "realrun/cpu/kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "realrun/cpu/kernel_call.h"

namespace orrery::cpu {
namespace {

void dispatch(const KernelCall& call) {
  switch (call.op.kind) {
    case OpKind::linear:
      return linear(call);
    case OpKind::linear_input_gradient:
      return linear_input_gradient(call);
    case OpKind::linear_weight_gradient:
      return linear_weight_gradient(call);
    case OpKind::batched_matmul:
      return batched_matmul(call);
    case OpKind::attention:
      return attention(call);
    case OpKind::attention_backward:
      return attention_backward(call);
    case OpKind::softmax:
      return softmax(call);
    case OpKind::softmax_backward:
      return softmax_backward(call);
    case OpKind::norm:
      return norm(call);
    case OpKind::norm_backward:
      return norm_backward(call);
    case OpKind::rotary:
      return rotary(call);
    case OpKind::rotary_backward:
      return rotary_backward(call);
    case OpKind::activation:
      return activation(call);
    case OpKind::activation_backward:
      return activation_backward(call);
    case OpKind::dropout:
      return dropout(call);
    case OpKind::dropout_backward:
      return dropout_backward(call);
    case OpKind::dropout_add:
      return dropout_add(call);
    case OpKind::add:
      return add(call);
    case OpKind::multiply:
      return multiply(call);
    case OpKind::bias_gradient:
      return bias_gradient(call);
    case OpKind::embedding:
      return embedding(call);
    case OpKind::embedding_backward:
      return embedding_backward(call);
    case OpKind::cross_entropy:
      return cross_entropy(call);
    case OpKind::cross_entropy_backward:
      return cross_entropy_backward(call);
    case OpKind::pool:
      return pool(call);
    case OpKind::pool_backward:
      return pool_backward(call);
    case OpKind::cast:
      return cast(call);
    case OpKind::zero_fill:
      return zero_fill(call);
    case OpKind::merge_attention:
      return merge_attention(call);
    case OpKind::route:
      return route(call);
    case OpKind::route_backward:
      return route_backward(call);
    case OpKind::hash_route:
      return hash_route(call);
    case OpKind::permute:
      return permute(call);
    case OpKind::unpermute:
      return unpermute(call);
    case OpKind::unpermute_backward:
      return unpermute_backward(call);
    case OpKind::permute_weights:
      return permute_weights(call);
    case OpKind::unpermute_weights:
      return unpermute_weights(call);
    case OpKind::slot_mask:
      return slot_mask(call);
    case OpKind::slot_mask_backward:
      return slot_mask_backward(call);
    case OpKind::mask_permute:
      return mask_permute(call);
    case OpKind::mask_unpermute:
      return mask_unpermute(call);
    case OpKind::mask_gradient:
      return mask_gradient(call);
    case OpKind::add_noise:
      return add_noise(call);
    case OpKind::expert_counts:
      return expert_counts(call);
    case OpKind::router_loss:
      return router_loss(call);
    case OpKind::router_loss_backward:
      return router_loss_backward(call);
    case OpKind::gradient_norm:
      return gradient_norm(call);
    case OpKind::scale:
      return scale(call);
    case OpKind::adam:
      return adam(call);
    case OpKind::sgd:
      return sgd(call);
    default:
      call.fail("moves data between ranks or memories, and is no kernel");
  }
}

// Rounds to the nearest bf16, ties to even. A NaN stays NaN, even if its payload is in the lower half.
float rounded_to_bf16(float x) {
  if (std::isnan(x)) return x;
  constexpr int kDropped = 16;  // bits of the mantissa that bf16 does not have
  constexpr std::uint32_t kBelowHalf = (1u << (kDropped - 1)) - 1;
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + kBelowHalf + ((bits >> kDropped) & 1)) >> kDropped << kDropped;
  return std::bit_cast<float>(rounded);
}

}  // namespace

void run_kernel(const Op& op, std::span<const Buffer> reads, std::span<const Buffer> writes,
                const KernelContext& context) {
  const KernelCall call{op, reads, writes, context};
  call.require(!op.accumulate || traits_of(op.kind).accumulates != 0, "cannot accumulate");
  dispatch(call);
  if (!context.round_to_bf16) return;
  for (const Buffer& b : writes)
    if (b.data != nullptr && b.tensor->dtype == Dtype::bf16) std::ranges::transform(b.span(), b.data, rounded_to_bf16);
}

}  // namespace orrery::cpu
