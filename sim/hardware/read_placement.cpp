#include "sim/hardware/read_placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>
#include <unordered_set>
#include <utility>

#include "sim/base/json_reader.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

constexpr const char* kNodesExpected =
    "\"contiguous\", \"scattered\", a list as in a scheduler or a hostfile (\"node[001-004,010]\"), or an array of "
    "numbers";
constexpr std::int64_t kMostPlaced = 1 << 22;  // nodes that are kept apart; each takes some bytes
constexpr std::array<std::string_view, 2> kPlacements{"contiguous", "scattered"};

// Nodes under one leaf, or in one dragonfly group; 0: all.
std::int64_t nodes_of_leaf(const Fabric& fabric) {
  return fabric.kind == FabricKind::dragonfly       ? fabric.nodes_per_group
         : fabric.kind == FabricKind::single_switch ? 0
                                                    : fabric.nodes_per_leaf;
}

// The k-th of the usable nodes: `fill` nodes of each leaf.
std::int64_t usable(std::int64_t k, std::int64_t fill, std::int64_t leaf) {
  return fill > 0 ? k / fill * leaf + k % fill : k;
}

// Whether it is a text or an array of names.
bool is_of_names(const Json& nodes) {
  return nodes.is_string() ||
         (!nodes.empty() && std::all_of(nodes.begin(), nodes.end(), [](const Json& node) { return node.is_string(); }));
}

std::vector<std::int64_t> listed(const Json& nodes, const PlacementFields& fields, const NodeListRules& rules,
                                 const InputError::Where& where) {
  std::vector<std::int64_t> list;
  if (nodes.is_string()) {
    list = read_node_list(nodes.get_ref<const std::string&>(), rules, where);
  } else if (is_of_names(nodes)) {
    std::string lines;
    for (const Json& node : nodes) lines += node.get_ref<const std::string&>() + '\n';
    list = read_node_list(lines, rules, where);
  } else {
    for (const Json& node : nodes) {
      if (!node.is_number_integer() || node < 0 || node >= kMostPlaced)
        throw InputError(where, describe(node), fmt::format("numbers of nodes, 0 to {}", kMostPlaced - 1));
      list.push_back(node.get<std::int64_t>());
    }
  }
  if (list.empty()) throw InputError(where, "no nodes", "at least one");
  std::unordered_set<std::int64_t> seen;
  for (std::int64_t& node : list) {
    if (node < fields.first)
      throw InputError(where, fmt::format("node {}", node), fmt::format("nodes from {} (\"first\") on", fields.first));
    if (!seen.insert(node).second) throw InputError(where, fmt::format("node {} twice", node), "each node once");
    node -= fields.first;
  }
  return list;
}

}  // namespace

void PlacementFields::visit_fields(FieldVisitor& v) {
  v.field("of", of, IntegerRange{.least = 0, .most = kMostNodes},
          "nodes of the fabric; 0: as many as the cluster's nodes need");
  v.field("fill", fill, degree(0), "contiguous, scattered: number of nodes that are used of each leaf; 0: all");
  v.field("first", first, at_least(0), "list: number of the fabric's first node");
  v.field("seed", seed, at_least(0), "scattered: seed of the draw");
  v.field("sorted", sorted, "assign ranks to nodes in ascending order; false: in the order of the list or the draw");
  v.field("ring_order", ring_order, kRingOrderNames,
          "order in which libraries connect the nodes of a group to rings and trees: by rank, as NCCL does, or leaf by "
          "leaf");
}

