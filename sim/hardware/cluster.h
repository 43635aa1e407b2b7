// Devices, nodes and fabrics, and what follows from their data: up-links, an order of devices. Plain data, filled from
// presets or a scenario. All rates are per direction, in SI units.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/fields.h"
#include "sim/program/mesh.h"
#include "sim/program/tensor.h"

namespace orrery {

struct Device {
  std::string name;
  std::string vendor;
  std::string architecture;  // "Ampere", "Hopper", "CDNA2"
  std::string source;
  // Dense, by Dtype (fp32: the rate that matmuls get, TF32 if `tf32`); 0: none.
  std::array<double, kDtypes> peak_flops_per_second{};
  bool tf32 = false;                   // fp32 matmuls run in TF32
  double vector_flops_per_second = 0;  // fp32 rate outside the matrix units
  double memory_bytes = 0;             // usable capacity as the driver reports it
  double memory_bytes_per_second = 0;
  double l2_bytes = 0;
  std::int64_t multiprocessors = 0;
  double pcie_bytes_per_second = 0;
  std::int64_t scale_up_links = 0;            // NVLinks or xGMI links of the device
  double scale_up_link_bytes_per_second = 0;  // per link
  double tdp_watts = 0;
  std::vector<std::string> usual_nodes;  // node presets; the first, unless another has the requested size

  // The peak that counts for MFU and for matmuls of `dtype`; if the device lacks the type, that of the next wider type
  // that it has.
  double peak(Dtype dtype) const;
  double scale_up_bytes_per_second() const {
    return static_cast<double>(scale_up_links) * scale_up_link_bytes_per_second;
  }

  void visit_fields(FieldVisitor& v);  // all fields but usual_nodes
};

// How the devices of one node are joined.
enum class IntraFabric : std::uint8_t {
  nvswitch,      // any pair at full rate
  direct_mesh,   // one or more links per pair (DGX-1V cube mesh, xGMI), which share the device's rate
  nvlink_pairs,  // bridges between pairs (pair_bytes_per_second), PCIe otherwise (intra_bytes_per_second)
  pcie,          // a PCIe tree
};
inline constexpr std::array<std::string_view, 4> kIntraFabricNames{"nvswitch", "direct_mesh", "nvlink_pairs", "pcie"};

// Far above any real machine, and small enough for products of counts to stay within 64 bits.
inline constexpr std::int64_t kMostDevicesPerNode = 1 << 16;
inline constexpr std::int64_t kMostNodes = 1 << 30;
// The most devices of a node with links by pair. The search for rings takes twice as long with each further device: a
// tenth of a second for 16.
inline constexpr std::int64_t kMostLinkedDevices = 16;

// Pairs of a node's devices that are joined at one rate.
struct PairLinks {
  double bytes_per_second = 0;  // of each pair, over all its links together
  std::vector<std::array<std::int64_t, 2>> pairs;

  void visit_fields(FieldVisitor& v);  // all fields but `pairs`
};

struct Node {
  std::string name;
  std::string source;
  std::string device;  // preset name; empty: any device
  std::string fabric;  // preset name of its usual fabric
  std::int64_t devices = 1;
  std::int64_t devices_per_host = 0;  // of one operating system, if the node is a rack of hosts (NVL72); 0: all
  IntraFabric intra = IntraFabric::nvswitch;
  double intra_bytes_per_second = 0;  // per device and direction over the scale-up fabric
  // Between two devices alone; 0: as intra. In a direct_mesh without `links`: the rate of every pair.
  double pair_bytes_per_second = 0;
  // In a direct_mesh whose pairs differ: the joined pairs, each at most once. They join all devices, and messages
  // between other pairs pass through devices (sim/cost/link_map.h); pair_bytes_per_second is not used. Empty: all pairs
  // are joined at pair_bytes_per_second.
  std::vector<PairLinks> links;
  bool in_switch_reduction = false;  // NVLink SHARP
  double pcie_bytes_per_second = 0;  // host link, per device (PCIe, NVLink-C2C); 0: the device's
  std::int64_t devices_per_pcie_switch = 2;
  // Number of devices that share a PCIe root (host bridge), below which one PCIe switch or several join them; 0: only
  // the devices of one switch share a root.
  std::int64_t devices_per_pcie_root = 0;
  // Rate of a PCIe switch's link to its host, which the devices behind it share. 0: unknown; it is then as wide as all
  // their links together, and in a PCIe tree as wide as one of them.
  double pcie_switch_bytes_per_second = 0;
  std::int64_t nics = 1;
  double nic_bytes_per_second = 0;  // per NIC
  // For the whole node.
  double host_memory_bytes = 0, host_memory_bytes_per_second = 0;
  double host_flops_per_second = 0;  // fp32 vector peak of the CPUs
  double nvme_bytes = 0, nvme_read_bytes_per_second = 0, nvme_write_bytes_per_second = 0;

