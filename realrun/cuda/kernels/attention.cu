// Attention: shapes, the choice of kernels, and the kernels in fp32 arithmetic for what tensor cores do not support
// (fp32, odd head_dim, mixed dtypes): one warp per query, or one warp per key.
#include <algorithm>
#include <cmath>

#include "realrun/cuda/kernels/attention.cuh"

namespace orrery::cuda {
namespace {

constexpr int kMaxDim = 256;
constexpr int kPerLane = kMaxDim / kWarp;
constexpr int kWarps = kThreads / kWarp;

// A vector distributed over a warp: lane l has elements l, l + 32, ...
struct Vector {
  float at[kPerLane] = {};

  __device__ void add(float factor, const Any& from, std::int64_t begin, int dim) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int d = i * kWarp + lane_number();
      if (d < dim) at[i] += factor * load(from, begin + d);
    }
  }
  __device__ void write(const Any& to, std::int64_t begin, int dim, float factor) const {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int d = i * kWarp + lane_number();
      if (d < dim) store(to, begin + d, factor * at[i]);
    }
  }
};

// Copies a vector of this warp to shared memory, as fp32. Each of `slots` slots has room for `room` elements.
__device__ float* stage(int slot, int slots, int room, const Any& from, std::int64_t begin, int dim) {
  float* const to =
      reinterpret_cast<float*>(dynamic_shared()) + (static_cast<int>(threadIdx.x) / kWarp * slots + slot) * room;
  for (int d = lane_number(); d < dim; d += kWarp) to[d] = load(from, begin + d);
  __syncwarp();
  return to;
}

__device__ float dot(const float* staged, const Any& other, std::int64_t begin, int dim) {
  float sum = 0;
  for (int d = 0; d < dim; ++d) sum += staged[d] * load(other, begin + d);
  return sum;
}

struct Place {
  std::int64_t b, g, h, i;
};
// Coordinates of row `number` of [batch, groups, heads, rows].
__device__ Place place_of(std::int64_t number, std::int64_t groups, std::int64_t heads, std::int64_t rows) {
  return {number / (rows * heads * groups), number / (rows * heads) % groups, number / rows % heads, number % rows};
}

__device__ std::int64_t warp_number() { return thread_number() / kWarp; }

__global__ void attention_rows_kernel(const __grid_constant__ AttentionShape s) {
  const std::int64_t number = warp_number();
  if (number >= s.batch * s.groups * s.heads * s.queries) return;
  const Place p = place_of(number, s.groups, s.heads, s.queries);
  const int lane = lane_number();
  const float* const query = stage(0, 1, s.dim, s.q.tensor, s.q.at(p.b, p.g, p.h, p.i), s.dim);
  const std::int64_t position = s.mask.query(p.i);
  Vector out;
  float maximum = minus_infinity(), sum = 0;
  for (std::int64_t begin = 0; begin < s.keys; begin += kWarp) {
    const std::int64_t j = begin + lane;
    const bool seen = j < s.keys && (s.mask.all() || s.mask.sees(position, s.mask.key(j)));
    if (!__any_sync(kAllLanes, seen)) continue;
    const float score = seen ? s.scale * dot(query, s.k.tensor, s.k.at(p.b, p.g, 0, j), s.dim) : minus_infinity();
    const float most = larger(maximum, warp_max(score)), base = most == minus_infinity() ? 0 : most;
    const float factor = expf(maximum - base), weight = expf(score - base);
    maximum = most;
    sum = sum * factor + warp_sum(weight);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) out.at[i] *= factor;
    for (int k = 0; k < kWarp && begin + k < s.keys; ++k)
      out.add(__shfl_sync(kAllLanes, weight, k), s.v.tensor, s.v.at(p.b, p.g, 0, begin + k), s.value_dim);
  }
  const bool nothing = maximum == minus_infinity();
  out.write(s.context.tensor, s.context.at(p.b, p.g, p.h, p.i), s.value_dim, nothing ? 0 : 1 / sum);
  if (lane == 0) s.lse[number] = nothing ? maximum : maximum + logf(sum);
}

__global__ void delta_kernel(const __grid_constant__ AttentionShape s) {
  const std::int64_t number = warp_number();
  if (number >= s.batch * s.groups * s.heads * s.queries) return;
  // Neighbouring warps take neighbouring heads, as they lie in memory.
  const std::int64_t h = number % s.heads, g = number / s.heads % s.groups,
                     i = number / (s.heads * s.groups) % s.queries, b = number / (s.heads * s.groups * s.queries);
  float sum = 0;
  for (int d = lane_number(); d < s.value_dim; d += kWarp)
    sum +=
        load(s.d_context.tensor, s.d_context.at(b, g, h, i) + d) * load(s.context.tensor, s.context.at(b, g, h, i) + d);
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) s.delta[s.row(b, g, h) + i] = sum;
}

