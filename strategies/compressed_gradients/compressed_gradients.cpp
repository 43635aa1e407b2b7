// Replicas that exchange less than their gradients. They are workers (MeshAxis::worker): no op sums their gradients.
//
// 1-bit Adam (Tang et al. 2021, arXiv 2102.02888, algorithm 1), after its warm-up: second moments stay as they are,
// and what replicas agree on is the momentum. Each adds its own gradient to the momentum that all have, and sends the
// signs of the result to the owners of its parts, who take the mean and send its signs to all. What signs lose is added
// to what is sent in the next step, on both ways.
//
// 0/1 Adam (Lu et al. 2022, arXiv 2202.06009, algorithm 1), when its second moments are frozen: each worker takes steps
// with a momentum of its own. After some of them workers agree on how far they have come, by signs as above: on the sum
// of the momenta that have moved them. From it follow the parameters, and the momentum that all go on with: its mean.
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
bool steps_alone(const Scenario& scenario) { return scenario.plan.compressed.method == Method::zero_one_adam; }
bool is_onebit_adam(const Scenario& scenario) { return scenario.plan.compressed.method == Method::onebit_adam; }
bool sends_signs(const Scenario& scenario) { return is_onebit_adam(scenario) || steps_alone(scenario); }
bool sends_factors(const Scenario& scenario) { return scenario.plan.compressed.method == Method::powersgd; }
bool sends_largest(const Scenario& scenario) { return scenario.plan.compressed.method == Method::topk; }

constexpr FieldRule kIdle[]{
    keep({"compression_group_size"}, "without gradient_compression \"onebit_adam\", \"zero_one_adam\" or \"topk\"",
         [](const AskedOf& a) { return sends_signs(a.scenario) || sends_largest(a.scenario); }),
    keep({"compression_kept"}, "without gradient_compression \"topk\"",
         [](const AskedOf& a) { return sends_largest(a.scenario); }),
    keep({"compression_rank"}, "without gradient_compression \"powersgd\"",
         [](const AskedOf& a) { return sends_factors(a.scenario); })};
constexpr FieldRule kExcludes[]{
    keep({"gradient_compression"}, "or \"zero_one_adam\" with local_steps: both say what workers agree on",
         [](const AskedOf& a) { return a.plan.local.steps > 0 && !steps_alone(a.scenario); }),
    keep({"outer_optimizer", "outer_fragments", "outer_exchange"},
         "with gradient_compression \"zero_one_adam\", which says what workers agree on",
         [](const AskedOf& a) { return steps_alone(a.scenario); }),
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
  refuse_heads_in_common(scenario,
                         "with gradient_compression: ranks that hold a head in common would send different numbers for "
                         "it");
  if (workers == 1)
    refuse(scenario.plan, "gradient_compression", "\"none\": there is one worker, and none to agree with");
  if (steps_alone(scenario) && scenario.plan.local.steps == 0)
    refuse(scenario.plan, "local_steps",
           "1 or more with gradient_compression \"zero_one_adam\": steps between agreements");
}

Op& put(std::vector<Op>& ops, OpKind kind, const char* name, std::initializer_list<TensorId> reads,
        std::initializer_list<TensorId> writes) {
  return ops.emplace_back(over_buffers(kind, name, reads, writes));
}

// Writes what workers agree on, in place of the mean of their `own`, to `agreed`: signs both ways, and their losses
// kept. `parameters`: the buffer that the optimizer of the set writes.
void agree_by_signs(const Options& options, const Mesh& mesh, TensorId parameters, TensorId own, TensorId agreed,
                    Piece& piece, std::vector<Op>& ops) {
  const auto set = std::ranges::find(piece.sets, parameters, &ParameterSet::own_parameters) - piece.sets.begin();
  const std::vector<FlatPart> parts = parts_of_buffers(piece, static_cast<std::size_t>(set));
  for (std::size_t p = 0; p < parts.size(); ++p)
    local_updates::add_coded_mean(mesh, {.codes = Dtype::sign, .group = options.group, .feedback = true},
                                  part_of_buffer(piece, own, parts, p), part_of_buffer(piece, agreed, parts, p), piece,
                                  ops);
}

