// orrery simulate: one scenario, or a batch of them.
#include <algorithm>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/batch.h"
#include "cli/commands.h"
#include "cli/explain.h"
#include "cli/output.h"
#include "cli/simulation.h"
#include "sim/report/csv.h"
#include "sim/report/json.h"
#include "sim/report/svg.h"
#include "sim/report/table.h"
#include "sim/report/trace.h"

namespace orrery {
namespace {

struct Arguments {
  std::string scenario;
  std::vector<std::string> sets;
  std::string json, csv, trace, svg, explain, batch;
  std::string engine = "analytical";
  bool ops = false;
};

constexpr const char* kExamples = R"(Examples:
  orrery simulate llama-3-70b-512-h100                        a bundled scenario (orrery list scenarios)
  orrery simulate scenario.json --set plan.zero_stage=3       one field changed
  orrery simulate scenario.json --json - | jq .mfu            for programs
  orrery simulate scenario.json --trace step.json             open in ui.perfetto.dev
  orrery simulate scenario.json --svg schedule.svg            a picture of the pipeline's schedule
  orrery simulate scenario.json --explain layer.forward.fc1   one op's formula with its numbers
  orrery simulate --batch scenarios.jsonl                     a scenario a line in, a result a line out)";

void simulate_one(const Arguments& arguments) {
  ScenarioSource source;
  const nlohmann::json document = load_scenario_document(arguments.scenario, arguments.sets, source);
  Simulator simulator;
  const AnalyticalOptions options{.timeline = !arguments.trace.empty() || !arguments.svg.empty(), .ops = true};
  const Simulation simulation = simulator.evaluate(document, source, options);
  const Report& report = simulation.report;

  Outputs outputs;
  bool table = true;
  std::vector<std::string> written{arguments.scenario};  // never over the scenario itself
  const auto output = [&](const std::string& path, auto&& text) {
    if (path.empty()) return;
    if (path == "-") {
      if (!table || !arguments.explain.empty())
        throw InputError({"", ""}, "\"-\" for several outputs", "at most one on standard output");
      table = false;
    } else if (std::find(written.begin(), written.end(), path) != written.end()) {
      throw InputError({path, ""}, "one file for several purposes", "a file of its own for each output");
    }
    written.push_back(path);
    outputs.add(path, text());
  };
  output(arguments.json, [&] { return result_json(report, arguments.ops).dump(2) + "\n"; });
  output(arguments.csv, [&] { return csv_header() + csv_row(source.file, report); });
  output(arguments.trace, [&] { return report_trace(report); });
  output(arguments.svg, [&] { return report_svg(report, title_of(simulation.scenario).front()); });
  if (!arguments.explain.empty()) {
    outputs.add("-", explain(arguments.explain, simulation));
  } else if (table) {
    std::string text = report_table(report, title_of(simulation.scenario), {.colour = colour_wanted()});
    if (arguments.ops) text += "\n" + op_table(simulation);
    outputs.add("-", text);
  }
  outputs.commit();
}

void simulate(const Arguments& arguments) {
  if (arguments.batch.empty() == arguments.scenario.empty())
    throw InputError({}, arguments.batch.empty() ? "no scenario" : "a scenario beside --batch",
                     "either a scenario or --batch (orrery simulate --help)");
  if (arguments.batch.empty()) return simulate_one(arguments);
  if (!arguments.csv.empty() || !arguments.trace.empty() || !arguments.svg.empty() || !arguments.explain.empty())
    throw InputError({"--batch", ""}, "an output for one scenario beside it", "--json alone: a result a line");
  run_batch(arguments.batch, arguments.sets, arguments.json.empty() ? "-" : arguments.json, arguments.ops);
}

}  // namespace

void add_simulate(CLI::App& app) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      app.add_subcommand("simulate", "Predict one training step: time, throughput, memory, and what bounds it");
  command->footer(kExamples);
  command->add_option("SCENARIO", arguments->scenario,
                      "A bundled scenario's name, a JSON file, or - for standard input");
  command
      ->add_option("--set", arguments->sets,
                   "Override a field: plan.tensor_parallel=4, cluster.nodes=8, model=llama-3-8b")
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE");
  const auto file = [&](const char* name, std::string& path, const char* text) {
    command->add_option(name, path, text)->type_name("FILE");
  };
  file("--json", arguments->json, "Write the report as JSON; - for standard output");
  file("--csv", arguments->csv, "Write the report as a row of CSV with a header");
  file("--trace", arguments->trace, "Write the step's timeline for Perfetto (ui.perfetto.dev)");
  file("--svg", arguments->svg, "Write a picture of the pipeline's schedule");
  file("--batch", arguments->batch, "Read a scenario a line; print a result or an error a line, in the same order");
  command->add_option("--explain", arguments->explain, "Print how an op's or a term's number came about")
      ->type_name("OP|TERM");
  command->add_flag("--ops", arguments->ops, "List every op with its cost (table and JSON)");
  command->add_option("--engine", arguments->engine, "How the program is timed")->check(CLI::IsMember({"analytical"}));
  command->callback([arguments] { simulate(*arguments); });
}

}  // namespace orrery
