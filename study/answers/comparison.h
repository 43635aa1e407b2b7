// What `orrery compare` sets side by side.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "study/answers/scenario_argument.h"
#include "study/simulation/simulation.h"

namespace orrery {

struct ComparedSide {
  std::string file;
  std::optional<Scenario> scenario{};  // none: a report, and of what
  std::string reported{};
  Report report{};
  nlohmann::ordered_json inputs{};
  std::string version{};  // of the program that made the report
};

// What is set on one side alone, and by which option.
struct OwnSets {
  const char* option;
  const std::vector<std::string>& values;
};

// Of a scenario, simulated, or of a report in JSON. `sets`: of both sides; `user`: what the files `calibrations` hold.
// Throws InputError, its file filled in, and StalledError.
ComparedSide compared_side(const ScenarioArgument& scenario, const std::vector<std::string>& sets,
                           const OwnSets& own_sets, const SimulationOptions& options,
                           const std::vector<std::string>& calibrations, const UserCalibration& user);
// comparison_json() with "inputs" of both and "version".
nlohmann::ordered_json compared_json(const ComparedSide& a, const ComparedSide& b);

}  // namespace orrery
