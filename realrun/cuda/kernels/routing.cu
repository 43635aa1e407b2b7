// Mixture of experts: which experts a token goes to, and the rows that lie in their slots (sim/program/op_traits.h).
#include <cmath>

#include "realrun/cuda/kernels/call.cuh"

namespace orrery::cuda {
namespace {

// --- The router: a warp a token

// As DeepSeek-V3's router divides (arXiv 2412.19437; modeling_deepseek.py, MoEGate): never by zero.
constexpr float kLeastSum = 1e-20f;
constexpr int kNobody = 0x7fffffff;

struct RouteShape {
  std::int64_t tokens;
  int experts, k;
  RouterScore score;
  int groups, best_groups;
  float scale;

  __host__ __device__ bool is_softmax() const {
    return score == RouterScore::softmax || score == RouterScore::softmax_of_top;
  }
};

// Of a row of logits: what scores follow from.
struct RowOfLogits {
  Any logits;
  std::int64_t begin;
  bool is_softmax;
  float maximum, sum;

  __device__ float logit(int expert) const { return load(logits, begin + expert); }
  __device__ float score(int expert) const {
    return is_softmax ? expf(logit(expert) - maximum) / sum : 1 / (1 + expf(-logit(expert)));
  }
};

__device__ RowOfLogits row_of_logits(const RouteShape& s, const Any& logits, std::int64_t token) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  RowOfLogits row{logits, token * s.experts, s.is_softmax(), minus_infinity(), 0};
  if (!row.is_softmax) return row;
  for (int e = lane; e < s.experts; e += kWarp) row.maximum = larger(row.maximum, row.logit(e));
  row.maximum = warp_max(row.maximum);
  for (int e = lane; e < s.experts; e += kWarp) row.sum += expf(row.logit(e) - row.maximum);
  row.sum = warp_sum(row.sum);
  return row;
}

// The largest of a warp's values in shared memory that has not been taken, of equals the first; it is taken then: NaN.
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
  if (at == kNobody) at = count - 1;  // of NaN alone
  __syncwarp();
  if (lane == 0) values[at] = __uint_as_float(0x7fffffffu);
  __syncwarp();
  return at;
}

// What experts outside the best groups compare as: minus infinity.
__device__ void keep_best_groups(const RouteShape& s, const RowOfLogits& row, const Any& bias, float* compared,
                                 float* of_group) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, size = s.experts / s.groups;
  for (int g = lane; g < s.groups; g += kWarp) {
    float first = minus_infinity(), second = minus_infinity();
    for (int e = g * size; e < (g + 1) * size; ++e) {
      const float x = row.score(e) + (bias.data != nullptr ? load(bias, e) : 0);
      if (x > first) {
        second = first;
        first = x;
      } else if (x > second) {
        second = x;
      }
    }
    of_group[g] = size > 1 ? first + second : first;
  }
  __syncwarp();
  for (int n = 0; n < s.best_groups; ++n) take_largest(of_group, s.groups);
  for (int e = lane; e < s.experts; e += kWarp) {
    const float left = of_group[e / size];
    if (left == left) compared[e] = minus_infinity();
  }
  __syncwarp();
}

// Sum over the k values that a warp has in shared memory.
__device__ float sum_of(const float* values, int k) {
  float sum = 0;
  for (int j = static_cast<int>(threadIdx.x) % kWarp; j < k; j += kWarp) sum += values[j];
  return warp_sum(sum);
}

// Of the k chosen experts' scores, or logits (softmax_of_top), in shared memory: the weights before Router::scale.
__device__ void weigh(const RouteShape& s, float* chosen) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float sum = 1;
  if (s.score == RouterScore::softmax_of_top) {
    float maximum = minus_infinity();
    for (int j = lane; j < s.k; j += kWarp) maximum = larger(maximum, chosen[j]);
    maximum = warp_max(maximum);
    for (int j = lane; j < s.k; j += kWarp) chosen[j] = expf(chosen[j] - maximum);
    sum = sum_of(chosen, s.k);
  } else if (s.score == RouterScore::sigmoid_of_top) {
    sum = sum_of(chosen, s.k) + kLeastSum;
  }
  for (int j = lane; j < s.k; j += kWarp) chosen[j] /= sum;
  __syncwarp();
}