void read_placement(const Json& json, const InputError::Where& where, bool count_given, Cluster& cluster) {
  JsonReader reader(json, where);
  const Json* nodes = reader.take("nodes");
  PlacementFields fields;
  fields.visit_fields(reader);
  reader.finish();
  const Fabric& fabric = cluster.fabric;
  const auto kind = kFabricKindNames[static_cast<std::size_t>(fabric.kind)];
  if (fabric.kind == FabricKind::torus)
    throw InputError(where, "a placement",
                     fmt::format("none on a {}: a job gets a block of the shape of cluster.fabric.dimensions, and "
                                 "plan.mesh_order sets the order of ranks in it",
                                 kind));

  const bool by_name =
      nodes != nullptr && nodes->is_string() &&
      std::find(kPlacements.begin(), kPlacements.end(), nodes->get_ref<const std::string&>()) != kPlacements.end();
  const bool scattered = by_name && *nodes == kPlacements[1];
  if (nodes != nullptr && !nodes->is_string() && !nodes->is_array()) reader.fail("nodes", kNodesExpected);
  const bool is_list = nodes != nullptr && !by_name;
  // A text without a number is an unknown word, unless it is a path.
  if (is_list && nodes->is_string() &&
      nodes->get_ref<const std::string&>().find_first_of("0123456789./") == std::string::npos &&
      !nodes->get_ref<const std::string&>().ends_with("file"))
    reader.fail("nodes", kNodesExpected,
                nearest_name(nodes->get_ref<const std::string&>(),
                             std::vector<std::string>(kPlacements.begin(), kPlacements.end())));
  struct Only {
    const char* field;
    bool used;
    const char* by;
  };
  for (const Only& only : {Only{"first", is_list, "a list of nodes"}, Only{"seed", scattered, "scattered nodes"},
                           Only{"fill", !is_list, "contiguous and scattered nodes"}})
    if (reader.has(only.field) && !only.used)
      reader.fail(only.field, fmt::format("nothing: it applies only to {}", only.by));
  const std::int64_t leaf = nodes_of_leaf(fabric);
  if (fields.fill > 0 && (leaf == 0 || fields.fill > leaf))
    reader.fail("fill", leaf == 0 ? fmt::format("a fabric of several leaves: this {} has one", kind)
                                  : fmt::format("at most the {} nodes of a leaf", leaf));

  NodePlacement placement{.nodes = {}, .of = fields.of, .ring_order = fields.ring_order};
  if (is_list) {
    const NodeListRules rules{.most = kMostPlaced,
                              .first = reader.has("first") ? std::optional(fields.first) : std::nullopt,
                              .devices_per_node = cluster.node.devices};
    placement.nodes = listed(*nodes, fields, rules, reader.at("nodes"));
    const auto count = static_cast<std::int64_t>(placement.nodes.size());
    if (count_given && count != cluster.nodes)
      throw InputError(reader.at("nodes"), fmt::format("{} nodes", count),
                       fmt::format("the cluster's {} nodes", cluster.nodes));
    cluster.nodes = count;
    const std::int64_t last = *std::max_element(placement.nodes.begin(), placement.nodes.end());
    // Names from 1 to N are usually all nodes of a site that counts from 1.
    const std::int64_t least = *std::min_element(placement.nodes.begin(), placement.nodes.end());
    if (is_of_names(*nodes) && !reader.has("first") && count > 1 && least == 1 && last == count)
      throw InputError(reader.at("nodes"), fmt::format("nodes 1 to {} and no \"first\"", last),
                       "\"first\": 1 if names count from 1, or \"first\": 0 if the fabric's first node has number 0 "
                       "and is not listed");
    if (fields.of > 0 && last >= fields.of)
      reader.fail("of", fmt::format("more than the {} nodes before node {}", last, last + fields.first));
    if (fields.of == 0) placement.of = last + 1;
  } else {
    // The number of the fabric's nodes that the placement needs.
    const std::int64_t needed = usable(cluster.nodes - 1, fields.fill, leaf) + 1;
    if (fields.of > 0 && fields.of < needed)
      reader.fail("of", fmt::format("at least {}, for {} nodes{}", needed, cluster.nodes,
                                    fields.fill > 0 ? fmt::format(", {} of each leaf of {}", fields.fill, leaf) : ""));
    if (fields.of == 0) placement.of = needed;
    std::vector<std::int64_t> candidates;
    const bool told_apart = scattered || fields.fill > 0;
    if (told_apart && std::max(placement.of, needed) > kMostPlaced)
      throw InputError(reader.at("of"), fmt::format("{} nodes", std::max(placement.of, needed)),
                       fmt::format("at most {} where nodes are not the fabric's first", kMostPlaced));
    for (std::int64_t k = 0;
         usable(k, fields.fill, leaf) < placement.of && told_apart && (scattered || k < cluster.nodes); ++k)
      candidates.push_back(usable(k, fields.fill, leaf));
    if (scattered)
      for (const std::int64_t i : drawn_numbers(cluster.nodes, std::ssize(candidates), fields.seed))
        placement.nodes.push_back(candidates[static_cast<std::size_t>(i)]);
    else
      placement.nodes = std::move(candidates);
  }
  if (fields.sorted) std::sort(placement.nodes.begin(), placement.nodes.end());

  // A cluster without placement has the fabric's first nodes in order.
  std::vector<std::int64_t> first(placement.nodes.size());
  std::iota(first.begin(), first.end(), 0);
  if (placement.nodes == first) placement.nodes.clear();
  if (placement.nodes.empty() && placement.of == cluster.nodes) placement.of = 0;
  cluster.placement = std::move(placement);
}

bool lie_leaf_by_leaf(const Cluster& cluster) {
  const std::vector<std::int64_t>& nodes = cluster.placement.nodes;
  if (nodes.empty()) return true;
  const std::int64_t leaf = nodes_of_leaf(cluster.fabric);
  if (leaf > 0 && nodes.front() % leaf != 0) return false;
  for (std::size_t i = 1; i < nodes.size(); ++i)
    if (nodes[i] != nodes[i - 1] + 1) return false;
  return true;
}

// Partial Fisher-Yates.
std::vector<std::int64_t> drawn_numbers(std::int64_t count, std::int64_t of, std::int64_t seed) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(of));
  std::iota(all.begin(), all.end(), 0);
  std::mt19937_64 random(static_cast<std::uint64_t>(seed));
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i)
    std::swap(all[i], all[i + static_cast<std::size_t>(random() % (all.size() - i))]);
  all.resize(static_cast<std::size_t>(count));
  return all;
}

Json to_json(const NodePlacement& placement) {
  Json json{{"of", placement.of}, {"ring_order", kRingOrderNames[static_cast<std::size_t>(placement.ring_order)]}};
  if (!placement.nodes.empty()) json["nodes"] = placement.nodes;
  return json;
}

}  // namespace orrery
