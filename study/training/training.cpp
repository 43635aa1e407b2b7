#include "study/training/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <optional>
#include <unordered_set>
#include <utility>

#include "sim/analytical/op_cost.h"
#include "sim/base/digest.h"
#include "sim/base/error.h"
#include "sim/cost/collective_cost.h"
#include "strategies/strategy.h"
#include "traces/routing.h"

namespace orrery {
namespace {

// Places of a group as ranks `stride` apart, in a cluster's nodes.
struct Places {
  CollectiveModel model;
  std::int64_t stride = 1, per_node = 1;

  std::int64_t node_of(std::int64_t place) const { return place * stride / per_node; }
};

double send_seconds(const Places& places, double bytes, std::int64_t from, std::int64_t to) {
  if (from == to) return 0;
  // A message leaves the node by its distance: within one, however far apart, it does not.
  const bool inside = places.node_of(from) == places.node_of(to);
  return places.model.transfer_seconds(bytes,
                                       inside ? std::min<std::int64_t>(places.stride, places.per_node - 1)
                                              : places.per_node * std::abs(places.node_of(to) - places.node_of(from)),
                                       1);
}

double all_reduce_seconds(const Places& places, double bytes, std::span<const std::int64_t> ranks) {
  if (ranks.size() < 2) return 0;
  std::vector<std::int64_t> nodes;
  for (const std::int64_t rank : ranks) nodes.push_back(places.node_of(rank));
  std::ranges::sort(nodes);
  GroupSpan span;
  span.ranks = static_cast<std::int64_t>(ranks.size());
  span.nodes = span.ranks_per_node = 0;
  for (auto at = nodes.begin(); at != nodes.end(); ++span.nodes) {
    const auto end = std::upper_bound(at, nodes.end(), *at);
    span.ranks_per_node = std::max<std::int64_t>(span.ranks_per_node, end - at);
    at = end;
  }
  span.stride = places.stride;
  span.groups_sharing_nics = std::max<std::int64_t>(1, places.per_node / span.ranks_per_node);  // all sum at once
  return places.model.cost(OpKind::all_reduce, bytes, span).seconds;
}

// A layer's experts: the ranks that they are divided over, and rows a second through their products.
struct Experts {
  MeshGroup ranks;
  double tokens_per_second = 0;
};
Experts experts_of(const Prepared& prepared) {
  const Program& program = *prepared.program;
  OpCostModel costs(prepared.scenario.cluster, *prepared.kernels, *prepared.collectives);
  costs.set_program(program);
  for (const Piece& piece : program.pieces) {
    Experts experts;
    double seconds = 0, rows = 0;
    for (const Op& op : piece.forward.ops) {
      if (!is_matmul(op.kind) || op.group_dims == 0) continue;
      const Tensor& x = piece.tensors[op.reads[0]];
      rows = static_cast<double>(x.sizes[0] * x.sizes[1]);
      seconds += costs.cost(op, piece.tensors, 1).seconds;
      experts.ranks = x.over[0].group();
    }
    experts.tokens_per_second = seconds > 0 ? rows / seconds : 0;
    if (seconds > 0) return experts;
  }
  return {};
}

// The costs by which controllers weigh changes, from the engines' cost models: for the expert groups of a prepared
// scenario; all are 0 without experts. The functions hold copies of the data they need.
StepMoveCosts run_costs(const Prepared& prepared) {
  const Cluster& cluster = prepared.scenario.cluster;
  const Mesh& mesh = prepared.program->mesh;
  const Experts experts = experts_of(prepared);
  const GroupSpan span = span_of(mesh, experts.ranks, cluster.node.devices);
  const auto places = std::make_shared<const Places>(
      Places{CollectiveModel(cluster, *prepared.collectives), span.stride, cluster.node.devices});
  return {.send_seconds = [places](double bytes, std::int64_t from,
                                   std::int64_t to) { return send_seconds(*places, bytes, from, to); },
          .all_reduce_seconds =
              [places](double bytes, std::span<const std::int64_t> ranks) {
                return all_reduce_seconds(*places, bytes, ranks);
              },
          .group_seconds = [places, span](OpKind kind,
                                          double bytes) { return places->model.cost(kind, bytes, span).seconds; },
          .expert_tokens_per_second = experts.tokens_per_second};
}

// Mixed: states are small numbers, which FNV alone would let make up for each other.
std::uint64_t joined(std::uint64_t digest, std::uint64_t next) {
  return digest_of({reinterpret_cast<const char*>(&next), sizeof next}, mixed(digest));
}

// Communication of the bounding stage, all streams together as if one followed the other.
double link_seconds(const Report& report) {
  double seconds = 0;
  for (const OpReport& op : report.ops)
    if (op.stream != Stream::compute && op.bytes > 0) seconds += op.seconds * op.times_per_step;
  return std::min(seconds, report.step_seconds);
}

StepOutcome outcome_of(const Report& report) {
  StepOutcome outcome;
  outcome.seconds = report.step_seconds;
  outcome.tokens_per_second_per_device = report.tokens_per_second_per_device;
  outcome.mfu = report.mfu;
  outcome.exposed_communication_seconds = report.exposed_communication_seconds;
  outcome.idle_link_seconds = report.step_seconds - link_seconds(report);
  outcome.memory_peak_bytes = report.memory_peak_bytes;
  outcome.memory_capacity_bytes = report.memory_capacity_bytes;
  outcome.memory_fits = report.memory_fits;
  for (const FigureKind* kind : figure_columns()) {
    const Figure* figure = report.figure(kind->group, kind->key);
    outcome.figures.push_back(figure != nullptr ? figure->value : kind->otherwise);
  }
  return outcome;
}

// Work that goes on beside steps, one after another.
struct Moving {
  TrainingController* of = nullptr;
  double seconds = 0;
  bool last = false;  // of what its controller has left at once
};

class Runner {
 public:
  Runner(Simulator& simulator, const Scenario& scenario, std::vector<std::unique_ptr<TrainingController>> controllers,
         const TrainingOptions& options)
      : simulator_(simulator), options_(options), scenario_(scenario), controllers_(std::move(controllers)) {
    std::int64_t& step = scenario_.workload.step;
    if (step == 0 && scenario.workload.recorded_routing)
      step = std::max<std::int64_t>(0, scenario.workload.recorded_routing->shape().steps.front());
    if (step + options.steps - 1 > Workload::kMostSteps)
      throw InputError({"--steps", ""}, std::to_string(options.steps),
                       fmt::format("steps up to number {} from {} on", Workload::kMostSteps, step));
    training_.first_step = step;
    training_.steps = options.steps;
    for (const std::string_view name : kTrainingColumns) training_.columns.push_back({std::string(name), {}});
    for (const FigureKind* kind : figure_columns()) training_.columns.push_back({kind->column, {}});
    if (options_.known == nullptr) options_.known = &own_;
  }

