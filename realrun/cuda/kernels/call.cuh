// One call of a kernel, and the kernels by topic: internal to realrun/cuda/kernels.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "realrun/cuda/kernels.h"
#include "realrun/cuda/kernels/device.cuh"
#include "realrun/kernel_shapes.h"
#include "realrun/random_draws.h"

namespace orrery::cuda {

struct Call : KernelCall {
  const Launch& launch;

  // Floating point of any width.
  Any numbers(const Operand& o) const {
    const Dtype d = o.tensor->dtype;
    require(d == Dtype::fp32 || d == Dtype::bf16 || d == Dtype::fp16 || d == Dtype::fp8,
            "an operand is not of floating point");
    return {o.data, d};
  }
  Any in(std::size_t i) const { return numbers(read(i)); }
  Any out(std::size_t i) const { return numbers(write(i)); }
  // The same of operands that may be absent.
  Any in_if(std::size_t i) const { return has_read(i) ? numbers(reads[i]) : Any{}; }
  Any out_if(std::size_t i) const { return has_write(i) ? numbers(writes[i]) : Any{}; }
  Any indices(const Operand& o) const {
    require(o.tensor->dtype == Dtype::int64 || o.tensor->dtype == Dtype::int32, "ids are neither int64 nor int32");
    return {o.data, o.tensor->dtype};
  }
  float* singles(const Operand& o) const {
    require(o.tensor->dtype == Dtype::fp32, "statistics are not fp32");
    return static_cast<float*>(o.data);
  }
  Any mask(const Operand& o) const {
    require(o.tensor->dtype == Dtype::uint8, "a mask is not uint8");
    return {o.data, Dtype::uint8};
  }
  WholeElements whole_elements_of(const Tensor& t) const {
    const WholeElements w = whole_elements(t, context, launch.query_positions);
    require(w.by_position < 0 || w.positions != nullptr, "the positions are not on the device");
    return w;
  }
  template <class T>
  T* scratch(std::int64_t count) const {
    require(launch.scratch != nullptr && launch.scratch_bytes >= count * static_cast<std::int64_t>(sizeof(T)),
            "there is less scratch memory than scratch_bytes() asked for");
    return static_cast<T*>(launch.scratch);
  }
};

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

// The grid for elements of which each thread takes `vector`; otherwise the blocks that the caller gives.
struct Elements {
  std::int64_t count;
};
inline dim3 grid_of(Elements elements, int vector) { return blocks(divide_up(elements.count, kThreads * vector)); }
inline dim3 grid_of(dim3 blocks, int) { return blocks; }

template <class T>
constexpr std::int64_t bytes_for(std::int64_t count) {
  return count * static_cast<std::int64_t>(sizeof(T));
}
// Shared memory of block_sum().
inline constexpr std::int64_t kSumBytes = bytes_for<float>(kThreads / kWarp);

inline CUstream_st* stream_of(const Call& call) { return call.launch.stream; }
inline CUstream_st* stream_of(CUstream_st* stream) { return stream; }

// Launches a kernel, or its version for kWide elements at a time where these fit. `on`: a call, or a stream.
#define ORRERY_LAUNCH(on, kernel, grid, shared_bytes, ...) \
  launch(#kernel, kernel, grid_of(grid, 1), kThreads, shared_bytes, stream_of(on), __VA_ARGS__)
#define ORRERY_LAUNCH_WIDE(on, is_wide, kernel, grid, shared_bytes, ...)                                          \
  ((is_wide)                                                                                                      \
       ? launch(#kernel, kernel<kWide>, grid_of(grid, kWide), kThreads, shared_bytes, stream_of(on), __VA_ARGS__) \
       : launch(#kernel, kernel<1>, grid_of(grid, 1), kThreads, shared_bytes, stream_of(on), __VA_ARGS__))

#define ORRERY_DECLARE(kind) void kind(const Call& call);
ORRERY_KERNELS(ORRERY_DECLARE)
#undef ORRERY_DECLARE
#define ORRERY_DECLARE(kind) std::int64_t kind##_scratch(const Call& call);  // bytes
ORRERY_SCRATCH_KERNELS(ORRERY_DECLARE)
#undef ORRERY_DECLARE

// Returns the bytes of scratch memory for any kernel that puts tokens into slots: a list of its rows or choices.
std::int64_t slots_scratch(const Call& call);

// The first half of `route` where experts choose: weights are the scores before, the chosen ones' behind.
void choose_tokens(const Call& call);
// The same where an auction assigns: writes choices, and prices into the weights.
void hold_auction(const Call& call);
// `route` and its derivative with Gumbel noise on the logits.
void gumbel_route(const Call& call);
void gumbel_route_backward(const Call& call);

}  // namespace orrery::cuda
