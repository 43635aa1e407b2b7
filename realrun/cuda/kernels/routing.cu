// Mixture of experts: which experts a token goes to, and the rows in their slots (sim/program/op_traits.h).
#include <cmath>

#include "realrun/cuda/kernels/routing.cuh"

namespace orrery::cuda {
namespace {

// ---- The router: one warp per token

// DeepSeek-V3's router adds this to the sum that it divides by (arXiv 2412.19437; modeling_deepseek.py, MoEGate).
constexpr float kLeastSum = 1e-20f;

struct Routing {
  std::int64_t tokens;
  int experts, k;
  RouterScore score;
  int groups, best_groups;
  float scale;
  bool assigned;  // the choices are given

  __host__ __device__ bool is_softmax() const {
    return score == RouterScore::softmax || score == RouterScore::softmax_of_top;
  }
};

// A row of logits, and the scores that follow from it.
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

__device__ RowOfLogits row_of_logits(const Routing& s, const Any& logits, std::int64_t token) {
  const int lane = lane_number();
  RowOfLogits row{logits, token * s.experts, s.is_softmax(), minus_infinity(), 0};
  if (!row.is_softmax) return row;
  for (int e = lane; e < s.experts; e += kWarp) row.maximum = larger(row.maximum, row.logit(e));
  row.maximum = warp_max(row.maximum);
  for (int e = lane; e < s.experts; e += kWarp) row.sum += expf(row.logit(e) - row.maximum);
  row.sum = warp_sum(row.sum);
  return row;
}

// Sets the compared scores of experts outside the best groups to minus infinity.
__device__ void keep_best_groups(const Routing& s, const RowOfLogits& row, const Any& bias, float* compared,
                                 float* of_group) {
  const int lane = lane_number(), size = s.experts / s.groups;
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

// Replaces the k chosen experts' scores, or logits (softmax_of_top), in shared memory by weights before Router::scale.
__device__ void weigh(const Routing& s, float* chosen) {
  const int lane = lane_number();
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

// Shared memory per warp: [experts + groups + k].
__global__ void route_kernel(Routing s, Any logits, Any bias, Any weights, Any choices) {
  const int lane = lane_number();
  const auto [token, compared] = token_of_warp(s.tokens, s.experts + s.groups + s.k);
  if (compared == nullptr) return;
  float *const of_group = compared + s.experts, *const chosen = of_group + s.groups;
  const RowOfLogits row = row_of_logits(s, logits, token);
  // Scores increase with logits; comparing logits distinguishes what rounds to one score.
  for (int e = lane; e < s.experts; e += kWarp)
    compared[e] = bias.data != nullptr ? row.score(e) + load(bias, e) : row.logit(e);
  __syncwarp();
  if (s.groups > 0) keep_best_groups(s, row, bias, compared, of_group);
  for (int j = 0; j < s.k; ++j) {
    const int expert =
        s.assigned ? static_cast<int>(load_index(choices, token * s.k + j)) : take_largest(compared, s.experts);
    if (lane != 0) continue;
    chosen[j] = s.score == RouterScore::softmax_of_top ? row.logit(expert) : row.score(expert);
    store(choices, token * s.k + j, static_cast<float>(expert));
  }
  __syncwarp();
  weigh(s, chosen);
  for (int j = lane; j < s.k; j += kWarp) store(weights, token * s.k + j, s.scale * chosen[j]);
}

__global__ void scores_kernel(Routing s, Any logits, Any scores) {
  const int lane = lane_number();
  const std::int64_t token = thread_number() / kWarp;
  if (token >= s.tokens) return;
  const RowOfLogits row = row_of_logits(s, logits, token);
  for (int e = lane; e < s.experts; e += kWarp) store(scores, row.begin + e, row.score(e));
}

// Shared memory per warp: [k].
__global__ void route_backward_kernel(Routing s, Any dweights, Any logits, Any choices, Any dlogits) {
  const int lane = lane_number();
  const auto [token, chosen] = token_of_warp(s.tokens, s.k);
  if (chosen == nullptr) return;
  const RowOfLogits row = row_of_logits(s, logits, token);
  const auto expert_of = [&, token = token](int j) { return static_cast<int>(load_index(choices, token * s.k + j)); };
  for (int j = lane; j < s.k; j += kWarp) {
    const int expert = expert_of(j);
    chosen[j] = expert < 0 ? 0 : s.score == RouterScore::softmax_of_top ? row.logit(expert) : row.score(expert);
  }
  __syncwarp();
  weigh(s, chosen);
  float mean = 0;
  for (int j = lane; j < s.k; j += kWarp) mean += s.scale * load(dweights, token * s.k + j) * chosen[j];
  mean = warp_sum(mean);
  // The gradients of a softmax over all experts reach every logit.
  for (int e = lane; e < s.experts; e += kWarp)
    store(dlogits, row.begin + e, s.score == RouterScore::softmax ? -row.score(e) * mean : 0.0f);
  __syncwarp();
  for (int j = lane; j < s.k; j += kWarp) {
    const int expert = expert_of(j);
    if (expert < 0) continue;
    const float d = s.scale * load(dweights, token * s.k + j);
    float slope = s.score == RouterScore::sigmoid ? d * chosen[j] : chosen[j] * (d - mean);
    if (!s.is_softmax()) slope *= 1 - row.score(expert);  // the sigmoid's slope
    store(dlogits, row.begin + expert, slope);
  }
}

// ---- Slots

constexpr int kOrdersPerThread = 4;

struct SlotShape {
  std::int32_t tokens, k, slots;
  // For copies of experts (KernelContext); nullptr: each expert has one slot.
  const std::int64_t* expert_of_slot;
  std::int32_t first_copy, first_expert;
};

// The copy of an expert that a block owns: of `copies`, the one `behind` places after that of the expert's first row.
struct Copy {
  std::int32_t expert, behind, copies;
};
__device__ Copy copy_of_block(const SlotShape& s) {
  const auto own = static_cast<std::int32_t>(blockIdx.x);
  if (s.expert_of_slot == nullptr) return {s.first_expert + own, 0, 1};
  const auto expert = static_cast<std::int32_t>(s.expert_of_slot[own]);
  std::int32_t before = 0, copies = 0;
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(gridDim.x); ++i) {
    if (static_cast<std::int32_t>(s.expert_of_slot[i]) != expert) continue;
    before += i < own ? 1 : 0;
    ++copies;
  }
  return {expert, (before + copies - s.first_copy % copies) % copies, copies};
}

// A block owns an expert, or a copy of one. It reads all choices: first choices before second ones, tokens in order.
// row_of: by choice, token by token; -1: dropped, or no expert. choice_of: by row; -1: free. Either may be null.
__global__ void find_slots_kernel(SlotShape s, Any choices, std::int32_t* row_of, std::int32_t* choice_of) {
  auto* const per_warp = reinterpret_cast<std::int32_t*>(dynamic_shared());  // [kThreads / kWarp]
  const auto [expert, behind, copies] = copy_of_block(s);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const std::int32_t all = s.tokens * s.k, first_row = static_cast<std::int32_t>(blockIdx.x) * s.slots;
  std::int32_t taken = 0;
  for (std::int32_t tile = 0; tile < all; tile += kThreads * kOrdersPerThread) {
    unsigned votes[kOrdersPerThread];
    std::int32_t at[kOrdersPerThread];
    int in_warp = 0;
#pragma unroll
    for (int i = 0; i < kOrdersPerThread; ++i) {
      const std::int32_t order = tile + (warp * kOrdersPerThread + i) * kWarp + lane;
      at[i] = order % s.tokens * s.k + order / s.tokens;
      const std::int64_t chosen = order < all ? load_index(choices, at[i]) : kNobody;
      votes[i] = __ballot_sync(kAllLanes, chosen == expert);
      if (chosen < 0 && blockIdx.x == 0 && row_of != nullptr) row_of[at[i]] = -1;
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
      const std::int32_t of_expert = slot + __popc(votes[i] & ((1u << lane) - 1));
      if ((votes[i] >> lane & 1u) != 0 && of_expert % copies == behind) {
        const std::int32_t own = of_expert / copies;
        const bool fits = own < s.slots;
        if (row_of != nullptr) row_of[at[i]] = fits ? first_row + own : -1;
        if (choice_of != nullptr && fits) choice_of[first_row + own] = at[i];
      }
      slot += __popc(votes[i]);
    }
    __syncthreads();
  }
  if (choice_of == nullptr) return;
  const std::int32_t own = (taken + copies - 1 - behind) / copies;  // out of all rows of the expert
  for (std::int32_t slot = own + thread; slot < s.slots; slot += kThreads) choice_of[first_row + slot] = -1;
}

__global__ void no_rows_kernel(std::int64_t choices, std::int32_t* row_of) {
  const std::int64_t i = thread_number();
  if (i < choices) row_of[i] = -1;
}

// ---- Rows

// `clears`: slots without a row are set to zero; otherwise they are left as they are.
template <int kVector>
__global__ void permute_kernel(std::int64_t rows, std::int64_t width, std::int32_t k, bool clears, Any x,
                               const std::int32_t* choice_of, Any to) {
  const std::int64_t per_row = width / kVector, i = thread_number();
  if (i >= rows * per_row) return;
  const std::int64_t row = i / per_row, column = i % per_row * kVector;
  const std::int32_t choice = choice_of[row];
  if (choice < 0 && !clears) return;
  float values[kVector] = {};
  if (choice >= 0) load_vector<kVector>(x, choice / k * width + column, values);
  store_vector<kVector>(to, row * width + column, values);
}

template <int kVector>
__global__ void unpermute_kernel(std::int64_t tokens, std::int64_t width, std::int32_t k, Any rows,
                                 const std::int32_t* row_of, Any weights, Any x) {
  const std::int64_t per_row = width / kVector, i = thread_number();
  if (i >= tokens * per_row) return;
  const std::int64_t token = i / per_row, column = i % per_row * kVector;
  float sum[kVector] = {};
  for (std::int32_t choice = 0; choice < k; ++choice) {
    const std::int32_t row = row_of[token * k + choice];
    if (row < 0) continue;
    const float weight = weights.data == nullptr ? 1 : load(weights, token * k + choice);
    add_vector<kVector>(rows, row * width + column, sum, weight);
  }
  store_vector<kVector>(x, token * width + column, sum);
}

// One block per row. Weights of dropped rows have no gradient; theirs are zeroed before.
template <int kVector>
__global__ void unpermute_backward_kernel(std::int64_t width, std::int32_t k, bool clears, Any dx, Any rows,
                                          const std::int32_t* choice_of, Any weights, Any drows, Any dweights) {
  auto* const room = reinterpret_cast<float*>(dynamic_shared());  // [kThreads / kWarp]
  const std::int64_t row = blockIdx.x;
  const std::int32_t choice = choice_of[row];
  if (choice < 0 && !clears) return;  // for the whole block
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
  if (choice < 0) return;  // for the whole block
  dot = block_sum(dot, room);
  if (threadIdx.x == 0) store(dweights, choice, dot);
}

// Writes for each row, or each choice, the number at `place`; if there is none, zero if `clears`.
__global__ void place_weights_kernel(std::int64_t count, bool clears, Any from, const std::int32_t* place, Any to) {
  const std::int64_t i = thread_number();
  if (i >= count || (place[i] < 0 && !clears)) return;
  store(to, i, place[i] < 0 ? 0.0f : load(from, place[i]));
}

// ---- Masks

// Writes each row's column for its token; `mask` is zero elsewhere.
__global__ void slot_mask_kernel(std::int32_t rows, std::int32_t k, const std::int32_t* choice_of, Any weights,
                                 Any mask) {
  const std::int64_t row = thread_number();
  if (row >= rows || choice_of[row] < 0) return;
  const std::int32_t choice = choice_of[row];
  store(mask, static_cast<std::int64_t>(choice / k) * rows + row, weights.data == nullptr ? 1 : load(weights, choice));
}

__global__ void slot_mask_backward_kernel(std::int64_t choices, std::int64_t rows, std::int32_t k,
                                          const std::int32_t* row_of, Any dmask, Any dweights) {
  const std::int64_t i = thread_number();
  if (i >= choices) return;
  store(dweights, i, row_of[i] < 0 ? 0.0f : load(dmask, i / k * rows + row_of[i]));
}

// ---- Losses of the router

// One block per sequence. Shared memory: a count per expert.
__global__ void expert_counts_kernel(std::int64_t each, int experts, Any choices, Any counts) {
  auto* const found = reinterpret_cast<std::int32_t*>(dynamic_shared());
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kThreads) found[e] = 0;
  __syncthreads();
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * each;
  for (std::int64_t i = threadIdx.x; i < each; i += kThreads) {
    const auto expert = load_index(choices, first + i);
    if (expert >= 0 && expert < experts) atomicAdd(found + expert, 1);
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kThreads)
    store(counts, static_cast<std::int64_t>(blockIdx.x) * experts + e, static_cast<float>(found[e]));
}

struct LossShape {
  Routing route;
  std::int64_t batch, each;  // sequences; tokens per sequence
  float balance, z;
  bool by_sequence;
};

// A token's share of the losses, computed by a warp.
struct TokenLoss {
  RowOfLogits row;
  float maximum, log_sum;  // of the logits
  float score_sum;         // of sigmoids
  float choices;           // number of choices of the tokens whose loads are compared
  float mean = 0;          // mean of loads, weighted by shares

