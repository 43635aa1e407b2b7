// Common parts of routers: one warp per token, whose values lie in shared memory.
#pragma once

#include "realrun/cuda/kernels/call.cuh"

namespace orrery::cuda {
namespace {

constexpr int kNobody = 0x7fffffff;

// Takes a warp's largest value in shared memory, the first among equals, and marks it as taken by NaN.
__device__ int take_largest(float* values, int count) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float best = minus_infinity();
  int at = kNobody;
  for (int i = lane; i < count; i += kWarp)
    if (values[i] > best || (values[i] == best && i < at)) {
      best = values[i];
      at = i;
    }
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, best, distance);
    const int other_at = __shfl_xor_sync(kAllLanes, at, distance);
    if (other > best || (other == best && other_at < at)) {
      best = other;
      at = other_at;
    }
  }
  if (at == kNobody) at = count - 1;  // only NaN left
  __syncwarp();
  if (lane == 0) values[at] = __uint_as_float(0x7fffffffu);
  __syncwarp();
  return at;
}

// A warp's token, and its `floats` numbers in shared memory; data is nullptr behind the last token.
struct TokenOfWarp {
  std::int64_t token;
  float* data;
};
__device__ TokenOfWarp token_of_warp(std::int64_t tokens, int floats) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / kWarp) + warp;
  return {token, token < tokens ? reinterpret_cast<float*>(dynamic_shared()) + warp * floats : nullptr};
}

// Launches a kernel with one warp per token: as many per block as fit into the shared memory of a kernel by default.
template <class Kernel, class... Arguments>
void launch_by_token(const Call& call, const char* name, Kernel kernel, std::int64_t tokens, std::int64_t floats,
                     const Arguments&... arguments) {
  constexpr std::int64_t kRoom = 48 << 10;
  const std::int64_t bytes = bytes_for<float>(floats),
                     warps = std::clamp<std::int64_t>(kRoom / bytes, 1, kThreads / kWarp);
  launch(name, kernel, blocks(divide_up(tokens, warps)), static_cast<int>(warps) * kWarp, bytes * warps,
         call.launch.stream, arguments...);
}

}  // namespace
}  // namespace orrery::cuda
