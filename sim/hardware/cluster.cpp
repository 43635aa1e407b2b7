#include "sim/hardware/cluster.h"

#include <algorithm>
#include <cmath>

namespace orrery {
namespace {

constexpr IntegerRange kPerNode{.least = 1, .most = kMostDevicesPerNode};
constexpr IntegerRange kNodes{.least = 1, .most = kMostNodes};

// Wide enough for all hardware, and narrow enough to catch mistaken units.
constexpr NumberRange kRate{.least = 1e3, .most = 1e16};
constexpr NumberRange kFlops{.least = 1e6, .most = 1e20};
constexpr NumberRange kSize{.least = 1e3, .most = 1e18};
constexpr NumberRange kLatency{.least = 0, .most = 1};
constexpr NumberRange kRatio{.least = 1e-3, .most = 1e3};
constexpr NumberRange kWatts{.least = 0, .most = 1e6};

constexpr std::size_t index_of(Dtype dtype) { return static_cast<std::size_t>(dtype); }

}  // namespace

double Device::peak(Dtype dtype) const {
  // bf16 and fp16 are equally wide, and neither replaces the other.
  static constexpr std::array kFromNarrowToWide{Dtype::nvfp4, Dtype::fp8, Dtype::bf16, Dtype::fp16};
  auto candidate = std::ranges::find(kFromNarrowToWide, dtype);
  for (; candidate != kFromNarrowToWide.end(); ++candidate)
    if (const double rate = peak_flops_per_second[index_of(*candidate)];
        rate > 0 && (*candidate == dtype || bits_of(*candidate) > bits_of(dtype)))
      return rate;
  const double fp32 = peak_flops_per_second[index_of(Dtype::fp32)];
  return fp32 > 0 ? fp32 : vector_flops_per_second;
}

void Device::visit_fields(FieldVisitor& v) {
  v.field("name", name, "name of the device type, by which a calibration is looked up");
  v.field("vendor", vendor, "maker");
  v.field("architecture", architecture, "generation, such as Ampere, Hopper or CDNA3");
  v.field("source", source, "where the figures were read");
  v.field("fp32_flops_per_second", peak_flops_per_second[index_of(Dtype::fp32)], or_none(kFlops),
          "peak of fp32 matrix products; the TF32 rate if `tf32`");
  v.field("tf32", tf32, "fp32 matrix products run in TF32");
  v.field("fp16_flops_per_second", peak_flops_per_second[index_of(Dtype::fp16)], or_none(kFlops),
          "dense peak of fp16 matrix products with fp32 accumulation; 0: none");
  v.field("bf16_flops_per_second", peak_flops_per_second[index_of(Dtype::bf16)], or_none(kFlops),
          "dense peak of bf16 matrix products; 0: none");
  v.field("fp8_flops_per_second", peak_flops_per_second[index_of(Dtype::fp8)], or_none(kFlops),
          "dense peak of fp8 matrix products; 0: none");
  v.field("nvfp4_flops_per_second", peak_flops_per_second[index_of(Dtype::nvfp4)], or_none(kFlops),
          "dense peak of NVFP4 matrix products; 0: none");
  v.field("vector_flops_per_second", vector_flops_per_second, kFlops, "fp32 peak outside the matrix units");
  v.field("memory_bytes", memory_bytes, kSize, "usable device memory");
  v.field("memory_bytes_per_second", memory_bytes_per_second, kRate, "datasheet rate of the device memory");
  v.field("l2_bytes", l2_bytes, or_none(kSize), "last-level cache on the device");
  v.field("multiprocessors", multiprocessors, degree(), "SMs or CUs");
  v.field("pcie_bytes_per_second", pcie_bytes_per_second, kRate, "PCIe rate, one direction");
  v.field("scale_up_links", scale_up_links, degree(0), "NVLinks or xGMI links of the device");
  v.field("scale_up_link_bytes_per_second", scale_up_link_bytes_per_second, or_none(kRate),
          "rate of one NVLink or xGMI link, one direction");
  v.field("tdp_watts", tdp_watts, kWatts, "thermal design power");
}

void PairLinks::visit_fields(FieldVisitor& v) {
  v.field("bytes_per_second", bytes_per_second, kRate, "rate of each pair over all its links together, one direction");
}

void Node::visit_rates(FieldVisitor& v) {
  v.field("intra_fabric", intra, kIntraFabricNames, "how the devices of a node are joined");
  v.field("intra_node_bytes_per_second", intra_bytes_per_second, or_none(kRate),
          "rate of the scale-up fabric per device and direction; 0: the device's own");
  v.field("pair_bytes_per_second", pair_bytes_per_second, or_none(kRate),
          "rate between two devices alone, one direction; 0: as intra_node_bytes_per_second");
  v.field("in_switch_reduction", in_switch_reduction, "the scale-up switch reduces (NVLink SHARP)");
  v.field("pcie_bytes_per_second", pcie_bytes_per_second, or_none(kRate),
          "PCIe rate between host and one device, one direction; 0: the device's own");
  v.field("devices_per_pcie_switch", devices_per_pcie_switch, degree(), "devices behind one PCIe switch");
  v.field("devices_per_pcie_root", devices_per_pcie_root, degree(0),
          "devices that reach each other below one PCIe root (host bridge), past one switch or several; 0: those of a "
          "switch");
  v.field("pcie_switch_bytes_per_second", pcie_switch_bytes_per_second, or_none(kRate),
          "rate between host and one PCIe switch, one direction, shared by all devices under it; 0: as wide as they "
          "are together "
          "(intra_fabric pcie: as one of them)");
  v.field("nics", nics, IntegerRange{.least = 0, .most = kPerNode.most}, "network ports of a node that devices use");
  v.field("nic_bytes_per_second", nic_bytes_per_second, or_none(kRate), "rate of one NIC, one direction");
  v.field("host_memory_bytes", host_memory_bytes, or_none(kSize), "CPU memory of a node");
  v.field("host_memory_bytes_per_second", host_memory_bytes_per_second, or_none(kRate), "rate of the CPU memory");
  v.field("host_flops_per_second", host_flops_per_second, or_none(kFlops), "fp32 vector peak of the CPUs of a node");
  v.field("nvme_bytes", nvme_bytes, or_none(kSize), "local solid-state storage of a node");
  v.field("nvme_read_bytes_per_second", nvme_read_bytes_per_second, or_none(kRate),
          "read rate of all drives of a node");
  v.field("nvme_write_bytes_per_second", nvme_write_bytes_per_second, or_none(kRate),
          "write rate of all drives of a node");
}

void Node::visit_fields(FieldVisitor& v) {
  v.field("name", name, "name of the node type");
  v.field("source", source, "where the figures were read");
  v.field("devices", devices, kPerNode, "per node");
  v.field("devices_per_host", devices_per_host, degree(0),
          "devices of a host, if a node is a rack of several hosts; 0: one host");
  v.field("fabric", fabric, "fabric preset that usually joins such nodes");
  visit_rates(v);
}

void Fabric::visit_fields(FieldVisitor& v) {
  v.field("name", name, "name of the fabric");
  v.field("source", source, "where the figures were read");
  v.field("kind", kind, kFabricKindNames, "topology");
  v.field("nodes_per_leaf", nodes_per_leaf, degree(0),
          "nodes under one leaf switch (or one set of rail switches); 0: one leaf reaches every node");
  v.field("oversubscription", oversubscription, NumberRange{.least = 1, .most = 1e3},
          "ratio of a leaf's down-links to its up-links");
  v.field("latency_seconds", latency_seconds, kLatency, "one-way latency between nodes under one leaf");
  v.field("hop_latency_seconds", hop_latency_seconds, kLatency, "latency that each further switch adds");
  v.field("nodes_per_group", nodes_per_group, degree(0), "dragonfly: nodes of a group");
  v.field("groups", groups, degree(0), "dragonfly: groups; 0: as many as the nodes fill");
  v.field("global_taper", global_taper, kRatio, "dragonfly: ratio of injection to global bandwidth");
  v.field("dimensions", dimensions, degree(), "torus: nodes along each dimension; left out: the most cubic three");
  v.field("adaptive_routing", adaptive_routing,
          "spread packets over all up-links of a switch; false: the destination chooses one (static tables, ECMP)");
  v.field("in_network_reduction", in_network_reduction,
          "switches reduce (SHARP on InfiniBand): all-reduces between nodes may use it");
}

void Cluster::visit_fields(FieldVisitor& v) {
  v.field("name", name, "name of the cluster");
  v.field("source", source, "where the figures were read");
  v.field("nodes", nodes, kNodes, "nodes of the cluster");
  v.field("production", production, "slow steps down as on shared production clusters");
  v.field("devices_per_node", node.devices, kPerNode, "devices of a node, if other than the node type's");
  node.visit_rates(v);
  const double before = inter_node_bytes_per_second();
  double inter = before;
  v.field("inter_node_bytes_per_second", inter, kRate, "rate of all NICs of a node together, one direction");
  if (inter != before) {
    if (node.nics == 0) node.nics = 1;
    node.nic_bytes_per_second = inter / static_cast<double>(node.nics);
  }
}

namespace {

// Data sheets round the rates of equal parts differently.
constexpr double kRounding = 1e-3;
bool reaches(double rate, double other) { return rate >= other * (1 - kRounding); }

bool is_revision(std::string_view architecture, std::string_view of) {
  return architecture == of || (architecture.starts_with(of) && architecture[of.size()] == ' ');
}

}  // namespace

bool is_no_slower(const Device& device, const Device& other) {
  if (device.vendor != other.vendor || !is_revision(device.architecture, other.architecture)) return false;
  const auto multiprocessors = static_cast<double>(device.multiprocessors);
  const auto others = static_cast<double>(other.multiprocessors);
  for (const Dtype dtype : {Dtype::fp32, Dtype::fp16, Dtype::bf16, Dtype::fp8, Dtype::nvfp4})
    if (!reaches(device.peak(dtype), other.peak(dtype)) ||
        !reaches(device.peak(dtype) * others, other.peak(dtype) * multiprocessors))
      return false;
  return reaches(device.vector_flops_per_second, other.vector_flops_per_second) &&
         reaches(device.memory_bytes_per_second, other.memory_bytes_per_second) &&
         reaches(device.l2_bytes, other.l2_bytes) && device.multiprocessors >= other.multiprocessors &&
         reaches(device.tdp_watts, other.tdp_watts);
}

UpLinks up_links_of(const Cluster& cluster, bool sprayed) {
  const Fabric& fabric = cluster.fabric;
  const std::int64_t all = cluster.fabric_nodes();
  UpLinks up{.nics = std::min(cluster.node.nics, cluster.node.devices)};
  const double injection = cluster.inter_node_bytes_per_second();
  const auto reached = [all](std::int64_t nodes) { return nodes > 0 ? std::min(nodes, all) : all; };
  if (fabric.kind == FabricKind::dragonfly) {
    up.nodes = reached(fabric.nodes_per_group > 0 ? fabric.nodes_per_group
                       : fabric.groups > 0        ? (all + fabric.groups - 1) / fabric.groups
                                                  : 0);
    up.bytes_per_second = static_cast<double>(up.nodes) * injection / fabric.global_taper;
  } else if (fabric.kind == FabricKind::fat_tree || fabric.kind == FabricKind::rail_fat_tree) {
    up.nodes = reached(fabric.nodes_per_leaf);
    if (fabric.kind == FabricKind::rail_fat_tree) up.rails = up.nics;
    // In units of NICs.
    const double narrowed = static_cast<double>(up.nics_per_leaf()) / std::max(1.0, fabric.oversubscription);
    up.ways = sprayed ? 1 : std::max<std::int64_t>(1, std::llround(narrowed));
    up.bytes_per_second = narrowed * injection / static_cast<double>(up.nics) / static_cast<double>(up.ways);
  }
  return up;
}

}  // namespace orrery
