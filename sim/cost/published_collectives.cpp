#include "sim/cost/published_collectives.h"

#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>

#include "sim/base/json_writer.h"

namespace orrery {
namespace {

void visit_system(Cluster& c, FieldVisitor& v) {
  constexpr NumberRange kRate;
  const IntegerRange count = at_least(0);
  v.field("gpu", c.device.name, "");
  v.field("architecture", c.device.architecture, "");
  v.field("intra", c.node.intra, kIntraFabricNames, "");
  v.field("devices_per_node", c.node.devices, count, "");
  v.field("intra_bytes_per_second", c.node.intra_bytes_per_second, kRate, "");
  v.field("pair_bytes_per_second", c.node.pair_bytes_per_second, kRate, "");
  v.field("in_switch_reduction", c.node.in_switch_reduction, "");
  v.field("pcie_bytes_per_second", c.device.pcie_bytes_per_second, kRate, "");
  v.field("devices_per_pcie_switch", c.node.devices_per_pcie_switch, count, "");
  v.field("devices_per_pcie_root", c.node.devices_per_pcie_root, count, "");
  v.field("nics", c.node.nics, count, "");
  v.field("nic_bytes_per_second", c.node.nic_bytes_per_second, kRate, "");
  v.field("fabric", c.fabric.kind, kFabricKindNames, "");
  v.field("network", c.fabric.name, "");
}

}  // namespace

std::vector<std::string> collective_names() {
  std::vector<std::string> names;
  for (const CollectiveKind& kind : kCollectiveKinds) names.emplace_back(kind.name);
  return names;
}

Cluster cluster_of_curve(const nlohmann::json& curve, const nlohmann::json& system) {
  Cluster cluster;
  EachField read([&](const VisitedField& field, auto& value) {
    constexpr std::string_view kMayBeAbsent = "devices_per_pcie_root";
    if (field.name == kMayBeAbsent && !system.contains(field.name)) return;
    const nlohmann::json& stated = system.at(field.name);
    if constexpr (std::is_same_v<decltype(value), std::size_t&>)
      value = static_cast<std::size_t>(std::ranges::find(field.names, stated.get<std::string>()) - field.names.begin());
    else
      stated.get_to(value);
  });
  visit_system(cluster, read);
  cluster.nodes = curve.at("nodes");
  // A curve says so when its data type is none that the switch reduces.
  cluster.node.in_switch_reduction = cluster.node.in_switch_reduction && curve.value("in_switch_reduction", true);
  return cluster;
}

nlohmann::ordered_json system_json(Cluster cluster) {
  cluster.device.pcie_bytes_per_second = cluster.node.pcie_bytes_per_second;
  nlohmann::ordered_json json;
  EachField written(
      [&](const VisitedField& field, const auto& value) { json[field.name] = field_json(field, value); });
  visit_system(cluster, written);
  return json;
}

}  // namespace orrery