// Shared memory for each warp: [experts + groups + k].
__global__ void route_kernel(RouteShape s, Any logits, Any bias, Any weights, Any choices) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / kWarp) + warp;
  if (token >= s.tokens) return;
  float* const compared = reinterpret_cast<float*>(dynamic_shared()) + warp * (s.experts + s.groups + s.k);
  float *const of_group = compared + s.experts, *const chosen = of_group + s.groups;
  const RowOfLogits row = row_of_logits(s, logits, token);
  // Scores rise with logits, which tell apart what rounds to one score.
  for (int e = lane; e < s.experts; e += kWarp)
    compared[e] = bias.data != nullptr ? row.score(e) + load(bias, e) : row.logit(e);
  __syncwarp();
  if (s.groups > 0) keep_best_groups(s, row, bias, compared, of_group);
  for (int j = 0; j < s.k; ++j) {
    const int expert = take_largest(compared, s.experts);
    if (lane != 0) continue;
    chosen[j] = s.score == RouterScore::softmax_of_top ? row.logit(expert) : row.score(expert);
    store(choices, token * s.k + j, static_cast<float>(expert));
  }
  __syncwarp();
  weigh(s, chosen);
  for (int j = lane; j < s.k; j += kWarp) store(weights, token * s.k + j, s.scale * chosen[j]);
}

// Shared memory for each warp: [k].
__global__ void route_backward_kernel(RouteShape s, Any dweights, Any logits, Any choices, Any dlogits) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / kWarp) + warp;
  if (token >= s.tokens) return;
  float* const chosen = reinterpret_cast<float*>(dynamic_shared()) + warp * s.k;
  const RowOfLogits row = row_of_logits(s, logits, token);
  const auto expert_of = [&](int j) { return static_cast<int>(load_index(choices, token * s.k + j)); };
  for (int j = lane; j < s.k; j += kWarp) {
    const int expert = expert_of(j);
    chosen[j] = s.score == RouterScore::softmax_of_top ? row.logit(expert) : row.score(expert);
  }
  __syncwarp();
  weigh(s, chosen);
  float mean = 0;
  for (int j = lane; j < s.k; j += kWarp) mean += s.scale * load(dweights, token * s.k + j) * chosen[j];
  mean = warp_sum(mean);
  // Of what a softmax over all gives, every logit has a gradient.
  for (int e = lane; e < s.experts; e += kWarp)
    store(dlogits, row.begin + e, s.score == RouterScore::softmax ? -row.score(e) * mean : 0.0f);
  __syncwarp();
  for (int j = lane; j < s.k; j += kWarp) {
    const int expert = expert_of(j);
    const float d = s.scale * load(dweights, token * s.k + j);
    float slope = s.score == RouterScore::sigmoid ? d * chosen[j] : chosen[j] * (d - mean);
    if (!s.is_softmax()) slope *= 1 - row.score(expert);  // the sigmoid's own
    store(dlogits, row.begin + expert, slope);
  }
}

// --- Slots

constexpr int kOrdersPerThread = 4;

struct SlotShape {
  std::int32_t tokens, k, slots;
};

// A block owns an expert and reads all choices, first ones before second ones, tokens in their order. row_of: of each
// choice, token by token; -1: dropped. choice_of: of each row; -1: free. Either may be absent.
__global__ void find_slots_kernel(SlotShape s, Any choices, std::int32_t* row_of, std::int32_t* choice_of) {
  auto* const per_warp = reinterpret_cast<std::int32_t*>(dynamic_shared());  // [kThreads / kWarp]
  const auto expert = static_cast<std::int32_t>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const std::int32_t all = s.tokens * s.k, first_row = expert * s.slots;
  std::int32_t taken = 0;
  for (std::int32_t tile = 0; tile < all; tile += kThreads * kOrdersPerThread) {
    unsigned votes[kOrdersPerThread];
    std::int32_t at[kOrdersPerThread];
    int in_warp = 0;
#pragma unroll
    for (int i = 0; i < kOrdersPerThread; ++i) {
      const std::int32_t order = tile + (warp * kOrdersPerThread + i) * kWarp + lane;
      at[i] = order % s.tokens * s.k + order / s.tokens;
      votes[i] = __ballot_sync(kAllLanes, order < all && load_index(choices, at[i]) == expert);
      in_warp += __popc(votes[i]);
    }
    if (lane == 0) per_warp[warp] = in_warp;
    __syncthreads();
    std::int32_t slot = taken;
    for (int w = 0; w < kThreads / kWarp; ++w) {
      slot += w < warp ? per_warp[w] : 0;
      taken += per_warp[w];
    }
#pragma unroll
    for (int i = 0; i < kOrdersPerThread; ++i) {
      if ((votes[i] >> lane & 1u) != 0) {
        const std::int32_t own = slot + __popc(votes[i] & ((1u << lane) - 1));
        const bool fits = own < s.slots;
        if (row_of != nullptr) row_of[at[i]] = fits ? first_row + own : -1;
        if (choice_of != nullptr && fits) choice_of[first_row + own] = at[i];
      }
      slot += __popc(votes[i]);
    }
    __syncthreads();
  }
  if (choice_of == nullptr) return;
  for (std::int32_t slot = taken + thread; slot < s.slots; slot += kThreads) choice_of[first_row + slot] = -1;
}

