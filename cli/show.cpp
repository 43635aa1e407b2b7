// orrery show: one preset with all its figures and where they come from; or the links of a cluster.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/offers.h"
#include "cli/output.h"
#include "cli/show_links.h"
#include "models/read_model.h"
#include "sim/base/json_reader.h"
#include "sim/capacity/capacity_plan.h"
#include "sim/hardware/presets.h"
#include "sim/hardware/read_cluster.h"
#include "sim/planning/presets.h"
#include "sim/report/format.h"
#include "sim/report/read_json.h"
#include "sim/validation/published.h"
#include "strategies/read_scenario.h"
#include "strategies/strategy.h"

namespace orrery {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson model_json(const Model& model) {
  OrderedJson json = to_json(model);
  json["parameters"] = parameters(model);
  return json;
}

// What `name` is, by kind: the same name may be a node's and a cluster's.
OrderedJson find(const std::string& name) {
  if (name.ends_with(".json")) {
    const nlohmann::json document = parse_json_file(name);
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
  look("price", [&] { return OrderedJson(to_json(find_price(name))); });
  look("power", [&] { return OrderedJson(to_json(find_power(name))); });
  look("site", [&] { return OrderedJson(to_json(find_site_overhead(name))); });
  look("grid", [&] { return OrderedJson(to_json(find_grid(name))); });
  look("failures", [&] { return OrderedJson(to_json(find_failure_rate(name))); });
  look("storage", [&] { return OrderedJson(to_json(find_checkpoint_storage(name))); });
  look("restarts", [&] { return OrderedJson(to_json(find_restart_overhead(name))); });
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
    if (!point->published_metric.empty())
      measured["published"] =
          fmt::format("{} {} {}", point->published_metric, point->published_value, point->published_unit);
    if (!point->assumptions.empty()) measured["assumptions"] = point->assumptions;
    if (!point->not_fitted.empty()) measured["not_fitted"] = point->not_fitted;
    if (!explanation_of(*point).empty()) measured["why_it_is_off"] = explanation_of(*point);
    if (!point->not_predicted.empty()) measured["not_predicted"] = point->not_predicted;
    if (point->scenario != nullptr) measured["scenario"] = *point->scenario;
  }
  return found;
}

std::vector<std::string> all_names() {
  std::vector<std::string> names;
  const auto add = [&](const std::vector<std::string>& more) { names.insert(names.end(), more.begin(), more.end()); };
  add(model_names());
  add(cluster_names());
  add(node_names());
  add(device_names());
  add(fabric_names());
  for (const auto& more : {price_names(), power_names(), site_overhead_names(), grid_names(), failure_rate_names(),
                           checkpoint_storage_names(), restart_overhead_names()})
    add(more);
  for (const BundledPlan& plan : bundled_plans()) names.push_back(plan.name);
  for (const Strategy& strategy : all_strategies()) names.emplace_back(strategy.name);
  for (const BundledScenario& scenario : bundled_scenarios()) names.push_back(scenario.name);
  for (const PublishedSource& source : published_sources())
    for (const PublishedPoint& point : source.points) names.push_back(point.id);
  return names;
}

OrderedJson scenario_of(const OrderedJson& found) {
  if (found.contains("scenario")) {
    OrderedJson scenario = found["scenario"];
    scenario.erase("path");
    return scenario;
  }
  if (found.contains("published measurement") && found["published measurement"].contains("scenario"))
    return found["published measurement"]["scenario"];
  throw InputError({"--scenario", ""}, "a name without a scenario",
                   "a bundled scenario or a published measurement that is predicted");
}

std::string value_text(const OrderedJson& value) {
  if (value.is_string()) return value.get<std::string>();
  return value.is_number_float() ? fmt::format("{:.6g}", value.get<double>()) : value.dump();
}

void append_fields(std::string& text, const OrderedJson& object, std::size_t indent) {
  std::size_t width = 0;
  for (const auto& item : object.items()) width = std::max(width, item.key().size());
  for (const auto& [key, value] : object.items()) {
    text += std::string(indent, ' ');
    if (value.is_array() && !value.empty() && value.front().is_string()) {
      text += key + "\n";
      for (const OrderedJson& each : value)
        text += fmt::format("{}- {}\n", std::string(indent + 2, ' '), value_text(each));
    } else if (value.is_object()) {
      text += key + "\n";
      append_fields(text, value, indent + 2);
    } else {
      text += fmt::format("{}  {}\n", left(key, width), value_text(value));
    }
  }
}

}  // namespace

void add_show(Command app) {
  struct Arguments {
    std::string name, of, pattern, routing = std::string(kRoutingNames.front());
    bool json = false, scenario = false;
  };
  auto arguments = std::make_shared<Arguments>();
  const Command command = app.add_subcommand(
      "show", "What a preset says, with all its figures and their sources; or which links a cluster has");
  command.footer(
      "Examples:\n  orrery show llama-3-70b\n  orrery show dgx-h100 --json\n"
      "  orrery show ./config.json                   a Hugging Face model, as it is read\n"
      "  orrery show korth-t5-megatron-1T-full --scenario > mine.json   a published step's, to be changed\n"
      "  orrery show links eos                       kinds of links: how many, how fast, what they are called\n"
      "  orrery show links straggler 'node0.nic*'    the links of that name, as perturbations use it");
  command
      .add_option(
          "NAME", arguments->name,
          "A model, cluster, node, device, fabric, strategy, bundled scenario or plan, published measurement, price or "
          "other figure of a plan; a model's JSON file; or \"links\"")
      .required()
      .offers_names({"models", "clusters", "nodes", "devices", "fabrics", "strategies", "scenarios", "measurements",
                     "plans", "prices", "power", "sites", "grids", "failures", "storage", "restarts"})
      .offers_words({"links"})
      .offers_files();
  offer_clusters(command.add_option("OF", arguments->of, "links: of a cluster, node or scenario, or of its JSON file"));
  command.add_option("PATTERN", arguments->pattern, "links: of that name, in which * stands for anything");
  command.add_option("--routing", arguments->routing, "links: sprayed makes the ways up from a switch one link")
      .one_of(std::vector<std::string>(kRoutingNames.begin(), kRoutingNames.end()));
  command.add_flag("--json", arguments->json, "As a JSON object by kind; links: as an array");
  command.add_flag("--scenario", arguments->scenario,
                   "The scenario alone, of a bundled one or a published measurement: to be changed and simulated");
  command.callback([arguments] {
    if (arguments->name == "links") {
      if (arguments->of.empty())
        throw InputError({}, "nothing after links", "a cluster, node or scenario, or the file of one");
      const auto routing = std::find(kRoutingNames.begin(), kRoutingNames.end(), arguments->routing);
      return print(links_text(arguments->of, arguments->pattern, static_cast<Routing>(routing - kRoutingNames.begin()),
                              arguments->json));
    }
    if (!arguments->of.empty())
      throw InputError({}, describe(arguments->of), "one name to show (only links are those of something)");
    const OrderedJson found = find(arguments->name);
    if (found.empty())
      throw InputError({}, describe(arguments->name),
                       "a name that `orrery list` prints, or an id that `orrery validate --points` prints",
                       nearest_name(arguments->name, all_names()));
    if (arguments->scenario) return print(scenario_of(found).dump(2) + "\n");
    if (arguments->json) return print(found.dump(2) + "\n");
    std::string text;
    for (const auto& [kind, fields] : found.items()) {
      text += (text.empty() ? "" : "\n") + kind + "\n";
      append_fields(text, fields, 2);
    }
    print(text);
  });
}

}  // namespace orrery
