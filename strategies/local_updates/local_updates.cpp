#include "strategies/local_updates/local_updates.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "sim/base/error.h"
#include "sim/program/rewrite.h"
#include "sim/report/format.h"
#include "strategies/framework/framework.h"
#include "strategies/local_updates/coded_mean.h"
#include "strategies/strategy.h"

namespace orrery::local_updates {
namespace {

bool used(const Scenario& scenario) { return scenario.plan.local.steps > 0; }
// Replicas that send each other compressed gradients are workers, too.
bool has_workers(const Scenario& scenario) { return used(scenario) || scenario.plan.compressed.used(); }
Dtype wire_dtype(const Options& options) {
  constexpr Dtype kDtypes[]{Dtype::fp32, Dtype::bf16, Dtype::fp16, Dtype::int8, Dtype::int4, Dtype::fp8};
  return kDtypes[static_cast<std::size_t>(options.dtype)];
}
bool sends_codes(const Options& options) { return bits_of(wire_dtype(options)) < 16; }
bool sends_by_first_ranks(const Scenario& scenario) { return scenario.plan.local.exchange == Exchange::first_ranks; }
bool takes_steps(const Scenario& scenario) { return scenario.plan.local.optimizer != OuterOptimizer::average; }
bool has_momentum(const Scenario& scenario) {
  return takes_steps(scenario) && scenario.plan.local.optimizer != OuterOptimizer::pull;
}

}  // namespace

std::int64_t workers(const Scenario& scenario) {
  if (!has_workers(scenario)) return 1;
  if (scenario.plan.local.workers > 0) return scenario.plan.local.workers;
  const std::int64_t replicas = data_parallel_degree(scenario), in_node = framework::data_ranks_in_node(scenario);
  const bool in_nodes = !scenario.plan.compressed.used() && in_node > 0 && replicas % in_node == 0;
  return in_nodes ? replicas / in_node : replicas;
}

std::int64_t replicas(const Scenario& scenario) { return data_parallel_degree(scenario) / workers(scenario); }

namespace {

constexpr FieldNames kSteps{"outer_learning_rate", "outer_delay", "outer_dtype"};
constexpr FieldNames kMomentum{"outer_momentum", "outer_clip", "outer_gap_penalty", "outer_gap_norms"};
constexpr FieldRule kIdle[]{
    keep({"local_workers"}, "without local_steps or gradient_compression, by which workers agree",
         [](const AskedOf& a) { return has_workers(a.scenario); }),
    keep({"outer_optimizer", "outer_fragments", "outer_exchange"}, "without local_steps, after which workers agree",
         [](const AskedOf& a) { return used(a.scenario); }),
    keep(kSteps, "with outer_optimizer \"average\", which sets parameters to their mean at once",
         [](const AskedOf& a) { return used(a.scenario) && takes_steps(a.scenario); }),
    keep(kMomentum, "without an outer_optimizer that has a momentum: \"momentum\" or \"nesterov\"",
         [](const AskedOf& a) { return used(a.scenario) && has_momentum(a.scenario); })};
constexpr FieldRule kExcludes[]{
    keep({"outer_gap_penalty", "outer_fragments"}, "with outer_gap_norms, from which one penalty for all follows",
         [](const AskedOf& a) { return a.plan.local.gap_norms; }),
    keep(
        {"outer_gap_norms"}, "unless outer_optimizer is \"momentum\" and outer_delay 1, as CO2 has them",
        [](const AskedOf& a) { return a.plan.local.optimizer != OuterOptimizer::momentum || a.plan.local.delay == 0; }),
    keep({"outer_gap_norms"}, "for a model with experts, whose norms are summed over other ranks",
         [](const AskedOf& a) { return a.model.has_experts(); }),
    keep({"outer_exchange"}, "above zero_stage 0: the first rank of a node has a part of the parameters only",
         [](const AskedOf& a) { return a.plan.data.zero_stage > 0; }),
    keep({"outer_exchange"}, "with codes on the wire (outer_dtype), which all ranks exchange",
         [](const AskedOf& a) { return sends_codes(a.plan.local); }),
    keep({"outer_exchange"}, "for a model with experts, of which the first rank of a node has a part only",
         [](const AskedOf& a) { return a.model.has_experts(); }),
    keep({"local_steps"}, "with optimizer_offload: the outer update of parameters on the host is not modelled",
         [](const AskedOf& a) { return used(a.scenario) && a.plan.offload.optimizer; }),
    keep({"local_steps"},
         "with fp8_param_gather or fp4_param_gather, whose weights are casts of the optimizer's copies",
         [](const AskedOf& a) {
           return used(a.scenario) && (a.plan.data.fp8_param_gather || a.plan.data.fp4_param_gather);
         }),
    keep({"local_steps"}, "with store_param_remainders: no outer update joins the halves of a parameter",
         [](const AskedOf& a) { return used(a.scenario) && a.plan.optimizer.parameter_remainders; })};

void check(const Scenario& scenario) {
  if (!used(scenario)) return;
  const Plan& plan = scenario.plan;
  const std::int64_t degree = data_parallel_degree(scenario), count = workers(scenario);
  if (plan.local.steps % plan.local.fragments != 0)
    refuse(plan, "outer_fragments", "a divisor of the " + std::to_string(plan.local.steps) + " local_steps");
  if (sends_codes(plan.local) && plan.local.delay > 0)
    refuse(plan, "outer_dtype",
           "\"fp32\", \"bf16\" or \"fp16\" with outer_delay 1: kernels sum codes, and workers wait for these");
  // Groups of codes reach over what ranks of a worker hold in common and what they do not.
  if (const bool tied = scenario.model.tied_embeddings && plan.pipeline.degree > 1;
      sends_codes(plan.local) && (plan.tensor.degree > 1 || tied))
    refuse(plan, "outer_dtype",
           std::string("\"fp32\", \"bf16\" or \"fp16\" ") +
               (tied ? "for tied embeddings on several stages" : "with tensor_parallel") +
               ": ranks would round what they hold in common differently");
  if (plan.local.optimizer == OuterOptimizer::pull && plan.local.delay == 0)
    refuse(plan, "outer_delay", "1 with outer_optimizer \"pull\", which pulls towards the last mean");
  if (degree % count != 0)
    refuse(plan, "local_workers", "a divisor of the data-parallel degree " + std::to_string(degree));
  if (count == 1)
    refuse(plan, "local_steps",
           "0: there is one worker, of all " + std::to_string(degree) +
               " replicas, and none to agree with (local_workers sets their number)");
  if (sends_by_first_ranks(scenario) && replicas(scenario) != framework::data_ranks_in_node(scenario))
    refuse(plan, "outer_exchange",
           "\"all_ranks\" unless each node is a worker: first ranks of nodes exchange what their nodes agree on");
}

// Workers are the outermost replicas.
void add_digits(const Scenario& scenario, Mesh& mesh) { mesh.add(MeshAxis::worker, workers(scenario)); }

// Builds the blocks that the ranks of the workers run between steps, for one piece.
class Outer {
 public:
  Outer(const Options& options, const Mesh& mesh, Piece& piece)
      : outer(static_cast<std::size_t>(options.fragments)),
        exchange(static_cast<std::size_t>(options.fragments)),
        options_(options),
        mesh_(mesh),
        piece_(piece) {}