  __device__ float share(int e) const { return row.is_softmax ? row.score(e) : row.score(e) / score_sum; }
};
__device__ float load_of(const LossShape& s, const Any& counts, std::int64_t sequence, int e) {
  if (s.by_sequence) return load(counts, sequence * s.route.experts + e);
  float sum = 0;
  for (std::int64_t b = 0; b < s.batch; ++b) sum += load(counts, b * s.route.experts + e);
  return sum;
}
__device__ TokenLoss token_loss(const LossShape& s, const Any& logits, const Any& counts, std::int64_t token) {
  const int lane = lane_number(), experts = s.route.experts;
  TokenLoss t{row_of_logits(s.route, logits, token), minus_infinity(), 0, 0, 0};
  for (int e = lane; e < experts; e += kWarp) t.maximum = larger(t.maximum, t.row.logit(e));
  t.maximum = warp_max(t.maximum);
  for (int e = lane; e < experts; e += kWarp) {
    t.log_sum += expf(t.row.logit(e) - t.maximum);
    if (!t.row.is_softmax) t.score_sum += t.row.score(e);
  }
  t.log_sum = t.maximum + logf(warp_sum(t.log_sum));
  t.score_sum = warp_sum(t.score_sum) + kLeastSum;
  if (counts.data == nullptr) return t;
  for (int e = lane; e < experts; e += kWarp) {
    const float count = load_of(s, counts, token / s.each, e);
    t.choices += count;
    t.mean += count * t.share(e);
  }
  t.choices = larger(warp_sum(t.choices), 1);
  t.mean = warp_sum(t.mean) * static_cast<float>(experts) / t.choices;
  return t;
}

__global__ void router_loss_kernel(LossShape s, Any logits, Any counts, Any losses) {
  const std::int64_t token = thread_number() / kWarp;
  if (token >= s.route.tokens) return;
  const TokenLoss t = token_loss(s, logits, counts, token);
  if (threadIdx.x % kWarp != 0) return;
  store(losses, 2 * token, s.balance * t.mean);
  store(losses, 2 * token + 1, s.z * t.log_sum * t.log_sum);
}

__global__ void router_loss_backward_kernel(LossShape s, float factor, Any logits, Any counts, Any dlogits) {
  const std::int64_t token = thread_number() / kWarp;
  if (token >= s.route.tokens) return;
  const TokenLoss t = token_loss(s, logits, counts, token);
  for (int e = static_cast<int>(threadIdx.x) % kWarp; e < s.route.experts; e += kWarp) {
    float slope = s.z * 2 * t.log_sum * expf(t.row.logit(e) - t.log_sum);
    if (counts.data != nullptr) {
      const float load = load_of(s, counts, token / s.each, e) * static_cast<float>(s.route.experts) / t.choices;
      slope += s.balance * t.share(e) * (t.row.is_softmax ? 1 : 1 - t.row.score(e)) * (load - t.mean);
    }
    store(dlogits, t.row.begin + e, factor * slope);
  }
}

// ---- Host code

Routing routing_of(const Call& call) {
  const RouterShape shape = router_shape(call);
  const Router& router = call.op.router;
  constexpr std::int64_t kMostExperts = 1 << 15;  // experts whose scores fit into a block's shared memory
  call.require(shape.experts <= kMostExperts, "a block has no room for this many experts");
  Routing s{};
  s.tokens = shape.tokens;
  s.experts = static_cast<int>(shape.experts);
  s.k = static_cast<int>(shape.k);
  s.score = router.score;
  s.groups = router.groups;
  s.best_groups = router.best_groups;
  s.scale = router.scale;
  s.assigned = router.type == RouterType::base;
  return s;
}

// The tokens and rows of a call, and one of the two lists of find_slots_kernel, in scratch memory.
struct Rows : SlotsShape {
  explicit Rows(const Call& call) : SlotsShape(slots_shape(call)) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() - kThreads * kOrdersPerThread;
    call.require(tokens * k <= kMost && rows() <= kMost, "there are too many tokens");
    call.require(call.context.expert_of_slot.empty() || call.launch.expert_of_slot != nullptr,
                 "the experts of slots are not on the device");
  }
  std::int32_t k32() const { return static_cast<std::int32_t>(k); }

