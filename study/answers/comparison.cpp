#include "study/answers/comparison.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "sim/base/json_reader.h"
#include "sim/report/json.h"
#include "strategies/strategy.h"
#include "study/answers/inputs.h"

namespace orrery {
namespace {

// Scenarios know --set alone.
InputError blame(const OwnSets& own, const InputError& error) {
  constexpr std::string_view kSet = "--set";
  for (const std::string& value : own.values) {
    InputError::Where where = error.where();
    const std::string set = fmt::format("{} {}", kSet, value);
    const bool unread = where.file == kSet && error.found() == describe(value);
    // Or of a file that it names: "plan.json (--set plan=plan.json: /plan)".
    const std::size_t named = where.file.find(fmt::format("({}: ", set));
    if (!unread && where.file != set && named == std::string::npos) continue;
    where.file.replace(named == std::string::npos ? 0 : named + 1, kSet.size(), own.option);
    return {std::move(where), error.found(), error.expected(), error.nearest()};
  }
  return error;
}

ComparedSide evaluate(const ScenarioArgument& scenario, std::vector<std::string> sets, const OwnSets& own_sets,
                      const SimulationOptions& options, const std::vector<std::string>& calibrations,
                      const UserCalibration& user) {
  const char* option = sets.empty() ? own_sets.option : "--set";
  sets.insert(sets.end(), own_sets.values.begin(), own_sets.values.end());
  ScenarioSource source;
  const nlohmann::json document = scenario_argument(scenario, sets, source);
  if (is_report(document)) {
    if (!sets.empty())
      throw InputError({source.file, ""}, fmt::format("a report with {}", option),
                       "a scenario: a report cannot be changed");
    ComparedSide side{.file = source.file, .report = read_report(document, {source.file, ""}, all_figure_kinds())};
    side.reported = side.report.engine == "measured" ? "a measured run" : "a prediction";
    if (document.contains("scenario") && document["scenario"].is_string())
      side.reported += " of " + document["scenario"].get<std::string>();
    if (document.contains("set") && document["set"].is_array())
      for (const auto& set : document["set"])
        if (set.is_string()) side.reported += ", " + set.get<std::string>();
    if (document.contains("inputs")) side.inputs = nlohmann::ordered_json(document["inputs"]);
    if (document.contains("version") && document["version"].is_string())
      side.version = document["version"].get<std::string>();
    return side;
  }
  Simulation simulation = Simulator(user).evaluate(document, source, options);
  return {.file = source.file,
          .scenario = std::move(simulation.scenario),
          .report = std::move(simulation.report),
          .inputs = inputs_json(document, source, calibrations),
          .version = ORRERY_VERSION};
}

}  // namespace

ComparedSide compared_side(const ScenarioArgument& scenario, const std::vector<std::string>& sets,
                           const OwnSets& own_sets, const SimulationOptions& options,
                           const std::vector<std::string>& calibrations, const UserCalibration& user) {
  try {
    return evaluate(scenario, sets, own_sets, options, calibrations, user);
  } catch (const InputError& error) {
    throw blame(own_sets, error);
  }
}

nlohmann::ordered_json compared_json(const ComparedSide& a, const ComparedSide& b) {
  nlohmann::ordered_json json = comparison_json(a.report, b.report);
  json["inputs"] = {{"a", a.inputs}, {"b", b.inputs}};
  json["version"] = ORRERY_VERSION;
  return json;
}

}  // namespace orrery
