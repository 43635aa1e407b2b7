// Routing as a CSV file that parse_routing reads as the same counts.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>
#include <span>
#include <string>

#include "traces/routing.h"

namespace orrery {

// REQUIRES: the counts are complete.
inline std::string routing_csv(const RoutingCounts& counts) {
  const RoutingShape& of = counts.shape();
  const bool batches = of.micro_batches > 1, ranks = of.source_ranks > 1;
  std::string text =
      fmt::format("# routing steps={} layers={} micro_batches={} source_ranks={} top_k={}\nstep,layer,{}{}tokens",
                  fmt::join(of.steps, ","), fmt::join(of.layers, ","), of.micro_batches, of.source_ranks, of.top_k,
                  batches ? "micro_batch," : "", ranks ? "source_rank," : "");
  for (std::int64_t e = 0; e < of.experts; ++e) text += fmt::format(",expert_{}", e);
  text += '\n';
  for (std::size_t step = 0; step < of.steps.size(); ++step)
    for (std::size_t layer = 0; layer < of.layers.size(); ++layer)
      for (std::int64_t m = 0; m < of.micro_batches; ++m) {
        const RoutingMatrix matrix = counts.matrix(step, layer, m);
        for (std::int64_t rank = 0; rank < of.source_ranks; ++rank) {
          const auto values =
              std::span(matrix.tokens)
                  .subspan(static_cast<std::size_t>(rank * of.experts), static_cast<std::size_t>(of.experts));
          const std::int64_t sum = std::accumulate(values.begin(), values.end(), std::int64_t{0});
          text += fmt::format("{},{},", of.steps[step], of.layers[layer]);
          if (batches) text += fmt::format("{},", m);
          if (ranks) text += fmt::format("{},", rank);
          text += fmt::format("{},{}\n", sum / of.top_k, fmt::join(values, ","));
        }
      }
  return text;
}

}  // namespace orrery
