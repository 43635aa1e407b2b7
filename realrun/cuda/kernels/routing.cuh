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

// As many tokens per block as fit into the shared memory that a kernel gets by default.
inline int route_threads(std::int64_t shared_bytes_of_warp) {
  constexpr std::int64_t kRoom = 48 << 10;
  return static_cast<int>(std::clamp<std::int64_t>(kRoom / shared_bytes_of_warp, 1, kThreads / kWarp)) * kWarp;
}

}  // namespace
}  // namespace orrery::cuda
