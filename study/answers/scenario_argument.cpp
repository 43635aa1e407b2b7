#include "study/answers/scenario_argument.h"

#include <nlohmann/json.hpp>

#include "study/validation/published.h"

namespace orrery {

namespace {

bool may_be_id(const std::string& argument) {
  return argument.find('/') == std::string::npos && !argument.ends_with(".json") && argument != "-";
}

}  // namespace

const PublishedPoint* published_argument(const std::string& argument) {
  const bool is_bundled = find_bundled(bundled_scenarios(), argument) != nullptr;
  return may_be_id(argument) && !is_bundled ? find_published(argument) : nullptr;
}

ScenarioArgument::ScenarioArgument(std::string called, nlohmann::json held)
    : name(std::move(called)), document(std::make_shared<const nlohmann::json>(std::move(held))) {}

nlohmann::json scenario_argument(const ScenarioArgument& given, const std::vector<std::string>& sets,
                                 ScenarioSource& source) {
  const std::string& argument = given.name;
  if (given.document != nullptr) {
    source = {argument, sets};
    nlohmann::json document = *given.document;
    for (const std::string& set : sets) apply_set(document, set, source.file);
    return document;
  }
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
  source = {point->id, sets};
  nlohmann::json document = *point->scenario;
  for (const std::string& set : sets) apply_set(document, set, source.file);
  return document;
}

}  // namespace orrery
