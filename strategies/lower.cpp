#include "strategies/lower.h"

#include "models/layers.h"
#include "strategies/context_parallel/context_parallel.h"
#include "strategies/data_parallel/data_parallel.h"
#include "strategies/framework/framework.h"
#include "strategies/layer_plans.h"
#include "strategies/pipeline_parallel/pipeline_parallel.h"
#include "strategies/strategy.h"
#include "strategies/tensor_parallel/tensor_parallel.h"

namespace orrery {
namespace {

// From neighbouring ranks outwards, Megatron's default order: tp-cp-dp-pp.
Mesh mesh_of(const Scenario& scenario) {
  Mesh mesh;
  tensor_parallel::add_digits(scenario, mesh);
  context_parallel::add_digits(scenario, mesh);
  data_parallel::add_digits(scenario, mesh);
  pipeline_parallel::add_digits(scenario, mesh);
  return mesh;
}

}  // namespace

void lower(const Scenario& scenario, Program& program) {
  check(scenario);
  program.clear();
  ModelPieces built{&program.pieces, std::move(program.line), false};
  const std::int64_t micro_batch = scenario.plan.batch.micro_batch_size;
  build_pieces(scenario.model, scenario.workload, micro_batch, framework::kernel_choices(scenario), built);
  program.model = model_work(scenario.model, scenario.workload, micro_batch, built);

  // One device and one line of runs; the strategies take it from there.
  program.mesh = mesh_of(scenario);
  program.line = std::move(built.runs);
  const LayerPlans plans = layer_plans(scenario);
  plans.split(program);
  for (const Strategy& strategy : all_strategies()) {
    strategy.rewrite(scenario, program);
    if (strategy.rewrite_piece == nullptr) continue;
    for (Piece& piece : program.pieces) strategy.rewrite_piece(scenario, plans.of(piece), program, piece);
  }
}

}  // namespace orrery
