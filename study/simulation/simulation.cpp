#include "study/simulation/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/json_reader.h"
#include "sim/cost/step_calibration.h"
#include "sim/hardware/read_placement.h"
#include "sim/report/format.h"
#include "sim/report/terms.h"
#include "strategies/framework/framework.h"
#include "strategies/precision/precision.h"
#include "strategies/strategy.h"
#include "study/prediction/planning_notes.h"

namespace orrery {

struct Simulator::Rep {
  explicit Rep(UserCalibration user) : calibrator(std::move(user)) {}

  // A cluster as a stack finds it, and the engine that knows it.
  struct Machine {
    Machine(const Cluster& of, const Calibration& k, const CollectiveCalibration& c)
        : cluster(of), kernels(k), collectives(c), engine(cluster, kernels, collectives) {}
    Cluster cluster;
    const Calibration& kernels;
    CollectiveCalibration collectives;
    AnalyticalEngine engine;
    std::shared_ptr<const Cluster> written{};                         // of variants
    std::array<std::unique_ptr<Machine>, kOtherPlacements> placed{};  // otherwise, where a scenario has asked
  };

  ScenarioReader reader;
  Calibrator calibrator;
  // Of variants.
  Scenario scenario;
  Program program;
  Report report, placed_report;
  // By all that a calibration goes by: the cluster as written, the kernel of attention, ranks of a node, the stack.
  std::map<std::tuple<const Cluster*, std::string_view, std::int64_t, std::string>, std::unique_ptr<Machine>> machines;