  void run() {
    if (options_.gap_norms) gap_ = add_number(piece_, "gap");
    for (std::size_t s = 0; s < piece_.sets.size(); ++s)
      if (!piece_.sets[s].frozen()) update(s);
    if (!momenta_.empty()) add_gap();
  }

  Block begin, first_step;
  std::vector<Block> outer, exchange;  // by fragment

 private:
  static constexpr std::int64_t kCodeGroup = 4096;  // numbers that share a scale

  void update(std::size_t number) {
    const ParameterSet set = piece_.sets[number];
    const TensorId updated = updated_by_optimizer(set);
    alike_ = alike_in_worker(updated, number);
    const TensorId part = options_.exchange == Exchange::first_ranks ? updated : own_part(updated);
    for (std::int64_t f = 0; f < options_.fragments; ++f) {
      const TensorId fragment = fragment_of(part, f);
      if (fragment == kNoTensor) continue;
      agree(fragment, outer[static_cast<std::size_t>(f)], exchange[static_cast<std::size_t>(f)]);
      hand_out(set, updated, part, outer[static_cast<std::size_t>(f)]);
    }
  }

  // One of `fragments` neighbouring parts of a flat buffer, of equal size but for the last; kNoTensor: it is empty.
  TensorId fragment_of(TensorId part, std::int64_t number) {
    if (options_.fragments == 1) return part;
    Tensor fragment = piece_.tensors[part];
    const std::int64_t all = fragment.sizes[0], each = (all + options_.fragments - 1) / options_.fragments,
                       begins_at = number * each;
    if (begins_at >= all) return kNoTensor;
    fragment.name = "outer_fragment";
    fragment.sizes[0] = std::min(each, all - begins_at);
    fragment.alias_of = part;
    fragment.alias_begin = begins_at;
    fragment.resident = false;
    return piece_.add(fragment);
  }

