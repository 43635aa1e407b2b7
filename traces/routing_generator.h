// Synthetic routing: popularities of experts that are skewed and drift, and cases that are hard for an expert-parallel
// group. A seed gives the same counts on every platform. The random bits and all draws are implemented here. They use
// only exp and log of the C library, whose last bit matters only if a 64-bit random number falls exactly on it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "traces/routing.h"
#include "traces/workload.h"

namespace orrery {

// The popularity of experts is p = softmax(u), u_e = -zipf_exponent ln(rank_e) + noise_e. The order of ranks is drawn
// for each layer, and the noise follows AR(1) from step to step. If the autocorrelation is so near 1 that millions of
// draws do not forget the start, the noise restarts after a fixed number of steps. A token's experts are top_k draws
// from p, conditioned on being different.
// With micro_batch_noise each micro-batch has its own popularity: p_e exp(noise of the micro-batch)_e, normalised.
// REQUIRES: numbers in the ranges of Workload's fields, 1 <= top_k <= kMostTopK, hot_share below 1 and more than one
// expert where something is hot, and expert_ranks that divide the experts.
struct RoutingGenerator {
  static constexpr std::int64_t kMostTopK = 64;

  ExpertRouting pattern = ExpertRouting::zipf;
  std::int64_t layers = 1, micro_batches = 1, source_ranks = 1;
  std::int64_t tokens = 1;  // per micro-batch of a source rank; ragged: their exact mean
  std::int64_t experts = 1, top_k = 1;
  std::uint64_t seed = 1;

  double zipf_exponent = 0;  // s: 0 is uniform
  double noise = 0;          // standard deviation of the noise on log-popularity
  // Standard deviation of additional noise on log-popularity, drawn anew for each micro-batch.
  double micro_batch_noise = 0;
  // AR(1) coefficient rho of `noise` from one step to the next, 0 <= rho < 1.
  double autocorrelation = 0;
  double hot_share = 0.5;  // share of all popularity
  std::int64_t hot = 0;    // the hot expert, or block of experts
  std::int64_t expert_ranks = 1;
  // ragged: a rank's tokens are drawn uniformly from 1 +- this, before the mean is restored.
  double raggedness = 0.5;
  std::int64_t period = 1, burst_steps = 1;

  bool operator==(const RoutingGenerator&) const = default;
};

// Returns the generator of a pattern. Presets based on measured routing (docs/traces.md has the sources) bring their
// skew and noise along: trained_with_auxiliary_loss, young_router, worst. The caller sets the rest.
RoutingGenerator generator_of(ExpertRouting pattern);

// Generates routing step by step: the expected counts of all source ranks together, or of each if they are ragged.
// Steps and layers are numbered from 0. Takes microseconds per step, whatever the tokens.
class RoutingSteps {
 public:
  // Ignores the generator's source ranks unless they are ragged.
  explicit RoutingSteps(const RoutingGenerator& generator);
  ~RoutingSteps();
  RoutingSteps(const RoutingSteps&) = delete;
  RoutingSteps& operator=(const RoutingSteps&) = delete;

  // Returns the counts by layer, valid until the next call and without the micro-batches' noise. Ascending steps are
  // fastest: with noise, a step is computed from the steps before it that are not yet forgotten.
  const std::vector<RoutingMatrix>& at(std::int64_t step);
  // The same by micro-batch and layer, with the micro-batches' noise.
  const std::vector<std::vector<RoutingMatrix>>& by_micro_batch(std::int64_t step);

 private:
  class Popularity;
  void go_to(std::int64_t step);
  RoutingMatrix expected(const std::vector<double>& p, std::span<const std::int64_t> tokens) const;

  RoutingGenerator generator_;
  std::vector<Popularity> popularity_;       // by layer
  std::vector<std::vector<double>> shares_;  // by layer, of the step before the next
  std::vector<RoutingMatrix> matrices_;
  std::int64_t of_step_ = -1;
  std::vector<std::vector<RoutingMatrix>> of_micro_batches_;
  std::int64_t of_micro_batches_step_ = -1;
};

}  // namespace orrery