  Machine& machine_of(const ScenarioReader::Parts& parts);
  void evaluate(Machine& machine, const Scenario& of, const Program& lowered, const AnalyticalOptions& options,
                Report& into);
};

// For `scenario`, whose parts these are.
Simulator::Rep::Machine& Simulator::Rep::machine_of(const ScenarioReader::Parts& parts) {
  const std::string stack = stack_of(scenario);
  const std::tuple key{parts.cluster.get(), framework::attention_kernel(scenario.plan, scenario.cluster.device),
                       std::min(scenario.cluster.node.devices, ranks(scenario)), stack};
  if (const auto found = machines.find(key); found != machines.end()) return *found->second;
  constexpr std::size_t kMost = 64;  // of a sweep over clusters each may come once
  if (machines.size() >= kMost) machines.clear();
  const Calibration& kernels = calibrator.kernels(scenario.cluster, scenario);
  auto machine =
      std::make_unique<Machine>(scenario.cluster, kernels, calibrator.collectives(scenario.cluster, {&stack, 1}));
  machine->written = parts.cluster;
  return *machines.emplace(key, std::move(machine)).first->second;
}

std::string method_text(const SimulationOptions& options) {
  std::string text(kEngineNames[static_cast<std::size_t>(options.engine)]);
  if (options.engine == Engine::des)
    text += fmt::format(" {} {}", kFidelityNames[static_cast<std::size_t>(options.fidelity)],
                        kRoutingNames[static_cast<std::size_t>(options.routing)]);
  return text;
}

Simulator::Simulator(UserCalibration user) : rep_(std::make_unique<Rep>(std::move(user))) {}
Simulator::~Simulator() = default;

void Simulator::use(const StepCalibration& steps) {
  if (&steps != &rep_->calibrator.steps()) rep_->machines.clear();
  rep_->calibrator.use(steps);
}

namespace {

// If the cluster is in production (Cluster::production): adds the median job's loss there to the step
// (sim/cost/step_calibration.h) as a term of its own, widens Report::expected by the differences between jobs, and
// notes both. For either engine's report.
void add_production(const Cluster& cluster, Report& report) {
  if (!cluster.production) return;
  const ProductionSlowdown& slowdown = scale_figures().production;
  const double before = report.step_seconds, factor = 1 + slowdown.median;
  for (StageReport& stage : report.stages) stage.time.production += slowdown.median * before;
  for (double* seconds : {&report.step_seconds, &report.pipeline_seconds, &report.iteration_seconds})
    *seconds *= factor;
  for (TaskReport& task : report.tasks)
    for (double* seconds : {&task.seconds, &task.waiting_seconds, &task.begin_seconds, &task.end_seconds})
      *seconds *= factor;
  for (double* rate : rates(report)) *rate /= factor;
  if (report.expected) {
    report.expected->low_seconds *= 1 + slowdown.better_tenth();
    report.expected->high_seconds *= 1 + slowdown.worse_tenth();
  }
  report.notes.push_back(
      fmt::format("on a shared production cluster the median job's steps take {} longer, and those of one job in ten "
                  "{} or more; measured on jobs with at least 128 devices (results/calibration/scale.json)",
                  percent_text(slowdown.median), percent_text(slowdown.worse_tenth())));
  summarise_bounding_stage(report);
}

constexpr const char* kOffloadIsFree =
    "activations are copied to host memory and back: the analytical engine hides most copies behind kernels, even "
    "where the link cannot carry them all in time; --engine des shows what waits for them";
constexpr const char* kCopiesMeetNothing =
    "the analytical engine assumes that copies of optimizer states have PCIe to themselves; where devices share a "
    "switch with each other or with NICs, --engine des shows what waits";
constexpr const char* kPerturbationsIgnored =
    "the scenario's perturbations are ignored: only the discrete-event engine uses them (--engine des)";

std::optional<ExpectedStep> expected_step(const IntervalClass& of, const Report& report) {
  const std::optional<StepInterval> found = step_interval(of);
  if (!found) return std::nullopt;
  return ExpectedStep{.low_seconds = found->low * report.step_seconds,
                      .high_seconds = found->high * report.step_seconds,
                      .comparable = found->comparable,
                      .points = found->points,
                      .sources = found->sources};
}

DiscreteEventOptions discrete_event_options(const SimulationOptions& options) {
  return {.fidelity = options.fidelity,
          .routing = options.routing,
          .most_exact_works = options.most_exact_works,
          .most_works = options.most_works,
          .timeline = options.timeline,
          .ops = options.ops};
}

// Time lost to contention, by link.
std::map<std::string, double> seconds_lost(const Report& report) {
  std::map<std::string, double> lost;
  if (report.discrete_event)
    for (const ContentionReport& c : report.discrete_event->contention) lost[c.link] += c.seconds - c.seconds_alone;
  return lost;
}

std::string most_shared_link(const Report& alone, const Report& together) {
  const auto before = seconds_lost(alone);
  std::string link;
  double most = 0;
  for (const auto& [name, seconds] : seconds_lost(together)) {
    const auto found = before.find(name);
    const double more = seconds - (found == before.end() ? 0 : found->second);
    if (more <= most) continue;
    most = more;
    link = name;
  }
  return link;
}

void add_planning_notes(const Scenario& scenario, const Program& program, Report& report) {
  for (std::string& note : planning_notes(scenario, program)) report.notes.push_back(std::move(note));
}

// What comes last: the production cluster's share, and what is to be said of the figures then.
void finish(const Cluster& cluster, Report& report) {
  add_production(cluster, report);
  if (std::string note = utilisation_note(report); !note.empty()) report.notes.push_back(std::move(note));
}

void add_placement_note(const Cluster& cluster, std::int64_t ranks, Report& report,
                        const std::function<double(OtherPlacement)>& step_on) {
  if (cluster.is_scattered() && lie_leaf_by_leaf(cluster)) return;  // on other leaves than the first
  std::string note = placement_note(cluster, ranks, report.step_seconds, step_on);
  if (!note.empty()) report.notes.push_back(std::move(note));
}

// For a report by events: what placement costs in closed form, step against step, since more simulated steps would take
// several times as long.
void add_placement_note_in_closed_form(const Prepared& prepared, Report& report) {
  const Cluster& cluster = prepared.scenario.cluster;
  if (!cluster.is_scattered() && !(cluster.fabric.oversubscription > 1)) return;
  Prepared undisturbed = prepared;
  const auto step_on = [&](OtherPlacement other) {
    undisturbed.scenario.cluster = placed(cluster, other);
    return predict(undisturbed).step_seconds;
  };
  Report closed;
  closed.step_seconds = predict(prepared).step_seconds;
  add_placement_note(cluster, prepared.program->mesh.ranks(), closed, step_on);
  for (const std::string& note : closed.notes) report.notes.push_back("in closed form, " + note);
}

// What the analytical engine's report says beyond the engine.
void complete(const Scenario& scenario, const Program& program, const Calibration& kernels,
              const CollectiveCalibration& collectives, const StepCalibration& steps, Report& report) {
  add_planning_notes(scenario, program, report);
  if (!scenario.perturbations.empty()) report.notes.emplace_back(kPerturbationsIgnored);
  if (scenario.plan.activation_offload.offload) report.notes.emplace_back(kOffloadIsFree);
  if (scenario.plan.offload.optimizer && scenario.cluster.node.devices > 1)
    report.notes.emplace_back(kCopiesMeetNothing);
  // What was published ran undisturbed, and was predicted in closed form.
  if (const IntervalClass of = interval_class(scenario, kernels, collectives); steps.stacks.contains(of.stack))
    report.expected = expected_step(of, report);
  finish(scenario.cluster, report);
}

}  // namespace

void Simulator::Rep::evaluate(Machine& machine, const Scenario& of, const Program& lowered,
                              const AnalyticalOptions& options, Report& into) {
  const Dtype dtype = precision::peak_dtype(of);
  machine.engine.evaluate(lowered, dtype, options, into);
  check_ends(into);
  into.figures = figures_of(of, lowered);
  add_placement_note(machine.cluster, lowered.mesh.ranks(), into, [&](OtherPlacement other) {
    std::unique_ptr<Machine>& there = machine.placed[static_cast<std::size_t>(other)];
    if (!there) there = std::make_unique<Machine>(placed(machine.cluster, other), machine.kernels, machine.collectives);
    there->engine.evaluate(lowered, dtype, {}, placed_report);
    check_ends(placed_report);
    return placed_report.step_seconds;
  });
  complete(of, lowered, machine.kernels, machine.collectives, calibrator.steps(), into);
}

Variant Simulator::variant(std::string line, ScenarioSource source) {
  Variant variant{std::move(line), std::move(source)};
  variant.parts = rep_->reader.read_parts(variant.line, variant.source);
  return variant;
}

nlohmann::json Variant::document() const {
  nlohmann::json document = parse_json(line, source.file);
  for (const std::string& set : source.sets) apply_set(document, set, source.file);
  return document;
}

std::optional<std::uint64_t> Variant::digest() const {
  if (parts) return parts->digest;
  try {
    return scenario_digest(written_out(document(), source));
  } catch (const InputError&) {
    return std::nullopt;
  }
}

const Report& Simulator::evaluate(const Variant& variant, bool ops) {
  if (variant.parts) {
    const ScenarioReader::Parts& parts = *variant.parts;
    try {
      Scenario& scenario = rep_->scenario;  // whose strings keep their storage
      scenario.model = *parts.model;
      scenario.cluster = *parts.cluster;
      scenario.workload = *parts.workload;
      scenario.plan = *parts.plan;
      Rep::Machine& machine = rep_->machine_of(parts);
      scenario.cluster = machine.cluster;
      rep_->calibrator.lower(scenario, rep_->program);
      rep_->evaluate(machine, scenario, rep_->program, {.timeline = false, .ops = ops}, rep_->report);
      return rep_->report;
    } catch (const InputError&) {  // found again below, where it says where it stands
    }
  }
  rep_->report = evaluate(variant.document(), variant.source, {.ops = ops}).report;
  return rep_->report;
}

Simulation Simulator::evaluate(const nlohmann::json& document, const ScenarioSource& source,
                               const SimulationOptions& options) {
  Scenario read = rep_->reader.read(document, source);
  try {
    return evaluate(std::move(read), options);
  } catch (const InputError& error) {
    throw source.blame(error);
  }
}

Simulation Simulator::evaluate(Scenario scenario, const SimulationOptions& options) {
  Simulation result{rep_->calibrator.prepare(std::move(scenario)), {}};
  const Scenario& s = result.scenario;
  Report& report = result.report;
  if (options.engine == Engine::des) {
    const DiscreteEventJob job{.name = "",
                               .program = result.program,
                               .mfu_dtype = precision::peak_dtype(s),
                               .kernels = result.kernels,
                               .placement = {}};
    run_discrete_event(s.cluster, *result.collectives, {&job, 1}, s.perturbations, discrete_event_options(options),
                       {&report, 1});
    check_ends(report);
    report.figures = figures_of(s, *result.program);
    add_planning_notes(s, *result.program, report);
    add_placement_note_in_closed_form(result, report);
    finish(s.cluster, report);
    return result;
  }
  Rep::Machine machine(s.cluster, *result.kernels, *result.collectives);
  rep_->evaluate(machine, s, *result.program, {.timeline = options.timeline, .ops = options.ops}, report);
  return result;
}

std::vector<JobResult> Simulator::evaluate_jobs(const nlohmann::json& document, const ScenarioSource& source,
                                                const SimulationOptions& options) {
  JobsDocument read = rep_->reader.read_jobs(document, source);
  Calibrator& calibrator = rep_->calibrator;
  std::vector<std::string> stacks;
  std::vector<Program> programs(read.jobs.size());
  std::vector<DiscreteEventJob> jobs;
  for (std::size_t i = 0; i < read.jobs.size(); ++i) {
    Job& job = read.jobs[i];
    stacks.push_back(stack_of(job.scenario));
    try {
      calibrator.lower(job.scenario, programs[i]);
    } catch (const InputError& error) {
      throw source.blame(job.in_document(error));
    }
    jobs.push_back({.name = job.name,
                    .program = &programs[i],
                    .mfu_dtype = precision::peak_dtype(job.scenario),
                    .kernels = &calibrator.kernels(job.scenario.cluster, job.scenario),
                    .placement = job.placement});
  }
  try {
    calibrator.kernels(read.cluster, read.jobs.front().scenario);
    const CollectiveCalibration& collectives = calibrator.collectives(read.cluster, stacks);
    const DiscreteEventOptions together = discrete_event_options(options);
    std::vector<Report> reports(jobs.size());
    run_discrete_event(read.cluster, collectives, jobs, read.perturbations, together, reports);
    DiscreteEventOptions alone = together;
    alone.timeline = alone.ops = false;
    std::vector<JobResult> results;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      check_ends(reports[i]);
      Report by_itself = reports[i];
      reports[i].figures = figures_of(read.jobs[i].scenario, programs[i]);
      add_planning_notes(read.jobs[i].scenario, programs[i], reports[i]);
      if (jobs.size() > 1) {
        by_itself = {};
        run_discrete_event(read.cluster, collectives, {&jobs[i], 1}, read.perturbations, alone, {&by_itself, 1});
        check_ends(by_itself);
      }
      std::string link = most_shared_link(by_itself, reports[i]);
      for (Report* report : {&reports[i], &by_itself}) finish(read.cluster, *report);
      results.push_back({std::move(read.jobs[i]), std::move(reports[i]), by_itself.step_seconds, std::move(link)});
    }
    return results;
  } catch (const InputError& error) {
    throw source.blame(error);
  }
}

}  // namespace orrery
