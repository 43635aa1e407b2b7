#include "realrun/mpi/rank_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "realrun/agreement.h"
#include "realrun/in_process.h"
#include "realrun/measured_report.h"
#include "realrun/mpi/launch.h"
#include "sim/base/error.h"
#include "sim/base/json_writer.h"
#include "sim/report/json.h"
#include "strategies/lower.h"
#include "strategies/strategy.h"

namespace orrery {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson measured_json(const Scenario& scenario, const Program& program, const std::vector<RankResult>& results,
                          const BackendFacts& facts) {
  OrderedJson json = report_json(measured_report(scenario, program, results, facts));
  std::vector<double> slowest(results.front().step_seconds.size());
  std::vector<double> losses(results.front().losses.size());
  for (const RankResult& rank : results) {
    for (std::size_t s = 0; s < slowest.size(); ++s) slowest[s] = std::max(slowest[s], rank.step_seconds[s]);
    for (std::size_t s = 0; s < losses.size(); ++s) losses[s] += rank.losses[s];
  }
  json["losses"] = losses;
  json["step_samples"] = slowest;
  return json;
}

ExecutionOptions options_of(const PreparedRun& prepared) {
  const RankTraining& run = prepared.run;
  ExecutionOptions options;
  options.seed = run.seed;
  options.watchdog_seconds = run.watchdog_seconds;
  options.round_to_bf16 = run.round_to_bf16;
  if (run.check) return options_to_compare(options, prepared.scenario, run.steps);
  options.measure = true;
  options.keep_tensors = false;
  options.find_undefined = false;
  options.steps = run.steps;
  options.warmup_steps = run.warmup;
  return options;
}

OrderedJson agreement_json(const PreparedRun& prepared, const BackendFacts& facts,
                           const std::vector<RankResult>& results) {
  ExecutionOptions exact = options_of(prepared);
  exact.round_to_bf16 = false;
  const Execution execution = assemble(parts_of(prepared.scenario, exact.steps).back().scenario, results);
  const double tolerance = tolerance_of(facts, prepared.scenario, prepared.run.round_to_bf16);
  const Agreement a = agreement(execute(prepared.one_rank_scenario, exact), execution);
  if (!a.within(tolerance))
    throw ExecutionError(
        fmt::format("the layout does not compute what one rank computes: loss differs by {:.2g}, "
                    "gradients by {:.2g} ({}), parameters by {:.2g} ({}), tolerance {:g}",
                    a.loss, a.gradients, a.worst_gradient, a.parameters, a.worst_parameter, tolerance));
  OrderedJson json;
  json["losses"] = execution.losses;
  json["agreement"] = {{"loss", a.loss},
                       {"gradients", a.gradients},
                       {"parameters", a.parameters},
                       {"disagreement_of_ranks", a.disagreement},
                       {"tolerance", tolerance}};
  return json;
}

}  // namespace

PreparedRun prepare(const RankTraining& run) {
  PreparedRun prepared{
      .run = run, .source = {}, .scenario = {}, .one_rank_scenario = {}, .program = {}, .one_rank = {}};
  ScenarioSource& source = prepared.source;
  const nlohmann::json document = load_scenario_document(run.scenario, run.sets, source);
  if (has_jobs(document)) throw InputError({source.file, "/jobs"}, "jobs", "a scenario of one job");
  const Scenario scenario = read_scenario(document, source);
  try {
    prepared.scenario = runnable(scenario);
    prepared.one_rank_scenario = on_one_rank(prepared.scenario);
    lower(prepared.scenario, prepared.program);
    lower(prepared.one_rank_scenario, prepared.one_rank);
  } catch (const InputError& error) {
    throw source.blame(error);
  }
  return prepared;
}

void require_ranks(const PreparedRun& prepared, std::size_t started) {
  const std::int64_t wanted = prepared.program.mesh.ranks();
  if (!prepared.run.alone && wanted != static_cast<std::int64_t>(started))
    throw InputError({prepared.source.file, "/plan"}, fmt::format("a plan of {} ranks", wanted),
                     fmt::format("a plan of the {} ranks that were started", started));
}

std::vector<RankResult> execute_with_peers(const PreparedRun& prepared, Backend& backend, Communicator& communicator) {
  ExecutionOptions options = options_of(prepared);
  if (options.measure && !prepared.run.results.empty() && communicator.rank() == 0)
    options.after_step = [](std::size_t, std::int64_t step) { report_step(step); };
  Members all(communicator.ranks());
  std::iota(all.begin(), all.end(), std::size_t{0});
  RankResult mine;
  communicator.gather_values(all, "start", {});
  const std::vector<RunPart> parts = parts_of(prepared.run.alone ? prepared.one_rank_scenario : prepared.scenario,
                                              options.warmup_steps + options.steps);
  if (prepared.run.alone) {
    InProcessRanks alone(1, options.watchdog_seconds);
    mine = execute_rank(parts, options, backend, *alone.communicator(0, backend));
  } else {
    mine = execute_rank(parts, options, backend, communicator);
  }
  std::vector<RankResult> results;
  for (const std::vector<double>& numbers : communicator.gather_values(all, "results", to_numbers(mine)))
    results.push_back(rank_result_from(numbers));
  communicator.finish();
  return results;
}

void report_results(const PreparedRun& prepared, const BackendFacts& facts, const std::vector<RankResult>& results) {
  if (!prepared.run.results.empty()) return write_rank_results(prepared.run.results, {results, facts});
  OrderedJson json;
  if (prepared.run.check) {
    json = agreement_json(prepared, facts, results);
  } else {
    const ExecutionOptions options = options_of(prepared);
    const RunPart last = parts_of(prepared.run.alone ? prepared.one_rank_scenario : prepared.scenario,
                                  options.warmup_steps + options.steps)
                             .back();
    json = measured_json(last.scenario, last.program,
                         prepared.run.alone ? std::vector<RankResult>{results.front()} : results, facts);
  }
  fmt::print("{}\n", json_text(json));
}

}  // namespace orrery
