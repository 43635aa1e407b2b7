#include "traces/routing_generator.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <utility>

#include "traces/random_bits.h"

namespace orrery {
namespace {

// The purposes of random draws. Another number for a purpose would give other routing.
enum class Draw : std::uint64_t { order, noise, tokens, burst, micro_batch = 5 };

void normalise(std::vector<double>& shares) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& p : shares) p /= sum;
}

}  // namespace

// Popularities at one layer, step by step.
class RoutingSteps::Popularity {
 public:
  Popularity(const RoutingGenerator& generator, std::int64_t layer)
      : g_(generator),
        layer_(layer),
        memory_(memory(generator)),
        order_(static_cast<std::size_t>(g_.experts)),
        noise_(order_.size()) {
    std::iota(order_.begin(), order_.end(), 0);
    RandomBits random(g_.seed, Draw::order, {layer});
    for (std::size_t i = order_.size() - 1; i > 0; --i)
      std::swap(order_[i], order_[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i) + 1))]);
  }

  std::int64_t next_step() const { return step_; }

  // Returns the popularity of the next step.
  std::vector<double> next() {
    skip_to(step_);
    draw_noise();
    std::vector<double> p(order_.size());
    const std::int64_t moved = g_.pattern == ExpertRouting::rotating ? step_ / g_.period : 0;
    double largest = 0;
    for (std::size_t e = 0; e < p.size(); ++e) {
      const double rank = static_cast<double>((order_[e] + moved) % g_.experts + 1);
      p[e] = noise_[e] - g_.zipf_exponent * std::log(rank);
      largest = e == 0 ? p[e] : std::max(largest, p[e]);
    }
    for (double& u : p) u = std::exp(u - largest);
    normalise(p);
    heat(p);
    ++step_;
    return p;
  }

  // Returns a micro-batch's popularity at `step`, whose popularity is `p`.
  std::vector<double> of_micro_batch(std::vector<double> p, std::int64_t step, std::int64_t micro_batch) const {
    RandomBits random(g_.seed, Draw::micro_batch, {layer_, step, micro_batch});
    for (double& u : p) u *= std::exp(g_.micro_batch_noise * random.normal());
    normalise(p);
    return p;
  }

  // Goes to the state in which next() returns `step`. The chain of noise begins at a multiple of `memory_`, between one
  // and two times `memory_` steps before `step`: it depends only on `step`, not on the steps asked for before.
  void skip_to(std::int64_t step) {
    const std::int64_t begin = std::max<std::int64_t>(step / memory_ - 1, 0) * memory_;
    if (begin != begin_) step_ = begin_ = begin;
    if (g_.noise > 0)
      for (; step_ < step; ++step_) draw_noise();
    step_ = step;
  }

 private:
  // The number of steps after which noise has forgotten its start, to a double's rounding; fewer if that takes long.
  static std::int64_t memory(const RoutingGenerator& g) {
    constexpr std::int64_t kMostDraws = std::int64_t{1} << 22;  // per layer: a fraction of a second
    const double forgotten =
        g.autocorrelation > 0 ? -std::numeric_limits<double>::digits * std::numbers::ln2 / std::log(g.autocorrelation)
                              : 0;
    return 1 + static_cast<std::int64_t>(std::min(forgotten, static_cast<double>(kMostDraws / g.experts)));
  }

  void draw_noise() {
    RandomBits random(g_.seed, Draw::noise, {layer_, step_});
    const double kept = step_ == begin_ ? 0 : g_.autocorrelation, fresh = g_.noise * std::sqrt(1 - kept * kept);
    for (double& n : noise_) n = kept * n + fresh * random.normal();
  }

  // Gives the hot expert or block its share.
  void heat(std::vector<double>& p) const {
    std::int64_t first = g_.hot, count = 1;
    if (g_.pattern == ExpertRouting::hot_rank) {
      count = g_.experts / g_.expert_ranks;
      first *= count;
    } else if (g_.pattern == ExpertRouting::burst) {
      const std::int64_t place = step_ % g_.period;
      if (place < g_.period - g_.burst_steps) return;
      first = RandomBits(g_.seed, Draw::burst, {layer_, step_ / g_.period}).below(g_.experts);
    } else if (g_.pattern != ExpertRouting::hot_expert) {
      return;
    }
    const auto begin = p.begin() + first, end = begin + count;
    const double hot = std::accumulate(begin, end, 0.0),
                 others = std::accumulate(p.begin(), begin, 0.0) + std::accumulate(end, p.end(), 0.0);
    for (auto at = p.begin(); at != p.end(); ++at)
      *at *= at >= begin && at < end ? g_.hot_share / hot : (1 - g_.hot_share) / others;
  }

  const RoutingGenerator& g_;
  std::int64_t layer_, memory_;
  std::int64_t step_ = 0, begin_ = 0;  // the next step; the step at which the chain of noise begins
  std::vector<std::int64_t> order_;    // by expert: its place in the order of popularity
  std::vector<double> noise_;
};

