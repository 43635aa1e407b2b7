#include "strategies/lower.h"

#include "models/layers.h"
#include "strategies/framework/framework.h"
#include "strategies/strategy.h"

namespace orrery {

void lower(const Scenario& scenario, Program& program) {
  check(scenario);
  program.clear();
  ModelPieces built{&program.pieces, {}, false};
  const std::int64_t micro_batch = scenario.plan.batch.micro_batch_size;
  build_pieces(scenario.model, scenario.workload, micro_batch, framework::kernel_choices(scenario), built);
  program.model = model_work(scenario.model, scenario.workload, micro_batch, built);

  // One device, one stage, one chunk; the strategies take it from there.
  program.stages.resize(1);
  program.stages[0].resize(1);
  program.stages[0][0].runs = std::move(built.runs);
  for (const Strategy& strategy : all_strategies()) strategy.rewrite(scenario, program);
}

}  // namespace orrery