  // If ranks divide experts, no block owns the choices of other ranks' experts.
  const std::int32_t* row_of(const Call& call) const {
    auto* const list = call.scratch<std::int32_t>(tokens * k);
    if (divided) ORRERY_LAUNCH(call, no_rows_kernel, Elements{tokens * k}, 0, tokens * k, list);
    find(call, list, nullptr);
    return list;
  }
  const std::int32_t* choice_of(const Call& call) const {
    auto* const list = call.scratch<std::int32_t>(rows());
    find(call, nullptr, list);
    return list;
  }

 private:
  void find(const Call& call, std::int32_t* row_of, std::int32_t* choice_of) const {
    const SlotShape shape{static_cast<std::int32_t>(tokens),
                          k32(),
                          static_cast<std::int32_t>(slots),
                          call.launch.expert_of_slot,
                          static_cast<std::int32_t>(call.context.first_copy),
                          static_cast<std::int32_t>(call.context.first_expert)};
    ORRERY_LAUNCH(call, find_slots_kernel, blocks(experts), bytes_for<std::int32_t>(kThreads / kWarp), shape,
                  call.indices(*choices), row_of, choice_of);
  }
};

void zero(const Call& call, const Operand& o) {
  fill(call.launch.stream, {o.data, o.tensor->dtype, 0, elements(o)}, 0);
}

}  // namespace

