#include "study/search/bounds.h"

#include <algorithm>

#include "sim/program/rewrite.h"
#include "strategies/pipeline_parallel/schedules.h"

namespace orrery {

ComputeBound compute_bound(const Program& program, const AnalyticalEngine& engine) {
  ComputeBound bound{.micro_batch = engine.micro_batch_seconds(program)};
  bool any = false;
  for (std::size_t c = 0; c < program.micro_batch_classes(); ++c)
    for (const auto& stage : program.stages_of(c))
      for (const Chunk& chunk : stage)
        for (const Run& run : chunk.runs) {
          const Piece& piece = program.pieces[run.piece];
          if (!is_layer(piece) || is_joint(piece)) continue;
          const double seconds = engine.product_seconds(run.piece);
          bound.layer = any ? std::min(bound.layer, seconds) : seconds;
          any = true;
        }
  return bound;
}

double ComputeBound::step_seconds(const Scenario& scenario) const {
  using namespace pipeline_parallel;
  const Options& options = scenario.plan.pipeline;
  const auto stages = static_cast<double>(options.degree);
  const auto n = static_cast<double>(micro_batches(scenario));
  const double mean = n * micro_batch / stages;
  const ScheduleKind kind = effective_schedule(options);
  // Where backward passes are split, the last stage ends with weight gradients that nobody waits for.
  if (options.degree == 1 || kind == ScheduleKind::zb_h1 || is_v(kind)) return mean;
  const std::vector<std::int64_t> layers = split_layers(scenario.model.total_layers(), options);
  const auto degree = static_cast<std::size_t>(options.degree);
  // The last stage starts behind a chunk of every stage before it, and its last backward goes back through as many.
  double on_the_way = 0, on_last = 0;
  const std::int64_t least = *std::min_element(layers.begin(), layers.end());
  on_the_way = (stages - 1) * static_cast<double>(least) * layer;
  for (std::size_t q = degree - 1; q < layers.size(); q += degree) on_last += static_cast<double>(layers[q]) * layer;
  return std::max(mean, n * on_last + on_the_way);
}

}  // namespace orrery