  void visit_fields(FieldVisitor& v);  // all fields but `device` and `links`
  void visit_rates(FieldVisitor& v);   // the rates that a cluster may override
};

// How the nodes are joined.
enum class FabricKind : std::uint8_t { rail_fat_tree, fat_tree, dragonfly, torus, single_switch };
inline constexpr std::array<std::string_view, 5> kFabricKindNames{"rail_fat_tree", "fat_tree", "dragonfly", "torus",
                                                                  "single_switch"};

struct Fabric {
  std::string name;
  std::string source;
  FabricKind kind = FabricKind::fat_tree;
  std::int64_t nodes_per_leaf = 0;       // 0: one leaf (or rail group) reaches every node
  double oversubscription = 1;           // leaf down-links over up-links
  double latency_seconds = 0;            // one way, between nodes under one leaf
  double hop_latency_seconds = 0;        // added per further switch level
  std::int64_t nodes_per_group = 0;      // dragonfly
  std::int64_t groups = 0;               // dragonfly: groups that the nodes fill
  double global_taper = 1;               // dragonfly: injection over global bandwidth
  std::vector<std::int64_t> dimensions;  // torus
  bool adaptive_routing = false;         // packets use all up-links evenly; false: the destination chooses one
  bool in_network_reduction = false;     // its switches reduce (SHARP)

  void visit_fields(FieldVisitor& v);
};

// The order in which libraries join the nodes of a communicator into rings and trees.
enum class RingOrder : std::uint8_t {
  rank,  // by rank, as NCCL does, which does not know the fabric (github.com/NVIDIA/nccl/issues/1340)
  leaf,  // leaf by leaf, so that a ring leaves each leaf once
};
inline constexpr std::array<std::string_view, 2> kRingOrderNames{"rank", "leaf"};

// The fabric nodes that the cluster occupies, counted leaf by leaf.
struct NodePlacement {
  std::vector<std::int64_t> nodes;  // by cluster node: its number on the fabric; empty: the fabric's first nodes
  std::int64_t of = 0;              // number of nodes of the fabric; 0: as many as the cluster has
  RingOrder ring_order = RingOrder::rank;
};

struct Cluster {
  std::string name;
  std::string source;
  Device device;
  Node node;
  std::int64_t nodes = 1;
  Fabric fabric;
  // Shared with other jobs, and operated as production clusters are (study/simulation/simulation.cpp).
  bool production = false;
  NodePlacement placement;

  std::int64_t devices() const { return nodes * node.devices; }
  // Whether the cluster does not simply occupy the fabric's first nodes, leaf by leaf.
  bool is_scattered() const { return !placement.nodes.empty(); }
  std::int64_t fabric_nodes() const { return placement.of > 0 ? placement.of : nodes; }
  std::int64_t fabric_node(std::int64_t n) const {
    return is_scattered() ? placement.nodes[static_cast<std::size_t>(n)] : n;
  }
  std::int64_t fabric_device(std::int64_t d) const {
    return fabric_node(d / node.devices) * node.devices + d % node.devices;
  }
  // The rate of all NICs of a node together, in one direction.
  double inter_node_bytes_per_second() const { return static_cast<double>(node.nics) * node.nic_bytes_per_second; }

