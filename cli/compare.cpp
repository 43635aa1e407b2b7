// orrery compare: compares two scenarios, or reports of earlier runs, and shows which terms make the difference; or
// compares two databases of sweeps, and shows which points changed.
#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "cli/commands.h"
#include "cli/offers.h"
#include "cli/output.h"
#include "sim/base/json_reader.h"
#include "sim/base/json_writer.h"
#include "sim/base/one_line.h"
#include "sim/base/words.h"
#include "sim/report/columns.h"
#include "sim/report/format.h"
#include "sim/report/table.h"
#include "study/answers/comparison.h"
#include "study/answers/inputs.h"
#include "study/simulation/simulation.h"
#include "study/sweep/comparison.h"

namespace orrery {
namespace {

struct CompareArguments {
  std::string a, b;
  std::vector<std::string> sets, sets_a, sets_b, calibrations;
  std::string json, csv;
  EngineArguments engine;
  // For databases.
  std::string threshold, figures;
  std::optional<std::int64_t> top;
};

constexpr const char* kCompareExamples = R"(Examples:
  orrery compare a.json b.json
  orrery compare measured.json small-gpt                             a report that `run` or `simulate` wrote, and a scenario
  orrery compare scenario.json --set-b plan.tensor_parallel=4        one scenario with and without a change
  orrery compare scenario.json --set-a model=llama-3-8b --set-b model=llama-2-7b --json -
  orrery compare straggler --engine des --set-a perturbations=[]     what a slow device costs
  orrery compare before.db after.db --threshold 2%                   which points of two sweeps moved

Exit codes: 0 done, and of two sweeps no point moved; 1 one did, or is gone; 2 the input cannot be used.)";

// The kInputColumns of both sides, as rows of comparison_csv().
std::string inputs_csv(const ComparedSide& a, const ComparedSide& b) {
  // Reports may have been written by hand: a member that is not text counts as empty.
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
    return InputCells{digest, files, side.version, text(side.inputs, "commit")};
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

// `other`: names the engine if it differs from the other side's.
std::string label(const char* letter, const ComparedSide& side, const std::vector<std::string>& own_sets,
                  const ComparedSide& other) {
  std::string text = std::string(letter) + ": " + title_of(side);
  for (const std::string& set : own_sets) text += ", " + set;
  const std::string& engine = side.report.engine;
  if (engine != other.report.engine && engine != "measured") text += ", by --engine " + engine;
  return text;
}

// Whether a file is a database of sweeps, by its first bytes: https://www.sqlite.org/fileformat.html
bool is_database(const std::string& file) {
  constexpr std::string_view kBegins("SQLite format 3\0", 16);
  std::array<char, kBegins.size()> begin{};
  std::error_code none;
  if (!std::filesystem::is_regular_file(file, none)) return false;
  std::ifstream(file, std::ios::binary).read(begin.data(), begin.size());
  return std::string_view(begin.data(), begin.size()) == kBegins;
}

void compare_databases(const CompareArguments& arguments) {
  for (const auto& [option, given] : {std::pair("--set", !arguments.sets.empty()),
                                      {"--set-a", !arguments.sets_a.empty()},
                                      {"--set-b", !arguments.sets_b.empty()},
                                      {"--calibration", !arguments.calibrations.empty()},
                                      {"--engine", arguments.engine.engine != EngineArguments().engine}})
    if (given) throw InputError({option, ""}, "databases of sweeps", "scenarios: results of a sweep cannot be changed");
  SweepComparisonOptions options;
  if (!arguments.threshold.empty()) options.threshold = share_of_text(arguments.threshold, "--threshold");
  if (!arguments.figures.empty()) options.figures = list_of_text(arguments.figures);
  const SweepComparison comparison = compare_sweeps(arguments.a, arguments.b, options);
  Outputs outputs;
  outputs.add_wanted(arguments.json, [&] {
    nlohmann::ordered_json json = sweep_comparison_json(comparison);
    json["version"] = ORRERY_VERSION;
    // An SQLite file may hold any text.
    return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  });
  outputs.add_wanted(arguments.csv, [&] { return sweep_comparison_csv(comparison); });
  constexpr std::int64_t kUsualTop = 20;
  outputs.commit_with(
      [&] { return sweep_comparison_text(comparison, static_cast<std::size_t>(arguments.top.value_or(kUsualTop))); });
  if (!comparison.alike()) throw Exit{1};
}

void compare(const CompareArguments& arguments) {
  const bool database_a = is_database(arguments.a), database_b = is_database(arguments.b);
  if (database_a && arguments.b.empty())
    throw InputError({arguments.a, ""}, "a database on one side only", "two databases of sweeps, or two scenarios");
  if (database_a || database_b) return compare_databases(arguments);
  for (const auto& [option, given] : {std::pair("--threshold", !arguments.threshold.empty()),
                                      {"--fields", !arguments.figures.empty()},
                                      {"--top", arguments.top.has_value()}})
    if (given) throw InputError({option, ""}, "scenarios", "two databases of sweeps");
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
  outputs.add_wanted(arguments.json, [&] { return json_text(compared_json(a, b), 2) + "\n"; });
  outputs.add_wanted(arguments.csv, [&] { return comparison_csv(report_a, report_b) + inputs_csv(a, b); });
  outputs.commit_with([&] {
    return comparison_table(report_a, report_b,
                            {label("A", a, arguments.sets_a, b), label("B", b, arguments.sets_b, a)},
                            {.colour = colour_wanted()});
  });
}

}  // namespace

void add_compare(Command app) {
  const auto [command, arguments] = app.declare<CompareArguments>(
      "compare", "In which terms two scenarios differ, side by side, and by how much", kCompareExamples, compare);
  offer_scenarios(
      command.add_option("A", arguments.a, "A scenario (as for simulate), a report in JSON, or a database of `sweep`")
          .required());
  offer_scenarios(command.add_option("B", arguments.b, "Another; of scenarios A again when left out"));
  add_fields(command, "--set", arguments.sets, "Override a field of both");
  add_fields(command, "--set-a", arguments.sets_a, "Override a field of A");
  add_fields(command, "--set-b", arguments.sets_b, "Override a field of B");
  command.add_file("--json", arguments.json, "Write both reports and their difference as JSON; - for standard output");
  command.add_file("--csv", arguments.csv,
                   "Write the columns of `simulate --csv` as rows: A, B and their difference; - for standard output");
  add_calibrations(command, arguments.calibrations,
                   "A result of `orrery calibrate` to use for both instead of the bundled calibration");
  command.add_option("--threshold", arguments.threshold, "Databases: smallest change that counts: 2% or 0.02 [1%]",
                     "SHARE");
  command.add_option("--fields", arguments.figures,
                     "Databases: columns of `simulate --csv` to compare [step_seconds,memory_peak_bytes,memory_fits]",
                     "NAME,...");
  command.add_option("--top", arguments.top, "Databases: number of the most changed points to show [20]", "N")
      .between(1, 1000000);
  arguments.engine.add_to(command, /*both=*/false);
}

}  // namespace orrery