// --- Rows

__device__ std::int64_t thread_number() { return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }

// `clears`: slots without a row are set to zero; else they stay as they are.
template <int kVector>
__global__ void permute_kernel(std::int64_t rows, std::int64_t width, std::int32_t k, bool clears, Any x,
                               const std::int32_t* choice_of, Any to) {
  const std::int64_t per_row = width / kVector, i = thread_number();
  if (i >= rows * per_row) return;
  const std::int64_t row = i / per_row, column = i % per_row * kVector;
  const std::int32_t choice = choice_of[row];
  if (choice < 0 && !clears) return;
  float values[kVector];
#pragma unroll
  for (int j = 0; j < kVector; ++j) values[j] = 0;
  if (choice >= 0) load_vector<kVector>(x, choice / k * width + column, values);
  store_vector<kVector>(to, row * width + column, values);
}

template <int kVector>
__global__ void unpermute_kernel(std::int64_t tokens, std::int64_t width, std::int32_t k, Any rows,
                                 const std::int32_t* row_of, Any weights, Any x) {
  const std::int64_t per_row = width / kVector, i = thread_number();
  if (i >= tokens * per_row) return;
  const std::int64_t token = i / per_row, column = i % per_row * kVector;
  float sum[kVector];
#pragma unroll
  for (int j = 0; j < kVector; ++j) sum[j] = 0;
  for (std::int32_t choice = 0; choice < k; ++choice) {
    const std::int32_t row = row_of[token * k + choice];
    if (row < 0) continue;
    const float weight = weights.data == nullptr ? 1 : load(weights, token * k + choice);
    float values[kVector];
    load_vector<kVector>(rows, row * width + column, values);
#pragma unroll
    for (int j = 0; j < kVector; ++j) sum[j] += weight * values[j];
  }
  store_vector<kVector>(x, token * width + column, sum);
}

// A block a row. Weights of what has been dropped have no gradient: zero before.
template <int kVector>
__global__ void unpermute_backward_kernel(std::int64_t width, std::int32_t k, bool clears, Any dx, Any rows,
                                          const std::int32_t* choice_of, Any weights, Any drows, Any dweights) {
  auto* const room = reinterpret_cast<float*>(dynamic_shared());  // [kThreads / kWarp]
  const std::int64_t row = blockIdx.x;
  const std::int32_t choice = choice_of[row];
  if (choice < 0 && !clears) return;  // all of the block
  const float weight = choice < 0 ? 0 : load(weights, choice);
  float dot = 0;
  for (std::int64_t column = static_cast<std::int64_t>(threadIdx.x) * kVector; column < width;
       column += kThreads * kVector) {
    float d[kVector], values[kVector];
#pragma unroll
    for (int j = 0; j < kVector; ++j) d[j] = 0;
    if (choice >= 0) {
      load_vector<kVector>(dx, choice / k * width + column, d);
      load_vector<kVector>(rows, row * width + column, values);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        dot += d[j] * values[j];
        d[j] *= weight;
      }
    }
    store_vector<kVector>(drows, row * width + column, d);
  }
  if (choice < 0) return;  // all of the block
  dot = block_sum(dot, room);
  if (threadIdx.x == 0) store(dweights, choice, dot);
}

// Of each row, or of each choice, the number that `place` says; where there is none, zero, if it clears.
__global__ void place_weights_kernel(std::int64_t count, bool clears, Any from, const std::int32_t* place, Any to) {
  const std::int64_t i = thread_number();
  if (i >= count || (place[i] < 0 && !clears)) return;
  store(to, i, place[i] < 0 ? 0.0f : load(from, place[i]));
}

// --- Hosts

RouteShape route_shape(const Call& call, const Operand& logits, const Operand& choices) {
  const Router& router = call.op.router;
  RouteShape s{};
  const std::int64_t experts = last_size(logits), k = last_size(choices);
  s.tokens = elements(choices) / k;
  constexpr std::int64_t kMostExperts = 1 << 15;  // whose scores a block has shared memory for
  call.require(k >= 1 && k <= experts && elements(logits) == s.tokens * experts, "logits and choices do not fit");
  call.require(experts <= kMostExperts, "a block has no room for so many experts");
  s.experts = static_cast<int>(experts);
  s.k = static_cast<int>(k);
  s.score = router.score;
  s.groups = router.groups;
  s.best_groups = router.best_groups;
  call.require(s.groups == 0 || (s.experts % s.groups == 0 && s.best_groups >= 1 && s.best_groups <= s.groups),
               "experts do not divide into the groups");
  s.scale = router.scale;
  return s;
}