  void visit_fields(FieldVisitor& v);  // sizes and the node's rates; not device, node and fabric
};

struct FabricTraffic;

// The extent of a group of ranks when rank r is on device r (node r / devices_per_node). If the groups of a mesh differ
// because node boundaries fall inside a group, it describes the worst group: one on the most nodes.
struct GroupSpan {
  std::int64_t ranks = 1;
  std::int64_t ranks_per_node = 1;  // of this group, on each node it touches; if they differ, the most
  // The fewest: rings and trees have as many channels. 0: as many on each node.
  std::int64_t fewest_per_node = 0;
  std::int64_t nodes = 1;  // nodes that one group touches
  // Groups of this kind, this one included, that leave a node at the same time; if they differ, the most on any node.
  std::int64_t groups_sharing_nics = 1;
  std::int64_t stride = 1;  // distance between neighbouring ranks of the group
  // For nodes scattered over the fabric (sim/cost/fabric_traffic.h); null: they lie leaf by leaf.
  std::shared_ptr<const FabricTraffic> load = nullptr;
};
// REQUIRES: devices_per_node >= 1. Cost: tens of nanoseconds if node boundaries fall between coordinates of one digit
// (always so for powers of two); otherwise it counts the groups rank by rank.
GroupSpan span_of(const Mesh& mesh, MeshGroup group, std::int64_t devices_per_node);

// How many groups of a mesh leave their node. (GroupSpan describes the worst group, but not how many are like it.)
struct CrossingGroups {
  std::int64_t groups = 1;
  std::int64_t crossing = 0;  // groups with members on more than one node
};
// Ranks lie as in span_of(). REQUIRES: devices_per_node >= 1.
CrossingGroups crossing_groups(const Mesh& mesh, MeshGroup group, std::int64_t devices_per_node);

// An order of devices by their data sheets: which of two devices cannot be the slower one, whatever was measured.
// Returns whether `device` has the architecture of `other` or a revision of it ("Blackwell Ultra" of "Blackwell"), and
// is at least as good in all that the time of a kernel depends on: the matrix rate of every type, for the device and
// for a multiprocessor; vector rate; memory bandwidth; L2; number of multiprocessors; power. Rates may differ by 0.1 %,
// as data sheets round. The size of memory does not count, nor do links, which belong to the node: two devices that
// differ in these alone are each no slower than the other.
bool is_no_slower(const Device& device, const Device& other);

// The level of a fabric whose links between switches may be narrower than the links below: leaf switches and their
// up-links, or dragonfly groups and their global links.
struct UpLinks {
  std::int64_t nodes = 0;       // under one leaf or set of rail switches, in a dragonfly group; 0: no such level
  std::int64_t rails = 1;       // leaf switches side by side, one for each NIC of a node (rail_fat_tree)
  std::int64_t nics = 1;        // NICs of a node, as links: at most its number of devices
  std::int64_t ways = 1;        // up-links of a leaf; the destination of a message chooses which it takes
  double bytes_per_second = 0;  // of each up-link, one direction

  std::int64_t nic_of(std::int64_t device_of_node, std::int64_t devices) const {
    return device_of_node * nics / devices;
  }
  std::int64_t leaf_of(std::int64_t node, std::int64_t nic) const {
    return rails > 1 ? node / nodes * rails + nic : node / nodes;
  }
  std::int64_t nics_per_leaf() const { return rails > 1 ? nodes : nodes * nics; }
  // D-mod-k (Zahavi, JPDC 72(11), 2012): the up-link to destination j, counted leaf by leaf, is j mod k.
  std::int64_t way_to(std::int64_t node, std::int64_t nic) const {
    const std::int64_t at = rails > 1 ? node % nodes : node % nodes * nics + nic;
    return (leaf_of(node, nic) * nics_per_leaf() + at) % ways;
  }
};

// The up-links for all nodes of the fabric (Cluster::fabric_nodes). `sprayed`: packets use all up-links of a switch
// evenly, so that these count as one link; global links of a dragonfly always do. REQUIRES: NICs with a rate.
UpLinks up_links_of(const Cluster& cluster, bool sprayed);

}  // namespace orrery
