// The dense-to-sparse gate (Router::gumbel_temperature): one warp per token.
#include <cmath>

#include "realrun/cuda/kernels/random.cuh"
#include "realrun/cuda/kernels/routing.cuh"

namespace orrery::cuda {
namespace {

struct Gate {
  std::int64_t tokens;
  int experts, k;
  float temperature, threshold, scale;
  bool padded;
  std::uint64_t seed, stream;
  WholeElements whole;  // of the logits

  // As in realrun/cpu/gumbel_route.cpp, in double: the same noise to the last bit, except for logarithms.
  __device__ float noisy(const Any& logits, std::int64_t element) const {
    const double u = (static_cast<double>(philox(seed, stream, whole.index(element)).x) + 0.5) * 0x1p-32;
    return (load(logits, element) - static_cast<float>(log(-log(u)))) / temperature;
  }
};

// Writes the probabilities of a token's experts to shared memory.
__device__ void find_probabilities(const Gate& g, const Any& logits, std::int64_t token, float* p) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float maximum = minus_infinity(), sum = 0;
  for (int e = lane; e < g.experts; e += kWarp) {
    p[e] = g.noisy(logits, token * g.experts + e);
    maximum = larger(maximum, p[e]);
  }
  maximum = warp_max(maximum);
  for (int e = lane; e < g.experts; e += kWarp) {
    p[e] = expf(p[e] - maximum);
    sum += p[e];
  }
  sum = warp_sum(sum);
  for (int e = lane; e < g.experts; e += kWarp) p[e] /= sum;
  __syncwarp();
}

// Shared memory per warp: [2 experts].
__global__ void gumbel_route_kernel(Gate g, Any logits, Any weights, Any choices) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / kWarp) + warp;
  if (token >= g.tokens) return;
  float *const p = reinterpret_cast<float*>(dynamic_shared()) + warp * 2 * g.experts, *const left = p + g.experts;
  find_probabilities(g, logits, token, p);
  for (int e = lane; e < g.experts; e += kWarp) left[e] = p[e];
  __syncwarp();
  for (int j = 0; j < g.k; ++j) {
    const int expert = take_largest(left, g.experts);
    if (lane != 0) continue;
    const bool active = p[expert] > g.threshold;
    store(weights, token * g.k + j, active ? g.scale * p[expert] : 0.0f);
    store(choices, token * g.k + j, active || g.padded ? static_cast<float>(expert) : -1.0f);
  }
}

// Shared memory per warp: [experts].
__global__ void gumbel_route_backward_kernel(Gate g, Any dweights, Any logits, Any choices, Any dlogits) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / kWarp) + warp;
  if (token >= g.tokens) return;
  float* const p = reinterpret_cast<float*>(dynamic_shared()) + warp * g.experts;
  find_probabilities(g, logits, token, p);
  // A chosen expert that is not active has no weight, so its weight has no gradient.
  const auto active_expert = [&](int j) {
    const std::int64_t expert = load_index(choices, token * g.k + j);
    return expert >= 0 && expert < g.experts && p[expert] > g.threshold ? static_cast<int>(expert) : -1;
  };
  float mean = 0;
  for (int j = lane; j < g.k; j += kWarp)
    if (const int e = active_expert(j); e >= 0) mean += g.scale * load(dweights, token * g.k + j) * p[e];
  mean = warp_sum(mean);
  for (int e = lane; e < g.experts; e += kWarp) store(dlogits, token * g.experts + e, -p[e] * mean / g.temperature);
  __syncwarp();
  for (int j = lane; j < g.k; j += kWarp)
    if (const int e = active_expert(j); e >= 0)
      store(dlogits, token * g.experts + e,
            p[e] * (g.scale * load(dweights, token * g.k + j) - mean) / g.temperature);
}

Gate gate_of(const Call& call, const Operand& logits, const Operand& choices) {
  const Router& router = call.op.router;
  Gate g{};
  const std::int64_t experts = last_size(logits), k = last_size(choices);
  g.tokens = elements(choices) / k;
  constexpr std::int64_t kMostExperts = 1 << 12;  // experts whose probabilities fit into a block's shared memory
  call.require(k >= 1 && k <= experts && elements(logits) == g.tokens * experts, "logits and choices do not fit");
  call.require(experts <= kMostExperts, "a block has no room for this many experts");
  g.experts = static_cast<int>(experts);
  g.k = static_cast<int>(k);
  g.temperature = router.gumbel_temperature;
  g.threshold = router.threshold;
  g.scale = router.scale;
  g.padded = router.padded;
  g.seed = call.context.seed;
  g.stream = call.context.dropout_stream;
  g.whole = whole_elements_of(call, *logits.tensor);
  return g;
}

}  // namespace

void gumbel_route(const Call& call) {
  const Operand &logits = call.read(0), &weights = call.write(0), &choices = call.write(1);
  const Gate g = gate_of(call, logits, choices);
  call.require_same_elements(weights, choices);
  call.require(!call.has_read(1), "a gate with noise has no bias");
  const std::int64_t bytes = 2 * g.experts * static_cast<std::int64_t>(sizeof(float));
  const int threads = route_threads(bytes);
  ORRERY_LAUNCH(gumbel_route_kernel, blocks(divide_up(g.tokens, threads / kWarp)), threads, bytes * (threads / kWarp),
                call.launch.stream, g, call.numbers(logits), call.numbers(weights), call.indices(choices));
}

void gumbel_route_backward(const Call& call) {
  const Operand &dweights = call.read(0), &logits = call.read(1), &choices = call.read(2), &dlogits = call.write(0);
  const Gate g = gate_of(call, logits, choices);
  call.require_same_elements(dweights, choices);
  call.require_same_elements(dlogits, logits);
  const std::int64_t bytes = g.experts * static_cast<std::int64_t>(sizeof(float));
  const int threads = route_threads(bytes);
  ORRERY_LAUNCH(gumbel_route_backward_kernel, blocks(divide_up(g.tokens, threads / kWarp)), threads,
                bytes * (threads / kWarp), call.launch.stream, g, call.numbers(dweights), call.numbers(logits),
                call.indices(choices), call.numbers(dlogits));
}

}  // namespace orrery::cuda
