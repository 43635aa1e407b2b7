#include "sim/des/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "sim/analytical/engine.h"
#include "sim/analytical/iteration.h"
#include "sim/base/error.h"
#include "sim/cost/collective_flows.h"
#include "sim/cost/exchange_skew.h"
#include "sim/cost/fabric_traffic.h"
#include "sim/des/results.h"
#include "sim/des/simulation.h"

namespace orrery {
namespace {

void check_placements(const Cluster& cluster, std::span<const DiscreteEventJob> jobs) {
  std::map<std::int64_t, std::size_t> taken;  // device -> job
  for (std::size_t j = 0; j < jobs.size(); ++j) {
    const std::int64_t ranks = jobs[j].program->mesh.ranks();
    const std::int64_t last = jobs[j].placement.device(ranks - 1, cluster.node.devices);
    if (last >= cluster.devices())
      throw InputError(
          {.file = {}, .pointer = jobs.size() > 1 ? fmt::format("/jobs/{}", j) : ""},
          fmt::format("{} ranks from node {} on, up to device {}", ranks, jobs[j].placement.first_node, last),
          fmt::format("a placement within the cluster's {} devices", cluster.devices()));
    if (jobs.size() == 1) continue;
    for (std::int64_t r = 0; r < ranks; ++r) {
      const std::int64_t device = jobs[j].placement.device(r, cluster.node.devices);
      const auto [at, is_new] = taken.try_emplace(device, j);
      if (!is_new)
        throw InputError({.file = {}, .pointer = fmt::format("/jobs/{}", j)},
                         fmt::format("device {}, which \"{}\" uses as well", device, jobs[at->second].name),
                         "devices of its own");
    }
  }
}

[[noreturn]] void refuse(const DiscreteEventOptions& options, const std::string& works) {
  throw InputError({"--engine", ""}, fmt::format("des with {} to simulate", works),
                   fmt::format("at most {:.2g}, or a higher --limit", options.most_works));
}

[[noreturn]] void refuse_to_simulate() {
  throw std::logic_error("this program is built without SimGrid; orrery-des has it");
}

}  // namespace

// In programs with SimGrid, the definitions in sim/des/simgrid take the place of these.
[[gnu::weak]] bool built_with_simgrid() { return false; }
[[gnu::weak]] Outcome simulate_steps(const SimulationPlan&) { refuse_to_simulate(); }
[[gnu::weak]] Outcome simulate_exchange(const SimulationPlan&, std::uint32_t) { refuse_to_simulate(); }

namespace {

// Throws as run_discrete_event() does. REQUIRES: everything has been added to the plan.
Outcome run(SimulationPlan& plan, std::span<const Perturbation> perturbations) {
  const DiscreteEventOptions& options = plan.options;
  plan.add_perturbations(perturbations);
  plan.fold();
  if (const double works = plan.works(); works > options.most_works)
    refuse(options, fmt::format("{:.2g} kernels and transfers of {} classes of ranks", works,
                                plan.traffic.rank_classes().size()));
  if (const double works = options.timeline ? plan.timeline_works() : 0; works > kMostTimelineWorks)
    throw InputError({"", ""}, fmt::format("a timeline of up to {:.2g} kernels and transfers", works),
                     fmt::format("at most {:.2g} for --trace or --svg with --engine des: a smaller "
                                 "workload.global_batch_size, a larger plan.micro_batch_size, or fewer perturbations",
                                 kMostTimelineWorks));
  Outcome outcome = run_in_child([&] { return simulate_steps(plan); });
  if (!outcome.stalled.empty()) throw StalledError("the step does not end: " + outcome.stalled);
  return outcome;
}

// Runs the jobs' steps without their other tasks.
void run_steps(const Cluster& cluster, const CollectiveCalibration& collectives, std::span<const DiscreteEventJob> jobs,
               std::span<const Perturbation> perturbations, const DiscreteEventOptions& options,
               std::span<Report> reports) {
  check_placements(cluster, jobs);
  // Memory, the table of ops, and the step in which every collective has its links to itself.
  std::vector<std::vector<std::int32_t>> stage_classes;
  for (std::size_t j = 0; j < jobs.size(); ++j) {
    AnalyticalEngine engine(cluster, *jobs[j].kernels, collectives);
    engine.evaluate(*jobs[j].program, jobs[j].mfu_dtype,
                    {.timeline = options.timeline, .ops = options.ops, .shares_levels = false}, reports[j]);
    stage_classes.emplace_back(engine.stage_classes().begin(), engine.stage_classes().end());
  }

  SimulationPlan plan(cluster, options);
  for (const DiscreteEventJob& job : jobs) plan.add_job(job, collectives);
  const Outcome outcome = run(plan, perturbations);

  double seconds = 0;
  for (const ClassOutcome& c : outcome.classes) seconds = std::max(seconds, c.end);
  const Results results(plan, outcome, seconds);
  for (std::size_t j = 0; j < jobs.size(); ++j) results.fill(j, stage_classes[j], reports[j]);
}

// Simulates `job` beside `other`, a task on the same devices that takes `alone` seconds by itself.
RunBeside run_beside(const Cluster& cluster, const CollectiveCalibration& collectives, const DiscreteEventJob& job,
                     double step_alone, const DiscreteEventJob& other, double alone,
                     std::span<const Perturbation> perturbations, const DiscreteEventOptions& options) {
  // As many runs as `other` lasts, so that it runs beside each of them; more than a few tell nothing new.
  constexpr double kMostRuns = 4;
  SimulationPlan plan(cluster, options);
  plan.add_job(job, collectives);
  plan.add_job(other, collectives);
  plan.jobs[0].repeats = static_cast<std::int64_t>(step_alone > 0 ? std::clamp(alone / step_alone, 1.0, kMostRuns) : 1);
  plan.jobs[1].beside = true;
  const Outcome outcome = run(plan, perturbations);
  std::array<double, 2> ends{};
  for (std::size_t c = 0; c < outcome.classes.size(); ++c) {
    const auto of = static_cast<std::size_t>(plan.traffic.rank_classes()[c].job);
    if (of < ends.size()) ends[of] = std::max(ends[of], outcome.classes[c].end);
  }
  const auto runs = static_cast<double>(plan.jobs[0].repeats);
  // The job ends first. The other does the rest alone.
  if (ends[1] >= ends[0]) return {ends[0] / runs, std::max(0.0, alone - (ends[1] - ends[0])) / runs};
  // The other ended first. The runs after that were undisturbed.
  const double beside = runs - (ends[0] - ends[1]) / step_alone;
  return beside > 0 ? RunBeside{ends[1] / beside, alone / beside} : RunBeside{step_alone, alone};
}

// A step takes `more` seconds on average than one alone: other tasks' share of it, the rest because of those beside it.
void add_to_path(const Program& program, std::span<const double> alone, double more,
                 std::vector<CriticalPathPart>& path) {
  const auto steps = static_cast<double>(steps_of_iteration(program));
  for (std::size_t t = 0; t < program.tasks.size(); ++t) {
    const Task& task = program.tasks[t];
    if (task.block == 0 || task.beside) continue;
    const double times = static_cast<double>(task.repeats) / steps;
    path.push_back({"iteration", task.name, times, times * alone[t]});
    more -= times * alone[t];
  }
  path.push_back({"iteration", "tasks beside others", 1, more});
  std::erase_if(path, [](const CriticalPathPart& part) { return !(part.seconds > 0); });
  std::ranges::stable_sort(path, std::greater(), &CriticalPathPart::seconds);
}

void add_tasks(const Cluster& cluster, const CollectiveCalibration& collectives, const DiscreteEventJob& job,
               std::span<const Perturbation> perturbations, const DiscreteEventOptions& options, Report& report) {
  const Program& program = *job.program;
  DiscreteEventOptions of_tasks = options;
  of_tasks.timeline = of_tasks.ops = false;
  const auto job_of = [&](const Program& task) {
    DiscreteEventJob of = job;
    of.program = &task;
    return of;
  };
  const TaskParts parts =
      evaluate_tasks(program, report, [&](const Task&, const Program& of_task, Report& report_of_task) {
        const DiscreteEventJob of = job_of(of_task);
        run_steps(cluster, collectives, {&of, 1}, perturbations, of_tasks, {&report_of_task, 1});
      });
  const auto program_of = [&](std::size_t task) -> const Program& {
    const std::uint16_t block = program.tasks[task].block;
    return block == 0 ? program : parts.programs[block - 1u];
  };
  const auto beside = [&](std::size_t task, std::size_t other) {
    return run_beside(cluster, collectives, job_of(program_of(task)), parts.alone[task], job_of(program_of(other)),
                      parts.alone[other], perturbations, of_tasks);
  };
  const double step_alone = report.step_seconds;
  spread(program, iterate(program, parts.alone, beside), parts.reports, report);
  if (!report.discrete_event) return;
  report.notes.emplace_back("links and waits are of one step alone; on the critical path every other task is one part");
  add_to_path(program, parts.alone, report.step_seconds - step_alone, report.discrete_event->critical_path);
  Report uncontended;
  AnalyticalEngine(cluster, *job.kernels, collectives)
      .evaluate(program, job.mfu_dtype, {.shares_levels = false}, uncontended);
  report.discrete_event->uncontended_step_seconds = uncontended.step_seconds;
}

}  // namespace

void run_discrete_event(const Cluster& cluster, const CollectiveCalibration& collectives,
                        std::span<const DiscreteEventJob> jobs, std::span<const Perturbation> perturbations,
                        const DiscreteEventOptions& options, std::span<Report> reports) {
  const auto has_tasks = [](const DiscreteEventJob& job) { return !job.program->tasks.empty(); };
  if (std::ranges::none_of(jobs, has_tasks))
    return run_steps(cluster, collectives, jobs, perturbations, options, reports);
  if (jobs.size() > 1)
    throw InputError({"", "/jobs"}, fmt::format("{} jobs, of which some have tasks beside their steps", jobs.size()),
                     "one job, or jobs that repeat one step");
  for (std::size_t p = 0; p < perturbations.size(); ++p)
    for (const auto& [field, seconds] : {std::pair("from_seconds", perturbations[p].from_seconds),
                                         std::pair("until_seconds", perturbations[p].until_seconds)})
      if (seconds != 0)
        throw InputError({"", fmt::format("/perturbations/{}/{}", p, field)}, fmt::format("{:g}", seconds),
                         "0 with other tasks than the step: these are simulated apart, each from time 0");
  DiscreteEventJob step = jobs.front();
  Program program = *step.program;
  program.tasks.clear();
  step.program = &program;
  run_steps(cluster, collectives, {&step, 1}, perturbations, options, reports);
  step.program = jobs.front().program;
  add_tasks(cluster, collectives, step, perturbations, options, reports.front());
}

double collective_works(const Cluster& cluster, const CollectiveCalibration& collectives,
                        const CollectiveRequest& request, const DiscreteEventOptions& options) {
  const GroupSpan span = span_of(request.mesh, request.group, cluster.node.devices);
  const CollectiveCost cost = CollectiveModel(cluster, collectives)
                                  .cost(request.kind, request.bytes, span, request.algorithm, request.protocol);
  const bool exact = options.fidelity == Fidelity::step_exact;
  const FlowOptions flows{.by_node = !exact && sends_by_node(request.kind, span.ranks)};
  const auto groups = static_cast<double>(request.mesh.ranks() / std::max<std::int64_t>(1, span.ranks));
  return groups * estimated_flows(request.kind, cost.algorithm, span.ranks, span.nodes, flows);
}

CollectiveRun run_collective(const Cluster& cluster, const CollectiveCalibration& collectives,
                             const CollectiveRequest& request, std::span<const Perturbation> perturbations,
                             const DiscreteEventOptions& options) {
  CollectiveRun run;
  const std::int64_t ranks = request.mesh.ranks();
  if (ranks > cluster.devices())
    throw InputError({}, fmt::format("{} ranks", ranks),
                     fmt::format("at most the cluster's {} devices", cluster.devices()));
  const GroupSpan span = span_of(request.mesh, request.group, cluster);
  CollectiveCost cost = CollectiveModel(cluster, collectives)
                            .cost(request.kind, request.bytes, span, request.algorithm, request.protocol);
  if (!request.rows.empty())
    skew(exchange_skew({.ranks = span.ranks, .rows = request.rows}, span.ranks_per_node, cost.algorithm,
                       cost.token_shares),
         cost);
  run.algorithm = cost.algorithm;
  run.protocol = cost.protocol;
  if (!(cost.seconds > 0)) return run;
  if (const double works = collective_works(cluster, collectives, request, options); works > options.most_works)
    refuse(options, fmt::format("about {:.2g} flows of {} ranks", works, ranks));

  SimulationPlan plan(cluster, options);
  const std::int32_t job = plan.traffic.add_job(request.mesh, {});
  std::int32_t rows = -1;
  if (!request.rows.empty()) {
    rows = plan.traffic.add_rows({.ranks = span.ranks, .rows = request.rows});
    for (std::int64_t rank = 0; rank < ranks; ++rank)  // no two ranks are alike
      plan.traffic.mark_rank(job, rank, static_cast<std::uint64_t>(rank));
  }
  const std::uint32_t exchange =
      plan.add_exchange({.communicator = plan.traffic.groups(job, request.group), .kind = request.kind, .rows = rows},
                        request.bytes, cost);
  plan.add_perturbations(perturbations);
  plan.fold();
  double messages = 0;
  for (const FlowClass& c : plan.traffic.flow_classes()) messages += c.messages;
  if (messages > options.most_works)
    refuse(options,
           fmt::format("{:.2g} messages of {} classes of flows", messages, plan.traffic.flow_classes().size()));
  const Outcome outcome = run_in_child([&] { return simulate_exchange(plan, exchange); });
  if (!outcome.stalled.empty()) throw StalledError("the collective does not end: " + outcome.stalled);

  run.seconds = outcome.seconds;
  run.bus_bytes_per_second = cost.bus_bytes_per_second * cost.seconds / outcome.seconds;
  run.flows = plan.traffic.total_flows();
  run.flow_classes = static_cast<std::int64_t>(plan.traffic.flow_classes().size());
  run.messages = static_cast<std::int64_t>(outcome.flows.size());
  run.link_kinds = Results(plan, outcome, outcome.seconds).link_kinds(outcome.seconds);
  return run;
}

}  // namespace orrery
