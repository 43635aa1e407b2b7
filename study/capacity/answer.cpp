#include "study/capacity/answer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "sim/base/json_reader.h"
#include "sim/base/statistics.h"
#include "sim/planning/training_run.h"
#include "sim/report/format.h"

namespace orrery {
namespace {

Spread summed_up(std::vector<double> values) {
  std::sort(values.begin(), values.end());  // in whose order the mean is summed up
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  return {.mean = mean, .tenth = quantile(values, 0.1), .ninetieth = quantile(values, 0.9)};
}

FailureStudy study(std::size_t index, const SizedCandidate& sized, const AnswerOptions& options) {
  const TrainingRun& run = sized.candidate.run;
  FailureStudy result;
  result.candidate = index;
  result.seconds_between = run.seconds_between_failures();
  result.stall_seconds = run.stall_seconds();
  if (result.stall_seconds > 0 && std::isfinite(result.seconds_between)) {
    result.young_seconds = young_interval(result.stall_seconds, result.seconds_between);
    result.daly_seconds = daly_interval(result.stall_seconds, result.seconds_between);
    result.optimal_seconds = optimal_interval(result.stall_seconds, result.seconds_between);
  }
  result.closed = sized.forecast.outcome;
  std::vector<double> wall, ettr, failures;
  for (const RunOutcome& history : simulate_runs(run, options.history_count, options.histories)) {
    wall.push_back(history.wall_seconds);
    ettr.push_back(history.ettr());
    failures.push_back(history.failures);
  }
  result.simulated_wall_seconds = summed_up(std::move(wall));
  result.simulated_ettr = summed_up(std::move(ettr));
  result.simulated_failures = summed_up(std::move(failures));
  return result;
}

// Returns the candidate on the cluster with that name; none if none of its sizes is possible.
std::optional<std::size_t> best_of(const std::string& name, const CapacityAnswer& answer) {
  std::vector<std::string> names;
  for (std::size_t c = 0; c < answer.plan.clusters.size(); ++c) {
    names.push_back(answer.plan.clusters[c].name);
    if (names.back() == name) return answer.choice.best[c];
  }
  throw InputError({"--against", ""}, describe(name), "the name of a candidate", nearest_name(name, names));
}

void add_ties(std::size_t against, CapacityAnswer& answer) {
  const SizedCandidate& other = answer.candidates[against];
  if (other.candidate.price.per_device_hour <= 0) return;
  for (const std::optional<std::size_t> best : answer.choice.best)
    if (best && answer.candidates[*best].cluster != other.cluster)
      answer.ties.push_back({*best, against, break_even(answer.candidates[*best].candidate, other.candidate)});
}

struct HardwareInput {
  const char* name;
  void (*scale)(Cluster& cluster, double factor);
};
constexpr std::array<HardwareInput, 6> kHardware{{
    {"matrix FLOP/s",
     [](Cluster& c, double factor) {
       for (double& peak : c.device.peak_flops_per_second) peak *= factor;
     }},
    {"vector FLOP/s", [](Cluster& c, double factor) { c.device.vector_flops_per_second *= factor; }},
    {"memory bandwidth", [](Cluster& c, double factor) { c.device.memory_bytes_per_second *= factor; }},
    {"memory size", [](Cluster& c, double factor) { c.device.memory_bytes *= factor; }},
    {"bandwidth within nodes",
     [](Cluster& c, double factor) {
       c.device.scale_up_link_bytes_per_second *= factor;
       c.node.intra_bytes_per_second *= factor;
       c.node.pair_bytes_per_second *= factor;
       for (PairLinks& links : c.node.links) links.bytes_per_second *= factor;
     }},
    {"bandwidth between nodes", [](Cluster& c, double factor) { c.node.nic_bytes_per_second *= factor; }},
}};

}  // namespace

CapacityAnswer answer(const CapacityPlan& plan, const AnswerOptions& options, Simulator& simulator,
                      const ScenarioOn& scenario_on) {
  CapacityAnswer result;
  result.plan = plan;
  result.options = options;
  result.candidates = size_up(plan, simulator, scenario_on);
  result.choice = choose(plan, result.candidates, options.held_by);
  const Choice& choice = result.choice;
  for (const std::optional<std::size_t> best : choice.best)
    if (best) result.failures.push_back(study(*best, result.candidates[*best], options));
  result.subject = choice.cheapest;
  if (!result.subject && !choice.relaxations.empty()) result.subject = choice.relaxations.front().candidate;
  if (!result.subject) return result;
  const SizedCandidate& subject = result.candidates[*result.subject];
  if (value_of(subject.forecast, options.output) != 0)
    result.tornado = tornado(plan, subject, options.output, options.swing, simulator);
  const std::optional<std::size_t> against =
      options.against.empty() ? result.subject : best_of(options.against, result);
  if (against) add_ties(*against, result);
  return result;
}

Tornado tornado(const CapacityPlan& plan, const SizedCandidate& sized, PlanOutput output, double swing,
                Simulator& simulator) {
  Tornado result{.output = output, .swing = swing, .value = value_of(sized.forecast, output), .bars = {}};
  const auto of_step = [&](double seconds) {
    Candidate candidate = sized.candidate;
    candidate.step_seconds = {.low = seconds, .value = seconds, .high = seconds};
    candidate.run.step_seconds = seconds;
    return value_of(forecast(candidate), output);
  };
  if (const Estimate& step = sized.candidate.step_seconds; step.low != step.high)
    result.bars.push_back({std::string(kPredictedStep), of_step(step.low), of_step(step.high)});
  const auto on_changed = [&](const HardwareInput& input, double factor, bool& fits) {
    Scenario scenario = *sized.scenario;
    input.scale(scenario.cluster, factor);
    SizedCandidate changed = sized;
    predict_step(plan, scenario, simulator, changed);
    fits = changed.memory_fits;
    return value_of(forecast(changed.candidate), output);
  };
  if (sized.scenario)
    for (const HardwareInput& input : kHardware) {
      bool less_fits = true, more_fits = true;
      const double less = on_changed(input, 1 - swing, less_fits), more = on_changed(input, 1 + swing, more_fits);
      result.bars.push_back({input.name, less, more, less_fits || !sized.memory_fits});
    }
  for (TornadoBar& bar : sensitivities(sized.candidate, output, swing))
    if (bar.input != "step_seconds" || !sized.scenario) result.bars.push_back(std::move(bar));
  std::ranges::stable_sort(result.bars, std::greater(), &TornadoBar::width);
  return result;
}

}  // namespace orrery
