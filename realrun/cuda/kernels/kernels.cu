// Dispatches an op to its kernel.
#include "realrun/cuda/kernels.h"
#include "realrun/cuda/kernels/call.cuh"

namespace orrery::cuda {

bool is_kernel(OpKind kind) { return static_cast<int>(kind) < kOpKinds && is_computation(kind) && !is_matmul(kind); }

std::int64_t scratch_bytes(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes,
                           std::int64_t processors) {
  if (static_cast<int>(op.kind) >= kOpKinds || !traits_of(op.kind).scratch) return 0;
  const KernelContext context;
  Launch launch;
  launch.processors = processors;
  const Call call{op, reads, writes, context, launch};
  switch (op.kind) {
    case OpKind::norm_backward:
      return norm_backward_scratch(call);
    case OpKind::bias_gradient:
      return bias_gradient_scratch(call);
    case OpKind::embedding_backward:
      return embedding_backward_scratch(call);
    case OpKind::gradient_norm:
      return gradient_norm_scratch(call);
    case OpKind::attention_backward:
      return attention_backward_scratch(call);
    case OpKind::permute:
      return permute_scratch(call);
    case OpKind::unpermute:
      return unpermute_scratch(call);
    case OpKind::unpermute_backward:
      return unpermute_backward_scratch(call);
    case OpKind::permute_weights:
      return permute_weights_scratch(call);
    case OpKind::unpermute_weights:
      return unpermute_weights_scratch(call);
    case OpKind::slot_mask:
      return slot_mask_scratch(call);
    case OpKind::slot_mask_backward:
      return slot_mask_backward_scratch(call);
    default:
      call.fail("needs memory that nobody has counted");
  }
}

void run_kernel(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes,
                const KernelContext& context, const Launch& launch) {
  const Call call{op, reads, writes, context, launch};
  call.require(is_kernel(op.kind), "multiplies matrices or moves data, and is no kernel");
  call.require(!op.accumulate || traits_of(op.kind).accumulates != 0, "cannot accumulate");
  switch (op.kind) {
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
      call.fail("is no kernel");
  }
}

}  // namespace orrery::cuda