void route(const Call& call) {
  if (call.op.router.gumbel_temperature > 0) return gumbel_route(call);
  const Routing s = routing_of(call);
  const Any logits = call.in(0), weights = call.out(0);
  const RouterType type = call.op.router.type;
  if (type == RouterType::expert_choice) {
    ORRERY_LAUNCH(call, scores_kernel, Elements{s.tokens * kWarp}, 0, s, logits, weights);
    return choose_tokens(call);
  }
  if (type == RouterType::base) hold_auction(call);
  launch_by_token(call, "route_kernel", route_kernel, s.tokens, s.experts + s.groups + s.k, s, logits, call.in_if(1),
                  weights, call.indices(call.write(1)));
}

void route_backward(const Call& call) {
  if (call.op.router.gumbel_temperature > 0) return gumbel_route_backward(call);
  const Routing s = routing_of(call);
  launch_by_token(call, "route_backward_kernel", route_backward_kernel, s.tokens, s.k, s, call.in(0), call.in(1),
                  call.indices(call.read(2)), call.out(0));
}

std::int64_t slots_scratch(const Call& call) {
  const SlotsShape s = slots_shape(call);
  return bytes_for<std::int32_t>(std::max(s.rows(), s.tokens * s.k));
}

void permute(const Call& call) {
  const Rows r(call);
  const Any from = call.in(0), to = call.out(0);
  ORRERY_LAUNCH_WIDE(call, wide(r.width, {from, to}), permute_kernel, Elements{r.rows() * r.width}, 0, r.rows(),
                     r.width, r.k32(), !call.context.rows_are_counted, from, r.choice_of(call), to);
}

