#include "study/search/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <tuple>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/threads.h"
#include "sim/program/rewrite.h"
#include "sim/report/memory_verdict.h"
#include "strategies/pipeline_parallel/schedules.h"
#include "strategies/precision/precision.h"
#include "strategies/strategy.h"
#include "study/prediction/prediction.h"

namespace orrery {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// By which bounds are lowered one after the other, as long as an evaluated plan lies below its own; at last none is
// used.
constexpr std::array<double, 4> kSlacks{0, 0.05, 0.2, 1};
// What sums of the same numbers in another order may differ by.
constexpr double kRounding = 1e-9;

bool faster(const FoundPlan& a, const FoundPlan& b) {
  return std::tuple(a.seconds_a_sequence, a.memory_peak_bytes, a.place) <
         std::tuple(b.seconds_a_sequence, b.memory_peak_bytes, b.place);
}

// The answers among the plans seen so far.
class Answers {
 public:
  explicit Answers(const SearchOptions& options) : options_(&options) {}

  // Plans that take longer a sequence can be none.
  double limit() const {
    if (best_.size() < options_->top) return kNever;
    return std::max(best_.back().seconds_a_sequence, options_->front * best_.front().seconds_a_sequence);
  }
  // Whether a plan that fits can be one if it takes at least that long.
  bool wants(double least_seconds_a_sequence, double memory_peak_bytes) const {
    if (best_.size() < options_->top || least_seconds_a_sequence <= best_.back().seconds_a_sequence) return true;
    if (least_seconds_a_sequence > options_->front * best_.front().seconds_a_sequence) return false;
    const auto slower = std::partition_point(front_.begin(), front_.end(), [&](const FoundPlan& plan) {
      return plan.seconds_a_sequence < least_seconds_a_sequence;
    });
    return slower == front_.begin() || std::prev(slower)->memory_peak_bytes > memory_peak_bytes;
  }
  void add(const FoundPlan& plan) {
    if (!plan.fits) {
      if (!leanest_ ||
          std::pair(plan.memory_peak_bytes, plan.place) < std::pair(leanest_->memory_peak_bytes, leanest_->place))
        leanest_ = plan;
      return;
    }
    add_to_best(plan);
    // Each faster than what is behind it, and fuller.
    const auto at = std::lower_bound(front_.begin(), front_.end(), plan, faster);
    if (at != front_.begin() && std::prev(at)->memory_peak_bytes <= plan.memory_peak_bytes) return;
    auto end = at;
    while (end != front_.end() && end->memory_peak_bytes >= plan.memory_peak_bytes) ++end;
    front_.insert(front_.erase(at, end), plan);
  }
  void add(const Answers& other) {
    for (const FoundPlan& plan : other.best_) add(plan);
    for (const FoundPlan& plan : other.front_) add(plan);
    if (other.leanest_) add(*other.leanest_);
  }
  double least_memory() const { return leanest_ ? leanest_->memory_peak_bytes : kNever; }
  void finish(SearchResult& result) const {
    result.best = best_;
    for (const FoundPlan& plan : front_)
      if (plan.seconds_a_sequence <= options_->front * front_.front().seconds_a_sequence) result.front.push_back(plan);
    if (best_.empty()) result.leanest = leanest_;
  }

 private:
  // Keeps the first of plans that are equal in both, such as meshes whose order does not matter.
  void add_to_best(const FoundPlan& plan) {
    const auto alike = std::find_if(best_.begin(), best_.end(), [&](const FoundPlan& b) {
      return b.seconds_a_sequence == plan.seconds_a_sequence && b.memory_peak_bytes == plan.memory_peak_bytes;
    });
    if (alike != best_.end()) {
      if (plan.place < alike->place) *alike = plan;
      return;
    }
    if (best_.size() == options_->top && !faster(plan, best_.back())) return;
    best_.insert(std::lower_bound(best_.begin(), best_.end(), plan, faster), plan);
    if (best_.size() > options_->top) best_.pop_back();
  }

  const SearchOptions* options_;
  std::vector<FoundPlan> best_, front_;
  std::optional<FoundPlan> leanest_;
};

// Lower bounds of plans without evaluating them (search.h gives the reasons): seconds on the compute stream, for plans
// that run the same micro-batch with the same kernels.
struct ComputeBound {
  double micro_batch = 0;  // one micro-batch through the whole model, without waiting between stages
  double layer = 0;        // products and attention of the fastest layer