// p and ds of one query and key, from staged vectors of one side.
struct Pair {
  float p, ds;
};
__device__ Pair pair_of(const AttentionShape& s, std::int64_t row, float score, float dp) {
  const float lse = s.lse[row];
  const float p = lse == minus_infinity() ? 0 : expf(s.scale * score - lse);
  return {p, p * (dp - s.delta[row]) * s.scale};
}

__global__ void attention_backward_queries_kernel(const __grid_constant__ AttentionShape s) {
  const std::int64_t number = warp_number();
  if (number >= s.batch * s.groups * s.heads * s.queries) return;
  const Place p = place_of(number, s.groups, s.heads, s.queries);
  const int lane = lane_number();
  const int room = s.dim > s.value_dim ? s.dim : s.value_dim;
  const float* const query = stage(0, 2, room, s.q.tensor, s.q.at(p.b, p.g, p.h, p.i), s.dim);
  const float* const d = stage(1, 2, room, s.d_context.tensor, s.d_context.at(p.b, p.g, p.h, p.i), s.value_dim);
  const std::int64_t position = s.mask.query(p.i);
  Vector dq;
  for (std::int64_t begin = 0; begin < s.keys; begin += kWarp) {
    const std::int64_t j = begin + lane;
    const bool seen = j < s.keys && (s.mask.all() || s.mask.sees(position, s.mask.key(j)));
    if (!__any_sync(kAllLanes, seen)) continue;
    float ds = 0;
    if (seen)
      ds = pair_of(s, number, dot(query, s.k.tensor, s.k.at(p.b, p.g, 0, j), s.dim),
                   dot(d, s.v.tensor, s.v.at(p.b, p.g, 0, j), s.value_dim))
               .ds;
    for (int k = 0; k < kWarp && begin + k < s.keys; ++k)
      dq.add(__shfl_sync(kAllLanes, ds, k), s.k.tensor, s.k.at(p.b, p.g, 0, begin + k), s.dim);
  }
  dq.write(s.dq.tensor, s.dq.at(p.b, p.g, p.h, p.i), s.dim, 1);
}

__global__ void attention_backward_keys_kernel(const __grid_constant__ AttentionShape s) {
  const std::int64_t number = warp_number();
  if (number >= s.batch * s.groups * s.keys) return;
  const Place p = place_of(number, s.groups, 1, s.keys);
  const int lane = lane_number();
  const int room = s.dim > s.value_dim ? s.dim : s.value_dim;
  const float* const key = stage(0, 2, room, s.k.tensor, s.k.at(p.b, p.g, 0, p.i), s.dim);
  const float* const value = stage(1, 2, room, s.v.tensor, s.v.at(p.b, p.g, 0, p.i), s.value_dim);
  const std::int64_t position = s.mask.key(p.i);
  Vector dk, dv;
  for (std::int64_t h = 0; h < s.heads; ++h)
    for (std::int64_t begin = 0; begin < s.queries; begin += kWarp) {
      const std::int64_t i = begin + lane;
      const bool seen = i < s.queries && (s.mask.all() || s.mask.sees(s.mask.query(i), position));
      if (!__any_sync(kAllLanes, seen)) continue;
      Pair pair{0, 0};
      if (seen)
        pair = pair_of(s, s.row(p.b, p.g, h) + i, dot(key, s.q.tensor, s.q.at(p.b, p.g, h, i), s.dim),
                       dot(value, s.d_context.tensor, s.d_context.at(p.b, p.g, h, i), s.value_dim));
      for (int k = 0; k < kWarp && begin + k < s.queries; ++k) {
        dk.add(__shfl_sync(kAllLanes, pair.ds, k), s.q.tensor, s.q.at(p.b, p.g, h, begin + k), s.dim);
        dv.add(__shfl_sync(kAllLanes, pair.p, k), s.d_context.tensor, s.d_context.at(p.b, p.g, h, begin + k),
               s.value_dim);
      }
    }
  dk.write(s.dk.tensor, s.dk.at(p.b, p.g, 0, p.i), s.dim, 1);
  dv.write(s.dv.tensor, s.dv.at(p.b, p.g, 0, p.i), s.value_dim, 1);
}

