#include "sim/hardware/read_cluster.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "sim/base/json_reader.h"
#include "sim/base/json_writer.h"
#include "sim/hardware/node_topology.h"
#include "sim/hardware/read_placement.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

// A cluster preset, or one node of a node preset.
Cluster cluster_of_name(const std::string& name, const InputError::Where& where) {
  if (cluster_catalog().find(name) != nullptr) return find_cluster(name, where);
  if (node_catalog().find(name) != nullptr) {
    Cluster cluster = read_cluster(Json{{"node", name}}, where);
    cluster.name = cluster.node.name;
    return cluster;
  }
  std::vector<std::string> names = cluster_catalog().names_and_aliases();
  const auto& nodes = node_catalog().names_and_aliases();
  names.insert(names.end(), nodes.begin(), nodes.end());
  throw InputError(where, describe(name), "the name of a cluster or node preset", nearest_name(name, names));
}

// The node preset to assume for a device; if there are several, the one with the wanted number of devices (null: any).
Node usual_node(const Device& device, const Json* devices_per_node) {
  if (device.usual_nodes.empty()) {
    Node node;
    node.name = device.name + " node";
    node.intra = IntraFabric::pcie;
    return node;
  }
  for (const std::string& name : device.usual_nodes) {
    Node node = find_node(name);
    if (devices_per_node == nullptr || (devices_per_node->is_number() && *devices_per_node == node.devices))
      return node;
  }
  return find_node(device.usual_nodes.front());
}

// The node preset that names the device, preferably one with this number of devices; otherwise one that is usual for
// it.
std::string own_node(const Device& device, std::int64_t devices) {
  std::string own;
  for (const std::string& name : node_names()) {
    const Node node = find_node(name);
    if (node.device != device.name) continue;
    if (own.empty() || node.devices == devices) own = name;
  }
  return own.empty() ? device.usual_nodes.front() : own;
}

// A node with another number of devices than its preset keeps its NICs and host; a rack has as many hosts as the
// devices fill.
void resize(Node& node, std::int64_t devices) {
  if (node.devices_per_host > 0) {
    const auto hosts = [&](std::int64_t n) { return (n + node.devices_per_host - 1) / node.devices_per_host; };
    const auto share = static_cast<double>(hosts(devices)) / static_cast<double>(hosts(node.devices));
    node.nics = node.nics * hosts(devices) / hosts(node.devices);
    for (double* value : {&node.host_memory_bytes, &node.host_memory_bytes_per_second, &node.host_flops_per_second,
                          &node.nvme_bytes, &node.nvme_read_bytes_per_second, &node.nvme_write_bytes_per_second})
      *value *= share;
  }
  node.devices = devices;
}

// Completes what a node leaves to its device: the rates of the links.
void complete_intra(const JsonReader& reader, Node& node, const Device& device) {
  node.device = device.name;
  if (node.pcie_bytes_per_second == 0) node.pcie_bytes_per_second = device.pcie_bytes_per_second;
  const double links = device.scale_up_bytes_per_second();
  const bool over_pcie = node.intra == IntraFabric::pcie || node.intra == IntraFabric::nvlink_pairs;
  if (node.intra_bytes_per_second == 0) node.intra_bytes_per_second = over_pcie ? node.pcie_bytes_per_second : links;
  if (node.intra == IntraFabric::nvlink_pairs && node.pair_bytes_per_second == 0) node.pair_bytes_per_second = links;
  if (node.devices == 1) return;
  const std::string without = "a rate: device " + device.name + " has no scale-up links of its own";
  if (node.intra_bytes_per_second == 0) reader.fail("intra_node_bytes_per_second", without);
  if (node.intra == IntraFabric::nvlink_pairs && node.pair_bytes_per_second == 0)
    reader.fail("pair_bytes_per_second", without);
}

// The three factors of `nodes` closest to its cube root, ascending.
std::vector<std::int64_t> most_cubic(std::int64_t nodes) {
  std::vector<std::int64_t> best{1, 1, nodes};
  for (std::int64_t a = 1; a * a * a <= nodes; ++a) {
    if (nodes % a != 0) continue;
    const std::int64_t rest = nodes / a;
    for (std::int64_t b = a; b * b <= rest; ++b)
      if (rest % b == 0 && rest / b - a < best[2] - best[0]) best = {a, b, rest / b};
  }
  return best;
}

