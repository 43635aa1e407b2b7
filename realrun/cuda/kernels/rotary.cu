// Rotary embeddings (Su et al. 2021, arXiv 2104.09864, eq. 15, with the pairs (i, i + d/2) of GPT-NeoX and Llama), and
// latent attention's key that all heads share (DeepSeek-V2, arXiv 2405.04434, eq. 14 to 17).
#include <cmath>

#include "realrun/cuda/kernels/call.cuh"

namespace orrery::cuda {
namespace {

constexpr int kMaxHalf = 128;

// Rotations of `half` pairs for one position.
struct Turns {
  std::int64_t half;
  const std::int64_t* positions;  // nullptr: a token's own index
  float direction;                // 1, or -1 for gradients
  double frequencies[kMaxHalf];
};

struct SinesAndCosines {
  float *sines, *cosines;  // [half], in shared memory
};

// Called by a whole block; synchronises at the end. Angles are reduced in double, for exactness at large positions.
__device__ SinesAndCosines turn_to(const Turns& turns, std::int64_t token) {
  auto* const cosines = reinterpret_cast<float*>(dynamic_shared());
  float* const sines = cosines + turns.half;
  const auto position = static_cast<double>(turns.positions == nullptr ? token : turns.positions[token]);
  for (std::int64_t i = threadIdx.x; i < turns.half; i += blockDim.x) {
    constexpr double kTurn = 6.283185307179586476925;
    const double angle = position * turns.frequencies[i];
    const auto reduced = static_cast<float>(angle - kTurn * rint(angle / kTurn));
    cosines[i] = cosf(reduced);
    sines[i] = turns.direction * sinf(reduced);
  }
  __syncthreads();
  return {sines, cosines};
}

// Rotates pairs (a, b) from the i-th on.
template <int kVector>
__device__ void turn(const SinesAndCosines& by, std::int64_t i, float (&a)[kVector], float (&b)[kVector]) {
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    const float cosine = by.cosines[i + j], sine = by.sines[i + j], first = a[j];
    a[j] = first * cosine - b[j] * sine;
    b[j] = b[j] * cosine + first * sine;
  }
}

// A block takes one token of each sequence: its sines serve all heads.
template <int kVector>
__global__ void rotary_kernel(const __grid_constant__ Turns turns, RotaryShape s, Any x, Any y) {
  const std::int64_t token = blockIdx.x;
  const SinesAndCosines by = turn_to(turns, token);
  const std::int64_t per_vector = turns.half / kVector, per_token = s.vectors * per_vector;
  const auto vector_at = [&](std::int64_t sequence, std::int64_t vector) {
    return ((sequence * s.length + token) * s.vectors + vector) * s.width;
  };
  for (std::int64_t w = threadIdx.x; w < s.batch * per_token; w += blockDim.x) {
    const std::int64_t vector = w % per_token / per_vector, i = w % per_vector * kVector;
    const std::int64_t at = vector_at(w / per_token, vector) + s.begin + i;
    float a[kVector], b[kVector];
    load_vector<kVector>(x, at, a, x, at + turns.half, b);
    if (!(s.fused && vector % s.heads == s.heads - 1)) turn<kVector>(by, i, a, b);
    store_vector<kVector>(y, at, a);
    store_vector<kVector>(y, at + turns.half, b);
  }
  if (x.data == y.data) return;
  const std::int64_t passing = s.begin / kVector;
  for (std::int64_t w = threadIdx.x; w < s.batch * s.vectors * passing; w += blockDim.x) {
    const std::int64_t at = vector_at(w / passing / s.vectors, w / passing % s.vectors) + w % passing * kVector;
    float values[kVector];
    load_vector<kVector>(x, at, values);
    store_vector<kVector>(y, at, values);
  }
}

// The shared key's 2 half elements lie at s.begin of the whole's vectors.
template <int kVector>
__global__ void shared_key_kernel(const __grid_constant__ Turns turns, RotaryShape s, Any kv, Any key, Any whole) {
  const std::int64_t token = blockIdx.x;
  const SinesAndCosines by = turn_to(turns, token);
  const std::int64_t shared = 2 * turns.half, width = s.width + shared, per_vector = width / kVector;
  for (std::int64_t w = threadIdx.x; w < s.batch * s.vectors * per_vector; w += blockDim.x) {
    const std::int64_t row = w / per_vector / s.vectors * s.length + token, e = w % per_vector * kVector;
    const std::int64_t vector = row * s.vectors + w / per_vector % s.vectors, d = e - s.begin;
    float values[kVector];
    if (d < 0 || d >= shared) {
      load_vector<kVector>(kv, vector * s.width + (d < 0 ? e : e - shared), values);
    } else {
      float a[kVector], b[kVector];
      const std::int64_t i = d % turns.half;
      load_vector<kVector>(key, row * shared + i, a, key, row * shared + i + turns.half, b);
      turn<kVector>(by, i, a, b);
#pragma unroll
      for (int j = 0; j < kVector; ++j) values[j] = d < turns.half ? a[j] : b[j];
    }
    store_vector<kVector>(whole, vector * width + e, values);
  }
}

// The key's gradient sums over heads, in fp32 and in a fixed order. Rotating back is linear, so the sum is rotated.
template <int kVector>
__global__ void shared_key_backward_kernel(const __grid_constant__ Turns turns, RotaryShape s, Any whole, Any kv,
                                           Any key) {
  const std::int64_t token = blockIdx.x;
  const SinesAndCosines by = turn_to(turns, token);
  const std::int64_t shared = 2 * turns.half, width = s.width + shared, per_vector = s.width / kVector;
  for (std::int64_t w = threadIdx.x; w < s.batch * s.vectors * per_vector; w += blockDim.x) {
    const std::int64_t row = w / per_vector / s.vectors * s.length + token, e = w % per_vector * kVector;
    const std::int64_t vector = row * s.vectors + w / per_vector % s.vectors;
    float values[kVector];
    load_vector<kVector>(whole, vector * width + (e < s.begin ? e : e + shared), values);
    store_vector<kVector>(kv, vector * s.width + e, values);
  }
  float* const sums = by.sines + turns.half;  // [warps][shared]
  const std::int64_t warps = blockDim.x / kWarp, warp = threadIdx.x / kWarp;
  for (std::int64_t sequence = 0; sequence < s.batch; ++sequence) {
    const std::int64_t row = sequence * s.length + token;
    for (std::int64_t d = threadIdx.x % kWarp; d < shared; d += kWarp) {
      float sum = 0;
      for (std::int64_t v = warp; v < s.vectors; v += warps)
        sum += load(whole, (row * s.vectors + v) * width + s.begin + d);
      sums[warp * shared + d] = sum;
    }
    __syncthreads();
    for (std::int64_t i = threadIdx.x; i < turns.half; i += blockDim.x) {
      float a[1] = {0}, b[1] = {0};
      for (std::int64_t other = 0; other < warps; ++other) {
        a[0] += sums[other * shared + i];
        b[0] += sums[other * shared + turns.half + i];
      }
      turn<1>(by, i, a, b);
      store(key, row * shared + i, a[0]);
      store(key, row * shared + turns.half + i, b[0]);
    }
    __syncthreads();
  }
}

Turns turns_of(const Call& call, const RotaryShape& s, float direction) {
  call.require(s.turned / 2 <= kMaxHalf, "more than 256 elements of a head turn");
  Turns turns{s.turned / 2, call.launch.query_positions, direction, {}};
  call.require(call.context.query_positions.empty() || turns.positions != nullptr,
               "the positions are not on the device");
  for (std::int64_t i = 0; i < turns.half; ++i)
    turns.frequencies[i] = std::pow(kRotaryBase, -2 * static_cast<double>(i) / static_cast<double>(s.turned));
  return turns;
}

// Whether every part of a vector can be read kWide elements at a time.
bool wide_parts(const RotaryShape& s, std::initializer_list<Any> operands) {
  return wide(s.turned / 2, operands) && s.begin % kWide == 0 && s.width % kWide == 0;
}

void rotate(const Call& call, const RotaryShape& s, const Turns& turns) {
  const Any in = call.in(0), out = call.out(0);
  ORRERY_LAUNCH_WIDE(call, wide_parts(s, {in, out}), rotary_kernel, blocks(s.length), bytes_for<float>(s.turned), turns,
                     s, in, out);
}

}  // namespace

void rotary(const Call& call) {
  const RotaryShape s = rotary_shape(call);
  const Turns turns = turns_of(call, s, 1);
  if (!shares_key(call)) return rotate(call, s, turns);
  const Any kv = call.in(0), key = call.in(1), whole = call.out(0);
  ORRERY_LAUNCH_WIDE(call, wide_parts(s, {kv, key, whole}), shared_key_kernel, blocks(s.length),
                     bytes_for<float>(s.turned), turns, s, kv, key, whole);
}

void rotary_backward(const Call& call) {
  const RotaryShape s = rotary_shape(call);
  const Turns turns = turns_of(call, s, -1);
  if (!shares_key(call)) return rotate(call, s, turns);
  const Any whole = call.in(0), kv = call.out(0), key = call.out(1);
  ORRERY_LAUNCH_WIDE(call, wide_parts(s, {kv, key, whole}), shared_key_backward_kernel, blocks(s.length),
                     bytes_for<float>(s.turned + kThreads / kWarp * s.turned), turns, s, whole, kv, key);
}

}  // namespace orrery::cuda
