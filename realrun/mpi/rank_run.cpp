#include "realrun/mpi/rank_run.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

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
  json["losses"] = assemble(scenario, results).losses;
  json["step_samples"] = step_samples(program, results, &RankResult::step_seconds);
  return json;
}

ExecutionOptions options_of(const PreparedRun& prepared) {
  ExecutionOptions options = prepared.run.options;
  if (prepared.run.check) {
    options.warmup_steps = 0;
    return options_to_compare(options, prepared.scenario, options.steps);
  }
  options.measure = true;
  options.keep_tensors = false;
  options.find_undefined = false;
  return options;
}

OrderedJson agreement_json(const PreparedRun& prepared, const BackendFacts& facts,
                           const std::vector<RankResult>& results) {
  ExecutionOptions exact = options_of(prepared);
  exact.round_to_bf16 = false;
  const Execution execution = assemble(parts_of(prepared.scenario, exact.steps).back().scenario, results);
  const double tolerance = tolerance_of(facts, prepared.scenario, prepared.run.options.round_to_bf16);
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

void add_rank_options(Command command, RankTraining& run) {
  ExecutionOptions& options = run.options;
  command.add_option("SCENARIO", run.scenario, "A scenario, as for orrery simulate").required();
  command.add_option("--set", run.sets, "Override a field: plan.tensor_parallel=2").one_value_each();
  command.add_option("--steps", options.steps, "Number of measured steps").capture_default();
  command.add_option("--warmup", options.warmup_steps, "Number of steps before the measured ones").capture_default();
  command.add_option("--seed", options.seed, "Seed of parameters and inputs").capture_default();
  command.add_option("--watchdog-seconds", options.watchdog_seconds, "Longest wait").capture_default();
  command.add_flag("--check", run.check, "Compare with the one-rank Program instead of measuring");
  command.add_flag("--bf16-storage", options.round_to_bf16, "CPU: round bf16 tensors to bf16");
  command
      .add_option("--results", run.results,
                  "Write all ranks' results to this file, for orrery run, instead of printing them")
      .type_name("FILE");
  command.add_flag("--alone", run.alone, "Every rank runs the scenario on one rank, all at the same time");
}

PreparedRun prepare(const RankTraining& run) {
  PreparedRun prepared{.run = run, .source = {}, .scenario = {}, .one_rank_scenario = {}, .program = {}};
  ScenarioSource& source = prepared.source;
  const nlohmann::json document = load_scenario_document(run.scenario, run.sets, source);
  if (has_jobs(document)) throw InputError({source.file, "/jobs"}, "jobs", "a scenario of one job");
  const Scenario scenario = read_scenario(document, source);
  try {
    prepared.scenario = runnable(scenario);
    prepared.one_rank_scenario = on_one_rank(prepared.scenario);
    lower(prepared.scenario, prepared.program);
    Program one_rank;
    lower(prepared.one_rank_scenario, one_rank);  // throws what the comparison would throw
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
  RankResult mine;
  communicator.gather_values(communicator.everyone(), "start", {});
  const std::vector<RunPart> parts = parts_of(prepared.run.alone ? prepared.one_rank_scenario : prepared.scenario,
                                              options.warmup_steps + options.steps);
  if (prepared.run.alone) {
    InProcessRanks alone(1, options.watchdog_seconds);
    mine = execute_rank(parts, options, backend, *alone.communicator(0, backend));
  } else {
    mine = execute_rank(parts, options, backend, communicator);
  }
  std::vector<RankResult> results = gather_results(mine, communicator);
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
