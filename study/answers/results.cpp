#include "study/answers/results.h"

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>

#include "sim/base/digest.h"
#include "sim/base/input_file.h"
#include "sim/base/json_writer.h"
#include "sim/report/json.h"
#include "study/answers/inputs.h"
#include "study/sweep/run.h"
#include "study/training/training.h"
#include "study/training/training_results.h"

namespace orrery {
namespace {

using OrderedJson = nlohmann::ordered_json;

// `result` between what was asked and what it was made of.
OrderedJson answered(const Asked& asked, const OrderedJson& result) {
  OrderedJson json;
  if (!asked.label.empty()) json["label"] = asked.label;
  json["scenario"] = asked.source.file;
  json["set"] = asked.source.sets;
  json.update(result);
  json["version"] = ORRERY_VERSION;
  json["inputs"] = inputs_json(asked.document, asked.source, asked.calibrations);
  return json;
}

}  // namespace

OrderedJson simulation_json(const Asked& asked, const Report& report) {
  return answered(asked, report_json(report, asked.ops));
}

OrderedJson both_json(const Asked& asked, const Report& analytical, const Report& des) {
  OrderedJson compared = comparison_json(analytical, des, asked.ops);
  return answered(asked, {{"analytical", std::move(compared["a"])},
                          {"des", std::move(compared["b"])},
                          {"change", std::move(compared["change"])}});
}

OrderedJson jobs_json(const Asked& asked, const std::vector<JobResult>& jobs) {
  return answered(asked, {{"jobs", jobs_json(jobs, asked.ops)}});
}

OrderedJson jobs_json(const std::vector<JobResult>& jobs, bool ops) {
  OrderedJson list = OrderedJson::array();
  for (const JobResult& result : jobs)
    list.push_back({{"name", result.job.name},
                    {"nodes", result.job.scenario.cluster.nodes},
                    {"first_node", result.job.placement.first_node},
                    {"node_stride", result.job.placement.node_stride},
                    {"slowdown", result.slowdown()},
                    {"alone_seconds", result.alone_seconds},
                    {"most_shared_link", result.most_shared_link},
                    {"together", report_json(result.together, ops)}});
  return list;
}

TrainingAnswer training_answer(const Asked& asked, const TrainingRequest& request) {
  constexpr auto kBetweenFlushes = std::chrono::milliseconds(500);
  TrainingOptions options;
  options.steps = request.steps;
  options.simulation = request.engine.options();
  const nlohmann::json whole = written_out(asked.document, asked.source);
  const std::string calibrations = digests_of_calibrations(asked.calibrations);
  options.digest =
      digest_of(program_of(version_and_commit(), calibrations) +
                    fmt::format(" {} {}", method_text(options.simulation), options.simulation.most_exact_works),
                scenario_digest(whole));
  Simulator simulator(read_user_calibration(asked.calibrations));
  TrainingAnswer answer{ScenarioReader().read(asked.document, asked.source), {}};
  std::optional<TrainingResults> results;
  KnownOutcomes known;
  auto last = std::chrono::steady_clock::now();
  if (!request.database.empty()) {
    if (is_input(request.database))
      throw InputError({request.database, ""}, "a file that this command reads", "a file of its own for the results");
    results.emplace(request.database);
    known = results->outcomes();
    options.known = &known;
    options.found = [&](std::uint64_t key, const StepOutcome& outcome) { results->add(key, outcome); };
  }
  options.progress = [&](std::int64_t done, std::int64_t predicted) {
    const auto now = std::chrono::steady_clock::now();
    if (results && results->waiting() > 0 && now - last > kBetweenFlushes) {
      results->flush();
      last = now;
    }
    if (request.progress) request.progress(done, predicted);
  };
  answer.training = train(simulator, answer.scenario, options);
  if (results)
    results->add({asked.label.empty() ? asked.source.file : asked.label, json_text(whole), version_and_commit(),
                  calibrations, options.digest},
                 answer.training);
  return answer;
}

OrderedJson training_answer_json(const Asked& asked, const Training& training) {
  return answered(asked, {{"training", training_json(training)}, {"first", report_json(training.first)}});
}

}  // namespace orrery
