// orrery simulate: one scenario, or a batch of them.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/batch.h"
#include "cli/commands.h"
#include "cli/explain.h"
#include "cli/memory_trace.h"
#include "cli/offers.h"
#include "cli/output.h"
#include "cli/sibling.h"
#include "sim/base/json_writer.h"
#include "sim/program/check.h"
#include "sim/report/columns.h"
#include "sim/report/format.h"
#include "sim/report/json.h"
#include "sim/report/table.h"
#include "sim/report/trace.h"
#include "study/answers/arguments.h"
#include "study/answers/inputs.h"
#include "study/answers/results.h"
#include "study/simulation/simulation.h"
#include "study/training/training.h"
#include "study/validation/predicted_points.h"

namespace orrery {
namespace {

constexpr std::size_t kLabelColumns = 24;

constexpr const char* kSimulateExamples = R"(Examples:
  orrery simulate llama-3-70b-512-h100                        a bundled scenario (orrery list scenarios)
  orrery simulate scenario.json --set plan.zero_stage=3       one field changed
  orrery simulate korth-t5-megatron-1T-full                   a published measurement (orrery validate --points)
  orrery simulate scenario.json --json - | jq .mfu            for programs
  orrery simulate scenario.json --trace step.json             open in ui.perfetto.dev
  orrery simulate scenario.json --memory-trace step.pickle    open in pytorch.org/memory_viz
  orrery simulate scenario.json --svg schedule.svg            a picture of the pipeline's schedule
  orrery simulate moe.json --steps 10000 --svg run.svg        many steps, whose routing of experts drifts
  orrery simulate scenario.json --explain layer.forward.fc1   one op's formula with its numbers
  orrery simulate --batch scenarios.jsonl                     a scenario a line in, a result a line out
  orrery simulate --batch scenarios.jsonl --fields scenario,step_seconds,memory_fits --csv results.csv
  orrery simulate straggler --engine des                      event by event: contention, slow parts, failures
  orrery simulate two-jobs-one-spine --engine des             jobs that share a cluster)";

// `analytical`: report to show beside the simulation, which then is the discrete-event engine's; or nullptr.
std::string text_of(const Simulation& simulation, const Report* analytical, const SimulateArguments& arguments) {
  const TableStyle style{.colour = colour_wanted()};
  const std::vector<std::string> title = title_of(simulation.scenario);
  std::string text = analytical == nullptr ? report_table(simulation.report, title, style)
                                           : comparison_table(*analytical, simulation.report, title, style,
                                                              {.a = "analytical", .b = "des"}) +
                                                 discrete_event_table(simulation.report, style);
  if (arguments.ops) text += "\n" + op_table(simulation);
  return text;
}

// Returns the measured values if the scenario is an unchanged published measurement.
std::string measurement_text(const SimulateArguments& arguments, const Simulation& simulation) {
  const PublishedPoint* point = arguments.sets.empty() ? published_argument(arguments.scenario) : nullptr;
  if (point == nullptr) return "";
  std::string text = "\nPublished measurement " + point->id + "\n";
  const auto line = [&](std::string_view label, const std::string& value) {
    if (!value.empty()) text += fmt::format("  {} {}\n", left(label, kLabelColumns), value);
  };
  line("source", source_of(*point).source + (point->where.empty() ? "" : ", " + point->where));
  const double predicted = predicted_value(point->quantity, simulation);
  const std::string error =
      point->quantity == Quantity::fits ? "" : fmt::format(" ({})", signed_percent_text(predicted / point->value - 1));
  line(name_of(point->quantity), fmt::format("{} measured; {} predicted{}", value_text(point->quantity, point->value),
                                             value_text(point->quantity, predicted), error));
  if (!point->not_fitted.empty()) line("not fitted", point->not_fitted);
  for (const std::string& assumption : point->assumptions) line("assumed", assumption);
  line("why the error", point->explanation);
  if (point->quantity == Quantity::step_seconds || point->quantity == Quantity::forward_backward_seconds)
    line("in orrery validate", "predicted by a calibration without this source, so slightly differently");
  if (is_of_layer(point->quantity))
    line("in orrery validate", "predicted from kernels and collectives alone, without calibrated steps");
  return text;
}

// Prints what is wrong with the Program, one sentence each, and then throws Exit with code 1.
void verify(const Program& program) {
  const std::vector<Violation> found = check(program);
  for (const Violation& v : found)
    fmt::print(stderr, "orrery: rule {} of sim/program/check.h: {}\n", static_cast<int>(v.rule), v.text);
  if (!found.empty()) throw Exit{1};
}

std::string verified_text(const Program& program) {
  return fmt::format("verified: {} pieces, no violation of layouts, collectives or owed sums\n", program.pieces.size());
}

// Name of a CSV row: the label, else the scenario and its --set arguments, as given.
std::string row_name(const Asked& asked) {
  if (!asked.label.empty()) return asked.label;
  std::string words = asked.source.file;
  for (const std::string& set : asked.source.sets) words += " --set " + set;
  return words;
}

InputCells inputs_of(const Asked& asked) { return input_cells(asked.document, asked.source, asked.calibrations); }

void simulate_one(const Asked& asked, const SimulateArguments& arguments) {
  SimulationOptions options = arguments.engine.options();
  options.ops = true;
  Simulator simulator(read_user_calibration(arguments.calibrations));
  std::optional<Report> analytical;
  if (arguments.engine.both())
    analytical = simulator.evaluate(asked.document, asked.source, {.engine = Engine::analytical, .ops = true}).report;
  options.timeline = !arguments.trace.empty() || !arguments.svg.empty();
  const Simulation simulation = simulator.evaluate(asked.document, asked.source, options);
  const Report& report = simulation.report;
  if (arguments.verify) verify(*simulation.program);

  Outputs outputs;
  outputs.add_wanted(arguments.json, [&] {
    return json_text((analytical ? both_json(asked, *analytical, report) : simulation_json(asked, report)), 2) + "\n";
  });
  outputs.add_wanted(arguments.csv, [&] {
    const std::string of = row_name(asked);
    const InputCells inputs = inputs_of(asked);
    return csv_header(kInputColumns) + (analytical ? csv_row(of, *analytical, inputs) : "") +
           csv_row(of, report, inputs);
  });
  outputs.add_wanted(arguments.trace, [&] { return report_trace(report); });
  outputs.add_wanted(arguments.svg, [&] { return report_svg(report, title_of(simulation.scenario).front()); });
  outputs.add_wanted(arguments.memory_trace, [&] {
    return arguments.planned_memory ? planned_memory_trace(simulation)
                                    : memory_trace(simulation, arguments.expandable_segments);
  });
  const bool has_table = arguments.explain.empty() && !outputs.on_standard_output();
  if (!arguments.explain.empty()) {
    std::optional<Simulator> others;  // `simulation` refers to data of its own simulator
    outputs.add("-", explain(arguments.explain, simulation, [&](const Scenario& scenario) {
                  if (!others) others.emplace(read_user_calibration(arguments.calibrations));
                  return others->evaluate(scenario, arguments.engine.options());
                }));
  } else if (has_table) {
    outputs.add("-", text_of(simulation, analytical ? &*analytical : nullptr, arguments) +
                         measurement_text(arguments, simulation) +
                         (arguments.verify ? "\n" + verified_text(*simulation.program) : ""));
  }
  outputs.commit();
  if (arguments.verify && !has_table) fmt::print(stderr, "orrery: {}", verified_text(*simulation.program));
}

std::string jobs_table(const std::vector<JobResult>& jobs, const SimulateArguments& arguments) {
  std::vector<std::vector<std::string>> rows;
  for (const JobResult& result : jobs)
    rows.push_back({result.job.name, std::to_string(result.job.scenario.cluster.nodes),
                    seconds_text(result.alone_seconds), seconds_text(result.together.step_seconds),
                    fmt::format("{:.3f}", result.slowdown()),
                    result.most_shared_link.empty() ? "-" : result.most_shared_link});
  std::string text = grid("<job|nodes|step alone|step together|slowdown|<link most shared", rows);
  if (!arguments.verbose) return text;
  const TableStyle style{.colour = colour_wanted()};
  for (const JobResult& result : jobs) {
    std::vector<std::string> title = title_of(result.job.scenario);
    title.front() = result.job.name + ": " + title.front();
    text += "\n" + report_table(result.together, title, style);
  }
  return text;
}

void simulate_jobs(const Asked& asked, const SimulateArguments& arguments) {
  if (arguments.engine.engine != "des")
    throw InputError({asked.source.file, "/jobs"}, "jobs that share a cluster",
                     "--engine des: the analytical engine simulates one job at a time");
  if (!arguments.svg.empty()) throw InputError({"--svg", ""}, "jobs", "a scenario of one job; --trace shows them all");
  for (const auto& [option, given] : {std::pair("--explain", !arguments.explain.empty()),
                                      {"--verify", arguments.verify},
                                      {"--memory-trace", !arguments.memory_trace.empty()}})
    if (given) throw InputError({option, ""}, "jobs", "a scenario of one job");
  SimulationOptions options = arguments.engine.options();
  options.ops = true;
  options.timeline = !arguments.trace.empty();
  const std::vector<JobResult> jobs =
      Simulator(read_user_calibration(arguments.calibrations)).evaluate_jobs(asked.document, asked.source, options);

  Outputs outputs;
  outputs.add_wanted(arguments.json, [&] { return json_text(jobs_json(asked, jobs), 2) + "\n"; });
  outputs.add_wanted(arguments.csv, [&] {
    const InputCells inputs = inputs_of(asked);
    std::string text = csv_header(kInputColumns);
    for (const JobResult& result : jobs)
      text += csv_row(row_name(asked) + "#" + result.job.name, result.together, inputs);
    return text;
  });
  outputs.add_wanted(arguments.trace, [&] {
    std::vector<TracedJob> traced;
    for (const JobResult& result : jobs) traced.push_back({result.job.name, &result.together});
    return jobs_trace(traced);
  });
  outputs.commit_with([&] { return jobs_table(jobs, arguments); });
}

void simulate_steps(const Asked& asked, const SimulateArguments& arguments) {
  if (has_jobs(asked.document)) throw InputError({"--steps", ""}, "jobs", "a scenario of one job");
  for (const auto& [option, given] : {std::pair("--trace", !arguments.trace.empty()),
                                      {"--memory-trace", !arguments.memory_trace.empty()},
                                      {"--explain", !arguments.explain.empty()},
                                      {"--ops", arguments.ops},
                                      {"--verify", arguments.verify}})
    if (given) throw InputError({"--steps", ""}, fmt::format("{} as well", option), "a single step");
  if (arguments.engine.both()) throw InputError({"--steps", ""}, "--engine both as well", "one engine");
  check_outputs({arguments.json, arguments.csv, arguments.svg});
  const TrainingAnswer answer = [&] {
    ProgressLine line;
    const auto progress = [&](std::int64_t done, std::int64_t predicted) {
      if (line.is_due())
        line.show(fmt::format("{} of {} steps, {} of them predicted", done, *arguments.steps, predicted));
    };
    return training_answer(asked, {*arguments.steps, arguments.database, arguments.engine, progress});
  }();
  const Training& training = answer.training;
  const std::vector<std::string> title = title_of(answer.scenario);
  Outputs outputs;
  outputs.add_wanted(arguments.json, [&] { return json_text(training_answer_json(asked, training), 2) + "\n"; });
  outputs.add_wanted(arguments.csv,
                     [&] { return training_csv(training, row_name(asked), kInputColumns, inputs_of(asked)); });
  outputs.add_wanted(arguments.svg, [&] { return training_svg(training, title); });
  outputs.commit_with([&] { return training_table(training, title); });
}

void simulate_batch(const SimulateArguments& arguments) {
  if (arguments.steps) throw InputError({"--batch", ""}, "--steps as well", "--steps with a single scenario");
  if (!arguments.trace.empty() || !arguments.svg.empty() || !arguments.explain.empty() ||
      !arguments.memory_trace.empty())
    throw InputError({"--batch", ""}, "an output for a single scenario as well",
                     "--json or --csv, with one result per line");
  if (arguments.engine.both()) throw InputError({"--batch", ""}, "--engine both as well", "one engine");
  if (arguments.ops && !arguments.fields.empty())
    throw InputError({"--fields", ""}, "--ops as well", "one of the two: a list of ops is not a field");
  run_batch(arguments);
}

void simulate(const SimulateArguments& arguments) {
  arguments.engine.become_program_with_engine();
  if (arguments.explain == kMemoryPlan) become_program_with(Part::cbc, "--explain", "memory_plan", "memory");
  if (arguments.planned_memory)
    become_program_with(Part::cbc, "--planned-memory", "it", "none: --memory-trace for PyTorch's allocator");
  if (arguments.batch.empty() && !arguments.fields.empty())
    throw InputError({"--fields", ""}, "no --batch", "--batch as well, whose results it shortens");
  if (!arguments.database.empty() && !arguments.steps)
    throw InputError({"--db", ""}, "no --steps", "--steps N as well, whose steps it keeps (for one step use --json)");
  if (arguments.expandable_segments && arguments.memory_trace.empty())
    throw InputError({"--expandable-segments", ""}, "no --memory-trace", "--memory-trace FILE as well");
  if (arguments.planned_memory && (arguments.memory_trace.empty() || arguments.expandable_segments))
    throw InputError({"--planned-memory", ""},
                     arguments.expandable_segments ? "--expandable-segments as well" : "no --memory-trace",
                     "--memory-trace FILE, for either the plan or PyTorch's allocator");
  if (arguments.batch.empty() == arguments.scenario.empty())
    throw InputError({}, arguments.batch.empty() ? "no scenario" : "a scenario as well as --batch",
                     "either a scenario or --batch (orrery simulate --help)");
  if (arguments.batch.empty()) {
    ScenarioSource source;
    const nlohmann::json document = scenario_argument(arguments.scenario, arguments.sets, source);
    refuse_report(document, source.file,
                  "a scenario, such as inputs.scenario of a report, or orrery compare, which takes both");
    const Asked asked{document, source, arguments.calibrations, arguments.label, arguments.ops};
    if (arguments.steps) return simulate_steps(asked, arguments);
    return has_jobs(document) ? simulate_jobs(asked, arguments) : simulate_one(asked, arguments);
  }
  simulate_batch(arguments);
}

}  // namespace

