// FlashAttention-2's backward pass (Dao 2023, arXiv 2307.08691, algorithm 2) on tensor cores by mma.sync. Two instances
// of one kernel avoid atomics: in one, blocks own keys and iterate over the queries of all heads that share them (dk,
// dv); in the other, blocks own queries and iterate over keys (dq). Each recomputes the probabilities, so there are
// seven products instead of five.
#include "realrun/cuda/kernels/attention.cuh"

namespace orrery::cuda {
namespace {

// The common form, with own rows x1, x2 and other rows y1, y2:
//   p = exp(scale x1 y1^T - lse), ds = p (x2 y2^T - delta), first = scale ds y1, second = p y2.
// Owning queries: x = (q, d_context), y = (k, v), first = dq. Owning keys: x = (k, v), y = (q, d_context), first = dk,
// second = dv; p and ds are then transposed, so that a warp's rows are rows of its results.
enum class Owns { queries, keys };

// c += x y^T, for a warp's rows of x and all rows of y.
template <class Number, int kWidth, int kTiles>
__device__ void multiply_rows(const SharedTile<kWidth>& x, int warp_row, const SharedTile<kWidth>& y,
                              float (&c)[kTiles][4], int lane) {
#pragma unroll
  for (int step = 0; step < kWidth / kTile; ++step) {
    std::uint32_t a[kFragments], fragment[kFragments];
    x.load_a(warp_row, step, a, lane);
#pragma unroll
    for (int t = 0; t < kTiles / 2; ++t) {
      y.load_b(t * kTile, step, fragment, lane);
      Number::multiply_add(c[2 * t], a, fragment[0], fragment[1]);
      Number::multiply_add(c[2 * t + 1], a, fragment[2], fragment[3]);
    }
  }
}

// c += a y, for the packed rows of a warp's `a` and all rows of y.
template <class Number, int kWidth, int kPairs, int kTiles>
__device__ void multiply_packed(const std::uint32_t (&packed)[kPairs][2], const SharedTile<kWidth>& y,
                                float (&c)[kTiles][4], int t, int lane) {
  const std::uint32_t a[kFragments] = {packed[2 * t][0], packed[2 * t][1], packed[2 * t + 1][0], packed[2 * t + 1][1]};
#pragma unroll
  for (int d = 0; d < kWidth / kTile; ++d) {
    std::uint32_t fragment[kFragments];
    y.load_b_transposed(t * kTile, d, fragment, lane);
    Number::multiply_add(c[2 * d], a, fragment[0], fragment[1]);
    Number::multiply_add(c[2 * d + 1], a, fragment[2], fragment[3]);
  }
}

// x1, y1 and first are kDim wide, x2, y2 and second kValueDim.
template <class Number, int kDim, int kValueDim, int kOther, int kWarps, Owns kOwns, bool kFirst, bool kSecond>
__global__ void __launch_bounds__(kWarps* kWarp) attention_backward_kernel(const __grid_constant__ AttentionShape s) {
  constexpr bool kKeys = kOwns == Owns::keys;
  constexpr int kBlockThreads = kWarps * kWarp, kOwn = kWarps * kTile;
  static_assert(kOther <= kBlockThreads);
  const SharedTile<kDim> x1{reinterpret_cast<std::uint16_t*>(dynamic_shared())};
  const SharedTile<kValueDim> x2{x1.data + kOwn * kDim};
  std::uint16_t *const y1s = x2.data + kOwn * kValueDim, *const y2s = y1s + 2 * kOther * kDim;
  const auto y1 = [&](int buffer) { return SharedTile<kDim>{y1s + buffer * kOther * kDim}; };
  const auto y2 = [&](int buffer) { return SharedTile<kValueDim>{y2s + buffer * kOther * kValueDim}; };
  // For other rows that are queries: [buffer][lse, delta][kOther].
  auto* const other_rows = reinterpret_cast<float*>(y2s + 2 * kOther * kValueDim);

  const std::int64_t own_count = kKeys ? s.keys : s.queries, other_count = kKeys ? s.queries : s.keys;
  const std::int64_t tiles = (own_count + kOwn - 1) / kOwn, other_tiles = (other_count + kOther - 1) / kOther;
  // Under a causal mask the first keys and the last queries have the most work, and begin.
  const std::int64_t first = (kKeys ? blockIdx.x % tiles : tiles - 1 - blockIdx.x % tiles) * kOwn;
  const std::int64_t number = blockIdx.x / tiles, own_heads = kKeys ? 1 : s.heads;
  const std::int64_t own_head = number % own_heads, g = number / own_heads % s.groups,
                     b = number / (own_heads * s.groups);
  const std::int64_t last = first + kOwn < own_count ? first + kOwn : own_count;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp_row = static_cast<int>(threadIdx.x) / kWarp * kTile;
  const Range own_range = s.mask.range(!kKeys, first, last);
  const float scale = s.scale * kLog2E;

  // Per query: log2 of the sum that normalises p, and delta. p is 0 if a query attends to nothing or does not exist.
  const auto log2_sum = [&](std::int64_t h, std::int64_t i) {
    const float lse = i < s.queries ? s.lse[s.row(b, g, h) + i] : minus_infinity();
    return lse == minus_infinity() ? -lse : lse * kLog2E;
  };
  const auto delta_of = [&](std::int64_t h, std::int64_t i) { return i < s.queries ? s.delta[s.row(b, g, h) + i] : 0; };

  // Steps: tiles of other rows, and when owning keys for each head.
  const std::int64_t steps = other_tiles * (kKeys ? s.heads : 1);
  bool whole = false;
  const auto find = [&](std::int64_t n) {
    for (; n < steps; ++n) {
      const std::int64_t begin = n % other_tiles * kOther,
                         end = begin + kOther < other_count ? begin + kOther : other_count;
      whole = end - begin == kOther;
      if (s.mask.all()) break;
      const Range other = s.mask.range(kKeys, begin, end);
      const Range queries = kKeys ? other : own_range, keys = kKeys ? own_range : other;
      whole = whole && s.mask.covers(queries, keys);
      if (s.mask.touches(queries, keys)) break;
    }
    return n;
  };
  const auto fetch = [&](std::int64_t n, int buffer) {
    const std::int64_t h = kKeys ? n / other_tiles : own_head, begin = n % other_tiles * kOther;
    y1(buffer).template fill<kOther, kBlockThreads>(kKeys ? s.q : s.k, b, g, kKeys ? h : 0, begin, other_count, s.dim);
    y2(buffer).template fill<kOther, kBlockThreads>(kKeys ? s.d_context : s.v, b, g, kKeys ? h : 0, begin, other_count,
                                                    s.value_dim);
    if (kKeys && threadIdx.x < kOther) {
      float* const rows = other_rows + buffer * 2 * kOther;
      rows[threadIdx.x] = log2_sum(h, begin + threadIdx.x);
      rows[kOther + threadIdx.x] = delta_of(h, begin + threadIdx.x);
    }
  };

  x1.template fill<kOwn, kBlockThreads>(kKeys ? s.k : s.q, b, g, own_head, first, own_count, s.dim);
  x2.template fill<kOwn, kBlockThreads>(kKeys ? s.v : s.d_context, b, g, own_head, first, own_count, s.value_dim);
  std::int64_t n = find(0);
  int buffer = 0;
  if (n < steps) fetch(n, buffer);
  commit_copies();

  float own_log2_sum[2] = {0, 0}, own_delta[2] = {0, 0};
  if (!kKeys) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      own_log2_sum[half] = log2_sum(own_head, first + warp_row + half * 8 + lane / 4);
      own_delta[half] = delta_of(own_head, first + warp_row + half * 8 + lane / 4);
    }
  }
  float out1[kFirst ? kDim / 8 : 1][4] = {}, out2[kSecond ? kValueDim / 8 : 1][4] = {};

