// The kinds of op that kernels compute, once for all backends: each list applies the macro X to every kind. A backend
// defines a function of each kind's name.
#pragma once

// clang-format off

// Products of matrices: functions on the CPU, cuBLASLt's on a GPU.
#define ORRERY_PRODUCTS(X) \
  X(linear) X(linear_input_gradient) X(linear_weight_gradient) X(batched_matmul) \
  X(mask_permute) X(mask_unpermute) X(mask_gradient)

// Kernels that need scratch memory on a GPU (OpTraits::scratch); there the function KIND_scratch returns its bytes.
#define ORRERY_SCRATCH_KERNELS(X) \
  X(attention_backward) X(norm_backward) X(bias_gradient) X(embedding_backward) X(gradient_norm)
// The same for tokens in the slots of experts; there slots_scratch is of all.
#define ORRERY_SLOT_KERNELS(X) \
  X(permute) X(unpermute) X(unpermute_backward) X(permute_weights) X(unpermute_weights) \
  X(slot_mask) X(slot_mask_backward)

#define ORRERY_KERNELS(X) \
  X(attention) X(merge_attention) X(softmax) X(softmax_backward) X(norm) X(rotary) X(rotary_backward) \
  X(activation) X(activation_backward) X(dropout) X(dropout_backward) X(dropout_add) X(add) X(multiply) \
  X(cast) X(zero_fill) X(embedding) X(cross_entropy) X(cross_entropy_backward) X(pool) X(pool_backward) \
  X(route) X(route_backward) X(hash_route) X(add_noise) X(expert_counts) X(router_loss) X(router_loss_backward) \
  X(scale) X(adam) X(sgd) ORRERY_SCRATCH_KERNELS(X) ORRERY_SLOT_KERNELS(X)