namespace {

// A token's top_k different experts. A set has the probability that top_k draws from p give its experts, conditioned on
// being different; this is proportional to the product of its p. Experts are decided one after the other. The chance
// that an expert is among the j that a token still needs follows from sums over all sets of the experts after it
// (elementary symmetric polynomials; conditional Poisson sampling: Chen, Dempster & Liu 1994, Biometrika 81(3)).
class DistinctExperts {
 public:
  DistinctExperts(const std::vector<double>& p, std::int64_t top_k)
      : k_(static_cast<std::size_t>(top_k)), experts_(p.size()), chance_(experts_ * k_) {
    std::vector<double> behind(k_ + 1);  // sums over the sets of 0, 1, ... k of the experts after e
    behind[0] = 1;
    for (std::size_t e = experts_; e-- > 0;) {
      const double w = p[e] * static_cast<double>(experts_);  // scaled so that products of many stay near 1
      for (std::size_t j = k_; j > 0; --j) {
        const double with = w * behind[j - 1];
        const std::size_t left = experts_ - e;
        chance_[e * k_ + j - 1] = left <= j ? 1  // all that are left are needed
                                  : behind[j] + with > 0
                                      ? with / (behind[j] + with)
                                      : static_cast<double>(j) / static_cast<double>(left);  // none has a chance left
        behind[j] += with;
      }
    }
  }

  // The expected number of tokens of each expert.
  void expect(double tokens, std::span<std::int64_t> counts) const {
    std::vector<double> lacking(k_ + 1);
    lacking[k_] = tokens;
    for (std::size_t e = 0; e < experts_; ++e) {
      double all = 0;
      for (std::size_t j = 1; j <= k_; ++j) {
        const double chosen = lacking[j] * chance_[e * k_ + j - 1];
        all += chosen;
        lacking[j] -= chosen;
        lacking[j - 1] += chosen;
      }
      counts[e] = std::llround(all);
    }
  }

 private:
  std::size_t k_, experts_;
  // Chance of an expert for tokens that still need j: [expert * k + j - 1].
  std::vector<double> chance_;
};

// Tokens of each source rank, whose mean is kept.
std::vector<std::int64_t> tokens_of_ranks(const RoutingGenerator& g, std::int64_t step, std::int64_t micro_batch) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(g.source_ranks), g.tokens);
  if (g.pattern != ExpertRouting::ragged) return tokens;
  RandomBits random(g.seed, Draw::tokens, {step, micro_batch});
  std::vector<double> until(tokens.size());  // cumulative shares, so that rounded numbers keep their sum
  double sum = 0;
  for (double& u : until) u = sum += 1 + g.raggedness * (2 * random.uniform() - 1);
  const std::int64_t all = g.tokens * g.source_ranks;
  std::int64_t before = 0;
  for (std::size_t r = 0; r < tokens.size(); ++r) {
    const std::int64_t end = r + 1 == tokens.size() ? all : std::llround(static_cast<double>(all) * until[r] / sum);
    tokens[r] = end - std::exchange(before, end);
  }
  return tokens;
}

}  // namespace

