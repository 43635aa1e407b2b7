// orrery list and orrery show: list what Orrery knows by name, and show one of them with all its figures and their
// sources; or the links of a cluster.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/offers.h"
#include "cli/output.h"
#include "sim/base/error.h"
#include "sim/base/json_reader.h"
#include "sim/base/json_writer.h"
#include "sim/des/topology.h"
#include "sim/hardware/cluster.h"
#include "sim/report/format.h"
#include "study/answers/arguments.h"
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

// ---- links

struct KindOfLink {
  LinkKind kind{};
  std::int64_t links = 0;
  double least_rate = 0, greatest_rate = 0;
  std::string example;
};

std::vector<KindOfLink> kinds_of(const Topology& topology) {
  std::vector<KindOfLink> kinds;
  const auto links = static_cast<LinkId>(topology.links());
  for (LinkId link = 0; link < links; ++link) {
    const double rate = topology.bytes_per_second(link);
    if (kinds.empty() || kinds.back().kind != topology.kind(link))  // links are numbered kind by kind
      kinds.push_back({topology.kind(link), 0, rate, rate, topology.name(link)});
    KindOfLink& kind = kinds.back();
    ++kind.links;
    kind.least_rate = std::min(kind.least_rate, rate);
    kind.greatest_rate = std::max(kind.greatest_rate, rate);
  }
  return kinds;
}

std::string bytes_per_second_text(double rate) { return rate_text(rate) + "B/s"; }

std::string kinds_text(const Topology& topology, bool json) {
  const std::vector<KindOfLink> kinds = kinds_of(topology);
  if (json) {
    OrderedJson array = OrderedJson::array();
    for (const KindOfLink& kind : kinds)
      array.push_back({{"kind", name_of(kind.kind)},
                       {"links", kind.links},
                       {"least_bytes_per_second", kind.least_rate},
                       {"greatest_bytes_per_second", kind.greatest_rate},
                       {"example", kind.example}});
    return json_text(array, 2) + "\n";
  }
  std::vector<std::vector<std::string>> rows;
  for (const KindOfLink& kind : kinds) {
    std::string rate = bytes_per_second_text(kind.least_rate);
    if (kind.greatest_rate > kind.least_rate) rate += " to " + bytes_per_second_text(kind.greatest_rate);
    rows.push_back({name_of(kind.kind), std::to_string(kind.links), rate, kind.example});
  }
  return grid("<kind|links|rate of each|<for example", rows);
}

std::string matching_text(const Topology& topology, const std::string& pattern, bool json) {
  const std::vector<LinkId> links = topology.find(pattern);
  if (links.empty())
    throw InputError({}, describe(pattern), "the name of a link, or a pattern with * that matches some",
                     topology.nearest_name(pattern));
  if (json) {
    OrderedJson array = OrderedJson::array();
    for (const LinkId link : links)
      array.push_back({{"name", topology.name(link)},
                       {"kind", name_of(topology.kind(link))},
                       {"bytes_per_second", topology.bytes_per_second(link)}});
    return json_text(array, 2) + "\n";
  }
  std::vector<std::vector<std::string>> rows;
  for (const LinkId link : links)
    rows.push_back(
        {topology.name(link), name_of(topology.kind(link)), bytes_per_second_text(topology.bytes_per_second(link))});
  return grid("<link|<kind|rate", rows);
}

// Without `pattern`: a line per kind of link; else one per matching link (Topology::find).
std::string links_text(const std::string& of, const std::string& pattern, Routing routing, bool json) {
  const Topology topology(read_cluster_argument(of), routing);
  return pattern.empty() ? kinds_text(topology, json) : matching_text(topology, pattern, json);
}

std::string text_of(const Listing& listing, bool summaries) {
  const std::vector<std::string> names = listing.names();
  std::size_t width = 0;
  for (const std::string& name : names) width = std::max(width, name.size());
  std::string text;
  for (const std::string& name : names)
    text += (summaries ? left(name, width) + "  " + listing.summary(name) : name) + "\n";
  return text;
}

}  // namespace