  // Adds the ops by which workers agree on a buffer.
  void agree(TensorId part, Block& outer_block, Block& exchange_block) {
    std::vector<Op>&outer_ops = outer_block.ops, &exchange_ops = exchange_block.ops;
    const Dtype dtype = wire_dtype(options_);
    if (options_.optimizer == OuterOptimizer::average) {
      outer_ops.push_back(mean(part, part));
    } else if (options_.optimizer == OuterOptimizer::pull) {
      const TensorId sent = add_like(part, "sent_parameters", Category::communication_buffer, dtype),
                     average = add_like(part, "mean_parameters", Category::communication_buffer, dtype),
                     away = add_passing(part, "way_to_mean", Dtype::fp32);
      piece_.tensors[sent].common = false;
      begin.ops.push_back(over_buffers(OpKind::cast, "begin_mean_parameters", {part}, {average}));
      outer_ops.push_back(over_buffers(OpKind::subtract, "way_to_mean", {part, average}, {away}));
      Op pull = over_buffers(OpKind::sgd, "pull", {away, part}, {part});
      pull.learning_rate = options_.learning_rate;
      outer_ops.push_back(pull);
      outer_ops.push_back(over_buffers(OpKind::cast, "send_parameters", {part}, {sent}));
      exchange_ops.push_back(mean(sent, average));
    } else {
      const TensorId anchor = add_like(part, "anchor", Category::optimizer_state, Dtype::fp32),
                     momentum = add_like(part, "outer_momentum", Category::optimizer_state, Dtype::fp32);
      begin.ops.push_back(over_buffers(OpKind::cast, "begin_anchor", {part}, {anchor}));
      begin.ops.push_back(over_buffers(OpKind::zero_fill, "begin_outer_momentum", {}, {momentum}));
      const bool late = options_.delay > 0, coded = sends_codes(options_);
      const Dtype held = coded ? Dtype::fp32 : dtype;
      // Late: what is under way lies in buffers of its own, since the next local steps need the others.
      const TensorId displacement = late ? add_like(part, "sent_displacement", Category::communication_buffer, held)
                                         : add_passing(part, "displacement", held),
                     average = late ? add_like(part, "mean_displacement", Category::communication_buffer, held)
                                    : displacement;
      if (late) {
        piece_.tensors[displacement].common = false;
        begin.ops.push_back(over_buffers(OpKind::zero_fill, "begin_mean_displacement", {}, {average}));
      }
      outer_ops.push_back(over_buffers(OpKind::subtract, "displacement", {anchor, part}, {displacement}));
      if (coded)
        add_coded_mean(mesh_, {.codes = dtype, .group = kCodeGroup}, displacement, average, piece_, outer_ops);
      else
        (late ? exchange_ops : outer_ops).push_back(mean(displacement, average));
      if (options_.gap_norms) {
        first_steps_.push_back(add_passing(part, "first_step", Dtype::fp32));
        momenta_.push_back(momentum);
        first_step.ops.push_back(over_buffers(OpKind::subtract, "first_step", {anchor, part}, {first_steps_.back()}));
      }
      Op step = over_buffers(OpKind::sgd, "outer_step", {average, anchor, momentum, gap_}, {part, anchor, momentum});
      step.divides = options_.gap_norms;
      step.scale = 1 / options_.gap_penalty;
      step.learning_rate = options_.learning_rate;
      step.momentum = static_cast<float>(options_.momentum);
      step.clip_limit = static_cast<float>(options_.clip);
      step.nesterov = options_.optimizer == OuterOptimizer::nesterov;
      outer_ops.push_back(step);
    }
  }