RoutingGenerator generator_of(ExpertRouting pattern) {
  // The amplitude of the noise is an assumption; docs/traces.md has the sources of the rest.
  constexpr double kNoise = 0.5, kStable = 0.99, kDrifting = 0.9;
  RoutingGenerator g;
  g.pattern = pattern;
  const auto drifts = [&](double zipf_exponent, double autocorrelation) {
    g.zipf_exponent = zipf_exponent;
    g.noise = kNoise;
    g.autocorrelation = autocorrelation;
  };
  if (pattern == ExpertRouting::trained_with_auxiliary_loss) drifts(0.4, kStable);
  if (pattern == ExpertRouting::young_router) drifts(1.3, kDrifting);
  if (pattern == ExpertRouting::worst) drifts(2.4, kDrifting);
  return g;
}

// Computes what is drawn for the step: `shares_`.
void RoutingSteps::go_to(std::int64_t step) {
  if (!popularity_.empty() && popularity_.front().next_step() == step + 1) return;
  if (popularity_.empty() || popularity_.front().next_step() > step) {
    popularity_.clear();
    for (std::int64_t layer = 0; layer < generator_.layers; ++layer) popularity_.emplace_back(generator_, layer);
  }
  shares_.clear();
  for (Popularity& of_layer : popularity_) {
    of_layer.skip_to(step);
    shares_.push_back(of_layer.next());
  }
}

RoutingMatrix RoutingSteps::expected(const std::vector<double>& p, std::span<const std::int64_t> tokens) const {
  const RoutingGenerator& g = generator_;
  const auto experts = static_cast<std::size_t>(g.experts);
  RoutingMatrix m{g.source_ranks, g.experts, std::vector<std::int64_t>(tokens.size() * experts)};
  if (g.pattern == ExpertRouting::balanced) {  // tokens take experts in turn
    const std::int64_t all = g.tokens * g.top_k;
    for (std::int64_t e = 0; e < g.experts; ++e)
      m.tokens[static_cast<std::size_t>(e)] = all / g.experts + (e < all % g.experts ? 1 : 0);
    return m;
  }
  const DistinctExperts distinct(p, g.top_k);
  for (std::size_t rank = 0; rank < tokens.size(); ++rank)
    distinct.expect(static_cast<double>(tokens[rank]), std::span(m.tokens).subspan(rank * experts, experts));
  return m;
}

RoutingSteps::RoutingSteps(const RoutingGenerator& generator) : generator_(generator) {
  if (generator_.pattern != ExpertRouting::ragged) generator_.source_ranks = 1;
}
RoutingSteps::~RoutingSteps() = default;

const std::vector<RoutingMatrix>& RoutingSteps::at(std::int64_t step) {
  if (of_step_ == step) return matrices_;
  go_to(step);
  const std::vector<std::int64_t> tokens = tokens_of_ranks(generator_, step, 0);
  matrices_.clear();
  for (const std::vector<double>& p : shares_) matrices_.push_back(expected(p, tokens));
  of_step_ = step;
  return matrices_;
}

const std::vector<std::vector<RoutingMatrix>>& RoutingSteps::by_micro_batch(std::int64_t step) {
  if (of_micro_batches_step_ == step) return of_micro_batches_;
  go_to(step);
  of_micro_batches_.clear();
  for (std::int64_t m = 0; m < generator_.micro_batches; ++m) {
    const std::vector<std::int64_t> tokens = tokens_of_ranks(generator_, step, m);
    std::vector<RoutingMatrix>& of_layers = of_micro_batches_.emplace_back();
    for (std::size_t layer = 0; layer < shares_.size(); ++layer) {
      const std::vector<double>& p = shares_[layer];
      of_layers.push_back(
          expected(generator_.micro_batch_noise > 0 ? popularity_[layer].of_micro_batch(p, step, m) : p, tokens));
    }
  }
  of_micro_batches_step_ = step;
  return of_micro_batches_;
}

}  // namespace orrery
