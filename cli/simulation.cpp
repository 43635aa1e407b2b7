#include "cli/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "sim/analytical/engine.h"
#include "sim/cost/calibration.h"
#include "sim/cost/collective_calibration.h"
#include "strategies/framework/framework.h"
#include "strategies/lower.h"

namespace orrery {
namespace {

std::int64_t ranks_of(const Scenario& scenario) {
  const Plan& plan = scenario.plan;
  return plan.tensor.degree * plan.context.degree * plan.pipeline.degree * data_parallel_degree(scenario);
}

}  // namespace

struct Simulator::Rep {
  ScenarioReader reader;
  Program program;
  std::unordered_map<std::string, Calibration> kernels;  // by what find_calibration goes by
  CollectiveCalibration collectives;
  UserCalibration user;
  const StepCalibration* steps = &step_calibration();

  // The calibration of the cluster's device, as the user has it: his own, and of a CPU what is left of a hardware
  // thread to each of the ranks on a node.
  const Calibration& calibrate(Cluster& cluster, const Plan& plan, std::int64_t ranks_in_all);
};

const Calibration& Simulator::Rep::calibrate(Cluster& cluster, const Plan& plan, std::int64_t ranks_in_all) {
  user.apply(cluster);
  Device& device = cluster.device;
  const std::int64_t ranks = std::min(cluster.node.devices, ranks_in_all);
  const std::string_view attention = framework::attention_kernel(plan);
  const std::string stack(framework::stack_name(plan));
  const std::string key =
      fmt::format("{}\n{}\n{}\n{}\n{}\n{}", device.name, device.architecture, device.vendor, attention, ranks, stack);
  auto found = kernels.find(key);
  if (found == kernels.end()) {
    found = kernels.emplace(key, user.kernels ? user.kernels_of(device) : find_calibration(device)).first;
    if (!attention.empty()) use_attention_kernel(found->second, attention);
    if (!user.kernels) steps->apply(stack, device, found->second);
    Device ignored;
    if (const double share = rank_share(found->second, ranks); share < 1) take_share(share, ignored, found->second);
  }
  if (const double share = rank_share(found->second, ranks); share < 1) {
    Calibration ignored;
    take_share(share, device, ignored);
  }
  return found->second;
}

Simulator::Simulator(UserCalibration user) : rep_(std::make_unique<Rep>()) { rep_->user = std::move(user); }
Simulator::~Simulator() = default;

void Simulator::use(const StepCalibration& steps) {
  if (rep_->steps == &steps) return;
  rep_->steps = &steps;
  rep_->kernels.clear();
}

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

void check_ends(const Report& report) {
  if (!std::isfinite(report.step_seconds))
    throw InputError({"", ""}, "rates or sizes so extreme that the step never ends", "those of real hardware");
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
  Simulation result;
  result.scenario = rep_->reader.read(document, source);
  try {
    result.kernels = &rep_->calibrate(result.scenario.cluster, result.scenario.plan, ranks_of(result.scenario));
  } catch (const InputError& error) {
    throw source.blame(error);
  }
  const Scenario& scenario = result.scenario;
  const std::string stack(framework::stack_name(scenario.plan));
  try {
    lower(scenario, rep_->program);
    rep_->steps->apply(stack, rep_->program.runtime);
    result.program = &rep_->program;
    rep_->collectives = find_collective_calibration(scenario.cluster, rep_->user.collectives);
    rep_->steps->apply(stack, rep_->collectives);
    result.collectives = &rep_->collectives;
    const Dtype dtype = scenario.plan.precision.compute();
    if (options.engine == Engine::des) {
      const DiscreteEventJob job{
          .name = "", .program = result.program, .mfu_dtype = dtype, .kernels = result.kernels, .placement = {}};
      run_discrete_event(scenario.cluster, rep_->collectives, {&job, 1}, scenario.perturbations,
                         discrete_event_options(options), {&result.report, 1});
    } else {
      AnalyticalEngine engine(scenario.cluster, *result.kernels, rep_->collectives);
      engine.evaluate(rep_->program, dtype, {.timeline = options.timeline, .ops = options.ops}, result.report);
      if (!scenario.perturbations.empty()) result.report.notes.emplace_back(kPerturbationsIgnored);
    }
    check_ends(result.report);
    if (options.engine == Engine::analytical) {  // what was published ran undisturbed, and was predicted in closed form
      result.report.expected = expected_step(stack, *result.kernels, result.report);
      if (!result.report.expected && rep_->steps->stacks.contains(stack))
        result.report.notes.push_back(
            fmt::format("steps of the stack {} have been published by too few sources to say how far off this may be "
                        "(results/ACCURACY.md)",
                        stack));
    }
  } catch (const InputError& error) {
    throw source.blame(error);
  }
  return result;
}

std::vector<JobResult> Simulator::evaluate_jobs(const nlohmann::json& document, const ScenarioSource& source,
                                                const SimulationOptions& options) {
  JobsDocument read = rep_->reader.read_jobs(document, source);
  std::vector<Program> programs(read.jobs.size());
  std::vector<DiscreteEventJob> jobs;
  for (std::size_t i = 0; i < read.jobs.size(); ++i) {
    Job& job = read.jobs[i];
    try {
      lower(job.scenario, programs[i]);
      rep_->steps->apply(std::string(framework::stack_name(job.scenario.plan)), programs[i].runtime);
    } catch (const InputError& error) {
      throw source.blame(job.in_document(error));
    }
    jobs.push_back({.name = job.name,
                    .program = &programs[i],
                    .mfu_dtype = job.scenario.plan.precision.compute(),
                    .kernels = &rep_->calibrate(job.scenario.cluster, job.scenario.plan, ranks_of(job.scenario)),
                    .placement = job.placement});
  }
  try {
    rep_->calibrate(read.cluster, read.jobs.front().scenario.plan, ranks_of(read.jobs.front().scenario));
    rep_->collectives = find_collective_calibration(read.cluster, rep_->user.collectives);
    for (const Job& job : read.jobs)
      rep_->steps->apply(std::string(framework::stack_name(job.scenario.plan)), rep_->collectives);
    const DiscreteEventOptions together = discrete_event_options(options);
    std::vector<Report> reports(jobs.size());
    run_discrete_event(read.cluster, rep_->collectives, jobs, read.perturbations, together, reports);
    DiscreteEventOptions alone = together;
    alone.timeline = alone.ops = false;
    std::vector<JobResult> results;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      check_ends(reports[i]);
      Report by_itself = reports[i];
      if (jobs.size() > 1) {
        by_itself = {};
        run_discrete_event(read.cluster, rep_->collectives, {&jobs[i], 1}, read.perturbations, alone, {&by_itself, 1});
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
