#include "sim/simulation/simulation.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "sim/base/error.h"

namespace orrery {

struct Simulator::Rep {
  explicit Rep(UserCalibration user) : calibrator(std::move(user)) {}

  ScenarioReader reader;
  Calibrator calibrator;
};

Simulator::Simulator(UserCalibration user) : rep_(std::make_unique<Rep>(std::move(user))) {}
Simulator::~Simulator() = default;

void Simulator::use(const StepCalibration& steps) { rep_->calibrator.use(steps); }

namespace {

constexpr const char* kPerturbationsIgnored =
    "the scenario's perturbations are left out: they act in the discrete-event engine (--engine des)";

std::optional<ExpectedStep> expected_step(const std::string& stack, const Calibration& kernels, const Report& report) {
  const std::optional<NamedInterval> found = step_interval(stack, kernels.measured);
  if (!found) return std::nullopt;
  const StepInterval& i = found->interval;
  return ExpectedStep{.low_seconds = i.low * report.step_seconds,
                      .high_seconds = i.high * report.step_seconds,
                      .comparable = found->comparable,
                      .points = i.points,
                      .sources = i.sources};
}

DiscreteEventOptions discrete_event_options(const SimulationOptions& options) {
  return {.fidelity = options.fidelity, .routing = options.routing, .timeline = options.timeline, .ops = options.ops};
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

}  // namespace

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
                               .mfu_dtype = s.plan.precision.compute(),
                               .kernels = result.kernels,
                               .placement = {}};
    run_discrete_event(s.cluster, *result.collectives, {&job, 1}, s.perturbations, discrete_event_options(options),
                       {&report, 1});
    check_ends(report);
    return result;
  }
  report = predict(result, {.timeline = options.timeline, .ops = options.ops});
  if (!s.perturbations.empty()) report.notes.emplace_back(kPerturbationsIgnored);
  // What was published ran undisturbed, and was predicted in closed form.
  const std::string stack = stack_of(s);
  report.expected = expected_step(stack, *result.kernels, report);
  if (!report.expected && rep_->calibrator.steps().stacks.contains(stack))
    report.notes.push_back(
        fmt::format("steps of the stack {} have been published by too few sources to say how far off this may be "
                    "(results/ACCURACY.md)",
                    stack));
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
                    .mfu_dtype = job.scenario.plan.precision.compute(),
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
      if (jobs.size() > 1) {
        by_itself = {};
        run_discrete_event(read.cluster, collectives, {&jobs[i], 1}, read.perturbations, alone, {&by_itself, 1});
        check_ends(by_itself);
      }
      std::string link = most_shared_link(by_itself, reports[i]);
      results.push_back({std::move(read.jobs[i]), std::move(reports[i]), by_itself.step_seconds, std::move(link)});
    }
    return results;
  } catch (const InputError& error) {
    throw source.blame(error);
  }
}

}  // namespace orrery
