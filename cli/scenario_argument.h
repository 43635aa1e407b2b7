// The SCENARIO of a command line.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "strategies/read_scenario.h"

namespace orrery {

struct PublishedPoint;

// The published measurement that the argument names; nullptr where it is a bundled scenario or looks like a file, which
// costs no reading of all measurements.
const PublishedPoint* published_argument(const std::string& argument);

// As load_scenario_document, and the id of a published measurement (orrery validate) stands for its scenario.
nlohmann::json scenario_argument(const std::string& argument, const std::vector<std::string>& sets,
                                 ScenarioSource& source);

}  // namespace orrery
