#include "strategies/local_updates/local_updates.h"

#include <string>
#include <utility>

#include "sim/program/rewrite.h"
#include "strategies/framework/framework.h"
#include "strategies/strategy.h"

namespace orrery::local_updates {
namespace {

bool used(const Scenario& scenario) { return scenario.plan.local.steps > 0; }
bool has_anchor(const Scenario& scenario) { return scenario.plan.local.optimizer != OuterOptimizer::average; }

}  // namespace

std::int64_t workers(const Scenario& scenario) {
  if (!used(scenario)) return 1;
  if (scenario.plan.local.workers > 0) return scenario.plan.local.workers;
  const std::int64_t replicas = data_parallel_degree(scenario), in_node = framework::data_ranks_in_node(scenario);
  return in_node > 0 && replicas % in_node == 0 ? replicas / in_node : replicas;
}

std::int64_t replicas(const Scenario& scenario) { return data_parallel_degree(scenario) / workers(scenario); }

namespace {

constexpr FieldNames kOuter{"outer_learning_rate", "outer_momentum", "outer_clip",
                            "outer_gap_penalty",   "outer_delay",    "outer_dtype"};
constexpr FieldRule kIdle[]{
    keep({"local_workers", "outer_optimizer"}, "without local_steps, after which workers agree",
         [](const AskedOf& a) { return used(a.scenario); }),
    keep(kOuter, "without an outer_optimizer that takes steps of its own: \"average\" has no momentum and no anchor",
         [](const AskedOf& a) { return used(a.scenario) && has_anchor(a.scenario); })};
constexpr FieldRule kExcludes[]{
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
  if (degree % count != 0)
    refuse(plan, "local_workers", "a divisor of the data-parallel degree " + std::to_string(degree));
  if (count == 1)
    refuse(plan, "local_steps",
           "0: there is one worker, of all " + std::to_string(degree) +
               " replicas, and none to agree with (local_workers sets their number)");
}

// Workers are the outermost replicas.
void add_digits(const Scenario& scenario, Mesh& mesh) { mesh.add(MeshAxis::worker, workers(scenario)); }

// What the ranks of the workers do between steps, for one piece.
class Outer {
 public:
  Outer(const Options& options, const Mesh& mesh, Piece& piece) : options_(options), mesh_(mesh), piece_(piece) {}

  void run() {
    for (std::size_t s = 0; s < piece_.sets.size(); ++s)
      if (!piece_.sets[s].frozen()) update(s);
  }

  Block begin, outer, exchange;

 private:
  static constexpr Dtype kDtypes[]{Dtype::fp32, Dtype::bf16, Dtype::fp16};

  void update(std::size_t number) {
    const ParameterSet set = piece_.sets[number];
    const TensorId updated = updated_by_optimizer(set), part = own_part(updated, number);
    if (options_.optimizer == OuterOptimizer::average) {
      outer.ops.push_back(mean(part, part));
    } else {
      const TensorId anchor = add_like(part, "anchor", Category::optimizer_state, Dtype::fp32),
                     momentum = add_like(part, "outer_momentum", Category::optimizer_state, Dtype::fp32);
      begin.ops.push_back(kernel(OpKind::cast, "begin_anchor", {part}, {anchor}));
      begin.ops.push_back(kernel(OpKind::zero_fill, "begin_outer_momentum", {}, {momentum}));
      const Dtype dtype = kDtypes[static_cast<std::size_t>(options_.dtype)];
      const bool late = options_.delay > 0;
      // Late: what is under way lies in buffers of its own, since the next local steps need the others.
      const TensorId displacement = late ? add_like(part, "sent_displacement", Category::communication_buffer, dtype)
                                         : add_passing(part, "displacement", dtype),
                     average = late ? add_like(part, "mean_displacement", Category::communication_buffer, dtype)
                                    : displacement;
      if (late) {
        piece_.tensors[displacement].common = false;
        begin.ops.push_back(kernel(OpKind::zero_fill, "begin_mean_displacement", {}, {average}));
      }
      outer.ops.push_back(kernel(OpKind::subtract, "displacement", {anchor, part}, {displacement}));
      (late ? exchange : outer).ops.push_back(mean(displacement, average));
      Op step = kernel(OpKind::sgd, "outer_step", {average, anchor, momentum}, {part, anchor, momentum});
      step.scale = 1 / options_.gap_penalty;
      step.learning_rate = static_cast<float>(options_.learning_rate);
      step.momentum = static_cast<float>(options_.momentum);
      step.clip_limit = static_cast<float>(options_.clip);
      step.nesterov = options_.optimizer == OuterOptimizer::nesterov;
      outer.ops.push_back(step);
    }
    hand_out(set, updated, part);
  }

  // The buffer that the set's optimizer updates at full precision: the fp32 copies of parameters, if there are any.
  TensorId updated_by_optimizer(const ParameterSet& set) const {
    for (const Op& op : piece_.update.ops) {
      if (!is_optimizer(op.kind) || op.writes[0] != set.own_parameters) continue;
      return std::ranges::find(op.reads, op.writes[0]) != op.reads.end() ? op.writes[0] : op.writes[1];
    }
    return set.own_parameters;
  }

