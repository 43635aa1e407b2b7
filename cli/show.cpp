// orrery show: shows one preset with all its figures and their sources, or the links of a cluster.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/offers.h"
#include "cli/output.h"
#include "cli/show_links.h"
#include "sim/base/json_reader.h"
#include "sim/base/json_writer.h"
#include "sim/hardware/cluster.h"
#include "sim/report/format.h"
#include "study/answers/listing.h"

namespace orrery {
namespace {

using OrderedJson = nlohmann::ordered_json;

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
  return value.is_number_float() ? fmt::format("{:.6g}", value.get<double>()) : json_text(value);
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
  command.add_option("--routing", arguments->routing, "links: sprayed shows the up-links of a switch as one link")
      .one_of(std::vector<std::string>(kRoutingNames.begin(), kRoutingNames.end()));
  command.add_flag("--json", arguments->json, "As a JSON object by kind; links: as an array");
  command.add_flag(
      "--scenario", arguments->scenario,
      "Print only the scenario of a bundled scenario or a published measurement, to be changed and simulated");
  command.callback([arguments] {
    if (arguments->name == "links") {
      if (arguments->of.empty())
        throw InputError({}, "nothing after links", "a cluster, node or scenario, or a file with one");
      const auto routing = std::find(kRoutingNames.begin(), kRoutingNames.end(), arguments->routing);
      return print(links_text(arguments->of, arguments->pattern, static_cast<Routing>(routing - kRoutingNames.begin()),
                              arguments->json));
    }
    if (!arguments->of.empty())
      throw InputError({}, describe(arguments->of), "one name to show (only \"links\" takes a second)");
    const OrderedJson found = shown_json(arguments->name);
    if (arguments->scenario) return print(json_text(scenario_of(found), 2) + "\n");
    if (arguments->json) return print(json_text(found, 2) + "\n");
    std::string text;
    for (const auto& [kind, fields] : found.items()) {
      text += (text.empty() ? "" : "\n") + kind + "\n";
      append_fields(text, fields, 2);
    }
    print(text);
  });
}

}  // namespace orrery
