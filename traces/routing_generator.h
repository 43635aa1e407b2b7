// Routing that was not recorded but drawn: popularities of experts that are skewed and drift, and what makes the life
// of an expert-parallel group hard. The same seed gives the same counts on every platform: random bits, and what is
// drawn by them, are this file's own, and of the C library only exp and log are used, whose last bit decides nothing
// but where a random number of 64 bits falls on it.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "traces/routing.h"

namespace orrery {

enum class RoutingPattern : std::uint8_t {
  balanced,    // each expert has the same tokens, to one: what routers that are forced to balance choose
  zipf,        // popularities by rank, and noise on them
  hot_expert,  // one expert has hot_share of the popularity
  hot_rank,    // the experts of one of expert_ranks equal blocks have it together
  ragged,      // source ranks have different numbers of tokens
  rotating,    // the order of popularity moves on by one expert every `period` steps
  burst,       // every `period` steps an expert, drawn anew, is hot for burst_steps
};

// The popularity of experts is p = softmax(u), u_e = -zipf_exponent ln(rank_e) + noise_e, with an order of ranks drawn
// for each layer and noise that follows AR(1) from step to step. Where the autocorrelation is so near 1 that millions
// of draws do not forget the start, the noise begins anew once in so many steps. A token's experts are top_k draws from
// p on condition that they differ; the counts of a row are exactly those of so many independent tokens. With
// micro_batch_noise each micro-batch has a popularity of its own: p_e exp(noise of the micro-batch)_e, over their sum.
struct RoutingGenerator {
  static constexpr std::int64_t kMostTopK = 64;

  RoutingPattern pattern = RoutingPattern::zipf;
  std::int64_t steps = 1, layers = 1, micro_batches = 1, source_ranks = 1;
  std::int64_t tokens = 1;  // of a source rank's micro-batch; ragged: their mean, which is kept
  std::int64_t experts = 1, top_k = 1;
  std::uint64_t seed = 1;

  double zipf_exponent = 0;      // s: 0 is uniform
  double noise = 0;              // standard deviation of the noise on log-popularity
  double micro_batch_noise = 0;  // standard deviation of what each micro-batch has on top, drawn anew for each
  double autocorrelation = 0;    // rho, of the noise from one step to the next, 0 <= rho < 1
  double hot_share = 0.5;        // of all popularity
  std::int64_t hot = 0;          // the expert, or the block of experts
  std::int64_t expert_ranks = 1;
  double raggedness = 0.5;  // ragged: before the mean is restored, a rank's tokens are uniform in 1 +- this
  std::int64_t period = 1, burst_steps = 1;

  // Throws InputError, with the field's name as pointer.
  void check() const;
};

// The four that measured routing asks for (docs/traces.md has the sources): "balanced", "trained_with_auxiliary_loss",
// "young_router", "worst". Sizes are left to the caller. Throws InputError for other names.
RoutingGenerator routing_preset(std::string_view name);

// Steps and layers are numbered from 0. A trace of fewer steps, layers or source ranks is part of that of more (ragged:
// not of fewer source ranks).
RoutingCounts generate_routing(const RoutingGenerator& generator);

// The same popularities step after step, and of the counts what is expected instead of what is drawn: of all source
// ranks together, but of each where they are ragged. Costs microseconds a step, whatever the tokens.
class RoutingSteps {
 public:
  // Of `generator` steps are ignored, and source ranks but where they are ragged. Throws as RoutingGenerator::check.
  explicit RoutingSteps(const RoutingGenerator& generator);
  ~RoutingSteps();
  RoutingSteps(RoutingSteps&&) noexcept;
  RoutingSteps& operator=(RoutingSteps&&) noexcept;

  // By layer; the caller's until the next call. Steps that ascend take the least time: with noise a step follows from
  // those before it, as far as they are not forgotten. Without what micro-batches have on top.
  const std::vector<RoutingMatrix>& at(std::int64_t step);
  // By micro-batch and layer, the same way.
  const std::vector<std::vector<RoutingMatrix>>& by_micro_batch(std::int64_t step);

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

// The popularity that counts of `layer` are drawn by: [step][expert], sums of 1.
std::vector<std::vector<double>> routing_popularity(const RoutingGenerator& generator, std::int64_t layer);

}  // namespace orrery
