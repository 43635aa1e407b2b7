// A kernel's call, and the kernels by topic. Internal to realrun/cuda/kernels.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "realrun/cuda/kernels.h"
#include "realrun/cuda/kernels/device.cuh"

namespace orrery::cuda {

struct Call {
  const Op& op;
  std::span<const Operand> reads, writes;
  const KernelContext& context;
  const Launch& launch;

  [[noreturn]] void fail(const std::string& what) const {
    const int kind = static_cast<int>(op.kind);
    const std::string name = kind < kOpKinds ? name_of(op.kind) : "of unknown kind " + std::to_string(kind);
    throw std::logic_error("CUDA kernel " + name + " (" + op.name + "): " + what);
  }
  void require(bool condition, const char* what) const {
    if (!condition) fail(what);
  }
  bool has_read(std::size_t i) const { return i < reads.size() && reads[i].data != nullptr; }
  bool has_write(std::size_t i) const { return i < writes.size() && writes[i].data != nullptr; }
  const Operand& read(std::size_t i) const {
    if (!has_read(i)) fail("operand " + std::to_string(i) + " is missing");
    return reads[i];
  }
  const Operand& write(std::size_t i) const {
    if (!has_write(i)) fail("result " + std::to_string(i) + " is missing");
    return writes[i];
  }
  void require_same_elements(const Operand& a, const Operand& b) const {
    require(a.tensor->elements() == b.tensor->elements(), "tensors differ in their number of elements");
  }
  // `row` repeats along the leading dimensions of `whole`.
  void require_repeats(const Operand& row, const Operand& whole) const {
    require(row.tensor->elements() > 0 && whole.tensor->elements() % row.tensor->elements() == 0,
            "a bias does not divide its tensor");
  }
  // Floating point of any width.
  Any numbers(const Operand& o) const {
    const Dtype d = o.tensor->dtype;
    require(d == Dtype::fp32 || d == Dtype::bf16 || d == Dtype::fp16 || d == Dtype::fp8,
            "an operand is not of floating point");
    return {o.data, d};
  }
  Any numbers_if_read(std::size_t i) const { return has_read(i) ? numbers(reads[i]) : Any{}; }
  Any numbers_if_written(std::size_t i) const { return has_write(i) ? numbers(writes[i]) : Any{}; }
  Any indices(const Operand& o) const {
    require(o.tensor->dtype == Dtype::int64 || o.tensor->dtype == Dtype::int32, "ids are neither int64 nor int32");
    return {o.data, o.tensor->dtype};
  }
  float* singles(const Operand& o) const {
    require(o.tensor->dtype == Dtype::fp32, "statistics are not fp32");
    return static_cast<float*>(o.data);
  }
  std::uint8_t* mask(const Operand& o) const {
    require(o.tensor->dtype == Dtype::uint8, "a mask is not uint8");
    return static_cast<std::uint8_t*>(o.data);
  }
  template <class T>
  T* scratch(std::int64_t count) const {
    require(launch.scratch != nullptr && launch.scratch_bytes >= count * static_cast<std::int64_t>(sizeof(T)),
            "there is less scratch memory than scratch_bytes() asked for");
    return static_cast<T*>(launch.scratch);
  }
};

inline std::int64_t elements(const Operand& o) { return o.tensor->elements(); }
inline std::int64_t last_size(const Operand& o) {
  return o.tensor->rank == 0 ? 1 : o.tensor->sizes[o.tensor->rank - 1];
}
constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Whether all operands can be taken kWide elements at a time: in rows of `row` elements, from aligned addresses.
inline bool wide(std::int64_t row, std::initializer_list<Any> operands) {
  if (row % kWide != 0) return false;
  return std::all_of(operands.begin(), operands.end(), [](const Any& o) {
    if (o.data == nullptr) return true;
    if (o.dtype == Dtype::int64 || o.dtype == Dtype::int32) return false;
    constexpr std::int64_t kWidest = 16;  // bytes of the widest load instruction
    const std::int64_t bytes = std::min(kWidest, kWide * bytes_of(o.dtype, 1));
    return reinterpret_cast<std::uintptr_t>(o.data) % static_cast<std::uintptr_t>(bytes) == 0;
  });
}

// A one-dimensional grid.
inline dim3 blocks(std::int64_t count) {
  if (count > std::numeric_limits<std::int32_t>::max()) throw std::logic_error("CUDA kernels: a tensor is too large");
  return {static_cast<unsigned>(count), 1, 1};
}
inline constexpr int kThreads = 256;

#define ORRERY_LAUNCH(kernel, ...) launch(#kernel, kernel, __VA_ARGS__)

// elementwise.cu
void activation(const Call& call);
void activation_backward(const Call& call);
void dropout(const Call& call);
void dropout_backward(const Call& call);
void dropout_add(const Call& call);
void add_noise(const Call& call);
void add(const Call& call);
void multiply(const Call& call);
void cast(const Call& call);
void zero_fill(const Call& call);

// norm.cu
void norm(const Call& call);
void norm_backward(const Call& call);
void bias_gradient(const Call& call);
std::int64_t norm_backward_scratch(const Call& call);
std::int64_t bias_gradient_scratch(const Call& call);

// tokens.cu
void embedding(const Call& call);
void embedding_backward(const Call& call);
void cross_entropy(const Call& call);
void cross_entropy_backward(const Call& call);
void softmax(const Call& call);
void softmax_backward(const Call& call);
void pool(const Call& call);
void pool_backward(const Call& call);
void merge_attention(const Call& call);
std::int64_t embedding_backward_scratch(const Call& call);

// routing.cu
void route(const Call& call);
void route_backward(const Call& call);
void permute(const Call& call);
void unpermute(const Call& call);
void unpermute_backward(const Call& call);
void permute_weights(const Call& call);
void unpermute_weights(const Call& call);
void slot_mask(const Call& call);
void slot_mask_backward(const Call& call);
void expert_counts(const Call& call);
void router_loss(const Call& call);
void router_loss_backward(const Call& call);
std::int64_t permute_scratch(const Call& call);
std::int64_t unpermute_scratch(const Call& call);
std::int64_t unpermute_backward_scratch(const Call& call);
std::int64_t permute_weights_scratch(const Call& call);
std::int64_t unpermute_weights_scratch(const Call& call);
std::int64_t slot_mask_scratch(const Call& call);
std::int64_t slot_mask_backward_scratch(const Call& call);

// routers.cu
// The first half of `route` where experts choose. `weights`: before, the scores; after, the chosen ones' weights.
void choose_tokens(const Call& call);
// The same if an auction assigns: writes the choices, and the prices into the weights.
void hold_auction(const Call& call);
void hash_route(const Call& call);

// gumbel_route.cu
void gumbel_route(const Call& call);
void gumbel_route_backward(const Call& call);

// rotary.cu
void rotary(const Call& call);
void rotary_backward(const Call& call);

// optimizer.cu
void gradient_norm(const Call& call);
void scale(const Call& call);
void adam(const Call& call);
void sgd(const Call& call);
std::int64_t gradient_norm_scratch(const Call& call);

// attention.cu
void attention(const Call& call);
void attention_backward(const Call& call);
std::int64_t attention_backward_scratch(const Call& call);

}  // namespace orrery::cuda