  // Adds the square of the norm of the first local step, and that of the momenta which made the last outer step, of all
  // sets; and in front of the outer update their ratio.
  void add_gap() {
    const TensorId first = add_number(piece_, "squared_first_step");
    Tensor& kept = piece_.tensors[first];
    kept.category = Category::optimizer_state;
    kept.resident = kept.common = true;
    const TensorId own = add_norm("first_step_norm", first_steps_, first_step.ops);
    first_step.ops.push_back(mean_over_workers(mesh_, own, first));  // the same penalty for all
    std::vector<Op> ops;
    const TensorId last = add_norm("last_step_norm", momenta_, ops);
    ops.push_back(over_buffers(OpKind::multiply, "gap", {last, first}, {gap_}));
    ops.back().divides = true;
    outer.front().ops.insert(outer.front().ops.begin(), ops.begin(), ops.end());
  }

  // The square of the norm of the buffers of all sets, over all of the model. Only elements of parameters count.
  TensorId add_norm(const char* name, const std::vector<TensorId>& buffers, std::vector<Op>& ops) {
    MeshGroup parts = mesh_.group({MeshAxis::tp, MeshAxis::pp});
    for (const TensorId buffer : buffers) parts = parts | piece_.tensors[buffer].divided_over();
    return orrery::add_norm(
        piece_, buffers, name,
        communication(OpKind::all_reduce, name, Phase::update, Stream::data_communication, parts, kNoTensor, kNoTensor),
        ops);
  }

  // The buffer that the set's optimizer updates at full precision: the fp32 copies of parameters, if there are any.
  TensorId updated_by_optimizer(const ParameterSet& set) const {
    for (const Op& op : piece_.update.ops) {
      if (!is_optimizer(op.kind) || op.writes[0] != set.own_parameters) continue;
      return std::ranges::find(op.reads, op.writes[0]) != op.reads.end() ? op.writes[0] : op.writes[1];
    }
    return set.own_parameters;
  }

  // The replicas of a worker that have the same values of `buffer`, which is not divided over them.
  MeshGroup alike_in_worker(TensorId buffer, std::size_t number) const {
    MeshGroup alike = mesh_.group({MeshAxis::dp_shard, MeshAxis::dp_replicate, MeshAxis::cp})
                          .without(piece_.tensors[buffer].divided_over());
    for (const ParameterGradient& p : piece_.parameters)
      if (p.set == number) alike = alike.without(piece_.tensors[p.parameter].divided_over());
    return alike;
  }

  // Each of these takes a part.
  TensorId own_part(TensorId buffer) {
    if (alike_.empty()) return buffer;
    Tensor part = piece_.tensors[buffer];
    const std::int64_t ranks = mesh_.size(alike_);
    part.name = "outer_part";
    part.sizes[0] = (part.sizes[0] + ranks - 1) / ranks;
    part.over[0].append(alike_);
    part.alias_of = buffer;
    part.alias_begin = 0;
    part.resident = false;
    return piece_.add(part);
  }

  // Brings what this rank has updated to where the step reads it.
  void hand_out(const ParameterSet& set, TensorId updated, TensorId part, Block& block) const {
    if (part != updated) {
      const MeshGroup over = piece_.tensors[part].divided_over().without(piece_.tensors[updated].divided_over());
      block.ops.push_back(for_all_instances(communication(OpKind::all_gather, "outer_gather", Phase::update,
                                                          Stream::parameter_communication, over, part, updated)));
    }
    if (updated != set.own_parameters)
      block.ops.push_back(over_buffers(OpKind::cast, "outer_cast", {updated}, {set.own_parameters}));
    // The gathers that the update ends with, unless the next forward gathers.
    for (const Op& op : piece_.update.ops)
      if (op.kind == OpKind::all_gather && storage_of(piece_, op.writes[0]) == storage_of(piece_, set.parameters))
        block.ops.push_back(op);
  }

