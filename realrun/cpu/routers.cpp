// Routers in which tokens do not choose on their own, and the one without logits (realrun/routers.h).
#include "realrun/routers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "realrun/cpu/kernel_call.h"

namespace orrery::cpu {
namespace {

// An auction among `experts`, with `seats` each, for the rows of `logits`.
class Auction {
 public:
  Auction(std::span<const float> logits, std::int64_t experts)
      : logits_(logits),
        experts_(experts),
        tokens_(static_cast<std::int64_t>(logits.size()) / experts),
        seats_(seats_of_expert(tokens_, 1, experts)),
        prices_(static_cast<std::size_t>(tokens_)),
        owners_(static_cast<std::size_t>(tokens_), -1),
        owned_(static_cast<std::size_t>(experts)) {
    const auto [least, most] = std::ranges::minmax(logits);
    step_ = std::max((most - least) * auction::kStepOfRange, auction::kLeastStep);
  }

  // Returns the expert of each token.
  const std::vector<std::int64_t>& run() {
    while (free_tokens() > 0 && rounds_ < auction::kMostRounds) round();
    for (std::size_t t = 0; t < owners_.size(); ++t) {
      if (owners_[t] >= 0) continue;
      for (std::int64_t e = 0; e < experts_; ++e)
        if (owned_[static_cast<std::size_t>(e)] < seats_ && (owners_[t] < 0 || logit(t, e) > logit(t, owners_[t])))
          owners_[t] = e;
      ++owned_[static_cast<std::size_t>(owners_[t])];
    }
    return owners_;
  }

 private:
  struct Bid {
    std::int64_t expert = -1;
    float price = 0;
  };

  float logit(std::size_t token, std::int64_t expert) const {
    return logits_[token * static_cast<std::size_t>(experts_) + static_cast<std::size_t>(expert)];
  }
  std::int64_t free_tokens() const { return std::ranges::count(owners_, -1); }

  void round() {
    ++rounds_;
    std::vector<Bid> best(owners_.size());
    for (std::int64_t e = 0; e < experts_; ++e) bid(e, best);
    for (std::size_t t = 0; t < best.size(); ++t) {
      if (best[t].expert < 0) continue;
      if (owners_[t] >= 0) --owned_[static_cast<std::size_t>(owners_[t])];
      owners_[t] = best[t].expert;
      prices_[t] = best[t].price;
      ++owned_[static_cast<std::size_t>(owners_[t])];
    }
  }

  void bid(std::int64_t expert, std::vector<Bid>& best) const {
    std::vector<std::size_t> others;
    for (std::size_t t = 0; t < owners_.size(); ++t)
      if (owners_[t] != expert) others.push_back(t);
    const auto wanted =
        std::min(static_cast<std::size_t>(seats_ - owned_[static_cast<std::size_t>(expert)]), others.size());
    if (wanted == 0) return;
    const auto value = [&](std::size_t t) {
      const float v = logit(t, expert) - prices_[t];
      return std::isnan(v) ? -std::numeric_limits<float>::infinity() : v;  // -infinity: NaN has no order
    };
    const auto before = [&](std::size_t a, std::size_t b) {
      return value(a) > value(b) || (value(a) == value(b) && a < b);
    };
    const auto last = others.begin() + static_cast<std::ptrdiff_t>(std::min(wanted, others.size() - 1));
    std::ranges::nth_element(others, last, before);
    const float next = value(*last);
    for (std::size_t i = 0; i < wanted; ++i) {
      const std::size_t t = others[i];
      const float more = value(t) - next, offer = more + step_, price = prices_[t] + offer;
      if (best[t].expert < 0 || price > best[t].price) best[t] = {expert, price};
    }
  }

  std::span<const float> logits_;
  std::int64_t experts_, tokens_, seats_;
  float step_ = 0;
  int rounds_ = 0;
  std::vector<float> prices_;         // by token
  std::vector<std::int64_t> owners_;  // by token; -1: none yet
  std::vector<std::int64_t> owned_;   // by expert: number of tokens
};

}  // namespace

std::vector<std::int64_t> auctioned_experts(std::span<const float> logits, std::int64_t experts) {
  return Auction(logits, experts).run();
}

void choose_tokens(const Call& call, std::span<const double> scores) {
  const Buffer &weights = call.write(0), &choices = call.write(1);
  const auto [tokens, experts, k] = router_shape(call);
  const std::int64_t seats = seats_of_expert(tokens, call.op.router.choices, experts);
  std::ranges::fill(weights.span(), 0.0f);
  std::ranges::fill(choices.span(), -1.0f);
  std::vector<std::int64_t> order(static_cast<std::size_t>(tokens));
  for (std::int64_t e = 0; e < experts; ++e) {
    const auto score = [&, experts = experts](std::int64_t t) -> double {
      return scores[static_cast<std::size_t>(t * experts + e)];
    };
    std::iota(order.begin(), order.end(), std::int64_t{0});
    std::ranges::stable_sort(order, [&](std::int64_t a, std::int64_t b) { return score(a) > score(b); });
    for (std::int64_t i = 0; i < seats; ++i) {
      const std::int64_t t = order[static_cast<std::size_t>(i)], at = t * experts + e;
      weights.data[at] = static_cast<float>(static_cast<double>(call.op.router.scale) * score(t));
      choices.data[at] = static_cast<float>(e);
    }
  }
}

void hash_route(const Call& call) {
  const Buffer &ids = call.read(0), &choices = call.write(0);
  call.require(call.op.router.experts >= 1, "there are no experts");
  for (std::int64_t t = 0; t < ids.elements(); ++t)
    choices.data[t] = static_cast<float>(expert_of_id(static_cast<std::int64_t>(ids.data[t]), call.op.router.experts));
}

}  // namespace orrery::cpu
