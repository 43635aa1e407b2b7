// Routers in which tokens do not choose on their own, and the one without logits (realrun/routers.h).
#include "realrun/cuda/kernels/call.cuh"
#include "realrun/cuda/kernels/cut.cuh"
#include "realrun/routers.h"

namespace orrery::cuda {
namespace {

// One block per expert. weights: the scores; those that are not chosen become 0.
__global__ void choose_tokens_kernel(int tokens, int experts, int seats, float scale, Any weights, Any choices) {
  auto* const room = reinterpret_cast<int*>(dynamic_shared());  // [kWarps]
  const auto expert = static_cast<int>(blockIdx.x);
  const auto at = [&](int token) { return static_cast<std::int64_t>(token) * experts + expert; };
  const auto key_of = [&](int token) { return key_of_number(load(weights, at(token))); };
  const Cut cut = cut_of(tokens, seats, key_of, room);
  for_each(tokens, cut, key_of, room, [&](int token, std::uint32_t key, int place) {
    const bool chosen = place >= 0;
    store(weights, at(token), chosen ? scale * number_of_key(key) : 0.0f);
    store(choices, at(token), chosen ? static_cast<float>(expert) : -1.0f);
  });
}

// One block holds the auction. prices, owners: by token. Shared memory: [tokens] offers, [tokens] bidders, [experts]
// number of tokens that each owns, [kWarps].
__global__ void auction_kernel(int tokens, int experts, int seats, Any logits, float* prices, Any owners) {
  auto* const offers = reinterpret_cast<float*>(dynamic_shared());
  auto* const bidders = reinterpret_cast<int*>(offers + tokens);
  int *const owned = bidders + tokens, *const room = owned + experts;
  const auto thread = static_cast<int>(threadIdx.x);
  const auto owner_of = [&](int token) { return static_cast<int>(load_index(owners, token)); };
  const auto logit = [&](int t, int e) { return load(logits, static_cast<std::int64_t>(t) * experts + e); };
  float least = -minus_infinity(), most = minus_infinity();
  for (std::int64_t i = thread; i < static_cast<std::int64_t>(tokens) * experts; i += kThreads) {
    const float x = load(logits, i);
    least = x < least ? x : least;
    most = larger(most, x);
  }
  auto* const numbers = reinterpret_cast<float*>(room);
  most = block_reduce(most, numbers, minus_infinity(), larger);
  least = -block_reduce(-least, numbers, minus_infinity(), larger);
  const float step = larger((most - least) * auction::kStepOfRange, auction::kLeastStep);
  for (int t = thread; t < tokens; t += kThreads) {
    prices[t] = 0;
    store(owners, t, -1);
  }
  for (int e = thread; e < experts; e += kThreads) owned[e] = 0;
  __syncthreads();
  for (int round = 0; round < auction::kMostRounds; ++round) {
    int free = 0;
    for (int t = thread; t < tokens; t += kThreads) {
      free += owner_of(t) < 0 ? 1 : 0;
      bidders[t] = -1;
    }
    if (block_sum(free, room) == 0) break;
    for (int e = 0; e < experts; ++e) {
      const int others = tokens - owned[e], wanted = seats - owned[e] < others ? seats - owned[e] : others;
      if (wanted <= 0) continue;
      const auto key_of = [&](int t) { return owner_of(t) == e ? 0u : key_of_number(logit(t, e) - prices[t]); };
      const Cut cut = cut_of(tokens, wanted, key_of, room);
      const float next = number_of_key(others > wanted ? cut_of(tokens, wanted + 1, key_of, room).key : cut.key);
      for_each(tokens, cut, key_of, room, [&](int t, std::uint32_t key, int place) {
        if (place < 0) return;
        const float more = number_of_key(key) - next, offer = more + step, price = prices[t] + offer;
        if (bidders[t] >= 0 && !(price > offers[t])) return;
        bidders[t] = e;
        offers[t] = price;
      });
    }
    __syncthreads();  // all have read how many tokens each owns
    for (int t = thread; t < tokens; t += kThreads) {
      if (bidders[t] < 0) continue;
      if (const int before = owner_of(t); before >= 0) atomicAdd(owned + before, -1);
      atomicAdd(owned + bidders[t], 1);
      store(owners, t, static_cast<float>(bidders[t]));
      prices[t] = offers[t];
    }
    __syncthreads();
  }
  if (thread != 0) return;
  for (int t = 0; t < tokens; ++t) {
    if (owner_of(t) >= 0) continue;
    int best = -1;
    for (int e = 0; e < experts; ++e)
      if (owned[e] < seats && (best < 0 || logit(t, e) > logit(t, best))) best = e;
    ++owned[best];
    store(owners, t, static_cast<float>(best));
  }
}

__global__ void hash_route_kernel(std::int64_t tokens, std::int64_t experts, Any ids, Any choices) {
  const std::int64_t i = thread_number();
  if (i < tokens) store(choices, i, static_cast<float>(expert_of_id(load_index(ids, i), experts)));
}

constexpr std::int64_t kRoom = bytes_for<int>(kWarps);

}  // namespace

void choose_tokens(const Call& call) {
  const auto [tokens, experts, k] = router_shape(call);
  call.require(tokens <= std::numeric_limits<std::int32_t>::max() - kThreads, "there are too many tokens");
  ORRERY_LAUNCH(call, choose_tokens_kernel, blocks(experts), kRoom, static_cast<int>(tokens), static_cast<int>(experts),
                static_cast<int>(seats_of_expert(tokens, call.op.router.choices, experts)), call.op.router.scale,
                call.out(0), call.indices(call.write(1)));
}

void hold_auction(const Call& call) {
  const auto [tokens, experts, k] = router_shape(call);
  constexpr std::int64_t kMostShared = 227 << 10;  // per block (CUDA C++ Programming Guide, compute capability 9.0)
  const std::int64_t shared = bytes_for<int>(2 * tokens + experts) + kRoom;
  call.require(shared <= kMostShared, "a block has no room for the prices of this many tokens");
  ORRERY_LAUNCH(call, auction_kernel, blocks(1), shared, static_cast<int>(tokens), static_cast<int>(experts),
                static_cast<int>(seats_of_expert(tokens, 1, experts)), call.in(0), call.singles(call.write(0)),
                call.indices(call.write(1)));
}

void hash_route(const Call& call) {
  const std::int64_t tokens = elements(call.read(0)), experts = call.op.router.experts;
  call.require(experts >= 1, "there are no experts");
  ORRERY_LAUNCH(call, hash_route_kernel, Elements{tokens}, 0, tokens, experts, call.indices(call.read(0)),
                call.indices(call.write(0)));
}

}  // namespace orrery::cuda
