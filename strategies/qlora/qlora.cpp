// Frozen matrices in 4 bits (QLoRA, Dettmers et al. 2023, arXiv 2305.14314, section 3). The pass runs behind those that
// repeat or divide products, so that each product is preceded by the kernel that makes its matrix wide.
#include "models/layers.h"
#include "sim/program/rewrite.h"
#include "strategies/layer_plans.h"
#include "strategies/lora/options.h"
#include "strategies/strategy.h"

namespace orrery::qlora {
namespace {

bool used(const Scenario& scenario) { return scenario.plan.qlora.quantise_base; }

class QuantisedBase {
 public:
  explicit QuantisedBase(Piece& piece) : piece_(piece), is_matrix_(piece.tensors.size()) {}

  void run() {
    find_matrices();
    for (Block* block : {&piece_.forward, &piece_.backward, &piece_.weight_gradient}) read_wide_copies(*block);
    for (std::size_t id = 0; id < is_matrix_.size(); ++id)
      if (is_matrix_[storage_of(piece_, static_cast<TensorId>(id))]) piece_.tensors[id].dtype = Dtype::nf4;
    split_sets(piece_, [&](const ParameterGradient& p) { return !is_matrix_[storage_of(piece_, p.parameter)]; });
  }

 private:
  static bool is_product(const Op& op) { return op.kind == OpKind::linear || op.kind == OpKind::linear_input_gradient; }

  // Frozen parameters that products read, but for those of routers.
  void find_matrices() {
    std::vector<bool> frozen(piece_.tensors.size());
    for (const ParameterGradient& p : piece_.parameters) frozen[storage_of(piece_, p.parameter)] = is_frozen(p);
    for (const Block* block : {&piece_.forward, &piece_.backward, &piece_.weight_gradient})
      for (const Op& op : block->ops) {
        if (!is_product(op)) continue;
        const TensorId root = storage_of(piece_, op.reads[1]);
        is_matrix_[root] = is_matrix_[root] || frozen[root];
      }
    Storages logits(piece_);
    for (auto op = piece_.forward.ops.rbegin(); op != piece_.forward.ops.rend(); ++op) {
      const bool routes = op->kind == OpKind::route || op->kind == OpKind::add_noise || op->kind == OpKind::router_loss;
      if (routes || ((is_communication(op->kind) || op->kind == OpKind::cast) && logits.has_any(op->writes)))
        logits.add_all(op->reads);
      if (is_product(*op) && logits.has(op->writes[0])) is_matrix_[storage_of(piece_, op->reads[1])] = false;
    }
  }

  // Parts of one product, which follow each other, share a copy. Any other product makes its own, as autograd does.
  void read_wide_copies(Block& block) {
    const Dtype wide = piece_.tensors[piece_.output].dtype;
    std::vector<Op> ops;
    Op last;
    TensorId copy = kNoTensor;
    for (Op op : block.ops) {
      if (const TensorId id = is_product(op) ? op.reads[1] : kNoTensor;
          id != kNoTensor && is_matrix_[storage_of(piece_, id)]) {
        if (copy == kNoTensor || id != last.reads[1] || op.kind != last.kind || op.phase != last.phase) {
          copy = clone_tensor(piece_, id, "dequantised", Category::workspace, wide);
          ops.push_back(computation(OpKind::cast, "dequantise", op.phase, {id}, {copy}));
          ops.back().when = op.when;
        }
        last = op;
        op.reads[1] = copy;
      }
      ops.push_back(op);
    }
    block.ops = std::move(ops);
    is_matrix_.resize(piece_.tensors.size());
  }

  Piece& piece_;
  std::vector<bool> is_matrix_;  // by tensor that owns memory
};

void rewrite(const Scenario& scenario, Program& program) {
  if (!used(scenario)) return;
  for (Piece& piece : program.pieces)
    if (is_layer(piece)) QuantisedBase(piece).run();
}

constexpr FieldRule kIdle[]{keep({"lora_quantize_base"}, "without lora_rank", [](const AskedOf& a) {
  return any_plan(a.scenario, [](const Plan& plan) { return plan.lora.rank > 0; });
})};
constexpr FieldRule kExcludes[]{keep(
    {"lora_quantize_base"}, "with layers in fp8 or nvfp4, whose products read no wide copies", [](const AskedOf& a) {
      return any_plan(a.scenario,
                      [](const Plan& plan) { return plan.precision.compute() != plan.precision.storage(); });
    })};

constexpr PlanWord kWords[]{{"qlora", used}};

}  // namespace

Strategy describe() {
  return {.name = "qlora",
          .summary = "frozen matrices kept in 4 bits (QLoRA)",
          .paper = "Dettmers et al. 2023, arXiv 2305.14314",
          .excludes = kExcludes,
          .idle = kIdle,
          .rewrite = rewrite,
          .words = kWords};
}

}  // namespace orrery::qlora
