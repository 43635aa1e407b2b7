// Tells which keys a query attends to, as realrun/cpu/attention.cpp does.
#pragma once

#include "realrun/cuda/kernels/call.cuh"

namespace orrery::cuda {

inline constexpr int kNowhere = 0x7fffffff;

// A range of positions.
struct Range {
  int low, high;
};

// Positions in [low, high]; no token is at kNowhere.
struct Interval {
  int low, high;
  __device__ bool has(int position) const { return low <= position && position <= high; }
};

struct Mask : AttentionWindow {
  const std::int64_t *query_positions, *key_positions;  // nullptr: in order, queries aligned with the last keys
  std::int64_t shift;

  __device__ std::int64_t query(std::int64_t i) const {
    return query_positions == nullptr ? i + shift : query_positions[i];
  }
  __device__ std::int64_t key(std::int64_t j) const { return key_positions == nullptr ? j : key_positions[j]; }
  // The positions of the keys that the query at position p attends to, or of the queries that attend to the key at p.
  __device__ Interval partners(bool of_query, std::int64_t p) const {
    const auto clamped = [](std::int64_t x) {
      constexpr std::int64_t kMost = kNowhere - 1;
      return static_cast<int>(x > kMost ? kMost : x < -kMost ? -kMost : x);
    };
    return {clamped(p - (of_query ? before() : after())), clamped(p + (of_query ? after() : before()))};
  }
  // Position of query or key i; kNowhere if it has none.
  __device__ int position(bool of_query, int i, int count) const {
    if (i >= count) return kNowhere;
    const std::int64_t* const positions = of_query ? query_positions : key_positions;
    return positions == nullptr ? i + (of_query ? static_cast<int>(shift) : 0) : static_cast<int>(positions[i]);
  }
  // Whether any query of a range may attend to any key of another, and whether all attend to all.
  __device__ bool touches(Range q, Range k) const {
    return std::int64_t{k.low} - q.high <= after() && std::int64_t{q.low} - k.high <= before();
  }
  __device__ bool covers(Range q, Range k) const {
    return std::int64_t{k.high} - q.low <= after() && std::int64_t{q.high} - k.low <= before();
  }
  // Positions of queries (or keys) [begin, end). All lanes of a warp must call it; every lane gets the range.
  __device__ Range range(bool of_queries, std::int64_t begin, std::int64_t end) const {
    const std::int64_t* const positions = of_queries ? query_positions : key_positions;
    if (positions == nullptr) {
      const std::int64_t from = begin + (of_queries ? shift : 0);
      return {static_cast<int>(from), static_cast<int>(from + end - begin - 1)};
    }
    Range r{kNowhere, -kNowhere};
    for (std::int64_t i = begin + threadIdx.x % kWarp; i < end; i += kWarp) {
      const int p = static_cast<int>(positions[i]);
      if (p < r.low) r.low = p;
      if (p > r.high) r.high = p;
    }
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      const int low = __shfl_xor_sync(kAllLanes, r.low, distance), high = __shfl_xor_sync(kAllLanes, r.high, distance);
      if (low < r.low) r.low = low;
      if (high > r.high) r.high = high;
    }
    return r;
  }
};

// The keys of a fused QKV have the queries' positions.
inline Mask mask_of(const Call& call, std::int64_t queries, std::int64_t keys, bool fused) {
  Mask mask{{call.op.window, call.op.causal}, nullptr, nullptr, keys - queries};
  if (mask.all()) return mask;
  const auto place = [&](std::span<const std::int64_t> positions, std::int64_t n, const std::int64_t* device) {
    if (positions.empty()) return static_cast<const std::int64_t*>(nullptr);
    call.require(static_cast<std::int64_t>(positions.size()) == n, "there is not a position for every query or key");
    call.require(device != nullptr, "the positions are not on the device");
    return device;
  };
  const KernelContext& c = call.context;
  mask.query_positions = place(c.query_positions, queries, call.launch.query_positions);
  mask.key_positions = fused ? place(c.query_positions, keys, call.launch.query_positions)
                             : place(c.key_positions, keys, call.launch.key_positions);
  return mask;
}

}  // namespace orrery::cuda