  Training run() {
    introduce_controllers();
    for (std::int64_t done = 0; done < options_.steps; ++done) {
      if (done > 0) ++scenario_.workload.step;
      take_step();
      if (options_.progress) options_.progress(done + 1, predicted_);
    }
    for (const Moving& work : moving_) training_.unfinished_seconds += work.seconds;
    return std::move(training_);
  }

 private:
  Simulation simulate() {
    SimulationOptions all = options_.simulation;
    all.ops = true;
    return simulator_.evaluate(scenario_, all);
  }

  void introduce_controllers() {
    Simulation first = simulate();
    costs_ = run_costs(first);
    first_ = outcome_of(first.report);
    training_.first = std::move(first.report);
    training_.first.ops.clear();
    for (const auto& controller : controllers_) {
      controller->use(costs_);
      for (const std::string_view name : controller->figures()) training_.columns.push_back({std::string(name), {}});
    }
  }

  const StepOutcome& outcome() {
    std::uint64_t key = options_.digest;
    for (const auto& controller : controllers_) key = joined(key, controller->state(scenario_));
    training_.different += met_.insert(key).second ? 1 : 0;
    const auto known = options_.known->find(key);
    if (known != options_.known->end()) return known->second;
    ++predicted_;
    // The first step has been predicted already, as controllers leave it as it is.
    const StepOutcome& found =
        options_.known->emplace(key, first_ ? *first_ : outcome_of(simulate().report)).first->second;
    if (options_.found) options_.found(key, found);
    return found;
  }

