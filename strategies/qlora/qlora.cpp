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
  explicit QuantisedBase(Piece& piece) : piece_(piece), matrices_(piece) {}

  void run() {
    find_matrices();
    const std::size_t originals = piece_.tensors.size();
    for (Block* block : blocks()) read_wide_copies(*block);
    for (std::size_t id = 0; id < originals; ++id)
      if (matrices_.has(static_cast<TensorId>(id))) piece_.tensors[id].dtype = Dtype::nf4;
    split_sets(piece_, [&](const ParameterGradient& p) { return !matrices_.has(p.parameter); });
  }

 private:
  std::array<Block*, 3> blocks() const { return {&piece_.forward, &piece_.backward, &piece_.weight_gradient}; }
  static bool is_product(const Op& op) { return op.kind == OpKind::linear || op.kind == OpKind::linear_input_gradient; }

  // Finds the frozen parameters that products read, but for those of routers.
  void find_matrices() {
    Storages frozen(piece_), logits(piece_), of_routers(piece_);
    for (const ParameterGradient& p : piece_.parameters)
      if (is_frozen(p)) frozen.add(p.parameter);
    for (auto op = piece_.forward.ops.rbegin(); op != piece_.forward.ops.rend(); ++op) {
      const bool routes = op->kind == OpKind::route || op->kind == OpKind::add_noise || op->kind == OpKind::router_loss;
      if (routes || ((is_communication(op->kind) || op->kind == OpKind::cast) && logits.has_any(op->writes)))
        logits.add_all(op->reads);
      if (is_product(*op) && logits.has(op->writes[0])) of_routers.add(op->reads[1]);
    }
    for (const Block* block : blocks())
      for (const Op& op : block->ops)
        if (is_product(op) && frozen.has(op.reads[1]) && !of_routers.has(op.reads[1])) matrices_.add(op.reads[1]);
  }

  // Parts of one product, which follow each other, share a copy. Any other product makes its own, as autograd does.
  void read_wide_copies(Block& block) {
    const Dtype wide = piece_.tensors[piece_.output].dtype;
    std::vector<Op> ops;
    Op last;
    TensorId copy = kNoTensor;
    for (Op op : block.ops) {
      if (is_product(op) && matrices_.has(op.reads[1])) {
        const TensorId id = op.reads[1];
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
  }

  Piece& piece_;
  Storages matrices_;
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