  Op mean(TensorId from, TensorId to) const {
    Op op = mean_over_workers(mesh_, from, to);
    if (options_.exchange == Exchange::first_ranks) {
      op.group = op.group | alike_;
      op.algorithm = CollectiveAlgorithm::first_ranks;
    }
    return op;
  }
  TensorId add_passing(TensorId like, const char* name, Dtype dtype) {
    return clone_tensor(piece_, like, name, Category::communication_buffer, dtype);
  }
  TensorId add_like(TensorId like, const char* name, Category category, Dtype dtype) {
    const TensorId id = clone_tensor(piece_, like, name, category, dtype);
    piece_.tensors[id].resident = piece_.tensors[id].common = true;
    return id;
  }

  const Options& options_;
  const Mesh& mesh_;
  Piece& piece_;
  MeshGroup alike_;                              // of the set at hand
  TensorId gap_ = kNoTensor;                     // with gap_norms: the square of the ratio of two norms
  std::vector<TensorId> first_steps_, momenta_;  // by trained set
};

void add_tasks(const Scenario& scenario, Program& program) {
  if (!used(scenario) || scenario.plan.compressed.used()) return;  // compressed_gradients says how workers agree
  const Options& options = scenario.plan.local;
  const bool late = options.delay > 0, begins = takes_steps(scenario);
  if (program.mesh.group({MeshAxis::ep, MeshAxis::etp}).meets(program.mesh.group(MeshAxis::worker)))
    refuse(scenario.plan, "local_workers",
           "workers that hold all experts: expert_parallel reaches beyond the ranks of a worker");
  for (Piece& piece : program.pieces) {
    Outer outer(options, program.mesh, piece);
    outer.run();
    for (std::size_t f = 0; f < outer.outer.size(); ++f) {
      piece.tasks.push_back(std::move(outer.outer[f]));
      if (late) piece.tasks.push_back(std::move(outer.exchange[f]));
    }
    if (options.gap_norms) piece.tasks.push_back(std::move(outer.first_step));
    if (begins) piece.tasks.push_back(std::move(outer.begin));
  }
  std::uint16_t block = 0;
  for (std::int64_t f = 0; f < options.fragments; ++f) {
    std::int64_t steps = options.steps / options.fragments;
    if (options.gap_norms) {  // its block is behind the others
      program.tasks.push_back({.name = "local steps"});
      program.tasks.push_back({.name = "norm of the first step", .block = 3});
      --steps;
    }
    if (steps > 0) program.tasks.push_back({.name = "local steps", .repeats = steps});
    const auto exchange = static_cast<std::uint16_t>(program.tasks.size() + 1);
    program.tasks.push_back({.name = "outer update", .block = ++block});
    if (!late) continue;
    program.tasks.back().after = {{.task = exchange, .lag = 1}};
    program.tasks.push_back({.name = "exchange", .block = ++block, .beside = true});
  }
  if (begins) program.begin = static_cast<std::uint16_t>(program.pieces.front().tasks.size());
}

void disable(Plan& plan) { plan.local = {}; }

// How many steps ago the oldest gradient in what workers exchange was computed, at most.
std::int64_t staleness(const Plan& plan) { return plan.local.steps * (plan.local.delay > 0 ? 2 : 1); }

constexpr FigureKind kFigures[]{
    {.group = "local_updates",
     .key = "staleness",
     .unit = FigureUnit::count,
     .explanation = "how many steps ago the oldest gradient in what workers exchange was computed, at most",
     .label = "staleness"}};
void figures(const Scenario& scenario, const Program&, std::vector<Figure>& figures) {
  if (used(scenario)) figures.push_back({kFigures, static_cast<double>(staleness(scenario.plan)), "steps at most"});
}

std::vector<std::string> notes(const Scenario& scenario) {
  if (!used(scenario)) return {};
  const std::int64_t steps = scenario.plan.local.steps, each = replicas(scenario);
  return {std::to_string(workers(scenario)) + " workers of " + std::to_string(each) +
          (each == 1 ? " replica" : " replicas") + " train copies of the model, and exchange them every " +
          (steps == 1 ? "step" : std::to_string(steps) + " steps") + "; what an exchange brings was trained up to " +
          std::to_string(staleness(scenario.plan)) + " steps before (what this costs in convergence is not predicted)"};
}

// Shows how long each task of an iteration takes, and the step time with other numbers of local steps.
std::string explain(const Evaluated& here, const Evaluate& evaluate) {
  const Scenario& scenario = here.scenario();
  if (!used(scenario)) throw InputError({"--explain", ""}, "iteration", "a plan with local_steps");
  const Report& report = here.report();
  std::string text = fmt::format("{} workers of {} replicas. An iteration takes {}:\n\n", workers(scenario),
                                 replicas(scenario), seconds_text(report.iteration_seconds));
  double longest = 0;  // of what runs beside the steps
  for (const TaskReport& task : report.tasks) {
    text += fmt::format("  {:<14}{:>12} x {:<5}{}{}\n", task.name, seconds_text(task.seconds), task.repeats,
                        task.beside ? "beside the tasks that follow" : "",
                        task.waiting_seconds > 0 ? "after waiting " + seconds_text(task.waiting_seconds) : "");
    if (task.beside) longest = std::max(longest, task.seconds);
  }
  const double step = report.tasks.front().seconds;
  if (longest > 0) text += fmt::format("\nThe exchange alone takes as long as {:.1f} local steps.\n", longest / step);
  text +=
      fmt::format("\n  {:>11}  {:>11}  {:>12}  {:>20}\n", "local steps", "step", "tokens/s", "up to so many steps old");
  for (const std::int64_t steps : {1, 3, 6, 12, 24, 48, 96, 192}) {
    if (steps % scenario.plan.local.fragments != 0) continue;
    Scenario other = scenario;
    other.plan.local.steps = steps;
    const Report& there = evaluate(other)->report();
    text += fmt::format("  {:>11}  {:>11}  {:>12}  {:>20}\n", steps, seconds_text(there.step_seconds),
                        rate_text(there.tokens_per_second), staleness(other.plan));
  }
  return text + "\nWhat older or averaged parameters cost in convergence is not predicted.\n";
}

constexpr std::string_view kNames[]{
    "iteration", "local steps", "outer update", "exchange", "slower beside others", "iteration_seconds", "staleness"};
constexpr Topic kTopics[]{
    {.names = kNames,
     .summary = "the tasks of an iteration of local updates, and what other numbers of local steps would give",
     .text = explain}};

constexpr PlanWord kWords[]{{"local-updates", used}};

// Searched over the values that a user names: what they cost in convergence is not predicted.
constexpr SearchAxis kAxes[]{{.field = "local_steps",
                              .label = "local steps",
                              .chosen_with = ChosenWith::replicas,
                              .set = [](Plan& plan, std::int64_t value) { plan.local.steps = value; }},
                             {.field = "local_workers",
                              .label = "workers",
                              .chosen_with = ChosenWith::replicas,
                              .set = [](Plan& plan, std::int64_t value) { plan.local.workers = value; },
                              .acts = has_workers},
                             {.field = "outer_delay",
                              .label = "late",
                              .chosen_with = ChosenWith::replicas,
                              .set = [](Plan& plan, std::int64_t value) { plan.local.delay = value; },
                              .acts = [](const Scenario& chosen) { return used(chosen) && has_momentum(chosen); }}};

}  // namespace

Strategy describe() {
  return {.name = "local_updates",
          .summary = "workers that train copies of the model and agree every few steps: local SGD, SlowMo, DiLoCo, CO2",
          .paper =
              "Stich 2019, arXiv 1805.09767; Wang et al. 2020, arXiv 1910.00643; Douillard et al. 2023, arXiv "
              "2311.08105; Sun et al. 2024, arXiv 2401.16265",
          .excludes = kExcludes,
          .idle = kIdle,
          .check = check,
          .add_tasks = add_tasks,
          .add_digits = add_digits,
          .disable = disable,
          .words = kWords,
          .notes = notes,
          .figure_kinds = kFigures,
          .figures = figures,
          .search_axes = kAxes,
          .topics = kTopics};
}

}  // namespace orrery::local_updates