  while (n < steps) {
    const std::int64_t begin = n % other_tiles * kOther;
    const bool masked = !whole;
    const int own_lane = opaque(lane);
    await_copies<0>();
    __syncthreads();  // this step's rows have arrived, and no warp needs the other buffer any more
    const std::int64_t following = find(n + 1);
    if (following < steps) fetch(following, 1 - buffer);
    commit_copies();
    const SharedTile<kDim> other1 = y1(buffer);
    const SharedTile<kValueDim> other2 = y2(buffer);
    const float* const rows = other_rows + buffer * 2 * kOther;

    float p[kOther / 8][4] = {}, ds[kFirst ? kOther / 8 : 1][4] = {};
    multiply_rows<Number>(x1, warp_row, other1, p, own_lane);
    if (kFirst) multiply_rows<Number>(x2, warp_row, other2, ds, own_lane);
    if (masked) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::int64_t own = first + warp_row + half * 8 + lane / 4;
        const Interval seen = s.mask.partners(!kKeys, own >= own_count ? 0
                                                      : kKeys          ? s.mask.key(own)
                                                                       : s.mask.query(own));
#pragma unroll
        for (int c = 0; c < kOther / 8; ++c)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int other = static_cast<int>(begin) + c * 8 + lane % 4 * 2 + e;
            if (!seen.has(s.mask.position(kKeys, other, static_cast<int>(other_count))))
              p[c][half * 2 + e] = minus_infinity();
          }
      }
    }
    std::uint32_t packed_p[kSecond ? kOther / 8 : 1][2], packed_ds[kFirst ? kOther / 8 : 1][2];
