#include "cli/show_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/cluster_argument.h"
#include "sim/base/error.h"
#include "sim/base/json_reader.h"
#include "sim/base/json_writer.h"
#include "sim/report/format.h"

namespace orrery {
namespace {

using OrderedJson = nlohmann::ordered_json;

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

}  // namespace

std::string links_text(const std::string& of, const std::string& pattern, Routing routing, bool json) {
  const Topology topology(read_cluster_argument(of), routing);
  return pattern.empty() ? kinds_text(topology, json) : matching_text(topology, pattern, json);
}

}  // namespace orrery