void complete_fabric(const InputError::Where& where, Fabric& fabric, std::int64_t nodes) {
  const auto at = [&](const char* key) { return InputError::Where{where.file, where.pointer + "/fabric/" + key}; };
  if (fabric.in_network_reduction && (fabric.kind == FabricKind::torus || fabric.kind == FabricKind::dragonfly))
    throw InputError(at("in_network_reduction"), "true",
                     fmt::format("false: the switches of a {} do not reduce",
                                 kFabricKindNames[static_cast<std::size_t>(fabric.kind)]));
  if (fabric.kind == FabricKind::torus) {
    if (fabric.dimensions.empty()) fabric.dimensions = most_cubic(nodes);
    std::int64_t product = 1;
    for (const std::int64_t size : fabric.dimensions) product = size > nodes ? 0 : product * size;  // no overflow
    if (product != nodes)
      throw InputError(at("dimensions"), describe(fabric.dimensions),
                       fmt::format("sizes whose product is the {} nodes", nodes));
  }
  if (fabric.kind == FabricKind::dragonfly) {
    if (fabric.nodes_per_group == 0 && fabric.groups == 0)
      throw InputError(at("nodes_per_group"), "nothing", "the nodes of a dragonfly group");
    if (fabric.nodes_per_group == 0) fabric.nodes_per_group = (nodes + fabric.groups - 1) / fabric.groups;
    const std::int64_t filled = (nodes + fabric.nodes_per_group - 1) / fabric.nodes_per_group;
    if (fabric.groups != 0 && fabric.groups < filled)
      throw InputError(at("groups"), std::to_string(fabric.groups),
                       fmt::format("at least {} groups of {} for {} nodes", filled, fabric.nodes_per_group, nodes));
    fabric.groups = filled;
  }
}

