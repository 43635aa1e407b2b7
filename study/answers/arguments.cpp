#include "study/answers/arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "sim/base/json_reader.h"
#include "sim/base/words.h"
#include "study/validation/published.h"

namespace orrery {

namespace {

constexpr std::array<std::string_view, kEngines + 1> kChoices{kEngineNames[0], kEngineNames[1], "both"};

// "50000000", "50e6".
double read_limit(const std::string& text) {
  const std::optional<double> limit = number_of<double>(text);
  if (!limit || *limit < 1 || *limit != std::floor(*limit))
    throw InputError({"--limit", ""}, describe(text), "a whole number of at least 1, such as 50e6");
  return *limit;
}

bool may_be_id(const std::string& argument) {
  return argument.find('/') == std::string::npos && !argument.ends_with(".json") && argument != "-";
}

}  // namespace

std::size_t index_named(const char* option, const std::string& name, std::span<const std::string_view> names) {
  const auto at = std::find(names.begin(), names.end(), name);
  if (at == names.end())
    throw InputError({option, ""}, describe(name), fmt::format("one of {}", fmt::join(names, ", ")),
                     nearest_name(name, names));
  return static_cast<std::size_t>(at - names.begin());
}

const PublishedPoint* published_argument(const std::string& argument) {
  const bool is_bundled = find_bundled(bundled_scenarios(), argument) != nullptr;
  return may_be_id(argument) && !is_bundled ? find_published(argument) : nullptr;
}

ScenarioArgument::ScenarioArgument(std::string called, nlohmann::json held)
    : name(std::move(called)), document(std::make_shared<const nlohmann::json>(std::move(held))) {}

nlohmann::json scenario_argument(const ScenarioArgument& given, const std::vector<std::string>& sets,
                                 ScenarioSource& source) {
  const std::string& argument = given.name;
  const auto with_sets = [&](const std::string& name, nlohmann::json document) {
    source = {name, sets};
    for (const std::string& set : sets) apply_set(document, set, source.file);
    return document;
  };
  if (given.document != nullptr) return with_sets(argument, *given.document);
  const PublishedPoint* point = published_argument(argument);
  if (point == nullptr) {
    try {
      return load_scenario_document(argument, sets, source);
    } catch (const InputError& error) {
      static const std::vector<std::string> ids = [] {
        std::vector<std::string> all;
        for (const PublishedSource& s : published_sources())
          for (const PublishedPoint& p : s.points) all.push_back(p.id);
        return all;
      }();
      const std::string nearest = may_be_id(argument) && error.nearest().empty() ? nearest_name(argument, ids) : "";
      if (nearest.empty()) throw;
      throw InputError(error.where(), error.found(), error.expected() + " or the id of a published measurement",
                       nearest);
    }
  }
  if (!point->not_predicted.empty())
    throw InputError({argument, ""}, "a measurement without a scenario (" + point->not_predicted + ")",
                     "one with a scenario");
  return with_sets(point->id, *point->scenario);
}

SimulationOptions EngineChoice::options() const {
  SimulationOptions options;
  if (!both()) options.engine = chosen<Engine>("--engine", engine, kChoices);
  if (both()) options.engine = Engine::des;
  const auto refuse = [&](const char* option, const std::string& found) {
    if (options.engine == Engine::analytical && !found.empty())
      throw InputError({option, ""}, found, "--engine des with it: the analytical engine has no such choice");
  };
  refuse("--fidelity", fidelity.empty() ? "" : describe(fidelity));
  refuse("--routing", routing.empty() ? "" : describe(routing));
  refuse("--limit", limit.value_or(""));
  refuse("--exact", exact ? "it" : "");
  options.fidelity = chosen<Fidelity>("--fidelity", fidelity, kFidelityNames);
  if (limit) options.most_works = read_limit(*limit);
  if (exact) options.most_exact_works = std::numeric_limits<double>::infinity();
  options.routing = chosen<Routing>("--routing", routing, kRoutingNames);
  return options;
}

}  // namespace orrery