void unpermute(const Call& call) {
  const Rows r(call);
  const Any from = call.in(0), to = call.out(0);
  ORRERY_LAUNCH_WIDE(call, wide(r.width, {from, to}), unpermute_kernel, Elements{r.tokens * r.width}, 0, r.tokens,
                     r.width, r.k32(), from, r.row_of(call), call.in_if(2), to);
}

void unpermute_backward(const Call& call) {
  const Rows r(call);
  const std::int32_t* const choice_of = r.choice_of(call);
  zero(call, call.write(1));
  const Any d = call.in(0), from = call.in(1), to = call.out(0);
  ORRERY_LAUNCH_WIDE(call, wide(r.width, {d, from, to}), unpermute_backward_kernel, blocks(r.rows()), kSumBytes,
                     r.width, r.k32(), !call.context.rows_are_counted, d, from, choice_of, call.in(3), to, call.out(1));
}

void permute_weights(const Call& call) {
  const Rows r(call);
  ORRERY_LAUNCH(call, place_weights_kernel, Elements{r.rows()}, 0, r.rows(), !call.context.rows_are_counted, call.in(0),
                r.choice_of(call), call.out(0));
}

void unpermute_weights(const Call& call) {
  const Rows r(call);
  ORRERY_LAUNCH(call, place_weights_kernel, Elements{r.tokens * r.k}, 0, r.tokens * r.k, true, call.in(0),
                r.row_of(call), call.out(0));
}