// Heads from the `first` element of a group on.
Heads heads_of(const Call& call, const Operand& o, std::int64_t first) {
  const auto& z = o.tensor->sizes;
  const std::int64_t group = z[3] * z[4], token = z[2] * group;
  return {call.numbers(o), first, z[1] * token, token, group, z[4]};
}

AttentionShape shape_of(const Call& call) {
  call.require(!call.op.documents.has_value(), "attention within documents runs on CPUs alone");
  const bool backward = call.op.kind == OpKind::attention_backward;
  call.require(!call.has_read(backward ? 5 : 2), "attention with a position bias runs on CPUs alone");
  const AttentionSizes sizes = attention_sizes(call);
  call.require(std::max(sizes.key_width, sizes.value_width) <= kMaxDim, "a head is wider than 256");
  AttentionShape s{};
  s.batch = sizes.batch;
  s.queries = sizes.queries;
  s.keys = sizes.keys;
  s.groups = sizes.groups;
  s.heads = sizes.heads;
  s.dim = static_cast<int>(sizes.key_width);
  s.value_dim = static_cast<int>(sizes.value_width);
  s.scale = static_cast<float>(sizes.scale);
  s.mask = mask_of(call, s.queries, s.keys, sizes.fused);
  s.q = heads_of(call, *sizes.q, 0);
  s.k = heads_of(call, *sizes.kv, sizes.key_begin);
  s.v = heads_of(call, *sizes.kv, sizes.value_begin);
  s.context = heads_of(call, *sizes.context, 0);
  s.lse = call.singles(*sizes.lse);
  if (!backward) return s;
  // The gradients have the shapes of the tensors that they are gradients of; but those of a ring step's keys are of all
  // keys of the rank.
  const auto like = [&](const Operand& o, const Heads& shape) {
    Heads h = shape;
    h.tensor = call.numbers(o);
    return h;
  };
  s.dq = like(call.write(0), s.q);
  s.d_context = like(call.read(0), s.context);
  s.dk = sizes.fused ? s.dq : heads_of(call, call.write(1), 0);
  s.dk.first = s.k.first;
  s.dv = s.dk;
  s.dv.first = s.v.first;
  s.delta = call.scratch<float>(sizes.rows());
  return s;
}

Elements warps(std::int64_t count) { return {count * kWarp}; }

}  // namespace

bool fits_tensor_cores(const AttentionShape& s, bool backward) {
  const Dtype dtype = s.q.tensor.dtype;
  if ((dtype != Dtype::bf16 && dtype != Dtype::fp16) || s.dim % kChunk != 0 || s.value_dim % kChunk != 0) return false;
  const auto fits = [&](const Heads& h) {
    constexpr std::uintptr_t kCopyBytes = 16;
    return h.tensor.dtype == dtype && reinterpret_cast<std::uintptr_t>(h.tensor.data) % kCopyBytes == 0;
  };
  bool all = fits(s.q) && fits(s.k) && fits(s.v) && fits(s.context);
  if (backward) all = all && fits(s.d_context) && fits(s.dq) && fits(s.dk) && fits(s.dv);
  return all;
}

void attention(const Call& call) {
  const AttentionShape s = shape_of(call);
  if (fits_tensor_cores(s, false)) return attention_on_tensor_cores(s, call.launch.stream);
  ORRERY_LAUNCH(call, attention_rows_kernel, warps(elements(call.write(1))), bytes_for<float>(kWarps * s.dim), s);
}

std::int64_t attention_backward_scratch(const Call& call) { return bytes_for<float>(elements(call.read(2))); }

void attention_backward(const Call& call) {
  const AttentionShape s = shape_of(call);
  const std::int64_t rows = elements(call.read(2));
  // A ring step may use only the first of a rank's keys: the gradient of the others is zero.
  if (call.has_read(4) && call.write(1).tensor->sizes[1] > s.keys) {
    const Operand& dkv = call.write(1);
    fill(call.launch.stream, {dkv.data, dkv.tensor->dtype, 0, elements(dkv)}, 0);
  }
  ORRERY_LAUNCH(call, delta_kernel, warps(rows), 0, s);
  if (fits_tensor_cores(s, true)) return attention_backward_on_tensor_cores(s, call.launch.stream);
  const std::int64_t shared = bytes_for<float>(2 * kWarps * std::max(s.dim, s.value_dim));
  ORRERY_LAUNCH(call, attention_backward_keys_kernel, warps(s.batch * s.groups * s.keys), shared, s);
  ORRERY_LAUNCH(call, attention_backward_queries_kernel, warps(rows), shared, s);
}

}  // namespace orrery::cuda
