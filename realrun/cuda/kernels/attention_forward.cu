// FlashAttention-2's forward pass (Dao 2023, arXiv 2307.08691, algorithm 1) on tensor cores by mma.sync: a block owns a
// tile of queries, iterates over tiles of keys, and copies the next tile while it computes.
#include "realrun/cuda/kernels/attention.cuh"

namespace orrery::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kBlockThreads = kWarps * kWarp;

// A warp has kRowTiles * 16 queries; a tile of keys has kKeys keys.
template <class Number, int kDim, int kValueDim, int kRowTiles, int kKeys>
__global__ void __launch_bounds__(kBlockThreads) attention_forward_kernel(const __grid_constant__ AttentionShape s) {
  constexpr int kQueries = kWarps * kRowTiles * kTile;
  const SharedTile<kDim> q{reinterpret_cast<std::uint16_t*>(dynamic_shared())}, k{q.data + kQueries * kDim};
  const SharedTile<kValueDim> v{k.data + kKeys * kDim};
  const std::int64_t tiles = (s.queries + kQueries - 1) / kQueries;
  const int key_tiles = static_cast<int>((s.keys + kKeys - 1) / kKeys);
  // The last queries attend to the most keys, and begin.
  const std::int64_t first = (tiles - 1 - blockIdx.x % tiles) * kQueries;
  const std::int64_t number = blockIdx.x / tiles, h = number % s.heads, g = number / s.heads % s.groups,
                     b = number / (s.heads * s.groups);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warp_row = warp * kRowTiles * kTile;
  const std::int64_t last = first + kQueries < s.queries ? first + kQueries : s.queries;
  const Range query_range = s.mask.range(true, first, last);

  // Finds the first tile from `n` on in which any query attends to a key, and whether all queries attend to all of it.
  bool whole = false;
  const auto find = [&](int n) {
    for (; n < key_tiles; ++n) {
      const std::int64_t begin = static_cast<std::int64_t>(n) * kKeys,
                         end = begin + kKeys < s.keys ? begin + kKeys : s.keys;
      whole = end - begin == kKeys;
      if (s.mask.all()) break;
      const Range keys = s.mask.range(false, begin, end);
      whole = whole && s.mask.covers(query_range, keys);
      if (s.mask.touches(query_range, keys)) break;
    }
    return n;
  };

  float out[kRowTiles][kValueDim / 8][4] = {}, maximum[kRowTiles][2], sum[kRowTiles][2] = {};
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) maximum[r][0] = maximum[r][1] = minus_infinity();
  const float scale = s.scale * kLog2E;

  q.template fill<kQueries, kBlockThreads>(s.q, b, g, h, first, s.queries, s.dim);
  int n = find(0);
  if (n < key_tiles)
    k.template fill<kKeys, kBlockThreads>(s.k, b, g, 0, static_cast<std::int64_t>(n) * kKeys, s.keys, s.dim);
  commit_copies();
  while (n < key_tiles) {
    const bool masked = !whole;
    const int own_lane = opaque(lane);
    await_copies<0>();
    __syncthreads();  // these keys have arrived, and no warp needs the values before them
    v.template fill<kKeys, kBlockThreads>(s.v, b, g, 0, static_cast<std::int64_t>(n) * kKeys, s.keys, s.value_dim);
    commit_copies();

    float scores[kRowTiles][kKeys / 8][4] = {};
#pragma unroll
    for (int step = 0; step < kDim / kTile; ++step) {
      std::uint32_t a[kRowTiles][kFragments];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) q.load_a(warp_row + r * kTile, step, a[r], own_lane);
#pragma unroll
      for (int c = 0; c < kKeys / kTile; ++c) {
        std::uint32_t fragment[kFragments];
        k.load_b(c * kTile, step, fragment, own_lane);
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          Number::multiply_add(scores[r][2 * c], a[r], fragment[0], fragment[1]);
          Number::multiply_add(scores[r][2 * c + 1], a[r], fragment[2], fragment[3]);
        }
      }
    }
    if (masked) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const std::int64_t i = first + warp_row + r * kTile + half * 8 + lane / 4;
          const Interval seen = s.mask.partners(true, i < s.queries ? s.mask.query(i) : 0);
