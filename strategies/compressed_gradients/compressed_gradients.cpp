// Replicas that exchange less than their gradients. They are workers (MeshAxis::worker): no op sums their gradients.
//
// 1-bit Adam (Tang et al. 2021, arXiv 2102.02888, algorithm 1), after its warm-up: second moments stay as they are,
// and what replicas agree on is the momentum. Each adds its own gradient to the momentum that all have, and sends the
// signs of the result to the owners of its parts, who take the mean and send its signs to all. What signs lose is added
// to what is sent in the next step, on both ways.
//
// PowerSGD and top-k: compressed_mean.h.
#include <algorithm>
#include <string>
#include <vector>

#include "sim/program/rewrite.h"
#include "sim/program/work.h"
#include "strategies/compressed_gradients/compressed_mean.h"
#include "strategies/local_updates/coded_mean.h"
#include "strategies/local_updates/local_updates.h"
#include "strategies/strategy.h"

namespace orrery::compressed_gradients {
namespace {

constexpr double kBeta1 = 0.9;  // Adam's usual rate of the first moment

bool used(const Scenario& scenario) { return scenario.plan.compressed.used(); }
bool sends_signs(const Scenario& scenario) { return scenario.plan.compressed.method == Method::onebit_adam; }
bool sends_factors(const Scenario& scenario) { return scenario.plan.compressed.method == Method::powersgd; }
bool sends_largest(const Scenario& scenario) { return scenario.plan.compressed.method == Method::topk; }

constexpr FieldRule kIdle[]{keep({"compression_group_size"}, "without gradient_compression \"onebit_adam\" or \"topk\"",
                                 [](const AskedOf& a) { return sends_signs(a.scenario) || sends_largest(a.scenario); }),
                            keep({"compression_kept"}, "without gradient_compression \"topk\"",
                                 [](const AskedOf& a) { return sends_largest(a.scenario); }),
                            keep({"compression_rank"}, "without gradient_compression \"powersgd\"",
                                 [](const AskedOf& a) { return sends_factors(a.scenario); })};
constexpr FieldRule kExcludes[]{
    keep({"gradient_compression"}, "with local_steps: both say what workers agree on",
         [](const AskedOf& a) { return a.plan.local.steps > 0; }),
    keep({"gradient_compression"}, "above zero_stage 0: parts of gradients are not compressed",
         [](const AskedOf& a) { return a.plan.data.zero_stage > 0; }),
    keep({"gradient_compression"}, "or another method, unless the optimizer is adam or adamw",
         [](const AskedOf& a) {
           return sends_signs(a.scenario) && a.plan.optimizer.rule != optimizer::Rule::adam &&
                  a.plan.optimizer.rule != optimizer::Rule::adamw;
         }),
    keep({"gradient_compression"}, "or another method, unless optimizer_dtype is \"fp32\": signs build up a momentum",
         [](const AskedOf& a) {
           return sends_signs(a.scenario) && a.plan.optimizer.moments != optimizer::MomentDtype::fp32;
         }),
    keep({"gradient_compression"}, "with optimizer_offload: compression on the host is not modelled",
         [](const AskedOf& a) { return a.plan.offload.optimizer; }),
    keep({"gradient_compression"}, "or another method with store_param_remainders",
         [](const AskedOf& a) { return sends_signs(a.scenario) && a.plan.optimizer.parameter_remainders; }),
    keep({"gradient_compression"}, "for a model with experts: their gradients are summed over fewer replicas",
         [](const AskedOf& a) { return a.model.has_experts(); })};

void check(const Scenario& scenario) {
  if (!used(scenario)) return;
  const std::int64_t degree = data_parallel_degree(scenario), workers = local_updates::workers(scenario);
  if (degree % workers != 0)
    refuse(scenario.plan, "local_workers", "a divisor of the data-parallel degree " + std::to_string(degree));
  if (const std::int64_t heads = scenario.model.effective_kv_heads(); scenario.plan.tensor.degree > heads)
    refuse(scenario.plan, "tensor_parallel",
           "at most the model's " + std::to_string(heads) +
               " key/value heads with gradient_compression: ranks that hold a head in common would send different "
               "numbers for it");
  if (workers == 1)
    refuse(scenario.plan, "gradient_compression", "\"none\": there is one worker, and none to agree with");
}

// Replaces the Adam of one parameter set.
void replace(const Op& adam, const Options& options, const Mesh& mesh, Piece& piece, std::vector<Op>& ops) {
  const auto put = [&](OpKind kind, const char* name, std::initializer_list<TensorId> reads,
                       std::initializer_list<TensorId> writes) -> Op& {
    return ops.emplace_back(for_all_instances(computation(kind, name, Phase::update, reads, writes)));
  };
  const auto written = static_cast<std::size_t>(std::ranges::find(adam.writes, kNoTensor) - adam.writes.begin());
  const TensorId gradient = adam.reads[0], weight = adam.reads[1], momentum = adam.writes[written - 2],
                 preconditioner = adam.writes[written - 1];
  const auto add_like_momentum = [&](const char* name) {
    return clone_tensor(piece, momentum, name, Category::workspace, Dtype::fp32);
  };

  // Each worker's own momentum: kBeta1 m + (1 - kBeta1) g.
  const TensorId own = add_like_momentum("own_momentum");
  put(OpKind::scale, "decay_momentum", {momentum}, {own}).scale = kBeta1;
  if (const TensorId norm = adam.reads[static_cast<std::size_t>(norm_operand(OpKind::adam))];
      adam.scale != 1 || norm != kNoTensor) {
    Op& clip = put(OpKind::scale, "unscale_and_clip", {gradient}, {gradient});
    clip.scale = adam.scale;
    clip.clip_limit = adam.clip_limit;
    clip.reads[static_cast<std::size_t>(norm_operand(OpKind::scale))] = norm;
  }
  const TensorId share = add_like_momentum("gradient_share");
  put(OpKind::scale, "scale_gradients", {gradient}, {share}).scale = 1 - kBeta1;
  put(OpKind::add, "add_gradients", {own, share}, {own});
  const auto set = std::ranges::find(piece.sets, adam.writes[0], &ParameterSet::own_parameters) - piece.sets.begin();
  const std::vector<FlatPart> parts = parts_of_buffers(piece, static_cast<std::size_t>(set));
  for (std::size_t p = 0; p < parts.size(); ++p)
    local_updates::add_coded_mean(mesh, {.codes = Dtype::sign, .group = options.group, .feedback = true},
                                  part_of_buffer(piece, own, parts, p), part_of_buffer(piece, momentum, parts, p),
                                  piece, ops);

  const TensorId direction = add_like_momentum("direction");
  put(OpKind::multiply, "precondition", {momentum, preconditioner}, {direction});
  Op& step = put(OpKind::sgd, "onebit_adam", {direction, weight}, {});
  std::copy_n(adam.writes.begin(), written - 2, step.writes.begin());

  for (const TensorId id : {momentum, preconditioner}) piece.tensors[id].common = true;
  piece.tensors[preconditioner].input = Input::preconditioner;
}

void rewrite(const Scenario& scenario, Program& program) {
  if (!used(scenario)) return;
  const Options& options = scenario.plan.compressed;
  for (Piece& piece : program.pieces) {
    if (!sends_signs(scenario)) {
      agree_on_gradients(options, program.mesh, piece);
    } else {
      std::vector<Op> ops;
      for (const Op& op : piece.update.ops)
        op.kind == OpKind::adam ? replace(op, options, program.mesh, piece, ops) : ops.push_back(op);
      piece.update.ops.swap(ops);
    }
    for (const Op& op : piece.update.ops)
      for (const TensorId id : op.writes)
        if (is_optimizer(op.kind) && id != kNoTensor) piece.tensors[id].common = true;
  }
  // All ranks execute the products of PowerSGD.
  const auto ranks = static_cast<double>(program.mesh.ranks() / program.mesh.size(MeshAxis::pp));
  for (const PieceRun& run : program.line)
    for (const Op& op : program.pieces[run.piece].update.ops)
      if (is_matmul(op.kind))
        program.model.executed_flops_per_step +=
            ranks * static_cast<double>(run.count) * flops(op, program.pieces[run.piece].tensors);
}

std::vector<std::string> notes(const Scenario& scenario) {
  std::vector<std::string> notes;
  if (sends_signs(scenario))
    notes.emplace_back(
        "a step after the warm-up of 1-bit Adam; steps of the warm-up are those of gradient_compression \"none\" "
        "(what compression costs in convergence is not predicted)");
  else if (used(scenario))
    notes.emplace_back("what compressed gradients cost in convergence is not predicted");
  return notes;
}

constexpr PlanWord kWords[]{{"onebit-adam", sends_signs}, {"powersgd", sends_factors}, {"top-k", sends_largest}};

}  // namespace

Strategy describe() {
  return {
      .name = "compressed_gradients",
      .summary = "replicas that exchange less than their gradients: 1-bit Adam, PowerSGD, top-k",
      .paper =
          "Tang et al. 2021, arXiv 2102.02888; Vogels et al. 2019, arXiv 1905.13727; Lin et al. 2018, arXiv 1712.01887",
      .excludes = kExcludes,
      .idle = kIdle,
      .check = check,
      .rewrite = rewrite,
      .disable = reset<&Plan::compressed>,
      .words = kWords,
      .notes = notes};
}

}  // namespace orrery::compressed_gradients
