#include "strategies/lower.h"

#include <optional>
#include <utility>
#include <vector>

#include "models/layers.h"
#include "sim/program/rewrite.h"
#include "strategies/framework/framework.h"
#include "strategies/layer_plans.h"

namespace orrery {
namespace {

// From neighbouring ranks outwards, in the plan's order.
Mesh mesh_of(const Scenario& scenario, std::span<const Strategy> strategies) {
  Mesh by_strategy, mesh;
  for (const Strategy& strategy : strategies)
    if (strategy.add_digits != nullptr) strategy.add_digits(scenario, by_strategy);
  for (const MeshAxis axis : framework::mesh_order(scenario.plan))
    for (const Digit& digit : by_strategy.digits())
      if (digit.axis == axis) mesh.add(digit.axis, digit.size, digit.name);
  for (const Strategy& strategy : strategies)
    if (strategy.fold != nullptr) strategy.fold(scenario, mesh);
  return mesh;
}

// Rebuilds pieces of layers whose plan chooses other kernels than those that all pieces were built with.
void build_anew(const Scenario& scenario, const LayerPlans& plans, const KernelChoices& built, Program& program) {
  std::vector<Piece> pieces;
  for (Piece& piece : program.pieces) {
    if (piece.variant_of == kNoPiece) continue;
    const KernelChoices kernels = framework::kernel_choices(scenario, plans.of(piece));
    if (kernels == built) continue;
    ModelPieces with{&pieces, {}};
    build_pieces(scenario.model, scenario.workload, scenario.plan.batch.micro_batch_size, kernels, with);
    Piece& anew = pieces[piece.variant_of];
    anew.plan = piece.plan;
    anew.variant_of = piece.variant_of;
    std::swap(piece, anew);
  }
}

}  // namespace

void lower(const Scenario& scenario, Program& program) { lower(scenario, all_strategies(), program); }

void lower(const Scenario& as_written, std::span<const Strategy> strategies, Program& program) {
  check(as_written);
  std::optional<Scenario> settled;
  for (const Strategy& strategy : strategies)
    if (strategy.settle != nullptr)
      if (std::optional<Scenario> here = strategy.settle(settled ? *settled : as_written)) settled = std::move(here);
  const Scenario& scenario = settled ? *settled : as_written;
  program.clear();
  ModelPieces built{&program.pieces, std::move(program.line)};
  const std::int64_t micro_batch = scenario.plan.batch.micro_batch_size;
  const KernelChoices kernels = framework::kernel_choices(scenario, scenario.plan);
  build_pieces(scenario.model, scenario.workload, micro_batch, kernels, built);

  // Starts with one device and one line of runs; the strategies rewrite it.
  program.mesh = mesh_of(scenario, strategies);
  program.line = std::move(built.runs);
  const LayerPlans plans = layer_plans(scenario);
  plans.split(program);
  build_anew(scenario, plans, kernels, program);
  program.packed = packed_sequences(scenario);
  program.model =
      model_work(scenario.model, scenario.workload, micro_batch, program.pieces, program.line, program.packed.get());
  for (const Strategy& strategy : strategies) {
    if (strategy.rewrite != nullptr) strategy.rewrite(scenario, program);
    if (strategy.rewrite_piece == nullptr) continue;
    for (Piece& piece : program.pieces) strategy.rewrite_piece(scenario, plans.of(piece), program, piece);
  }
  for (Piece& piece : program.pieces)
    for (Block* block : {&piece.forward, &piece.backward, &piece.weight_gradient}) join_casts(*block);
  for (const Strategy& strategy : strategies)
    if (strategy.add_tasks != nullptr) strategy.add_tasks(scenario, program);
}

}  // namespace orrery
