#include "sim/des/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <type_traits>

#include "sim/analytical/engine.h"
#include "sim/base/error.h"
#include "sim/cost/collective_flows.h"
#include "sim/cost/exchange_skew.h"
#include "sim/cost/fabric_traffic.h"
#include "sim/des/child_process.h"
#include "sim/des/results.h"
#include "sim/des/simulation.h"

namespace orrery {
namespace {

// Visits all parts of an outcome, in the order in which they are packed.
template <class Visit>
void for_each_part(Outcome& o, Visit&& visit) {
  visit(o.stalled);
  visit(o.classes);
  visit(o.flows);
  visit(o.events);
  visit(o.exchanges);
  visit(o.waits);
  visit(o.activities);
  visit(o.seconds);
}

template <class Part>
std::string_view bytes_of(const Part& part) {
  if constexpr (requires { part.data(); }) {
    static_assert(std::is_trivially_copyable_v<typename Part::value_type>);
    return {reinterpret_cast<const char*>(part.data()), part.size() * sizeof(typename Part::value_type)};
  } else {
    return {reinterpret_cast<const char*>(&part), sizeof part};
  }
}

}  // namespace

std::string Outcome::pack() && {
  std::size_t total = 0;
  for_each_part(*this, [&](const auto& part) { total += sizeof(std::size_t) + bytes_of(part).size(); });
  std::string packed;
  packed.reserve(total);
  for_each_part(*this, [&]<class Part>(Part& part) {
    const std::string_view bytes = bytes_of(part);
    const std::size_t size = bytes.size();
    packed.append(bytes_of(size)).append(bytes);
    part = Part();
  });
  return packed;
}

Outcome Outcome::unpack(const std::string& packed) {
  Outcome outcome;
  std::string_view left = packed;
  const auto take = [&left](std::size_t size, void* to) {
    if (size > 0) std::memcpy(to, left.data(), size);
    left.remove_prefix(size);
  };
  for_each_part(outcome, [&]<class Part>(Part& part) {
    std::size_t size = 0;
    take(sizeof size, &size);
    if constexpr (requires { part.data(); }) {
      part.resize(size / sizeof(typename Part::value_type));
      take(size, part.data());
    } else {
      take(size, &part);
    }
  });
  return outcome;
}

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

void run_discrete_event(const Cluster& cluster, const CollectiveCalibration& collectives,
                        std::span<const DiscreteEventJob> jobs, std::span<const Perturbation> perturbations,
                        const DiscreteEventOptions& options, std::span<Report> reports) {
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
  const Outcome outcome = Outcome::unpack(run_in_child([&] { return simulate_steps(plan).pack(); }));
  if (!outcome.stalled.empty()) throw StalledError("the step does not end: " + outcome.stalled);

  double seconds = 0;
  for (const ClassOutcome& c : outcome.classes) seconds = std::max(seconds, c.end);
  const Results results(plan, outcome, seconds);
  for (std::size_t j = 0; j < jobs.size(); ++j) results.fill(j, stage_classes[j], reports[j]);
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
  const Outcome outcome = Outcome::unpack(run_in_child([&] { return simulate_exchange(plan, exchange).pack(); }));
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
