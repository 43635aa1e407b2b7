#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "sim/base/json_reader.h"
#include "sim/hardware/read_cluster.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

// The first device that no links lead to from device 0; `devices` if there is none.
std::int64_t first_apart(const Node& node) {
  std::vector<bool> reached(static_cast<std::size_t>(node.devices));
  const auto is_reached = [&](std::int64_t d) { return reached[static_cast<std::size_t>(d)]; };
  reached[0] = true;
  for (bool more = true; more;) {
    more = false;
    for (const PairLinks& links : node.links)
      for (const auto& [a, b] : links.pairs) {
        if (is_reached(a) == is_reached(b)) continue;
        reached[static_cast<std::size_t>(is_reached(a) ? b : a)] = true;
        more = true;
      }
  }
  return std::find(reached.begin(), reached.end(), false) - reached.begin();
}

// Keeps the preset's links between devices that the node still has.
void keep_links(const JsonReader& reader, Node& node) {
  for (PairLinks& links : node.links)
    std::erase_if(links.pairs, [&](const auto& pair) { return std::max(pair[0], pair[1]) >= node.devices; });
  std::erase_if(node.links, [](const PairLinks& links) { return links.pairs.empty(); });
  if (const std::int64_t apart = first_apart(node); apart < node.devices)
    reader.fail("links",
                fmt::format("links of all {} devices, or [] if all pairs are alike: those of the preset do not "
                            "lead from device 0 to device {}",
                            node.devices, apart));
}

std::array<std::int64_t, 2> pair_of(const Json& json, const InputError::Where& where, std::int64_t devices) {
  if (!json.is_array() || json.size() != 2 || !json[0].is_number_integer() || !json[1].is_number_integer())
    throw InputError(where, describe(json), "two devices, such as [0, 1]");
  const std::array<std::int64_t, 2> pair{json[0].get<std::int64_t>(), json[1].get<std::int64_t>()};
  for (const std::int64_t device : pair)
    if (device < 0 || device >= devices)
      throw InputError(where, json.dump(), fmt::format("devices of the node, from 0 to {}", devices - 1));
  if (pair[0] == pair[1]) throw InputError(where, json.dump(), "two different devices");
  return pair;
}

}  // namespace

void read_links(JsonReader& reader, Node& node) {
  const Json* const json = reader.take("links");
  if (json == nullptr) {
    if (node.intra != IntraFabric::direct_mesh || reader.has("pair_bytes_per_second"))
      node.links.clear();
    else if (!node.links.empty())
      keep_links(reader, node);
    return;
  }
  if (!json->is_array()) reader.fail("links", "an array of rates with the pairs of devices that have them");
  if (node.intra != IntraFabric::direct_mesh)
    reader.fail("links", fmt::format("none: devices joined by intra_fabric {} have no links by pair, only those of a "
                                     "direct_mesh",
                                     kIntraFabricNames[static_cast<std::size_t>(node.intra)]));
  if (node.devices > kMostLinkedDevices)
    throw InputError(reader.at("links"), fmt::format("links by pair of {} devices", node.devices),
                     fmt::format("those of a node of at most {}", kMostLinkedDevices));
  node.links.clear();
  std::set<std::array<std::int64_t, 2>> listed;
  for (std::size_t i = 0; i < json->size(); ++i) {
    JsonReader part((*json)[i], {reader.at("links").file, pointer_to(reader.at("links").pointer, std::to_string(i))});
    PairLinks& links = node.links.emplace_back();
    links.visit_fields(part);
    if (!part.has("bytes_per_second")) part.fail("bytes_per_second", "the rate of the pairs");
    const Json& pairs = part.need("pairs", "the pairs of devices with this rate");
    if (!pairs.is_array()) part.fail("pairs", "an array of pairs of devices");
    for (std::size_t p = 0; p < pairs.size(); ++p) {
      const InputError::Where where{part.at("pairs").file, pointer_to(part.at("pairs").pointer, std::to_string(p))};
      const auto& pair = links.pairs.emplace_back(pair_of(pairs[p], where, node.devices));
      if (!listed.insert({std::min(pair[0], pair[1]), std::max(pair[0], pair[1])}).second)
        throw InputError(where, pairs[p].dump(), "a pair that is not listed before");
    }
    part.finish();
  }
  if (node.links.empty()) return;
  if (const std::int64_t apart = first_apart(node); apart < node.devices)
    reader.fail("links", fmt::format("links that join all {} devices: none lead from device 0 to device {}",
                                     node.devices, apart));
}

Json links_json(const Node& node) {
  Json all = Json::array();
  for (const PairLinks& links : node.links)
    all.push_back({{"bytes_per_second", links.bytes_per_second}, {"pairs", links.pairs}});
  return all;
}

}  // namespace orrery
