// Adds a micro-batch's gradients to those of earlier ones: in the kernels that compute them, or in separate kernels.
#include <vector>

#include "sim/program/rewrite.h"
#include "strategies/data_parallel/data_parallel.h"
#include "strategies/framework/framework.h"
#include "strategies/layer_plans.h"
#include "strategies/strategy.h"

namespace orrery::gradient_accumulation {
namespace {

class Separator {
 public:
  // `handed_over`: a gradient in the dtype of the accumulation needs no adding.
  Separator(Piece& piece, Dtype computed, bool handed_over)
      : piece_(piece), computed_(computed), handed_over_(handed_over) {}

  void run(Block& block) {
    out_.clear();
    for (Op op : block.ops) {
      const std::size_t at = out_.size();
      out_.push_back(op);
      if (!op.accumulate) continue;
      bool separated = false;
      for (std::size_t i = 0; i < op.writes.size(); ++i)
        if (op.writes[i] != kNoTensor && accumulates(op.kind, i)) separated = separate(at, i) || separated;
      if (!separated) continue;
      if (!is_of_rows(op)) {
        out_[at].accumulate = false;
        continue;
      }
      Op clear = computation(OpKind::zero_fill, "clear_gradient", out_[at].phase, {}, {out_[at].writes[0]});
      clear.when = out_[at].when;
      out_.insert(out_.begin() + static_cast<std::ptrdiff_t>(at), clear);
    }
    block.ops = out_;
  }

 private:
  // Whether the op adds to some rows of a table (words, positions): it then adds to a table of zeros.
  bool is_of_rows(const Op& op) const {
    return op.kind == OpKind::embedding_backward ||
           (op.kind == OpKind::bias_gradient && piece_.tensors[op.writes[0]].rank > 1);
  }

  bool separate(std::size_t at, std::size_t write) {
    const TensorId sum = out_[at].writes[write];
    if (piece_.tensors[sum].category != Category::gradient) return false;
    if (handed_over_ && piece_.tensors[sum].dtype == computed_) return false;
    const TensorId gradient = clone_tensor(piece_, sum, piece_.tensors[sum].name, Category::workspace, computed_);
    out_[at].writes[write] = gradient;
    Op add = computation(OpKind::cast, "accumulate_gradient", Phase::weight_gradient, {gradient}, {sum});
    add.when = out_[at].when;
    add.accumulate = true;
    out_.push_back(add);
    return true;
  }

  Piece& piece_;
  const Dtype computed_;
  const bool handed_over_;
  std::vector<Op> out_;
};

bool is_separate(const Plan& plan) {
  const Accumulation given = plan.gradient_accumulation.accumulation;
  return given == Accumulation::automatic ? framework::stack_of(plan).accumulates_separately
                                          : given == Accumulation::separate;
}

void relax(Plan& plan) { plan.gradient_accumulation.accumulation = Accumulation::fused; }

// Gradients that are reduced in every micro-batch are added where they are reduced: their pieces stay as they are.
void rewrite_piece(const Scenario& scenario, const Plan& plan, const Program& program, Piece& piece) {
  if (!is_separate(scenario.plan)) return;
  if (!data_parallel::sharding_of(scenario, plan, program).reduced.empty()) return;
  Separator separator(piece, plan.precision.storage(), micro_batches(scenario) == 1);
  separator.run(piece.backward);
  separator.run(piece.weight_gradient);
}

}  // namespace

Strategy describe() {
  return {.name = "gradient_accumulation",
          .summary = "gradients of micro-batches accumulated by products or by separate kernels",
          .paper = "-",
          .rewrite_piece = rewrite_piece,
          .relax = relax};
}

}  // namespace orrery::gradient_accumulation