Cluster cluster_of_object(const Json& json, const InputError::Where& where) {
  JsonReader reader(json, where);
  Cluster cluster;

  const Json* base = reader.take("base");
  const Json* node = reader.take("node");
  const Json* device = reader.take("device");
  const Json* fabric = reader.take("fabric");
  const Json* topology = reader.take("topology_file");
  const Json* placement = reader.take("placement");
  if (base != nullptr) {
    if (!base->is_string()) reader.fail("base", "the name of a cluster preset");
    cluster = find_cluster(base->get<std::string>(), reader.at("base"));
    cluster.name.clear();
    if (cluster.fabric.nodes_per_group > 0) cluster.fabric.groups = 0;  // the groups that its own nodes fill
  }
  Device named;  // the device that the node names
  if (node != nullptr) cluster.node = read_node(*node, reader.at("node"), &named);
  if (device != nullptr) {
    // Single fields given beside a node change the node's device.
    Json described = *device;
    const std::string& held = base != nullptr && node == nullptr ? cluster.device.name : named.name;
    if (described.is_object() && !described.contains("base") && !described.contains("name") && !held.empty())
      described["base"] = held;
    cluster.device = read_device(described, reader.at("device"));
  } else if (!named.name.empty()) {
    cluster.device = named;
  } else if (base == nullptr) {
    if (node == nullptr)
      reader.fail("node", "a node preset (\"node\"), a device (\"device\") or a cluster preset (\"base\")");
    reader.fail("device", "a device: node " + cluster.node.name + " accepts any");
  }
  NodeTopology shown;
  if (topology != nullptr) {
    if (!topology->is_string())
      reader.fail("topology_file",
                  "the path of a file with the output of nvidia-smi topo -m, rocm-smi --showtopo or amd-smi topology");
    shown = read_topology_file(topology->get<std::string>(), reader.at("topology_file"));
  }
  if (node == nullptr && base == nullptr) {
    const auto size = json.find("devices_per_node");
    const Json of_topology = shown.gpus;
    cluster.node = usual_node(cluster.device, topology != nullptr  ? &of_topology
                                              : size == json.end() ? nullptr
                                                                   : &*size);
  }
  if (topology != nullptr) {
    resize(cluster.node, shown.gpus);  // the host of a tray, not of its rack
    apply(shown, cluster.device, reader.at("topology_file"), cluster.node);
  }

  std::int64_t devices = cluster.node.devices;
  reader.field("devices_per_node", devices, IntegerRange{.least = 1, .most = kMostDevicesPerNode}, "");
  if (topology != nullptr && devices != cluster.node.devices)
    reader.fail("devices_per_node", fmt::format("the {} devices of the topology file", cluster.node.devices));
  resize(cluster.node, devices);
  const double preset_intra = cluster.node.intra_bytes_per_second;
  cluster.visit_fields(reader);
  read_links(reader, cluster.node);
  reader.finish();
  if (json.contains("inter_node_bytes_per_second") && json.contains("nic_bytes_per_second"))
    reader.fail("nic_bytes_per_second", "either this or inter_node_bytes_per_second");
  if (json.contains("nics") && json.contains("inter_node_bytes_per_second") && json["nics"] == 0)
    reader.fail("nics", "at least 1 with inter_node_bytes_per_second");
  // A mesh at another rate has other links: the share of each pair changes in proportion.
  if (cluster.node.intra == IntraFabric::direct_mesh && preset_intra > 0 && !json.contains("pair_bytes_per_second")) {
    const double faster = cluster.node.intra_bytes_per_second / preset_intra;
    cluster.node.pair_bytes_per_second *= faster;
    if (!json.contains("links"))
      for (PairLinks& links : cluster.node.links) links.bytes_per_second *= faster;
  }
  if (cluster.node.in_switch_reduction && cluster.node.intra != IntraFabric::nvswitch) {
    // Either requested, or a property of a node whose fabric has been replaced.
    if (json.contains("in_switch_reduction"))
      reader.fail("in_switch_reduction", fmt::format("false: {} has no switch that can reduce",
                                                     kIntraFabricNames[static_cast<std::size_t>(cluster.node.intra)]));
    cluster.node.in_switch_reduction = false;
  }
  if (cluster.node.devices_per_pcie_root > 0 &&
      cluster.node.devices_per_pcie_root < cluster.node.devices_per_pcie_switch)
    reader.fail("devices_per_pcie_root",
                fmt::format("0, or at least the {} devices behind a switch", cluster.node.devices_per_pcie_switch));
  // A node written as an object may join such devices by its own rates; a preset joins its devices by their links.
  const auto states_rate = [](const Json* part) {
    return part != nullptr && part->is_object() && part->contains("intra_node_bytes_per_second");
  };
  const bool has_fabric = cluster.node.intra == IntraFabric::nvswitch || cluster.node.intra == IntraFabric::direct_mesh;
  if (has_fabric && cluster.node.intra_bytes_per_second > 0 && cluster.node.devices > 1 &&
      cluster.device.scale_up_links == 0 && !cluster.device.usual_nodes.empty() && !states_rate(&json) &&
      !states_rate(node)) {
    const InputError::Where blamed = device != nullptr ? reader.at("device") : reader.at("node");
    throw InputError(
        blamed, describe(Json(cluster.device.name)),
        fmt::format("a device with scale-up links (NVLink, xGMI) for node {}: {} has none, its own node is {}",
                    cluster.node.name, cluster.device.name, own_node(cluster.device, cluster.node.devices)));
  }
  complete_intra(reader, cluster.node, cluster.device);

  if (base == nullptr || node != nullptr)
    cluster.fabric =
        find_fabric(cluster.node.fabric.empty() ? "single-switch" : cluster.node.fabric, reader.at("node"));
  if (fabric != nullptr) cluster.fabric = read_fabric(*fabric, reader.at("fabric"), cluster.fabric);
  if (placement != nullptr) read_placement(*placement, reader.at("placement"), json.contains("nodes"), cluster);
  if (cluster.nodes > 1 && cluster.inter_node_bytes_per_second() <= 0) {
    for (const char* key : {"nics", "nic_bytes_per_second"}) {
      const std::string more_than_none = "more than 0: several nodes need a network";
      if (json.contains(key) && json[key] == 0) reader.fail(key, more_than_none);
      if (node != nullptr && node->is_object() && node->contains(key) && (*node)[key] == 0)
        JsonReader(*node, reader.at("node")).fail(key, more_than_none);
    }
    const std::string why = topology == nullptr  ? "node " + cluster.node.name + " has no network of its own"
                            : shown.nics.empty() ? "the topology file lists no NIC"
                                                 : "the topology file gives its NICs no rate";
    reader.fail("inter_node_bytes_per_second", "a rate (5e10 is 400 Gbit/s): " + why);
  }
  complete_fabric(where, cluster.fabric, cluster.fabric_nodes());
  if (cluster.name.empty()) cluster.name = fmt::format("{} x {}", cluster.nodes, cluster.node.name);
  return cluster;
}

}  // namespace

Cluster read_cluster(const Json& json, const InputError::Where& where) {
  if (json.is_string()) return cluster_of_name(json.get_ref<const std::string&>(), where);
  if (!json.is_object()) throw InputError(where, describe(json), "the name of a cluster or node preset, or an object");
  return cluster_of_object(json, where);
}

Json to_json(const Device& device) {
  Json json = json_of_fields(device);
  json["usual_nodes"] = device.usual_nodes;
  return json;
}

Json to_json(const Node& node) {
  Json json = json_of_fields(node);
  if (!node.links.empty()) json["links"] = links_json(node);
  return json;
}

Json to_json(const Fabric& fabric) { return json_of_fields(fabric); }

Json to_json(const Cluster& cluster) {
  Json json{{"name", cluster.name},
            {"nodes", cluster.nodes},
            {"device", to_json(cluster.device)},
            {"node", to_json(cluster.node)},
            {"fabric", to_json(cluster.fabric)}};
  if (!cluster.source.empty()) json["source"] = cluster.source;
  if (cluster.production) json["production"] = true;
  if (cluster.is_scattered() || cluster.placement.of > 0) json["placement"] = to_json(cluster.placement);
  return json;
}

}  // namespace orrery