  // All replicas of a worker have the same values where `buffer` is not divided over them. Each takes a part.
  TensorId own_part(TensorId buffer, std::size_t number) {
    MeshGroup alike = mesh_.group({MeshAxis::dp_shard, MeshAxis::dp_replicate, MeshAxis::cp})
                          .without(piece_.tensors[buffer].divided_over());
    for (const ParameterGradient& p : piece_.parameters)
      if (p.set == number) alike = alike.without(piece_.tensors[p.parameter].divided_over());
    if (alike.empty()) return buffer;
    Tensor part = piece_.tensors[buffer];
    const std::int64_t ranks = mesh_.size(alike);
    part.name = "outer_part";
    part.sizes[0] = (part.sizes[0] + ranks - 1) / ranks;
    part.over[0].append(alike);
    part.alias_of = buffer;
    part.alias_begin = 0;
    part.resident = false;
    return piece_.add(part);
  }

  // Brings what this rank has updated to where the step reads it.
  void hand_out(const ParameterSet& set, TensorId updated, TensorId part) {
    if (part != updated) {
      const MeshGroup over = piece_.tensors[part].divided_over().without(piece_.tensors[updated].divided_over());
      outer.ops.push_back(once(communication(OpKind::all_gather, "outer_gather", Phase::update,
                                             Stream::parameter_communication, over, part, updated)));
    }
    if (updated != set.own_parameters)
      outer.ops.push_back(kernel(OpKind::cast, "outer_cast", {updated}, {set.own_parameters}));
    // The gathers that the update ends with, unless the next forward gathers.
    for (const Op& op : piece_.update.ops)
      if (op.kind == OpKind::all_gather && storage_of(piece_, op.writes[0]) == storage_of(piece_, set.parameters))
        outer.ops.push_back(op);
  }

  Op mean(TensorId from, TensorId to) const {
    Op op = communication(OpKind::all_reduce, "workers.all_reduce", Phase::update, Stream::data_communication,
                          mesh_.group(MeshAxis::worker), from, to);
    op.reduction = Reduction::mean;
    return once(op);
  }
  static Op kernel(OpKind kind, const char* name, std::initializer_list<TensorId> reads,
                   std::initializer_list<TensorId> writes) {
    return once(computation(kind, name, Phase::update, reads, writes));
  }
  static Op once(Op op) {
    op.every = kAllInstances;
    return op;
  }

  TensorId add_passing(TensorId like, const char* name, Dtype dtype) {
    Tensor t = piece_.tensors[like];
    t.name = name;
    t.dtype = dtype;
    t.category = Category::communication_buffer;
    t.alias_of = kNoTensor;
    t.alias_begin = 0;
    t.resident = false;
    return piece_.add(t);
  }
  TensorId add_like(TensorId like, const char* name, Category category, Dtype dtype) {
    const TensorId id = add_passing(like, name, dtype);
    Tensor& t = piece_.tensors[id];
    t.category = category;
    t.resident = t.common = true;
    return id;
  }

  const Options& options_;
  const Mesh& mesh_;
  Piece& piece_;
};

void add_tasks(const Scenario& scenario, Program& program) {
  if (!used(scenario)) return;
  const Options& options = scenario.plan.local;
  constexpr std::uint16_t kStep = 0, kOuterBlock = 1, kExchange = 2;
  const bool late = options.delay > 0, begins = has_anchor(scenario);
  if (program.mesh.group({MeshAxis::ep, MeshAxis::etp}).meets(program.mesh.group(MeshAxis::worker)))
    refuse(scenario.plan, "local_workers",
           "workers that hold all experts: expert_parallel reaches beyond the ranks of a worker");
  for (Piece& piece : program.pieces) {
    Outer outer(options, program.mesh, piece);
    outer.run();
    piece.tasks.push_back(std::move(outer.outer));
    if (late) piece.tasks.push_back(std::move(outer.exchange));
    if (begins) piece.tasks.push_back(std::move(outer.begin));
  }
  program.tasks = {{.name = "local steps", .block = kStep, .repeats = options.steps},
                   {.name = "outer update", .block = kOuterBlock}};
  if (late) {
    constexpr std::uint16_t kExchangeTask = 2;
    program.tasks[1].after = {{.task = kExchangeTask, .lag = 1}};
    program.tasks.push_back({.name = "exchange", .block = kExchange, .beside = true});
  }
  if (begins) program.begin = late ? 3 : 2;
}

void disable(Plan& plan) { plan.local = {}; }

std::vector<std::string> notes(const Scenario& scenario) {
  if (!used(scenario)) return {};
  const std::int64_t steps = scenario.plan.local.steps, oldest = scenario.plan.local.delay > 0 ? 2 * steps : steps;
  return {std::to_string(workers(scenario)) + " workers of " + std::to_string(replicas(scenario)) +
          " replicas train copies of the model for " + std::to_string(steps) +
          " steps before they agree on one; an outer update applies displacements that began up to " +
          std::to_string(oldest) + " steps before (what this costs in convergence is not predicted)"};
}

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
                              .acts = used},
                             {.field = "outer_delay",
                              .label = "late",
                              .chosen_with = ChosenWith::replicas,
                              .set = [](Plan& plan, std::int64_t value) { plan.local.delay = value; },
                              .acts = [](const Scenario& chosen) { return used(chosen) && has_anchor(chosen); }}};

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
          .search_axes = kAxes};
}

}  // namespace orrery::local_updates