  double step_seconds(const Scenario& scenario) const;
};

// The bound from the program that `engine` has evaluated last, without contention. REQUIRES: the program recomputes
// nothing, and replicas communicate only once a step.
ComputeBound compute_bound(const Program& program, const AnalyticalEngine& engine) {
  ComputeBound bound{.micro_batch = engine.micro_batch_seconds(program)};
  bool any = false;
  for (std::size_t c = 0; c < program.micro_batch_classes(); ++c)
    for (const auto& stage : program.stages_of(c))
      for (const Chunk& chunk : stage)
        for (const PieceRun& run : chunk.runs) {
          const Piece& piece = program.pieces[run.piece];
          if (!is_layer(piece) || is_joint(piece)) continue;
          const double seconds = engine.product_seconds(run.piece);
          bound.layer = any ? std::min(bound.layer, seconds) : seconds;
          any = true;
        }
  return bound;
}

double ComputeBound::step_seconds(const Scenario& scenario) const {
  using namespace pipeline_parallel;
  const Options& options = scenario.plan.pipeline;
  const auto stages = static_cast<double>(options.degree);
  const auto n = static_cast<double>(micro_batches(scenario));
  const double mean = n * micro_batch / stages;
  const ScheduleKind kind = effective_schedule(options);
  // Where backward passes are split, the last stage ends with weight gradients that nobody waits for.
  if (options.degree == 1 || kind == ScheduleKind::zb_h1 || is_v(kind)) return mean;
  const std::vector<std::int64_t> layers = split_layers(scenario.model.total_layers(), options);
  const auto degree = static_cast<std::size_t>(options.degree);
  // The last stage starts behind a chunk of every stage before it, and its last backward goes back through as many.
  double on_the_way = 0, on_last = 0;
  const std::int64_t least = *std::min_element(layers.begin(), layers.end());
  on_the_way = (stages - 1) * static_cast<double>(least) * layer;
  for (std::size_t q = degree - 1; q < layers.size(); q += degree) on_last += static_cast<double>(layers[q]) * layer;
  return std::max(mean, n * on_last + on_the_way);
}

// Plans with the same kernels, and what bounds them.
struct Group {
  std::vector<std::int64_t> values;
  ComputeBound compute;
  double least_seconds_a_sequence = 0;
};

// What a thread evaluates with.
class Evaluator {
 public:
  Evaluator(const Space& space, const UserCalibration& user, const std::vector<FigureLimit>& limits)
      : scenario(space.base()), calibrator_(user), limits_(limits) {}

  Scenario scenario;

  // Throws InputError where the plan cannot be laid out, or is beyond a limit.
  const Report& evaluate_memory() {
    // A calibration is looked up once for each stack, kind of kernel and number of ranks: all that it goes by.
    const std::tuple key{stack_of(scenario), scenario.plan.framework.attention_kernel, ranks(scenario)};
    if (engine_ == nullptr || key != key_) {
      check(scenario);
      engine_.reset();
      cluster_ = scenario.cluster;
      const Calibration& kernels = calibrator_.kernels(cluster_, scenario);
      const CollectiveCalibration& collectives = calibrator_.collectives(cluster_, {&std::get<0>(key), 1});
      engine_ = std::make_unique<AnalyticalEngine>(cluster_, kernels, collectives);
      key_ = key;
    }
    calibrator_.lower(scenario, program_);
    if (!limits_.empty()) expect_within_limits();
    engine_->evaluate_memory(program_, report_);
    return report_;
  }
  // Behind it, of the same plan.
  double least_pipeline_seconds() { return engine_->least_pipeline_seconds(program_); }
  const Report& evaluate() {
    engine_->evaluate(program_, precision::peak_dtype(scenario), {}, report_);
    check_ends(report_);
    return report_;
  }
  double resting_bytes() const { return engine_->resting_bytes(program_); }
  ComputeBound compute() const { return compute_bound(program_, *engine_); }

