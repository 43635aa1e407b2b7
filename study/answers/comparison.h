// The answer of `orrery compare`.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "study/answers/arguments.h"
#include "study/simulation/simulation.h"

namespace orrery {

// One side of the comparison: a simulated scenario, or a report read from a file.
struct ComparedSide {
  std::string file;
  std::optional<Scenario> scenario{};  // empty: `file` is a report; `reported` names its scenario
  std::string reported{};
  Report report{};
  nlohmann::ordered_json inputs{};
  std::string version{};  // of the program that made the report
};

// Settings of one side only, and the option that gives them.
struct OwnSets {
  const char* option;
  const std::vector<std::string>& values;
};

// Simulates a scenario, or reads a report in JSON. `sets`: settings of both sides. `user`: the contents of the files
// `calibrations`. Throws InputError, with its file set, and StalledError.
ComparedSide compared_side(const ScenarioArgument& scenario, const std::vector<std::string>& sets,
                           const OwnSets& own_sets, const SimulationOptions& options,
                           const std::vector<std::string>& calibrations, const UserCalibration& user);
// comparison_json() with the "inputs" and "version" of both sides.
nlohmann::ordered_json compared_json(const ComparedSide& a, const ComparedSide& b);

}  // namespace orrery
