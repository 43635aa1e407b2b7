#include <utility>

#include "sim/analytical/block_clock.h"
#include "sim/analytical/op_cost.h"
#include "sim/program/liveness.h"
#include "strategies/topic.h"
#include "study/simulation/simulation.h"

namespace orrery {
namespace {

class EvaluatedSimulation final : public Evaluated {
 public:
  explicit EvaluatedSimulation(Simulation simulation)
      : simulation_(std::move(simulation)),
        costs_(simulation_.scenario.cluster, *simulation_.kernels, *simulation_.collectives) {
    costs_.set_program(*simulation_.program);
  }

  const Scenario& scenario() const override { return simulation_.scenario; }
  const Program& program() const override { return *simulation_.program; }
  const Report& report() const override { return simulation_.report; }
  Time time(const Op& op, std::span<const Tensor> tensors) const override {
    const OpCost cost = costs_.cost(op, tensors, 1);
    return {cost.absent ? 0 : cost.seconds, cost.flops};
  }
  double forward_seconds(const Piece& piece) const override {
    Liveness lives;
    lives.find(piece);
    BlockCode code;
    BlockCompiler().compile(piece, BlockKind::forward,
                            CompileContext(piece, costs_, program().runtime, lives.storage(), false), code);
    const LineItem line{.code = &code};
    LineResult result;
    LineClock().run(std::span(&line, 1), kUsual, 0, false, result);
    return result.seconds;
  }

 private:
  const Simulation simulation_;
  OpCostModel costs_;
};

}  // namespace

std::unique_ptr<Evaluated> evaluated(Simulation simulation) {
  return std::make_unique<EvaluatedSimulation>(std::move(simulation));
}

}  // namespace orrery