 private:
  void expect_within_limits() const {
    const std::vector<Figure> figures = figures_of(scenario, program_);
    for (const FigureLimit& limit : limits_) {
      const auto figure = std::ranges::find(figures, limit.kind, &Figure::kind);
      const double value = figure == figures.end() ? limit.kind->otherwise : figure->value;
      if (value > limit.most)
        throw InputError({"--at-most", ""}, fmt::format("{} {:g}", limit.kind->key, value),
                         fmt::format("{} of at most {:g}", limit.kind->key, limit.most));
    }
  }

  Calibrator calibrator_;
  const std::vector<FigureLimit>& limits_;
  Cluster cluster_;
  std::tuple<std::string, framework::AttentionKernel, std::int64_t> key_;  // of what `engine_` goes by
  std::unique_ptr<AnalyticalEngine> engine_;
  Program program_;
  Report report_;
};

// What parameters, gradients and states of plans of one group are divided by.
struct Division {
  std::int64_t virtual_stages;
  pipeline_parallel::ScheduleKind schedule;
  std::vector<std::int64_t> replicas;  // values of ChosenWith::replicas and shards
  auto operator<=>(const Division&) const = default;
};

class Search {
 public:
  // `slack`: by which part bounds are lowered. `leanest`: it is known that nothing fits, and the plan with the lowest
  // peak is wanted.
  Search(const Space& space, const SearchOptions& options, const UserCalibration& user, double slack,
         bool leanest = false)
      : space_(space),
        options_(options),
        user_(user),
        surely_((1 - kRounding) * (1 - slack)),
        leanest_(leanest),
        answers_(options),
        evaluators_(static_cast<std::size_t>(options.threads)) {
    most_memory_ = options.most_memory_bytes > 0 ? options.most_memory_bytes : space.base().cluster.device.memory_bytes;
    for (std::size_t i = space.group_axes(); i < space.axes().size(); ++i)
      if (space.axes()[i].chosen_with >= ChosenWith::replicas) replica_axes_.push_back(i);
    for (const Strategy& strategy : all_strategies())
      if (strategy.spares_activations != nullptr) spare_activations_.push_back(strategy.spares_activations);
  }

  SearchResult run() {
    find_groups();
    bound_groups();
    evaluate_groups();
    answers_.finish(result_);
    return std::move(result_);
  }

 private:
  Evaluator& evaluator_of(std::size_t thread) {
    std::unique_ptr<Evaluator>& evaluator = evaluators_[thread];
    if (evaluator == nullptr) evaluator = std::make_unique<Evaluator>(space_, user_, options_.limits);
    return *evaluator;
  }

  void find_groups() {
    Scenario scenario = space_.base();
    std::vector<std::int64_t> values;
    space_.for_each(scenario, values, space_.group_axes(),
                    [&](const Scenario&, const std::vector<std::int64_t>& chosen) {
                      groups_.push_back({chosen, {}, 0});
                    });
  }

  // The bound is of the plan's layers with the least around them: of three micro-batches one neither adds to gradients
  // nor has them reduced. None where that cannot be laid out.
  static ComputeBound bound(Evaluator& evaluator) {
    Scenario& scenario = evaluator.scenario;
    const Plan plan = scenario.plan;
    const Workload workload = scenario.workload;
    scenario.workload.global_batch_size = 3 * data_parallel_degree(scenario) * plan.batch.micro_batch_size;
    for (const Strategy& strategy : all_strategies())
      if (strategy.relax != nullptr) strategy.relax(scenario.plan);
    ComputeBound bound;
    try {
      evaluator.evaluate_memory();
      evaluator.least_pipeline_seconds();
      bound = evaluator.compute();
    } catch (const InputError&) {  // said where the group is evaluated
    }
    scenario.plan = plan;
    scenario.workload = workload;
    return bound;
  }

