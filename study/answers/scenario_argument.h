// The scenario that a caller names, or has.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "strategies/read_scenario.h"

namespace orrery {

struct PublishedPoint;

// The published measurement that the argument names; nullptr where it is a bundled scenario or looks like a file, which
// costs no reading of all measurements.
const PublishedPoint* published_argument(const std::string& argument);

// A scenario's name, path or id, or "-" for standard input; or a document with what messages are to call it.
struct ScenarioArgument {
  ScenarioArgument(std::string named) : name(std::move(named)) {}  // NOLINT: a name stands for what it names
  ScenarioArgument(std::string called, nlohmann::json held);

  std::string name;
  std::shared_ptr<const nlohmann::json> document;  // null: what is named
};

// As load_scenario_document, and the id of a published measurement (orrery validate) stands for its scenario. Paths in
// a document without a file are relative to the working directory.
nlohmann::json scenario_argument(const ScenarioArgument& argument, const std::vector<std::string>& sets,
                                 ScenarioSource& source);

}  // namespace orrery