void slot_mask(const Call& call) {
  const Rows r(call);
  const std::int32_t* const choice_of = r.choice_of(call);
  zero(call, call.write(0));
  ORRERY_LAUNCH(call, slot_mask_kernel, Elements{r.rows()}, 0, static_cast<std::int32_t>(r.rows()), r.k32(), choice_of,
                call.in_if(1), call.out(0));
}

void slot_mask_backward(const Call& call) {
  const Rows r(call);
  ORRERY_LAUNCH(call, slot_mask_backward_kernel, Elements{r.tokens * r.k}, 0, r.tokens * r.k, r.rows(), r.k32(),
                r.row_of(call), call.in(0), call.out(0));
}

void expert_counts(const Call& call) {
  const Operand &choices = call.read(0), &counts = call.write(0);
  const std::int64_t batch = counts.tensor->sizes[0], experts = last_size(counts);
  ORRERY_LAUNCH(call, expert_counts_kernel, blocks(batch), bytes_for<std::int32_t>(experts), elements(choices) / batch,
                static_cast<int>(experts), call.indices(choices), call.numbers(counts));
}

namespace {

LossShape loss_shape(const Call& call) {
  const Operand& logits = call.read(0);
  const Router& router = call.op.router;
  LossShape s{};
  s.route.experts = static_cast<int>(last_size(logits));
  s.route.tokens = elements(logits) / last_size(logits);
  s.route.score = router.score;
  s.batch = call.has_read(1) ? call.read(1).tensor->sizes[0] : 1;
  s.each = s.route.tokens / s.batch;
  s.balance = router.balance;
  s.z = router.z;
  s.by_sequence = router.by_sequence;
  return s;
}

}  // namespace

void router_loss(const Call& call) {
  const LossShape s = loss_shape(call);
  ORRERY_LAUNCH(call, router_loss_kernel, Elements{s.route.tokens * kWarp}, 0, s, call.in(0), call.in_if(1),
                call.out(0));
}

void router_loss_backward(const Call& call) {
  const LossShape s = loss_shape(call);
  ORRERY_LAUNCH(call, router_loss_backward_kernel, Elements{s.route.tokens * kWarp}, 0, s,
                static_cast<float>(call.op.scale), call.in(0), call.in_if(1), call.out(0));
}

}  // namespace orrery::cuda