void add_simulate(Command app) {
  auto arguments = std::make_shared<SimulateArguments>();
  const Command command =
      app.add_subcommand("simulate", "How long a training step takes, and where time and memory go");
  command.footer(kSimulateExamples + topics_text());
  offer_scenarios(command.add_option("SCENARIO", arguments->scenario,
                                     "A bundled scenario's name, a JSON file, or - for standard input"));
  add_fields(command, "--set", arguments->sets,
             "Override a field: plan.tensor_parallel=4, cluster.nodes=8, model=llama-3-8b");
  command.add_file("--json", arguments->json, "Write the report as JSON; - for standard output");
  command.add_file("--csv", arguments->csv, "Write the report as a row of CSV with a header; - for standard output");
  command.add_option("--label", arguments->label,
                     "Name of the result in JSON and CSV [its scenario and --sets]; in a batch TEXT:LINE", "TEXT");
  command.add_file("--trace", arguments->trace, "Write the step's timeline for Perfetto (ui.perfetto.dev)");
  command.add_file(
      "--memory-trace", arguments->memory_trace,
      "Write the allocations of the fullest stage in a step, for PyTorch's memory visualiser (pytorch.org/memory_viz)");
  command.add_flag("--expandable-segments", arguments->expandable_segments,
                   "--memory-trace: as with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True");
  command.add_flag(
      "--planned-memory", arguments->planned_memory,
      "--memory-trace: addresses planned before the step (MEMO; --explain memory_plan) instead of PyTorch's allocator");
  command.add_file("--svg", arguments->svg, "Draw the pipeline's schedule, or with --steps the training");
  command.add_file("--batch", arguments->batch,
                   "Read one scenario per line; print one result or error per line, in the same order");
  const Option fields = command.add_option(
      "--fields", arguments->fields,
      "Batch: only these columns in CSV and JSON, named as in the header of --csv: step_seconds,mfu,memory_fits",
      "NAME,NAME");
  add_calibrations(
      command, arguments->calibrations,
      "A result of `orrery calibrate` to use instead of the bundled calibration; may be repeated (kernels, "
      "collectives)");
  const Option explained = command.add_option("--explain", arguments->explain,
                                              "Print how the number of an op or of a term is made up", "OP|TERM");
  explained.offers_words(explained_names());
  command
      .add_option("--steps", arguments->steps,
                  "Simulate this many steps of a training, from workload.step on; equal steps are simulated once", "N")
      .between(1, Workload::kMostSteps);
  command.add_file("--db", arguments->database,
                   "--steps: keep the steps in this database; after an interruption the same command continues");
  command.add_flag("--ops", arguments->ops, "List every op with its cost (table and JSON)");
  command.add_flag("--verify", arguments->verify,
                   "Prove the Program first (layouts, collectives, complete sums); exit 1 if it is wrong");
  command.add_flag("--verbose", arguments->verbose, "Jobs: print the whole report of each");
  arguments->engine.add_to(command, /*both=*/true);
  command.callback([arguments, fields, explained] {
    if (fields.is_given() && arguments->fields.empty())
      throw InputError({"--fields", ""}, "nothing", "names of the columns that --csv has, separated by commas");
    if (explained.is_given() && arguments->explain.empty())
      throw InputError({"--explain", ""}, "nothing", "the name of an op or a term in the report");
    simulate(*arguments);
  });
}

}  // namespace orrery
