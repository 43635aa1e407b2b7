#include "strategies/lower.h"

#include "models/layers.h"
#include "strategies/framework/framework.h"
#include "strategies/strategy.h"

namespace orrery {

namespace {

// A group is named by the axes along which it really has several ranks.
void name_groups_by_spanning_axes(Program& program) {
  std::uint8_t spanning = 0;
  for (int a = 0; a < kMeshAxes; ++a)
    if (program.mesh.degree[static_cast<std::size_t>(a)] > 1) spanning |= MeshAxes(static_cast<MeshAxis>(a)).bits();
  for (Piece& piece : program.pieces)
    for (Block* block : {&piece.forward, &piece.backward, &piece.weight_gradient, &piece.update})
      for (Op& op : block->ops) {
        op.axes = MeshAxes::from_bits(op.axes.bits() & spanning);
        // The gradient norm's reduction spans many axes; without tensor parallelism it runs where gradients are reduced.
        if (op.stream == Stream::tensor_communication && !op.axes.contains(MeshAxis::tp)) op.stream = Stream::data_communication;
      }
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
  program.line = std::move(built.runs);
  for (const Strategy& strategy : all_strategies()) strategy.rewrite(scenario, program);
  name_groups_by_spanning_axes(program);
}

}  // namespace orrery
