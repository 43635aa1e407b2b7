// One call of a kernel, and the kernels by topic: internal to realrun/cuda/kernels.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "realrun/cuda/kernels.h"
#include "realrun/cuda/kernels/device.cuh"
#include "realrun/kernel_list.h"

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
    constexpr std::int64_t kWidest = 16;  // bytes that one instruction loads
    const std::int64_t bytes = std::min(kWidest, kWide * bytes_of(o.dtype, 1));
    return reinterpret_cast<std::uintptr_t>(o.data) % static_cast<std::uintptr_t>(bytes) == 0;
  });
}

// A grid of one dimension.
inline dim3 blocks(std::int64_t count) {
  if (count > std::numeric_limits<std::int32_t>::max()) throw std::logic_error("CUDA kernels: a tensor is too large");
  return {static_cast<unsigned>(count), 1, 1};
}
inline constexpr int kThreads = 256;

#define ORRERY_LAUNCH(kernel, ...) launch(#kernel, kernel, __VA_ARGS__)

#define ORRERY_DECLARE(kind) void kind(const Call& call);
ORRERY_KERNELS(ORRERY_DECLARE)
#undef ORRERY_DECLARE
#define ORRERY_DECLARE(kind) std::int64_t kind##_scratch(const Call& call);  // bytes
ORRERY_SCRATCH_KERNELS(ORRERY_DECLARE)
#undef ORRERY_DECLARE

// The first half of `route` where experts choose: weights are the scores before, the chosen ones' behind.
void choose_tokens(const Call& call);
// The same where an auction assigns: writes choices, and prices into the weights.
void hold_auction(const Call& call);
// `route` and its derivative with Gumbel noise on the logits.
void gumbel_route(const Call& call);
void gumbel_route_backward(const Call& call);

}  // namespace orrery::cuda
