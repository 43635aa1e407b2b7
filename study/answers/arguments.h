// What a caller names or provides: a scenario, the engine with its options, names of a list.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "strategies/read_scenario.h"
#include "study/simulation/simulation.h"

namespace orrery {

struct PublishedPoint;

// Returns the index of `name` in `names`. Throws InputError for `option`, with the nearest name, if it is not there.
std::size_t index_named(const char* option, const std::string& name, std::span<const std::string_view> names);
// The same for `names` in the order of the enumerators. An empty name stands for the first.
template <class Enum>
Enum chosen(const char* option, const std::string& name, std::span<const std::string_view> names) {
  return name.empty() ? Enum{} : static_cast<Enum>(index_named(option, name, names));
}

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

// The engine and its options in the words of a caller.
struct EngineChoice {
  std::string engine = std::string(kEngineNames.front());  // or "both"
  std::string fidelity, routing;                           // empty: not given
  std::optional<std::string> limit;                        // number of works ("50e6") beyond which a run is refused
  bool exact = false;                                      // folds only ranks and links that are exactly alike

  bool both() const { return engine == "both"; }
  // For "both": the options of the discrete-event engine. Throws InputError for unknown words, and for options that the
  // analytical engine does not have.
  SimulationOptions options() const;
};

}  // namespace orrery
