// Routing that is drawn token by token, by the popularities of a generator.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "traces/random_bits.h"
#include "traces/routing_generator.h"

namespace orrery {

// The popularity of experts at `layer`, of steps 0 to `steps` - 1. Shares of 2^24 tokens with one expert each.
inline std::vector<std::vector<double>> routing_popularity(RoutingGenerator g, std::int64_t layer,
                                                           std::int64_t steps = 1) {
  g.tokens = std::int64_t{1} << 24;
  g.top_k = 1;
  RoutingSteps routing(g);
  std::vector<std::vector<double>> all;
  for (std::int64_t step = 0; step < steps; ++step) {
    const RoutingMatrix& counts = routing.at(step)[static_cast<std::size_t>(layer)];
    std::vector<double>& shares = all.emplace_back();
    for (const std::int64_t n : counts.by_expert())
      shares.push_back(static_cast<double>(n) / static_cast<double>(counts.total()));
  }
  return all;
}

// Every row has the generator's tokens; the experts of each are top_k draws, again where one is drawn twice.
inline RoutingCounts drawn_routing(const RoutingGenerator& g, std::int64_t steps = 1) {
  std::vector<std::int64_t> step_numbers(static_cast<std::size_t>(steps)), layers(static_cast<std::size_t>(g.layers));
  std::iota(step_numbers.begin(), step_numbers.end(), 0);
  std::iota(layers.begin(), layers.end(), 0);
  RoutingCounts counts({step_numbers, layers, g.micro_batches, g.source_ranks, g.experts, g.top_k});
  std::vector<std::vector<std::vector<double>>> popularity;
  for (const std::int64_t layer : layers) popularity.push_back(routing_popularity(g, layer, steps));
  enum class Draw : std::uint64_t { tokens };
  RandomBits random(g.seed, Draw::tokens, {});
  std::vector<double> until;
  std::vector<std::size_t> chosen;
  for (std::size_t step = 0; step < step_numbers.size(); ++step)
    for (const auto& of_layer : popularity)
      for (std::int64_t row = 0; row < g.micro_batches * g.source_ranks; ++row) {
        until.resize(of_layer[step].size());
        std::partial_sum(of_layer[step].begin(), of_layer[step].end(), until.begin());
        std::vector<std::int64_t> of_experts(until.size());
        for (std::int64_t token = 0; token < g.tokens; ++token) {
          chosen.clear();
          while (chosen.size() < static_cast<std::size_t>(g.top_k)) {
            const auto at = std::ranges::upper_bound(until, random.uniform() * until.back()) - until.begin();
            const auto expert = static_cast<std::size_t>(at);
            if (std::ranges::find(chosen, expert) != chosen.end()) continue;
            chosen.push_back(expert);
            ++of_experts[expert];
          }
        }
        counts.append(g.tokens, of_experts);
      }
  return counts;
}

}  // namespace orrery
