// One block finds the n largest numbers of a list, and visits them in the list's order.
#pragma once

#include "realrun/cuda/kernels/call.cuh"

namespace orrery::cuda {

inline constexpr int kWarps = kThreads / kWarp;

// A key that rises with the number; never 0, which stands for no number.
__device__ inline std::uint32_t key_of_number(float x) {
  const std::uint32_t bits = __float_as_uint(x + 0.0f);  // + 0.0f: -0 becomes 0
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ inline float number_of_key(std::uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

// The n largest of a block's candidates: all with keys above `key`, and the first `of_key` of those with this key.
struct Cut {
  std::uint32_t key;
  int of_key;
};

// REQUIRES: at least n candidates, n >= 1. room: shared memory, one element per warp. All threads must call it.
template <class KeyOf>
__device__ inline Cut cut_of(int count, int n, const KeyOf& key_of, int* room) {
  const auto at_least = [&](std::uint32_t key) {
    int found = 0;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) found += key_of(i) >= key ? 1 : 0;
    return block_sum(found, room);
  };
  Cut cut{0, n};
  for (std::uint32_t bit = 0x80000000u; bit != 0; bit >>= 1)
    if (at_least(cut.key | bit) >= n) cut.key |= bit;
  if (cut.key != 0xffffffffu) cut.of_key = n - at_least(cut.key + 1);
  return cut;
}

// Calls visit(candidate, its key, place) in thread candidate % kThreads. place: its index among the n largest, in the
// list's order; -1 if it is not one of them.
template <class KeyOf, class Visit>
__device__ void for_each(int count, const Cut& cut, const KeyOf& key_of, int* room, const Visit& visit) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  int met_above = 0, met_equal = 0;
  for (int tile = 0; tile < count; tile += kThreads) {
    const int i = tile + thread;
    const std::uint32_t key = i < count ? key_of(i) : 0;
    const unsigned above = __ballot_sync(kAllLanes, key > cut.key), equal = __ballot_sync(kAllLanes, key == cut.key);
    constexpr int kHalf = 16;  // of a word of the room: both counts of a warp
    __syncthreads();
    if (lane == 0) room[warp] = __popc(above) << kHalf | __popc(equal);
    __syncthreads();
    const unsigned lower = (1u << lane) - 1;
    int above_before = met_above + __popc(above & lower), equal_before = met_equal + __popc(equal & lower);
    for (int w = 0; w < kWarps; ++w) {
      const int of_above = room[w] >> kHalf, of_equal = room[w] & ((1 << kHalf) - 1);
      above_before += w < warp ? of_above : 0;
      equal_before += w < warp ? of_equal : 0;
      met_above += of_above;
      met_equal += of_equal;
    }
    const bool chosen = key > cut.key || (key == cut.key && equal_before < cut.of_key);
    if (i < count) visit(i, key, chosen ? above_before + (equal_before < cut.of_key ? equal_before : cut.of_key) : -1);
  }
  __syncthreads();
}

}  // namespace orrery::cuda