// As many tokens to a block as have room in what a kernel gets without asking.
int route_threads(std::int64_t shared_bytes_of_warp) {
  constexpr std::int64_t kRoom = 48 << 10;
  return static_cast<int>(std::clamp<std::int64_t>(kRoom / shared_bytes_of_warp, 1, kThreads / kWarp)) * kWarp;
}

struct Rows {
  SlotShape slots;
  std::int64_t tokens, experts, rows, width, choices;
};

// rows: [experts, slots, ..]
Rows rows_of(const Call& call, const Operand& rows, const Operand& choices) {
  Rows r{};
  r.experts = rows.tensor->sizes[0];
  r.rows = r.experts * rows.tensor->sizes[1];
  r.width = elements(rows) / r.rows;
  r.choices = elements(choices);
  const std::int64_t k = last_size(choices);
  r.tokens = r.choices / k;
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() - kThreads * kOrdersPerThread;
  call.require(r.choices <= kMost && r.rows <= kMost, "there are too many tokens");
  r.slots = {static_cast<std::int32_t>(r.tokens), static_cast<std::int32_t>(k),
             static_cast<std::int32_t>(rows.tensor->sizes[1])};
  return r;
}

Rows rows_of(const Call& call, const Operand& rows, const Operand& choices, const Operand& x) {
  call.require(rows.tensor->rank == 3, "rows are [experts, slots, width]");
  const Rows r = rows_of(call, rows, choices);
  call.require(elements(x) == r.tokens * r.width && last_size(x) == r.width, "rows are not as wide as tokens");
  return r;
}

// Numbers by choice, and by row.
Rows rows_of_weights(const Call& call, const Operand& by_row, const Operand& choices, const Operand& weights) {
  call.require(by_row.tensor->rank == 2, "weights by row are [experts, slots]");
  call.require_same_elements(weights, choices);
  return rows_of(call, by_row, choices);
}

// Exactly one of the two lists.
void find_slots(const Call& call, const Rows& r, const Operand& choices, std::int32_t* row_of,
                std::int32_t* choice_of) {
  ORRERY_LAUNCH(find_slots_kernel, blocks(r.experts), kThreads,
                kThreads / kWarp * static_cast<std::int64_t>(sizeof(std::int32_t)), call.launch.stream, r.slots,
                call.indices(choices), row_of, choice_of);
}

dim3 grid_for(std::int64_t count) { return blocks(divide_up(count, kThreads)); }

std::int64_t list_bytes(std::int64_t entries) { return entries * static_cast<std::int64_t>(sizeof(std::int32_t)); }

}  // namespace

void route(const Call& call) {
  const Operand &logits = call.read(0), &weights = call.write(0), &choices = call.write(1);
  const RouteShape s = route_shape(call, logits, choices);
  call.require_same_elements(weights, choices);
  if (call.has_read(1)) call.require(elements(call.read(1)) == s.experts, "the bias is not one for each expert");
  const std::int64_t bytes = (s.experts + s.groups + s.k) * static_cast<std::int64_t>(sizeof(float));
  const int threads = route_threads(bytes);
  ORRERY_LAUNCH(route_kernel, blocks(divide_up(s.tokens, threads / kWarp)), threads, bytes * (threads / kWarp),
                call.launch.stream, s, call.numbers(logits), call.numbers_if_read(1), call.numbers(weights),
                call.indices(choices));
}

void route_backward(const Call& call) {
  const Operand &dweights = call.read(0), &logits = call.read(1), &choices = call.read(2), &dlogits = call.write(0);
  const RouteShape s = route_shape(call, logits, choices);
  call.require_same_elements(dweights, choices);
  call.require_same_elements(dlogits, logits);
  const std::int64_t bytes = s.k * static_cast<std::int64_t>(sizeof(float));
  const int threads = route_threads(bytes);
  ORRERY_LAUNCH(route_backward_kernel, blocks(divide_up(s.tokens, threads / kWarp)), threads, bytes * (threads / kWarp),
                call.launch.stream, s, call.numbers(dweights), call.numbers(logits), call.indices(choices),
                call.numbers(dlogits));
}

std::int64_t permute_scratch(const Call& call) {
  return list_bytes(elements(call.write(0)) / last_size(call.write(0)));
}