  void take_step() {
    for (const auto& controller : controllers_) controller->begin(scenario_, scenario_.situation);
    const StepOutcome& step = outcome();
    first_.reset();
    const double waited = std::exchange(waiting_, 0.0);
    std::vector<double> values{static_cast<double>(scenario_.workload.step),
                               training_.seconds,
                               step.seconds,
                               waited,
                               0,
                               step.tokens_per_second_per_device,
                               step.mfu,
                               step.exposed_communication_seconds,
                               step.memory_peak_bytes};
    values.insert(values.end(), step.figures.begin(), step.figures.end());
    for (const auto& controller : controllers_) controller->figures(scenario_, values);
    move(step.idle_link_seconds);  // what arrives by it is the next step's
    training_.seconds += waited + step.seconds;
    training_.memory_capacity_bytes = step.memory_capacity_bytes;
    training_.memory_fits = training_.memory_fits && step.memory_fits;
    for (const auto& controller : controllers_) leave(*controller);
    for (const Moving& work : moving_) values[kMovingColumn] += work.seconds;
    for (std::size_t i = 0; i < values.size(); ++i) training_.columns[i].values.push_back(values[i]);
  }

  // What was under way goes on while links idle.
  void move(double seconds) {
    while (!moving_.empty() && seconds > 0) {
      Moving& work = moving_.front();
      const double now = std::min(seconds, work.seconds);
      seconds -= now;
      work.seconds -= now;
      if (work.seconds > 0) break;
      if (work.last) work.of->arrived();
      moving_.pop_front();
    }
  }

  void leave(TrainingController& controller) {
    const std::vector<StepMove> left = controller.end(scenario_);
    bool beside = false, arrives = false;
    for (const StepMove& work : left) {
      arrives = arrives || work.arrives;
      if (work.blocking) {
        waiting_ += work.seconds;
      } else {
        moving_.push_back({&controller, work.seconds});
        beside = true;
      }
    }
    if (!arrives) return;
    if (beside) {
      moving_.back().last = true;
    } else {
      controller.arrived();
    }
  }

  static constexpr std::size_t kMovingColumn = 4;

  Simulator& simulator_;
  TrainingOptions options_;
  Scenario scenario_;  // of the step
  StepMoveCosts costs_;
  std::vector<std::unique_ptr<TrainingController>> controllers_;
  Training training_;
  std::deque<Moving> moving_;
  std::optional<StepOutcome> first_;       // of the first step, until it is taken
  std::unordered_set<std::uint64_t> met_;  // keys of this training
  std::int64_t predicted_ = 0;             // steps that an engine was asked for
  double waiting_ = 0;                     // that the next step waits
  KnownOutcomes own_;
};

}  // namespace

const std::vector<double>& Training::column(std::string_view name) const {
  return std::ranges::find(columns, name, &TrainingColumn::name)->values;
}

std::span<const FigureKind* const> figure_columns() {
  static const std::vector<const FigureKind*> columns = [] {
    std::vector<const FigureKind*> all;
    std::ranges::copy_if(all_figure_kinds(), std::back_inserter(all),
                         [](const FigureKind* kind) { return *kind->column != '\0'; });
    return all;
  }();
  return columns;
}

std::vector<std::unique_ptr<TrainingController>> controllers_of(const Scenario& scenario) {
  std::vector<std::unique_ptr<TrainingController>> controllers;
  for (const Strategy& strategy : all_strategies())
    if (strategy.control != nullptr)
      if (auto controller = strategy.control(scenario)) controllers.push_back(std::move(controller));
  return controllers;
}

Training train(Simulator& simulator, const Scenario& scenario, const TrainingOptions& options) {
  check(scenario);  // controllers take what holds for scenarios that can be lowered
  return train(simulator, scenario, controllers_of(scenario), options);
}

Training train(Simulator& simulator, const Scenario& scenario,
               std::vector<std::unique_ptr<TrainingController>> controllers, const TrainingOptions& options) {
  return Runner(simulator, scenario, std::move(controllers), options).run();
}

}  // namespace orrery