  // The best plans first: of a trillion parameters' groups in the order of their mean stages, half as many plans again
  // are evaluated.
  void bound_groups() {
    if (options_.exhaustive) return;
    for_each_index(groups_.size(), options_.threads, [&](std::size_t g, std::size_t thread) {
      Group& group = groups_[g];
      Evaluator& evaluator = evaluator_of(thread);
      choose(group, evaluator.scenario);
      group.compute = bound(evaluator);
      group.least_seconds_a_sequence = kNever;
      std::vector<std::int64_t> values = group.values;
      space_.for_each(evaluator.scenario, values, space_.axes().size(),
                      [&](const Scenario& scenario, const std::vector<std::int64_t>&) {
                        group.least_seconds_a_sequence =
                            std::min(group.least_seconds_a_sequence,
                                     seconds_a_sequence(group.compute.step_seconds(scenario), scenario));
                      });
    });
    std::stable_sort(groups_.begin(), groups_.end(), [](const Group& a, const Group& b) {
      return a.least_seconds_a_sequence < b.least_seconds_a_sequence;
    });
  }

  // Rounds of groups, of which none knows what the others of its round find: so the result is that of any number of
  // threads.
  void evaluate_groups() {
    constexpr std::size_t kMostInRound = 16;
    std::size_t in_round = 1;
    for (std::size_t first = 0; first < groups_.size();
         first += in_round, in_round = std::min(2 * in_round, kMostInRound)) {
      const std::size_t count = std::min(in_round, groups_.size() - first);
      std::vector<Found> found(count, Found(options_));
      const Limits limits{options_.exhaustive ? kNever : answers_.limit(), answers_.least_memory()};
      for_each_index(count, options_.threads, [&](std::size_t i, std::size_t thread) {
        evaluate(groups_[first + i], first + i, limits, evaluator_of(thread), found[i]);
      });
      for (const Found& f : found) add(f);
      if (options_.progress)
        options_.progress({.considered = result_.considered, .groups = first + count, .all_groups = groups_.size()});
    }
  }

  struct Limits {
    double seconds_a_sequence, leanest_bytes;
  };
  struct Found {
    explicit Found(const SearchOptions& options) : answers(options) {}
    Answers answers;
    SearchResult counts;
  };

  void add(const Found& found) {
    answers_.add(found.answers);
    const SearchResult& c = found.counts;
    result_.considered += c.considered;
    result_.evaluated += c.evaluated;
    result_.too_slow += c.too_slow;
    result_.too_large += c.too_large;
    result_.refused += c.refused;
    result_.feasible += c.feasible;
    result_.bounds_held = result_.bounds_held && c.bounds_held;
    for (const auto& [why, times] : c.refusals) result_.refusals[why] += times;
  }

  // Nothing of the group before stays in `scenario`.
  void choose(const Group& group, Scenario& scenario) const {
    scenario.plan = space_.base().plan;
    scenario.workload = space_.base().workload;
    for (std::size_t i = 0; i < group.values.size(); ++i) space_.axes()[i].set(scenario, group.values[i]);
  }
  static double seconds_a_sequence(double step_seconds, const Scenario& scenario) {
    return step_seconds / static_cast<double>(scenario.workload.global_batch_size);
  }

