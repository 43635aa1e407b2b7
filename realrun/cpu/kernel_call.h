// A kernel's call and the CPU kernels by topic. Internal to realrun/cpu.
#pragma once

#include <span>
#include <stdexcept>
#include <string>

#include "realrun/cpu/kernels.h"

namespace orrery::cpu {

struct KernelCall {
  const Op& op;
  std::span<const Buffer> reads, writes;
  const KernelContext& context;

  [[noreturn]] void fail(const std::string& what) const {
    const int kind = static_cast<int>(op.kind);
    const std::string name = kind < kOpKinds ? name_of(op.kind) : "of unknown kind " + std::to_string(kind);
    throw std::logic_error("kernel " + name + " (" + op.name + "): " + what);
  }
  void require(bool condition, const char* what) const {
    if (!condition) fail(what);
  }
  bool has_read(std::size_t i) const { return i < reads.size() && reads[i].data != nullptr; }
  bool has_write(std::size_t i) const { return i < writes.size() && writes[i].data != nullptr; }
  const Buffer& read(std::size_t i) const {
    if (!has_read(i)) fail("operand " + std::to_string(i) + " is missing");
    return reads[i];
  }
  const Buffer& write(std::size_t i) const {
    if (!has_write(i)) fail("result " + std::to_string(i) + " is missing");
    return writes[i];
  }
  void require_same_elements(const Buffer& a, const Buffer& b) const {
    require(a.elements() == b.elements(), "tensors differ in their number of elements");
  }
  // `row` repeats along the leading dimensions of `whole`.
  void require_repeats(const Buffer& row, const Buffer& whole) const {
    require(row.elements() > 0 && whole.elements() % row.elements() == 0, "a bias does not divide its tensor");
  }
};

inline std::int64_t last_size(const Buffer& b) { return b.tensor->rank == 0 ? 1 : b.tensor->sizes[b.tensor->rank - 1]; }

// products.cpp
void linear(const KernelCall& call);
void linear_input_gradient(const KernelCall& call);
void linear_weight_gradient(const KernelCall& call);
void batched_matmul(const KernelCall& call);
void mask_permute(const KernelCall& call);
void mask_unpermute(const KernelCall& call);
void mask_gradient(const KernelCall& call);

// attention.cpp
void attention(const KernelCall& call);
void attention_backward(const KernelCall& call);
void merge_attention(const KernelCall& call);
void softmax(const KernelCall& call);
void softmax_backward(const KernelCall& call);
void rotary(const KernelCall& call);
void rotary_backward(const KernelCall& call);

// elementwise.cpp
void activation(const KernelCall& call);
void activation_backward(const KernelCall& call);
void dropout(const KernelCall& call);
void dropout_backward(const KernelCall& call);
void dropout_add(const KernelCall& call);
void add_noise(const KernelCall& call);
void add(const KernelCall& call);
void multiply(const KernelCall& call);
void bias_gradient(const KernelCall& call);
void cast(const KernelCall& call);
void zero_fill(const KernelCall& call);

// norm.cpp
void norm(const KernelCall& call);
void norm_backward(const KernelCall& call);

// tokens.cpp
void embedding(const KernelCall& call);
void embedding_backward(const KernelCall& call);
void cross_entropy(const KernelCall& call);
void cross_entropy_backward(const KernelCall& call);
void pool(const KernelCall& call);
void pool_backward(const KernelCall& call);

// routing.cpp
void route(const KernelCall& call);
void route_backward(const KernelCall& call);
void permute(const KernelCall& call);
void unpermute(const KernelCall& call);
void unpermute_backward(const KernelCall& call);
void permute_weights(const KernelCall& call);
void unpermute_weights(const KernelCall& call);
void slot_mask(const KernelCall& call);
void slot_mask_backward(const KernelCall& call);
void expert_counts(const KernelCall& call);
void router_loss(const KernelCall& call);
void router_loss_backward(const KernelCall& call);

// routers.cpp
// Returns the expert of each row of logits, by auction.
std::vector<std::int64_t> auctioned_experts(std::span<const float> logits, std::int64_t experts);
// The part of `route` where experts choose tokens; scores are [tokens, experts].
void choose_tokens(const KernelCall& call, std::span<const double> scores);
void hash_route(const KernelCall& call);

// gumbel_route.cpp
void gumbel_route(const KernelCall& call);
void gumbel_route_backward(const KernelCall& call);

// optimizer.cpp
void gradient_norm(const KernelCall& call);
void scale(const KernelCall& call);
void adam(const KernelCall& call);
void sgd(const KernelCall& call);

}  // namespace orrery::cpu
