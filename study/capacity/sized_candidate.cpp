#include "study/capacity/sized_candidate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/report/memory_verdict.h"
#include "strategies/optimizer/optimizer.h"

namespace orrery {
namespace {

SizedCandidate size_one(const CapacityPlan& plan, std::size_t index, std::int64_t devices, Simulator& simulator,
                        const ScenarioOn& scenario_on) {
  const CandidateCluster& cluster = plan.clusters[index];
  SizedCandidate sized;
  sized.cluster = index;
  sized.devices = devices;
  sized.candidate = cluster.whole;
  try {
    if (cluster.pattern) {
      sized.scenario = scenario_on(*cluster.pattern, devices);
      if (!cluster.checkpoint_bytes_given)
        sized.candidate.run.checkpoint_bytes = static_cast<double>(parameters(sized.scenario->model)) *
                                               optimizer::bytes_kept_per_parameter(sized.scenario->plan);
      predict_step(plan, *sized.scenario, simulator, sized);
    }
    TrainingRun& run = sized.candidate.run;
    run.spare_nodes = cluster.spare_nodes ? *cluster.spare_nodes : cheapest_spare_nodes(run);
    sized.forecast = forecast(sized.candidate);
  } catch (const InputError& error) {  // without the file: tables say which candidate it is
    sized.impossible = fmt::format("{}: found {}, expected {}", error.where().pointer, error.found(), error.expected());
  }
  return sized;
}

}  // namespace

Scenario with_replicas(const Scenario& pattern, std::int64_t devices) {
  Scenario scenario = pattern;
  const std::int64_t node = pattern.cluster.node.devices;
  if (devices % node != 0)
    throw InputError({"", "/devices"}, std::to_string(devices), fmt::format("whole nodes of {} devices", node));
  if (devices == pattern.cluster.devices()) return scenario;
  Fabric& fabric = scenario.cluster.fabric;
  if (pattern.cluster.is_scattered() || fabric.kind == FabricKind::torus)
    throw InputError({"", "/devices"}, std::to_string(devices),
                     fmt::format("{}: the cluster's fabric has a fixed size", pattern.cluster.devices()));
  scenario.cluster.nodes = devices / node;
  if (fabric.kind == FabricKind::dragonfly)
    fabric.groups = (scenario.cluster.nodes + fabric.nodes_per_group - 1) / fabric.nodes_per_group;
  scenario.plan.data.degree = 0;
  return scenario;
}

ScenarioOn searched_plans(SpaceOptions fields, int threads, UserCalibration user,
                          std::function<void(const Scenario&)> started) {
  return [fields = std::move(fields), threads, user = std::move(user), started = std::move(started)](
             const Scenario& pattern, std::int64_t devices) {
    const Scenario sized = with_replicas(pattern, devices);
    if (started) started(sized);
    const Space space(sized, fields);
    SearchOptions options{.top = 1, .front = 1, .leanest = false, .memory_margin = kPeakHigh, .threads = threads};
    SearchResult found = search(space, options, user);
    if (found.best.empty()) {
      options.memory_margin = 1;
      found = search(space, options, user);
    }
    return found.best.empty() ? sized : space.scenario(found.best.front().values);
  };
}

void predict_step(const CapacityPlan& plan, const Scenario& scenario, Simulator& simulator, SizedCandidate& sized) {
  check(scenario);
  const Report report = simulator.evaluate(scenario, {}).report;
  sized.mfu = report.mfu;
  sized.memory_peak_bytes = report.memory_peak_bytes;
  sized.memory_capacity_bytes = report.memory_capacity_bytes;
  sized.memory_fits = report.memory_fits;
  Candidate& candidate = sized.candidate;
  candidate.step_seconds = {.low = report.step_seconds, .value = report.step_seconds, .high = report.step_seconds};
  if (report.expected) {
    candidate.step_seconds.low = std::min(report.expected->low_seconds, report.step_seconds);
    candidate.step_seconds.high = std::max(report.expected->high_seconds, report.step_seconds);
  }
  TrainingRun& run = candidate.run;
  run.step_seconds = report.step_seconds;
  run.devices = scenario.cluster.devices();
  run.nodes = scenario.cluster.nodes;
  candidate.tokens_per_step = std::round(report.tokens_per_second * report.step_seconds);
  run.steps =
      plan.steps > 0 ? plan.steps : static_cast<std::int64_t>(std::ceil(plan.tokens / candidate.tokens_per_step));
}

std::int64_t cheapest_spare_nodes(const TrainingRun& run) {
  const double away = run.repair_share * run.repair_seconds / run.seconds_between_failures();
  if (!(away > 0)) return 0;
  // Erlang's formula as in erlang_loss(), server by server. The load that is carried is concave in the servers, so what
  // follows the first spare that does not pay is no better.
  const auto nodes = static_cast<double>(run.nodes);
  double loss = away / (1 + away);
  double hours = nodes / (1 - loss);
  std::int64_t spares = 0;
  while (spares < run.nodes) {
    loss = away * loss / (static_cast<double>(spares) + 2 + away * loss);
    const double with_one_more = (nodes + static_cast<double>(spares) + 1) / (1 - loss);
    if (with_one_more >= hours) break;
    hours = with_one_more;
    ++spares;
  }
  return spares;
}

std::vector<SizedCandidate> size_up(const CapacityPlan& plan, Simulator& simulator, const ScenarioOn& scenario_on) {
  std::vector<SizedCandidate> all;
  for (std::size_t i = 0; i < plan.clusters.size(); ++i)
    for (const std::int64_t devices : plan.clusters[i].devices)
      all.push_back(size_one(plan, i, devices, simulator, scenario_on));
  return all;
}

}  // namespace orrery
