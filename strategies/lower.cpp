#include "strategies/lower.h"

#include "models/layers.h"
#include "strategies/framework/framework.h"
#include "strategies/layer_plans.h"
#include "strategies/strategy.h"

namespace orrery {
namespace {

// From neighbouring ranks outwards in the order of MeshAxis, Megatron's default: tp-cp-ep-dp-pp.
Mesh mesh_of(const Scenario& scenario, std::span<const Strategy> strategies) {
  Mesh by_strategy, mesh;
  for (const Strategy& strategy : strategies)
    if (strategy.add_digits != nullptr) strategy.add_digits(scenario, by_strategy);
  for (int axis = 0; axis < kMeshAxes; ++axis)
    for (const Digit& digit : by_strategy.digits())
      if (digit.axis == static_cast<MeshAxis>(axis)) mesh.add(digit.axis, digit.size, digit.name);
  return mesh;
}

}  // namespace

void lower(const Scenario& scenario, Program& program) { lower(scenario, all_strategies(), program); }

void lower(const Scenario& scenario, std::span<const Strategy> strategies, Program& program) {
  check(scenario);
  program.clear();
  ModelPieces built{&program.pieces, std::move(program.line)};
  const std::int64_t micro_batch = scenario.plan.batch.micro_batch_size;
  build_pieces(scenario.model, scenario.workload, micro_batch, framework::kernel_choices(scenario), built);
  program.model = model_work(scenario.model, scenario.workload, micro_batch, built);

  // One device and one line of runs; the strategies take it from there.
  program.mesh = mesh_of(scenario, strategies);
  program.line = std::move(built.runs);
  const LayerPlans plans = layer_plans(scenario);
  plans.split(program);
  for (const Strategy& strategy : strategies) {
    strategy.rewrite(scenario, program);
    if (strategy.rewrite_piece == nullptr) continue;
    for (Piece& piece : program.pieces) strategy.rewrite_piece(scenario, plans.of(piece), program, piece);
  }
}

}  // namespace orrery