  void evaluate(const Group& group, std::size_t number, const Limits& limits, Evaluator& evaluator, Found& found) {
    choose(group, evaluator.scenario);
    std::vector<std::int64_t> values = group.values;
    std::map<Division, double> resting;                             // bytes
    std::map<std::vector<std::int64_t>, double> keeps_activations;  // seconds a sequence, by what else is chosen
    SearchResult& counts = found.counts;
    std::uint64_t place = static_cast<std::uint64_t>(number) << 32;
    const auto one = [&](const Scenario& scenario, const std::vector<std::int64_t>& chosen) {
      ++counts.considered;
      ++place;
      double least_seconds = 0, *known_bytes = nullptr;
      if (!options_.exhaustive) {
        const double slowest = std::min(limits.seconds_a_sequence, found.answers.limit());
        least_seconds = seconds_a_sequence(group.compute.step_seconds(scenario), scenario) * surely_;
        if (least_seconds <= slowest && !is_plain(scenario.plan))
          if (const auto plain = keeps_activations.find(but_activations(chosen)); plain != keeps_activations.end())
            least_seconds = std::max(least_seconds, plain->second);
        if (least_seconds > slowest) return void(++counts.too_slow);
        known_bytes = &resting.try_emplace(division(scenario, chosen), 0).first->second;
        const double most = leanest_ ? std::min(limits.leanest_bytes, found.answers.least_memory())
                                     : most_memory_ / options_.memory_margin;
        if (*known_bytes > most) return void(++counts.too_large);
      }
      try {
        const Report& report = evaluator.evaluate_memory();
        ++counts.evaluated;
        FoundPlan plan{.values = chosen, .memory_peak_bytes = report.memory_peak_bytes, .place = place};
        const bool surely = options_.memory_margin <= 1 || !host_is_tight(report);
        const bool in_shared = report.host_memory.fits() && report.storage.fits() && surely;
        plan.fits = in_shared && plan.memory_peak_bytes * options_.memory_margin <= most_memory_;
        if (known_bytes != nullptr) {
          if (*known_bytes == 0) *known_bytes = evaluator.resting_bytes() * surely_;
          if (plan.memory_peak_bytes < *known_bytes) counts.bounds_held = false;
        }
        counts.feasible += plan.fits ? 1 : 0;
        const bool plain = is_plain(scenario.plan);
        if (!options_.exhaustive && (plan.fits || plain)) {
          least_seconds =
              std::max(least_seconds, seconds_a_sequence(evaluator.least_pipeline_seconds(), scenario) * surely_);
          if (plain) keeps_activations[but_activations(chosen)] = least_seconds;
        }
        if (!plan.fits) return found.answers.add(plan);
        if (!options_.exhaustive && !(answers_.wants(least_seconds, plan.memory_peak_bytes) &&
                                      found.answers.wants(least_seconds, plan.memory_peak_bytes)))
          return;
        plan.step_seconds = evaluator.evaluate().step_seconds;
        plan.seconds_a_sequence = seconds_a_sequence(plan.step_seconds, scenario);
        if (plan.seconds_a_sequence < least_seconds) counts.bounds_held = false;
        found.answers.add(plan);
      } catch (const InputError& error) {
        ++counts.refused;
        const InputError::Where& where = error.where();
        ++counts.refusals[(where.pointer.empty() ? where.file : where.pointer) + ": expected " + error.expected()];
      }
    };
    space_.for_each(evaluator.scenario, values, space_.axes().size(), one);
  }

  bool is_plain(const Plan& plan) const {
    return std::ranges::none_of(spare_activations_, [&](const auto spares) { return spares(plan); });
  }
  std::vector<std::int64_t> but_activations(std::vector<std::int64_t> chosen) const {
    for (std::size_t i = 0; i < chosen.size(); ++i)
      if (space_.axes()[i].chosen_with == ChosenWith::activations) chosen[i] = 0;
    return chosen;
  }

  Division division(const Scenario& scenario, const std::vector<std::int64_t>& chosen) const {
    Division d{pipeline_parallel::chunks_per_stage(scenario.plan.pipeline), scenario.plan.pipeline.schedule, {}};
    for (const std::size_t axis : replica_axes_) d.replicas.push_back(chosen[axis]);
    return d;
  }

  const Space& space_;
  const SearchOptions& options_;
  const UserCalibration& user_;
  const double surely_;  // times a bound
  const bool leanest_;
  double most_memory_ = 0;
  std::vector<std::size_t> replica_axes_;
  std::vector<bool (*)(const Plan&)> spare_activations_;  // of strategies
  std::vector<Group> groups_;
  Answers answers_;
  SearchResult result_;
  std::vector<std::unique_ptr<Evaluator>> evaluators_;  // by thread
};

}  // namespace

SearchResult search(const Space& space, const SearchOptions& options, const UserCalibration& user) {
  SearchResult result;
  SearchOptions of_attempt = options;
  of_attempt.threads = 1 + startable_threads(options.threads - 1);
  // The micro-batches of plans with other replicas have other documents: none bounds another.
  const bool exhaustive = options.exhaustive || space.base().workload.has_documents();
  for (const double slack : kSlacks) {
    of_attempt.exhaustive = exhaustive || slack == kSlacks.back();
    result = Search(space, of_attempt, user, slack).run();
    result.bound_slack = exhaustive ? 0 : slack;
    if (!result.bounds_held) continue;
    if (options.leanest && result.best.empty() && result.too_large > 0)
      result.leanest = Search(space, of_attempt, user, slack, /*leanest=*/true).run().leanest;
    break;
  }
  return result;
}

}  // namespace orrery