void permute(const Call& call) {
  const Operand &x = call.read(0), &choices = call.read(1), &rows = call.write(0);
  const Rows r = rows_of(call, rows, choices, x);
  auto* const choice_of = call.scratch<std::int32_t>(r.rows);
  find_slots(call, r, choices, nullptr, choice_of);
  const Any from = call.numbers(x), to = call.numbers(rows);
  const bool is_wide = wide(r.width, {from, to});
  const auto issue = [&](auto kernel) {
    launch("permute_kernel", kernel, grid_for(elements(rows) / (is_wide ? kWide : 1)), kThreads, 0, call.launch.stream,
           r.rows, r.width, r.slots.k, !call.context.rows_are_counted, from, choice_of, to);
  };
  is_wide ? issue(permute_kernel<kWide>) : issue(permute_kernel<1>);
}

std::int64_t unpermute_scratch(const Call& call) { return list_bytes(elements(call.read(1))); }

void unpermute(const Call& call) {
  const Operand &rows = call.read(0), &choices = call.read(1), &x = call.write(0);
  const Rows r = rows_of(call, rows, choices, x);
  if (call.has_read(2)) call.require_same_elements(call.read(2), choices);
  auto* const row_of = call.scratch<std::int32_t>(r.choices);
  find_slots(call, r, choices, row_of, nullptr);
  const Any from = call.numbers(rows), to = call.numbers(x);
  const bool is_wide = wide(r.width, {from, to});
  const auto issue = [&](auto kernel) {
    launch("unpermute_kernel", kernel, grid_for(elements(x) / (is_wide ? kWide : 1)), kThreads, 0, call.launch.stream,
           r.tokens, r.width, r.slots.k, from, row_of, call.numbers_if_read(2), to);
  };
  is_wide ? issue(unpermute_kernel<kWide>) : issue(unpermute_kernel<1>);
}

std::int64_t unpermute_backward_scratch(const Call& call) {
  return list_bytes(elements(call.read(1)) / last_size(call.read(1)));
}

void unpermute_backward(const Call& call) {
  const Operand &dx = call.read(0), &rows = call.read(1), &choices = call.read(2), &weights = call.read(3),
                &drows = call.write(0), &dweights = call.write(1);
  const Rows r = rows_of(call, rows, choices, dx);
  call.require_same_elements(weights, choices);
  call.require_same_elements(dweights, choices);
  call.require_same_elements(drows, rows);
  auto* const choice_of = call.scratch<std::int32_t>(r.rows);
  find_slots(call, r, choices, nullptr, choice_of);
  fill(call.launch.stream, {dweights.data, dweights.tensor->dtype, 0, elements(dweights)}, 0);
  const Any d = call.numbers(dx), from = call.numbers(rows), to = call.numbers(drows);
  const auto issue = [&](auto kernel) {
    launch("unpermute_backward_kernel", kernel, blocks(r.rows), kThreads,
           kThreads / kWarp * static_cast<std::int64_t>(sizeof(float)), call.launch.stream, r.width, r.slots.k,
           !call.context.rows_are_counted, d, from, choice_of, call.numbers(weights), to, call.numbers(dweights));
  };
  wide(r.width, {d, from, to}) ? issue(unpermute_backward_kernel<kWide>) : issue(unpermute_backward_kernel<1>);
}

std::int64_t permute_weights_scratch(const Call& call) { return list_bytes(elements(call.write(0))); }

void permute_weights(const Call& call) {
  const Operand &weights = call.read(0), &choices = call.read(1), &by_row = call.write(0);
  const Rows r = rows_of_weights(call, by_row, choices, weights);
  auto* const choice_of = call.scratch<std::int32_t>(r.rows);
  find_slots(call, r, choices, nullptr, choice_of);
  ORRERY_LAUNCH(place_weights_kernel, grid_for(r.rows), kThreads, 0, call.launch.stream, r.rows,
                !call.context.rows_are_counted, call.numbers(weights), choice_of, call.numbers(by_row));
}

std::int64_t unpermute_weights_scratch(const Call& call) { return list_bytes(elements(call.read(1))); }

void unpermute_weights(const Call& call) {
  const Operand &by_row = call.read(0), &choices = call.read(1), &weights = call.write(0);
  const Rows r = rows_of_weights(call, by_row, choices, weights);
  auto* const row_of = call.scratch<std::int32_t>(r.choices);
  find_slots(call, r, choices, row_of, nullptr);
  ORRERY_LAUNCH(place_weights_kernel, grid_for(r.choices), kThreads, 0, call.launch.stream, r.choices, true,
                call.numbers(by_row), row_of, call.numbers(weights));
}

}  // namespace orrery::cuda
