// Common parts of the attention kernels: shapes, and tiles in shared memory for tensor cores. Internal.
#pragma once

#include "realrun/cuda/kernels/mask.cuh"

namespace orrery::cuda {

// Heads of [batch, sequence, groups, parts, dim], or of groups whose parts differ in width; strides in elements.
struct Heads {
  Any tensor;
  std::int64_t first, batch, token, group, head;

  __device__ std::int64_t at(std::int64_t b, std::int64_t g, std::int64_t h, std::int64_t t) const {
    return first + b * batch + t * token + g * group + h * head;
  }
};

struct AttentionShape {
  std::int64_t batch, queries, keys, groups, heads;  // heads: query heads of a group, which share a key and a value
  int dim, value_dim;                                // of queries and keys; of values and contexts
  float scale;
  Mask mask;
  Heads q, k, v, context, d_context, dq, dk, dv;
  float* lse;    // [batch, groups, heads, queries]
  float* delta;  // same shape: sum over value_dim of d_context * context (Dao 2023, arXiv 2307.08691, algorithm 2)

  __device__ std::int64_t row(std::int64_t b, std::int64_t g, std::int64_t h) const {
    return ((b * groups + g) * heads + h) * queries;
  }
};

// Whether tensor cores support this shape.
bool fits_tensor_cores(const AttentionShape& s, bool backward);
void attention_on_tensor_cores(const AttentionShape& s, CUstream_st* stream);
void attention_backward_on_tensor_cores(const AttentionShape& s, CUstream_st* stream);

inline constexpr float kLog2E = 1.44269504f;

struct Bf16 {
  __device__ static std::uint32_t pack(float low, float high) { return pack_bf16(low, high); }
  __device__ static void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
    multiply_add_bf16(c, a, b0, b1);
  }
};
struct Half {
  __device__ static std::uint32_t pack(float low, float high) { return pack_half(low, high); }
  __device__ static void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
    multiply_add_half(c, a, b0, b1);
  }
};

inline constexpr int kTile = 16;      // rows of a product on tensor cores
inline constexpr int kChunk = 8;      // elements of 16 bits in 16 bytes
inline constexpr int kFragments = 4;  // registers of a 16x16 (a) or 16x8 (c) fragment

// Rows of kDim 16-bit elements. Chunks are permuted so that the 8 rows that ldmatrix reads at once, and the chunks that
// the copies of a row write, lie in different banks.
template <int kDim>
struct SharedTile {
  static_assert(kDim % 32 == 0 && (kDim % 64 == 0 || kDim == 32 || kDim == 96));
  std::uint16_t* data;

  __device__ std::uint16_t* chunk(int row, int c) const {
    const int permuted = kDim % 64 == 0 ? c ^ (row & 7) : c ^ (row >> 1 & 3);
    return data + row * kDim + permuted * kChunk;
  }
  // Loads rows [row, row + 16), columns [16 step, 16 step + 16): `a` of a product. `lane`: the thread's, made opaque.
  __device__ void load_a(int row, int step, std::uint32_t (&a)[kFragments], int lane) const {
    load_matrices(a, chunk(row + lane % 16, 2 * step + lane / 16));
  }
  // The tile's rows as columns of `b`: rows [row, row + 16), two fragments {b[0], b[1]} and {b[2], b[3]}.
  __device__ void load_b(int row, int step, std::uint32_t (&b)[kFragments], int lane) const {
    load_matrices(b, chunk(row + lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2));
  }
  // The tile's rows as rows of `b`: rows [row, row + 16), columns [16 step, ..), again two fragments.
  __device__ void load_b_transposed(int row, int step, std::uint32_t (&b)[kFragments], int lane) const {
    load_matrices_transposed(b, chunk(row + lane % 16, 2 * step + lane / 16));
  }
  // Copies rows [begin, begin + kRows) of a head; rows from `end` on and columns from `dim` on become zero.
  template <int kRows, int kThreadsOfBlock>
  __device__ void fill(const Heads& heads, std::int64_t b, std::int64_t g, std::int64_t h, std::int64_t begin,
                       std::int64_t end, int dim) const {
    constexpr int kChunks = kDim / kChunk;
    static_assert(kRows * kChunks % kThreadsOfBlock == 0);
    const auto* const from = static_cast<const std::uint16_t*>(heads.tensor.data) + heads.at(b, g, h, begin);
    const int rows = end - begin < kRows ? static_cast<int>(end - begin) : kRows;
#pragma unroll
    for (int i = 0; i < kRows * kChunks / kThreadsOfBlock; ++i) {
      const int at = static_cast<int>(threadIdx.x) + i * kThreadsOfBlock, row = at / kChunks, c = at % kChunks;
      const bool inside = row < rows && c * kChunk < dim;
      copy_async(chunk(row, c), inside ? from + row * heads.token + c * kChunk : from, inside ? 16 : 0);
    }
  }
};

// One of the two rows of a result that a lane has.
template <class Number, int kTiles>
__device__ void write_row(const float (&c)[kTiles][4], int half, float factor, std::uint16_t* to, int dim, int lane) {
#pragma unroll
  for (int d = 0; d < kTiles; ++d) {
    const int column = d * 8 + lane % 4 * 2;
    if (column < dim)
      *reinterpret_cast<std::uint32_t*>(to + column) =
          Number::pack(c[d][half * 2] * factor, c[d][half * 2 + 1] * factor);
  }
}

}  // namespace orrery::cuda
