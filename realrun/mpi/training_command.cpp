#include "realrun/mpi/training_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "realrun/agreement.h"
#include "realrun/executor.h"
#include "realrun/measured_report.h"
#include "realrun/mpi/launch.h"
#include "realrun/mpi/mpi_communicator.h"
#include "sim/base/error.h"
#include "sim/report/json.h"
#include "strategies/lower.h"
#include "strategies/read_scenario.h"

namespace orrery {
namespace {

using Json = nlohmann::ordered_json;

// A communicator of one rank, which has nobody to wait for.
class Alone final : public Communicator {
 public:
  std::size_t rank() const override { return 0; }
  std::size_t ranks() const override { return 1; }
  void at(const char*, const char*, std::int64_t) override {}
  void all_reduce(const Members&, const std::string&, Stream, void*, std::int64_t, Dtype) override {}
  void all_gather(const Members&, const std::string& what, Stream, const void*, void*, std::int64_t, Dtype) override {
    refuse(what);
  }
  void reduce_scatter(const Members&, const std::string& what, Stream, const void*, void*, std::int64_t,
                      Dtype) override {
    refuse(what);
  }
  void all_to_all(const Members&, const std::string& what, Stream, const void*, void*, std::int64_t, Dtype) override {
    refuse(what);
  }
  void permute(const Members&, const std::string& what, Stream, const void*, void*, std::int64_t, Dtype, std::size_t,
               std::size_t) override {
    refuse(what);
  }
  std::vector<std::vector<double>> gather_values(const Members&, const std::string&,
                                                 std::vector<double> values) override {
    return {std::move(values)};
  }
  void send(std::size_t, const MessageTag&, Stream, const void*, std::int64_t, Dtype) override { refuse("send"); }
  void receive(std::size_t, const MessageTag&, Stream, void*, std::int64_t, Dtype) override { refuse("receive"); }
  void fail(std::exception_ptr) override {}
  void finish() override {}

 private:
  [[noreturn]] static void refuse(const std::string& what) {
    throw ExecutionError("a Program of one rank communicates: " + what);
  }
};

Json measured_json(const Scenario& scenario, const Program& program, const std::vector<RankResult>& results,
                   const BackendFacts& facts) {
  Json json = report_json(measured_report(scenario, program, results, facts));
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

void run_rank(const TrainingRun& run, const Scenario& scenario, const Program& program, const Program& one,
              MpiCommunicator& communicator) {
  ExecutionOptions options;
  options.seed = run.seed;
  options.watchdog_seconds = run.watchdog_seconds;
  options.round_to_bf16 = run.round_to_bf16;
  if (run.check) {
    options = options_to_compare(options);
  } else {
    options.measure = true;
    options.keep_tensors = false;
    options.find_undefined = false;
    options.steps = run.steps;
    options.warmup_steps = run.warmup;
    if (!run.results.empty() && communicator.rank() == 0)
      options.after_step = [](std::size_t, std::int64_t step) { report_step(step); };
  }
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Members all(communicator.ranks());
  for (std::size_t r = 0; r < all.size(); ++r) all[r] = r;
  const Scenario alone_scenario = on_one_rank(scenario);
  RankResult mine;
  communicator.gather_values(all, "start", {});
  if (run.alone) {
    Alone alone;
    mine = execute_rank(alone_scenario, one, options, *backend, alone);
  } else {
    mine = execute_rank(scenario, program, options, *backend, communicator);
  }
  std::vector<RankResult> results;
  for (const std::vector<double>& numbers : communicator.gather_values(all, "results", to_numbers(mine)))
    results.push_back(rank_result_from(numbers));
  communicator.finish();
  if (communicator.rank() != 0) return;
  if (!run.results.empty()) {
    write_rank_results(run.results, results);
    return;
  }

  Json json;
  if (!run.check) {
    json = run.alone ? measured_json(alone_scenario, one, {results.front()}, backend->facts())
                     : measured_json(scenario, program, results, backend->facts());
  } else {
    const Execution execution = assemble(scenario, results);
    const double tolerance = run.round_to_bf16 ? kBf16Tolerance : kFp32Tolerance;
    options.round_to_bf16 = false;
    const Agreement a = agreement(execute(alone_scenario, one, options), execution);
    if (!a.within(tolerance))
      throw ExecutionError(
          fmt::format("the layout does not compute what one rank computes: loss differs by {:.2g}, "
                      "gradients by {:.2g} ({}), parameters by {:.2g} ({}), tolerance {:g}",
                      a.loss, a.gradients, a.worst_gradient, a.parameters, a.worst_parameter, tolerance));
    json["losses"] = execution.losses;
    json["agreement"] = {{"loss", a.loss},
                         {"gradients", a.gradients},
                         {"parameters", a.parameters},
                         {"disagreement_of_ranks", a.disagreement},
                         {"tolerance", tolerance}};
  }
  fmt::print("{}\n", json.dump());
}

}  // namespace

void run_training(const TrainingRun& run) {
  ScenarioSource source;
  const nlohmann::json document = load_scenario_document(run.scenario, run.sets, source);
  if (has_jobs(document)) throw InputError({source.file, "/jobs"}, "jobs", "a scenario of one job");
  const Scenario scenario = read_scenario(document, source);
  Program program, one;
  try {
    lower(scenario, program);
    lower(on_one_rank(scenario), one);
  } catch (const InputError& error) {
    throw source.blame(error);
  }
  MpiOptions options;
  options.watchdog_seconds = run.watchdog_seconds;
  MpiCommunicator communicator(options);
  const auto ranks = static_cast<std::int64_t>(communicator.ranks());
  if (!run.alone && program.mesh.ranks() != ranks)
    throw InputError({source.file, "/plan"}, fmt::format("a plan of {} ranks", program.mesh.ranks()),
                     fmt::format("one of the {} ranks that mpirun has started", ranks));
  try {
    run_rank(run, scenario, program, one, communicator);
  } catch (...) {
    communicator.fail(std::current_exception());
  }
}

}  // namespace orrery