// Replaces the Adam of one parameter set.
void replace(const Op& adam, const Options& options, const Mesh& mesh, Piece& piece, std::vector<Op>& ops) {
  const auto written = static_cast<std::size_t>(std::ranges::find(adam.writes, kNoTensor) - adam.writes.begin());
  const TensorId gradient = adam.reads[0], weight = adam.reads[1], momentum = adam.writes[written - 2],
                 preconditioner = adam.writes[written - 1];
  const auto add_like_momentum = [&](const char* name) {
    return clone_tensor(piece, momentum, name, Category::workspace, Dtype::fp32);
  };

  // Each worker's own momentum: kBeta1 m + (1 - kBeta1) g.
  const bool agrees = options.method == Method::onebit_adam;
  const TensorId own = agrees ? add_like_momentum("own_momentum") : momentum;
  put(ops, OpKind::scale, "decay_momentum", {momentum}, {own}).scale = kBeta1;
  if (const std::optional<Op> unscaling = unscaling_of(adam)) ops.push_back(for_all_instances(*unscaling));
  const TensorId share = add_like_momentum("gradient_share");
  put(ops, OpKind::scale, "scale_gradients", {gradient}, {share}).scale = 1 - kBeta1;
  put(ops, OpKind::add, "add_gradients", {own, share}, {own});
  if (agrees) agree_by_signs(options, mesh, adam.writes[0], own, momentum, piece, ops);

  const TensorId direction = add_like_momentum("direction");
  put(ops, OpKind::multiply, "precondition", {momentum, preconditioner}, {direction});
  Op& step = put(ops, OpKind::sgd, "frozen_adam", {direction, weight}, {});
  std::copy_n(adam.writes.begin(), written - 2, step.writes.begin());

  piece.tensors[momentum].common = agrees;
  piece.tensors[preconditioner].common = true;
  piece.tensors[preconditioner].input = Input::preconditioner;
}

// Adds the agreement after local steps of one parameter set. `step`: what replace() has put in place of Adam, behind
// `precondition`.
//
//        sum        = (anchor - parameters) / preconditioner      of the local steps' rates times momenta, per worker
//        sum        = its decoded signs                           the same on all workers
//        anchor     = anchor - sum x preconditioner
//        parameters = anchor
//        momentum   = sum / (steps x rate)
//
// Local steps have decayed the weights, so that the sum has it, and agreement must not do it again.
void agree_on_steps(const Op& precondition, const Op& step, const Scenario& scenario, const Mesh& mesh, Piece& piece,
                    Block& begin, Block& agreement) {
  const TensorId momentum = precondition.reads[0], preconditioner = precondition.reads[1], updated = step.reads[1];
  std::vector<Op> ops;
  const TensorId anchor = clone_tensor(piece, updated, "anchor", Category::optimizer_state, Dtype::fp32),
                 sum = clone_tensor(piece, updated, "sum_of_steps", Category::workspace, Dtype::fp32),
                 direction = clone_tensor(piece, updated, "direction", Category::workspace, Dtype::fp32);
  const TensorId rate = add_number(piece, "learning_rate"), rates = add_number(piece, "sum_of_rates");
  piece.tensors[rate].input = Input::learning_rate;
  for (const TensorId id : {rate, rates, anchor}) {
    Tensor& kept = piece.tensors[id];
    kept.category = Category::optimizer_state;
    kept.resident = kept.common = true;
  }

  put(begin.ops, OpKind::cast, "begin_anchor", {updated}, {anchor});
  put(begin.ops, OpKind::scale, "begin_sum_of_rates", {rate}, {rates}).scale =
      static_cast<double>(scenario.plan.local.steps);

  put(ops, OpKind::subtract, "displacement", {anchor, updated}, {sum});
  put(ops, OpKind::multiply, "sum_of_steps", {sum, preconditioner}, {sum}).divides = true;
  agree_by_signs(scenario.plan.compressed, mesh, step.writes[0], sum, sum, piece, ops);
  for (const Op& op : ops)
    if (is_quantiser(op.kind) && op.writes[kErrorWrite] != kNoTensor)
      put(begin.ops, OpKind::zero_fill, "begin_error", {}, {op.writes[kErrorWrite]});
  put(ops, OpKind::multiply, "precondition", {sum, preconditioner}, {direction});
  put(ops, OpKind::sgd, "zero_one_adam", {direction, anchor}, {updated, anchor}).learning_rate = 1;
  if (updated != step.writes[0]) put(ops, OpKind::cast, "cast_parameters", {updated}, {step.writes[0]});
  put(ops, OpKind::multiply, "mean_momentum", {sum, rates}, {momentum}).divides = true;
  agreement.ops.insert(agreement.ops.end(), ops.begin(), ops.end());
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
        if (is_optimizer(op.kind) && id != kNoTensor && !steps_alone(scenario)) piece.tensors[id].common = true;
  }
  // All ranks execute the products of PowerSGD.
  const auto ranks = static_cast<double>(program.mesh.ranks() / program.mesh.size(MeshAxis::pp));
  for (const PieceRun& run : program.line)
    for (const Op& op : program.pieces[run.piece].update.ops)
      if (is_matmul(op.kind))
        program.model.executed_flops_per_step +=
            ranks * static_cast<double>(run.count) * flops(op, program.pieces[run.piece].tensors);
}

