// The scenario that a caller names or provides.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "strategies/read_scenario.h"

namespace orrery {

struct PublishedPoint;

// The published measurement that the argument names; nullptr if it is a bundled scenario or looks like a file, in which
// case the measurements are not read.
const PublishedPoint* published_argument(const std::string& argument);

// A scenario's name, path or id, or "-" for standard input; or a document together with a name for messages.
struct ScenarioArgument {
  ScenarioArgument(std::string named) : name(std::move(named)) {}  // NOLINT: a name stands for what it names
  ScenarioArgument(std::string called, nlohmann::json held);

  std::string name;
  std::shared_ptr<const nlohmann::json> document;  // null: `name` refers to the scenario
};

// Like load_scenario_document(); in addition, the id of a published measurement (orrery validate) refers to its
// scenario. In a document without a file, paths are relative to the working directory.
nlohmann::json scenario_argument(const ScenarioArgument& argument, const std::vector<std::string>& sets,
                                 ScenarioSource& source);

}  // namespace orrery
