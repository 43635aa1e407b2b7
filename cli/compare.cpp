// orrery compare: two scenarios, or reports of earlier runs, side by side, and which terms make the difference.
#include <fmt/format.h>

#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cli/commands.h"
#include "cli/engine_options.h"
#include "cli/offers.h"
#include "cli/output.h"
#include "cli/title.h"
#include "sim/answers/comparison.h"
#include "sim/answers/inputs.h"
#include "sim/base/json_reader.h"
#include "sim/base/one_line.h"
#include "sim/report/csv.h"
#include "sim/report/format.h"
#include "sim/report/json.h"
#include "sim/report/read_json.h"
#include "sim/report/table.h"
#include "sim/simulation/simulation.h"

namespace orrery {
namespace {

struct CompareArguments {
  std::string a, b;
  std::vector<std::string> sets, sets_a, sets_b, calibrations;
  std::string json, csv;
  EngineArguments engine;
};

constexpr const char* kCompareExamples = R"(Examples:
  orrery compare a.json b.json
  orrery compare measured.json small-gpt                             a report that `run` or `simulate` wrote, and a scenario
  orrery compare scenario.json --set-b plan.tensor_parallel=4        one scenario with and without a change
  orrery compare scenario.json --set-a model=llama-3-8b --set-b model=llama-2-7b --json -
  orrery compare straggler --engine des --set-a perturbations=[]     what a slow device costs)";

// kInputColumns of both sides, as rows of comparison_csv().
std::string inputs_csv(const ComparedSide& a, const ComparedSide& b) {
  // Reports may have been written by hand: what is no text is none.
  const auto text = [](const nlohmann::ordered_json& of, const char* key) {
    return of.is_object() && of.contains(key) && of[key].is_string() ? of[key].get<std::string>() : "";
  };
  const auto cells = [&](const ComparedSide& side) {
    const std::string digest = text(side.inputs, "digest");
    std::string files;
    if (side.inputs.is_object() && side.inputs.contains("calibrations"))
      for (const auto& file : side.inputs["calibrations"])
        files += fmt::format("{}{} {}", files.empty() ? "" : ", ", text(file, "file"), text(file, "digest"));
    if (files.empty() && !digest.empty()) files = "bundled";
    return std::array<std::string, kInputColumns.size()>{digest, files, side.version, text(side.inputs, "commit")};
  };
  const auto of_a = cells(a), of_b = cells(b);
  std::string rows;
  for (std::size_t i = 0; i < kInputColumns.size(); ++i)
    rows += fmt::format("{},{},{},\n", kInputColumns[i], csv_text(of_a[i]), csv_text(of_b[i]));
  return rows;
}

std::string title_of(const ComparedSide& side) {
  return side.scenario ? title_of(*side.scenario).front() + " (" + side.file + ")"
                       : one_line(side.reported + " (" + side.file + ")");
}

// `other`: the engine is named where it is not the other side's.
std::string label(const char* letter, const ComparedSide& side, const std::vector<std::string>& own_sets,
                  const ComparedSide& other) {
  std::string text = std::string(letter) + ": " + title_of(side);
  for (const std::string& set : own_sets) text += ", " + set;
  const std::string& engine = side.report.engine;
  if (engine != other.report.engine && engine != "measured") text += ", by --engine " + engine;
  return text;
}

void compare(const CompareArguments& arguments) {
  arguments.engine.become_program_with_engine();
  if (arguments.a == "-" && (arguments.b.empty() || arguments.b == "-"))
    throw InputError({"<stdin>", ""}, "both scenarios on standard input", "one of them in a file");
  const SimulationOptions options = arguments.engine.options();
  const UserCalibration user = read_user_calibration(arguments.calibrations);
  const auto side = [&](const std::string& scenario, const OwnSets& own_sets) {
    return compared_side(scenario, arguments.sets, own_sets, options, arguments.calibrations, user);
  };
  const ComparedSide a = side(arguments.a, {"--set-a", arguments.sets_a});
  const ComparedSide b = side(arguments.b.empty() ? arguments.a : arguments.b, {"--set-b", arguments.sets_b});
  const Report &report_a = a.report, &report_b = b.report;
  Outputs outputs;
  outputs.add_wanted(arguments.json, [&] { return compared_json(a, b).dump(2) + "\n"; });
  outputs.add_wanted(arguments.csv, [&] { return comparison_csv(report_a, report_b) + inputs_csv(a, b); });
  if (!outputs.on_standard_output())
    outputs.add("-", comparison_table(report_a, report_b,
                                      {label("A", a, arguments.sets_a, b), label("B", b, arguments.sets_b, a)},
                                      {.colour = colour_wanted()}));
  outputs.commit();
}

}  // namespace

void add_compare(Command app) {
  auto arguments = std::make_shared<CompareArguments>();
  const Command command =
      app.add_subcommand("compare", "In which terms two scenarios differ, side by side, and by how much");
  command.footer(kCompareExamples);
  offer_scenarios(
      command.add_option("A", arguments->a, "A scenario (as for simulate), or a report in JSON").required());
  offer_scenarios(command.add_option("B", arguments->b, "Another; A again when left out"));
  const auto sets = [&](const char* name, std::vector<std::string>& values, const char* text) {
    offer_fields(command.add_option(name, values, text).one_value_each().type_name("KEY=VALUE"));
  };
  sets("--set", arguments->sets, "Override a field of both");
  sets("--set-a", arguments->sets_a, "Override a field of A");
  sets("--set-b", arguments->sets_b, "Override a field of B");
  command
      .add_option("--json", arguments->json, "Write both reports and their difference as JSON; - for standard output")
      .type_name("FILE");
  command
      .add_option("--csv", arguments->csv,
                  "Write the columns of `simulate --csv` as rows: A, B and their difference; - for standard output")
      .type_name("FILE");
  command
      .add_option("--calibration", arguments->calibrations,
                  "What `orrery calibrate` has measured, for both, in place of the bundled calibration")
      .one_value_each()
      .type_name("FILE");
  arguments->engine.add_to(command, /*both=*/false);
  command.callback([arguments] { compare(*arguments); });
}

}  // namespace orrery
