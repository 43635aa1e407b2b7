// Routers in which tokens do not choose on their own, the one without logits (realrun/routers.h), and the one of the
// dense-to-sparse gate.
#include "realrun/routers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "realrun/cpu/kernel_call.h"
#include "realrun/random_draws.h"

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

class Gate {
 public:
  Gate(const Call& call, const Buffer& logits)
      : call_(call),
        logits_(logits),
        whole_(whole_elements(*logits.tensor, call.context, call.context.query_positions.data())),
        shape_(router_shape(call)) {}
  std::int64_t tokens() const { return shape_.tokens; }
  std::int64_t k() const { return shape_.k; }
  std::int64_t experts() const { return shape_.experts; }
  bool is_active(double p) const { return p > static_cast<double>(call_.op.router.threshold); }

  std::vector<double> probabilities(std::int64_t token) const {
    std::vector<double> p(static_cast<std::size_t>(experts()));
    for (std::size_t e = 0; e < p.size(); ++e) {
      const std::int64_t element = token * experts() + static_cast<std::int64_t>(e);
      p[e] = (static_cast<double>(logits_.data[element]) + gumbel(element)) /
             static_cast<double>(call_.op.router.gumbel_temperature);
    }
    const double maximum = *std::ranges::max_element(p);
    for (double& x : p) x = std::exp(x - maximum);
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& x : p) x /= sum;
    return p;
  }

 private:
  // -log(-log(u)), with u the middle of one of 2^32 equal parts of (0, 1).
  double gumbel(std::int64_t element) const {
    const double u = uniform(call_.context.seed, call_.context.dropout_stream, whole_.index(element)) + 0x1p-33;
    return -std::log(-std::log(u));
  }

  const Call& call_;
  Buffer logits_;
  WholeElements whole_;
  RouterShape shape_;
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

// The dense-to-sparse gate (Router::gumbel_temperature; Nie et al. 2021, arXiv 2112.14397): p = softmax((logits +
// Gumbel noise) / temperature) is the weight of each expert for which it is above a threshold.
void gumbel_route(const Call& call) {
  const Buffer &logits = call.read(0), &weights = call.write(0), &choices = call.write(1);
  const Gate gate(call, logits);
  const Router& router = call.op.router;
  std::vector<std::int64_t> order(static_cast<std::size_t>(gate.experts()));
  for (std::int64_t t = 0; t < gate.tokens(); ++t) {
    const std::vector<double> p = gate.probabilities(t);
    std::iota(order.begin(), order.end(), std::int64_t{0});
    std::ranges::stable_sort(order, std::greater<>(), [&](std::int64_t e) { return p[static_cast<std::size_t>(e)]; });
    for (std::int64_t j = 0; j < gate.k(); ++j) {
      const std::int64_t expert = order[static_cast<std::size_t>(j)];
      const double weight = p[static_cast<std::size_t>(expert)];
      const bool active = gate.is_active(weight);
      weights.data[t * gate.k() + j] = active ? static_cast<float>(static_cast<double>(router.scale) * weight) : 0;
      choices.data[t * gate.k() + j] = active || router.padded ? static_cast<float>(expert) : -1;
    }
  }
}

// The noise equals that of the forward. An inactive expert has no weight, so its weight has no gradient.
void gumbel_route_backward(const Call& call) {
  const Buffer &dweights = call.read(0), &logits = call.read(1), &choices = call.read(2), &dlogits = call.write(0);
  const Gate gate(call, logits);
  const Router& router = call.op.router;
  std::vector<double> d(static_cast<std::size_t>(gate.experts()));
  for (std::int64_t t = 0; t < gate.tokens(); ++t) {
    const std::vector<double> p = gate.probabilities(t);
    std::ranges::fill(d, 0.0);
    for (std::int64_t j = 0; j < gate.k(); ++j) {
      const auto expert = static_cast<std::int64_t>(choices.data[t * gate.k() + j]);
      call.require(expert < gate.experts(), "a choice is not an expert");
      if (expert < 0 || !gate.is_active(p[static_cast<std::size_t>(expert)])) continue;
      d[static_cast<std::size_t>(expert)] =
          static_cast<double>(router.scale) * static_cast<double>(dweights.data[t * gate.k() + j]);
    }
    const double mean = std::inner_product(d.begin(), d.end(), p.begin(), 0.0);
    for (std::size_t e = 0; e < p.size(); ++e)
      dlogits.data[t * gate.experts() + static_cast<std::int64_t>(e)] =
          static_cast<float>(p[e] * (d[e] - mean) / static_cast<double>(router.gumbel_temperature));
  }
}

}  // namespace orrery::cpu