#pragma unroll
    for (int c = 0; c < kOther / 8; ++c) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = c * 8 + lane % 4 * 2 + e;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& x = p[c][half * 2 + e];
          x = fast_exp2(x * scale - (kKeys ? rows[column] : own_log2_sum[half]));
          if (kFirst)
            ds[c][half * 2 + e] = x * (ds[c][half * 2 + e] - (kKeys ? rows[kOther + column] : own_delta[half]));
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (kSecond) packed_p[c][half] = Number::pack(p[c][half * 2], p[c][half * 2 + 1]);
        if (kFirst) packed_ds[c][half] = Number::pack(ds[c][half * 2], ds[c][half * 2 + 1]);
      }
    }
#pragma unroll
    for (int c = 0; c < kOther / kTile; ++c) {
      if constexpr (kSecond) multiply_packed<Number>(packed_p, other2, out2, c, own_lane);
      if constexpr (kFirst) multiply_packed<Number>(packed_ds, other1, out1, c, own_lane);
    }
    n = following;
    buffer = 1 - buffer;
  }
  await_copies<0>();

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t own = first + warp_row + half * 8 + lane / 4;
    if (own >= own_count) continue;
    const auto place = [&](const Heads& heads) {
      return static_cast<std::uint16_t*>(heads.tensor.data) + heads.at(b, g, own_head, own);
    };
    if (kFirst) write_row<Number>(out1, half, s.scale, place(kKeys ? s.dk : s.dq), s.dim, lane);
    if (kSecond) write_row<Number>(out2, half, 1, place(s.dv), s.value_dim, lane);
  }
}

template <class Number, int kDim, int kValueDim, int kOther, int kWarps, Owns kOwns, bool kFirst, bool kSecond>
void issue(const AttentionShape& s, CUstream_st* stream) {
  constexpr int kOwn = kWarps * kTile;
  constexpr std::int64_t kShared =
      (kOwn + 2 * kOther) * (kDim + kValueDim) * static_cast<std::int64_t>(sizeof(std::uint16_t)) +
      4 * kOther * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t tiles = divide_up(kOwns == Owns::keys ? s.keys : s.queries, kOwn);
  launch("attention_backward_kernel",
         attention_backward_kernel<Number, kDim, kValueDim, kOther, kWarps, kOwns, kFirst, kSecond>,
         blocks(tiles * (kOwns == Owns::keys ? 1 : s.heads) * s.groups * s.batch), kWarps * kWarp, kShared, stream, s);
}

template <class Number, int kDim, int kValueDim>
void issue_at_once(const AttentionShape& s, CUstream_st* stream) {
  issue<Number, kDim, kValueDim, 64, 8, Owns::keys, true, true>(s, stream);
  issue<Number, kDim, kValueDim, 64, 8, Owns::queries, true, false>(s, stream);
}
// For sizes whose dk and dv together do not fit into registers.
template <class Number, int kDim, int kValueDim>
void issue_apart(const AttentionShape& s, CUstream_st* stream) {
  issue<Number, kDim, kValueDim, 32, 8, Owns::keys, true, false>(s, stream);
  issue<Number, kDim, kValueDim, 32, 8, Owns::keys, false, true>(s, stream);
  issue<Number, kDim, kValueDim, 32, 8, Owns::queries, true, false>(s, stream);
}

template <class Number>
void issue_by_dim(const AttentionShape& s, CUstream_st* stream) {
  const int most = s.dim > s.value_dim ? s.dim : s.value_dim;
  if (most <= 64) return issue_at_once<Number, 64, 64>(s, stream);
  if (most <= 128) return issue_at_once<Number, 128, 128>(s, stream);
  if (s.dim <= 192 && s.value_dim <= 128) return issue_apart<Number, 192, 128>(s, stream);  // DeepSeek-V2 and V3
  issue_apart<Number, 256, 256>(s, stream);
}

}  // namespace

void attention_backward_on_tensor_cores(const AttentionShape& s, CUstream_st* stream) {
  s.q.tensor.dtype == Dtype::bf16 ? issue_by_dim<Bf16>(s, stream) : issue_by_dim<Half>(s, stream);
}

}  // namespace orrery::cuda