void add_show(Command app) {
  struct Arguments {
    std::string name, of, pattern, routing = std::string(kRoutingNames.front());
    bool json = false, scenario = false;
  };
  const auto [command, arguments] = app.declare<Arguments>(
      "show", "What a preset says, with all its figures and their sources; or which links a cluster has",
      "Examples:\n  orrery show llama-3-70b\n  orrery show dgx-h100 --json\n"
      "  orrery show ./config.json                   a Hugging Face model, as it is read\n"
      "  orrery show korth-t5-megatron-1T-full --scenario > mine.json   a published step's, to be changed\n"
      "  orrery show links eos                       kinds of links: how many, how fast, what they are called\n"
      "  orrery show links straggler 'node0.nic*'    the links of that name, as perturbations use it",
      [](const Arguments& given) {
        if (given.name == "links") {
          if (given.of.empty())
            throw InputError({}, "nothing after links", "a cluster, node or scenario, or a file with one");
          return print(links_text(given.of, given.pattern, chosen<Routing>("--routing", given.routing, kRoutingNames),
                                  given.json));
        }
        if (!given.of.empty())
          throw InputError({}, describe(given.of), "one name to show (only \"links\" takes a second)");
        const OrderedJson found = shown_json(given.name);
        if (given.scenario) return print(json_text(scenario_of(found), 2) + "\n");
        if (given.json) return print(json_text(found, 2) + "\n");
        std::string text;
        for (const auto& [kind, fields] : found.items()) {
          text += (text.empty() ? "" : "\n") + kind + "\n";
          append_fields(text, fields, 2);
        }
        print(text);
      });
  command
      .add_option(
          "NAME", arguments.name,
          "A model, cluster, node, device, fabric, strategy, bundled scenario, plan or profile, published measurement, price or "
          "other figure of a plan; a model's JSON file; or \"links\"")
      .required()
      .offers_names({"models", "clusters", "nodes", "devices", "fabrics", "strategies", "scenarios", "measurements",
                     "plans", "profiles", "prices", "power", "sites", "grids", "failures", "storage", "restarts"})
      .offers_words({"links"})
      .offers_files();
  offer_clusters(command.add_option("OF", arguments.of, "links: of a cluster, node or scenario, or of its JSON file"));
  command.add_option("PATTERN", arguments.pattern, "links: of that name, in which * stands for anything");
  command.add_option("--routing", arguments.routing, "links: sprayed shows the up-links of a switch as one link")
      .one_of(texts(kRoutingNames));
  command.add_flag("--json", arguments.json, "As a JSON object by kind; links: as an array");
  command.add_flag(
      "--scenario", arguments.scenario,
      "Print only the scenario of a bundled scenario or a published measurement, to be changed and simulated");
}

void add_list(Command app) {
  struct Arguments {
    std::string kind;
    bool json = false, names = false;
  };
  const auto [command, arguments] = app.declare<Arguments>(
      "list", "What Orrery knows by name: models, clusters, scenarios, prices, fields and more",
      "Examples:\n  orrery list models\n  orrery list scenarios --json\n"
      "  orrery list measurements                published ones, whose ids stand for their scenarios\n"
      "  orrery list fields | grep recompute     what --set can change\n"
      "  orrery list prices | grep H100          what a plan may name",
      [](const Arguments& given) {
        if (given.json && given.names) throw InputError({"--names", ""}, "--json as well", "one of them");
        for (const Listing& listing : listings())
          if (given.kind == listing.name)
            print(given.json ? json_text(listing_json(listing), 2) + "\n" : text_of(listing, !given.names));
      });
  std::vector<std::string> kinds;
  for (const Listing& listing : listings()) kinds.emplace_back(listing.name);
  command.add_option("KIND", arguments.kind, "What to list").required().one_of(kinds);
  command.add_flag("--json", arguments.json, "As a JSON array");
  command.add_flag("--names", arguments.names, "Names alone, one a line");
}

}  // namespace orrery