#pragma unroll
          for (int c = 0; c < kKeys / 8; ++c)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const int j = n * kKeys + c * 8 + lane % 4 * 2 + e;
              if (!seen.has(s.mask.position(false, j, static_cast<int>(s.keys))))
                scores[r][c][half * 2 + e] = minus_infinity();
            }
        }
    }
    const int following = find(n + 1);
    await_copies<0>();
    __syncthreads();  // these values have arrived, and no warp needs the keys any more
    if (following < key_tiles)
      k.template fill<kKeys, kBlockThreads>(s.k, b, g, 0, static_cast<std::int64_t>(following) * kKeys, s.keys, s.dim);
    commit_copies();

    // Online softmax. The rows of a warp's tile are lane / 4 and lane / 4 + 8, each over four lanes.
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float most = maximum[r][half];
#pragma unroll
        for (int c = 0; c < kKeys / 8; ++c)
          most = larger(most, larger(scores[r][c][half * 2], scores[r][c][half * 2 + 1]));
        most = larger(most, __shfl_xor_sync(kAllLanes, most, 1));
        most = larger(most, __shfl_xor_sync(kAllLanes, most, 2));
        const float base = most == minus_infinity() ? 0 : most * scale;
        const float factor = fast_exp2(maximum[r][half] * scale - base);
        maximum[r][half] = most;
        float added = 0;
#pragma unroll
        for (int c = 0; c < kKeys / 8; ++c)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = scores[r][c][half * 2 + e];
            x = fast_exp2(x * scale - base);
            added += x;
          }
        sum[r][half] = sum[r][half] * factor + added;
#pragma unroll
        for (int d = 0; d < kValueDim / 8; ++d) {
          out[r][d][half * 2] *= factor;
          out[r][d][half * 2 + 1] *= factor;
        }
      }
      // The accumulators have the layout of the next product's `a`.
#pragma unroll
    for (int c = 0; c < kKeys / kTile; ++c) {
      std::uint32_t a[kRowTiles][kFragments];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        const float(&left)[4] = scores[r][2 * c], (&right)[4] = scores[r][2 * c + 1];
        a[r][0] = Number::pack(left[0], left[1]);
        a[r][1] = Number::pack(left[2], left[3]);
        a[r][2] = Number::pack(right[0], right[1]);
        a[r][3] = Number::pack(right[2], right[3]);
      }
#pragma unroll
      for (int d = 0; d < kValueDim / kTile; ++d) {
        std::uint32_t fragment[kFragments];
        v.load_b_transposed(c * kTile, d, fragment, own_lane);
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          Number::multiply_add(out[r][2 * d], a[r], fragment[0], fragment[1]);
          Number::multiply_add(out[r][2 * d + 1], a[r], fragment[2], fragment[3]);
        }
      }
    }
    n = following;
  }
  await_copies<0>();

#pragma unroll
  for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = sum[r][half];
      total += __shfl_xor_sync(kAllLanes, total, 1);
      total += __shfl_xor_sync(kAllLanes, total, 2);
      const std::int64_t i = first + warp_row + r * kTile + half * 8 + lane / 4;
      if (i >= s.queries) continue;
      const bool nothing = maximum[r][half] == minus_infinity();
      const float factor = nothing ? 0 : 1 / total;
      if (lane % 4 == 0)
        s.lse[s.row(b, g, h) + i] = nothing ? minus_infinity() : maximum[r][half] * s.scale + logf(total);
      auto* const to = static_cast<std::uint16_t*>(s.context.tensor.data) + s.context.at(b, g, h, i);
      write_row<Number>(out[r], half, factor, to, s.value_dim, lane);
    }
}

template <class Number, int kDim, int kValueDim, int kRowTiles, int kKeys>
void issue(const AttentionShape& s, CUstream_st* stream) {
  constexpr int kQueries = kWarps * kRowTiles * kTile;
  constexpr std::int64_t kShared =
      (kQueries * kDim + kKeys * (kDim + kValueDim)) * static_cast<std::int64_t>(sizeof(std::uint16_t));
  launch("attention_forward_kernel", attention_forward_kernel<Number, kDim, kValueDim, kRowTiles, kKeys>,
         blocks(divide_up(s.queries, kQueries) * s.heads * s.groups * s.batch), kBlockThreads, kShared, stream, s);
}

template <class Number>
void issue_by_dim(const AttentionShape& s, CUstream_st* stream) {
  const int most = s.dim > s.value_dim ? s.dim : s.value_dim;
  if (most <= 64) return issue<Number, 64, 64, 2, 64>(s, stream);
  if (most <= 128) return issue<Number, 128, 128, 2, 64>(s, stream);
  if (s.dim <= 192 && s.value_dim <= 128) return issue<Number, 192, 128, 1, 64>(s, stream);  // DeepSeek-V2 and V3
  issue<Number, 256, 256, 1, 64>(s, stream);
}

}  // namespace

void attention_on_tensor_cores(const AttentionShape& s, CUstream_st* stream) {
  s.q.tensor.dtype == Dtype::bf16 ? issue_by_dim<Bf16>(s, stream) : issue_by_dim<Half>(s, stream);
}

}  // namespace orrery::cuda