void add_tasks(const Scenario& scenario, Program& program) {
  if (!steps_alone(scenario)) return;
  for (Piece& piece : program.pieces) {
    Block agreement, begin;
    for (std::size_t i = 1; i < piece.update.ops.size(); ++i)
      if (piece.update.ops[i].kind == OpKind::sgd)
        agree_on_steps(piece.update.ops[i - 1], piece.update.ops[i], scenario, program.mesh, piece, begin, agreement);
    piece.tasks = {std::move(agreement), std::move(begin)};
  }
  program.tasks = {{.name = "local steps", .repeats = scenario.plan.local.steps}, {.name = "agreement", .block = 1}};
  program.begin = 2;
}

std::vector<std::string> notes(const Scenario& scenario) {
  std::vector<std::string> notes;
  if (steps_alone(scenario))
    notes.emplace_back(
        "steps of 0/1 Adam with frozen second moments (what compression costs in convergence is not predicted)");
  else if (sends_signs(scenario))
    notes.emplace_back(
        "a step after the warm-up of 1-bit Adam; steps of the warm-up are those of gradient_compression \"none\" "
        "(what compression costs in convergence is not predicted)");
  else if (used(scenario))
    notes.emplace_back("what compressed gradients cost in convergence is not predicted");
  return notes;
}

constexpr PlanWord kWords[]{{"onebit-adam", is_onebit_adam},
                            {"zero-one-adam", steps_alone},
                            {"powersgd", sends_factors},
                            {"top-k", sends_largest}};

}  // namespace

Strategy describe() {
  return {
      .name = "compressed_gradients",
      .summary = "replicas that exchange less than their gradients: 1-bit Adam, 0/1 Adam, PowerSGD, top-k",
      .paper =
          "Tang et al. 2021, arXiv 2102.02888; Lu et al. 2022, arXiv 2202.06009; Vogels et al. 2019, arXiv 1905.13727; "
          "Lin et al. 2018, arXiv 1712.01887",
      .excludes = kExcludes,
      .idle = kIdle,
      .check = check,
      .rewrite = rewrite,
      .add_tasks = add_tasks,
      .disable = reset<&Plan::compressed>,
      .words = kWords,
      .notes = notes};
}

}  // namespace orrery::compressed_gradients
