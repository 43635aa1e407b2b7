// The dense-to-sparse gate (Router::gumbel_temperature): one warp per token.
#include <cmath>

#include "realrun/cuda/kernels/routing.cuh"
#include "realrun/random_draws.h"

namespace orrery::cuda {
namespace {

struct Gate {
  std::int64_t tokens;
  int experts, k;
  float temperature, threshold, scale;
  bool padded;
  std::uint64_t seed, stream;
  WholeElements whole;  // of the logits

  // As in realrun/cpu/routers.cpp, in double: the same noise to the last bit, except for logarithms.
  __device__ float noisy(const Any& logits, std::int64_t element) const {
    const double u = (static_cast<double>(words_of_draw(seed, stream, whole.index(element)).at[0]) + 0.5) * 0x1p-32;
    return (load(logits, element) - static_cast<float>(log(-log(u)))) / temperature;
  }
};

// Writes the probabilities of a token's experts to shared memory.
__device__ void find_probabilities(const Gate& g, const Any& logits, std::int64_t token, float* p) {
  const int lane = lane_number();
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
  const int lane = lane_number();
  const auto [token, p] = token_of_warp(g.tokens, 2 * g.experts);
  if (p == nullptr) return;
  float* const left = p + g.experts;
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
  const int lane = lane_number();
  const auto [token, p] = token_of_warp(g.tokens, g.experts);
  if (p == nullptr) return;
  find_probabilities(g, logits, token, p);
  // A chosen expert that is not active has no weight, so its weight has no gradient.
  const auto active_expert = [&, token = token, p = p](int j) {
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
      store(dlogits, token * g.experts + e, p[e] * (g.scale * load(dweights, token * g.k + j) - mean) / g.temperature);
}

Gate gate_of(const Call& call, const Operand& logits) {
  const RouterShape shape = router_shape(call);
  constexpr std::int64_t kMostExperts = 1 << 12;  // experts whose probabilities fit into a block's shared memory
  call.require(shape.experts <= kMostExperts, "a block has no room for this many experts");
  const Router& router = call.op.router;
  Gate g{};
  g.tokens = shape.tokens;
  g.experts = static_cast<int>(shape.experts);
  g.k = static_cast<int>(shape.k);
  g.temperature = router.gumbel_temperature;
  g.threshold = router.threshold;
  g.scale = router.scale;
  g.padded = router.padded;
  g.seed = call.context.seed;
  g.stream = call.context.dropout_stream;
  g.whole = call.whole_elements_of(*logits.tensor);
  return g;
}

}  // namespace

void gumbel_route(const Call& call) {
  const Gate g = gate_of(call, call.read(0));
  launch_by_token(call, "gumbel_route_kernel", gumbel_route_kernel, g.tokens, 2 * g.experts, g, call.in(0), call.out(0),
                  call.indices(call.write(1)));
}

void gumbel_route_backward(const Call& call) {
  const Gate g = gate_of(call, call.read(1));
  launch_by_token(call, "gumbel_route_backward_kernel", gumbel_route_backward_kernel, g.tokens, g.experts, g,
                  call.in(0), call.in(1), call.indices(call.read(2)), call.out(0));
}

}  // namespace orrery::cuda
