#include "study/answers/shown.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "models/read_model.h"
#include "sim/base/json_reader.h"
#include "sim/hardware/presets.h"
#include "sim/hardware/read_cluster.h"
#include "sim/planning/presets.h"
#include "sim/report/json.h"
#include "strategies/read_scenario.h"
#include "strategies/strategy.h"
#include "study/capacity/capacity_plan.h"
#include "study/validation/published.h"

namespace orrery {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson model_json(const Model& model) {
  OrderedJson json = to_json(model);
  json["parameters"] = parameters(model);
  if (model.has_experts()) json["active_parameters"] = active_parameters(model);
  return json;
}

std::vector<std::string> all_names() {
  std::vector<std::string> names;
  const auto add = [&](const std::vector<std::string>& more) { names.insert(names.end(), more.begin(), more.end()); };
  add(model_names());
  add(cluster_names());
  add(node_names());
  add(device_names());
  add(fabric_names());
  for (const auto& more : {PresetsOf<Price>::names(), PresetsOf<Power>::names(), PresetsOf<SiteOverhead>::names(),
                           PresetsOf<Grid>::names(), PresetsOf<FailureRate>::names(),
                           PresetsOf<CheckpointStorage>::names(), PresetsOf<RestartOverhead>::names()})
    add(more);
  for (const BundledPlan& plan : bundled_plans()) names.push_back(plan.name);
  for (const Strategy& strategy : all_strategies()) names.emplace_back(strategy.name);
  for (const BundledScenario& scenario : bundled_scenarios()) names.push_back(scenario.name);
  for (const PublishedSource& source : published_sources())
    for (const PublishedPoint& point : source.points) names.push_back(point.id);
  return names;
}

}  // namespace

OrderedJson shown_json(const std::string& name) {
  if (name.ends_with(".json")) {
    const nlohmann::json document = parse_python_json_file(name);
    refuse_report(document, name, "a model's file; orrery compare reads reports");
    if (document.is_object() && document.contains("cluster") && document.contains("workload"))
      throw InputError({name, ""}, "a scenario", "a model's file; orrery simulate reads scenarios");
    const bool wrapped = document.is_object() && document.contains("model");  // as --json writes it
    return {{"model", model_json(wrapped ? read_model(document.at("model"), {name, "/model"})
                                         : read_model(document, {name, ""}))}};
  }
  OrderedJson found = OrderedJson::object();
  const auto look = [&](const char* kind, auto read) {
    try {
      found[kind] = read();
    } catch (const InputError& error) {
      if (!error.where().file.empty()) throw;  // a fault inside a preset; not: no such name
    }
  };
  look("model", [&] { return model_json(read_model(name, {})); });
  look("cluster", [&] { return OrderedJson(to_json(find_cluster(name))); });
  look("node", [&] { return OrderedJson(to_json(find_node(name))); });
  look("device", [&] { return OrderedJson(to_json(find_device(name))); });
  look("fabric", [&] { return OrderedJson(to_json(find_fabric(name))); });
  look("price", [&] { return OrderedJson(to_json(PresetsOf<Price>::find(name))); });
  look("power", [&] { return OrderedJson(to_json(PresetsOf<Power>::find(name))); });
  look("site", [&] { return OrderedJson(to_json(PresetsOf<SiteOverhead>::find(name))); });
  look("grid", [&] { return OrderedJson(to_json(PresetsOf<Grid>::find(name))); });
  look("failures", [&] { return OrderedJson(to_json(PresetsOf<FailureRate>::find(name))); });
  look("storage", [&] { return OrderedJson(to_json(PresetsOf<CheckpointStorage>::find(name))); });
  look("restarts", [&] { return OrderedJson(to_json(PresetsOf<RestartOverhead>::find(name))); });
  for (const BundledPlan& plan : bundled_plans())
    if (plan.name == name) {
      found["plan"] = parse_json(plan.text, std::string(plan.path));
      found["plan"]["path"] = plan.path;
    }
  for (const Strategy& strategy : all_strategies())
    if (strategy.name == name)
      found["strategy"] = {{"name", name}, {"summary", strategy.summary}, {"paper", strategy.paper}};
  for (const BundledScenario& scenario : bundled_scenarios())
    if (scenario.name == name) {
      found["scenario"] = parse_json(scenario.text, std::string(scenario.path));
      found["scenario"]["path"] = scenario.path;
    }
  if (const PublishedPoint* point = find_published(name)) {
    const PublishedSource& source = source_of(*point);
    OrderedJson& measured = found["published measurement"];
    measured = {{"file", "results/published/steps/" + source.name + ".json"},
                {"source", source.source},
                {"where", point->where},
                {"system", source.system},
                {"quality", point->quality}};
    if (point->has_value()) measured[std::string(name_of(point->quantity))] = point->value;
    if (point->steps > 1) measured["mean_of_steps"] = point->steps;
    if (!point->published_metric.empty())
      measured["published"] =
          fmt::format("{} {} {}", point->published_metric, point->published_value, point->published_unit);
    if (!point->assumptions.empty()) measured["assumptions"] = point->assumptions;
    if (!point->not_fitted.empty()) measured["not_fitted"] = point->not_fitted;
    if (!explanation_of(*point).empty()) measured["why_it_is_off"] = explanation_of(*point);
    if (!point->not_predicted.empty()) measured["not_predicted"] = point->not_predicted;
    if (point->scenario != nullptr) measured["scenario"] = *point->scenario;
  }
  if (found.empty())
    throw InputError({}, describe(name),
                     "a name that `orrery list` prints, or an id that `orrery validate --points` prints",
                     nearest_name(name, all_names()));
  return found;
}

}  // namespace orrery
