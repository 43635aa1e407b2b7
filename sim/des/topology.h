// The links of a cluster and the way of a message through them. Links are numbered by where they stand and routes are
// computed from coordinates, never tabulated: a topology of 131,072 devices weighs what its parameters weigh.
// Every link is one direction, but for host memory: DRAM's bus turns around. Rates are physical (protocol efficiencies
// belong to the flows, sim/des/engine.h). Switches and the host's own paths block nothing.
//
//  device --scale_up--> [NVSwitch] --scale_up--> device                          IntraFabric::nvswitch: a port each way
//  device --scale_up--> (port) --scale_up_pair--> (port) --scale_up--> device    direct_mesh
//  device --scale_up_pair--> device                                              nvlink_pairs
//  device --pcie--> [PCIe switch] --pcie_switch--> [host] --pcie_switch--> [PCIe switch] --pcie--> device
//  device --pcie--> [PCIe switch] --nic--> leaf --leaf--> spine --leaf--> leaf --nic--> [PCIe switch] --pcie--> device
//  [host] --host_memory--> DRAM, [host] --storage--> NVMe
//
// README.md beside this file: rates, routing, sources.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/hardware/cluster.h"
#include "sim/hardware/up_links.h"

namespace orrery {

using LinkId = std::int32_t;

enum class LinkKind : std::uint8_t {
  scale_up,       // device to the node's scale-up switch and back; direct_mesh: the sum of a device's links; pcie and
                  // nvlink_pairs: only where devices reach each other more slowly than PCIe's rate
  scale_up_pair,  // two devices' own link (direct_mesh, nvlink_pairs)
  pcie,           // device and its PCIe switch; none where the rate is unknown
  pcie_switch,    // PCIe switch and host
  host_memory,    // of a node, both directions together; none where the rate is unknown
  storage,        // NVMe of a node; none where the rate is unknown
  nic,            // NIC and its leaf switch (dragonfly: router; torus: none)
  leaf,           // leaf switch and spine (rail_fat_tree: rail switch and spine)
  global,         // dragonfly: from group to group
  torus,          // node and neighbour; both links of a dimension of length 2 are one
};
inline constexpr int kLinkKinds = 10;
const char* name_of(LinkKind kind);

// Where a message starts or ends. Switches take part in in-switch reduction and multicast.
struct Endpoint {
  enum class Kind : std::uint8_t {
    device,
    scale_up_switch,
    host_memory,
    storage,
    leaf_switch,  // of the NIC that the device uses
    spine,        // over which messages reach that device
  };
  Kind kind = Kind::device;
  std::int64_t index = 0;  // of the device in the cluster (also of switches of the fabric); of the node for the others

  static Endpoint device(std::int64_t d) { return {Kind::device, d}; }
  bool operator==(const Endpoint&) const = default;
};

// How a switch with several ways up picks one.
enum class Routing : std::uint8_t {
  automatic,  // per_flow in fat trees, sprayed where switches route adaptively (dragonflies, Fabric::adaptive_routing)
  per_flow,   // fat tree: by destination, counted leaf by leaf, modulo up-links (D-mod-k, as InfiniBand's static
              // tables; Zahavi 2012); dragonfly: minimal, over the one link between the two groups
  sprayed,    // idealised: packets use all ways evenly, the up-links of a switch act as one
};
inline constexpr std::array<std::string_view, 3> kRoutingNames{"automatic", "per_flow", "sprayed"};

class Topology {
 public:
  // Copies what it needs; memory and time do not depend on the cluster's size. Throws InputError (pointer into the
  // cluster document) when a level that has several members lacks a rate: no NICs or no NIC rate with several nodes, no
  // rate between the devices of a node; and for a torus whose dimensions do not multiply to the nodes, and for more
  // links than a LinkId counts. Levels of one member have no links.
  explicit Topology(const Cluster& cluster, Routing routing = Routing::automatic);

  // Links are 0 .. links()-1, kind by kind. REQUIRES of what takes a LinkId: it is one of them.
  std::int64_t links() const { return first_.back(); }
  LinkKind kind(LinkId link) const;
  double bytes_per_second(LinkId link) const;
  // "node3.gpu5.scale_up.out", "node3.nic2.in", "leaf4.spine7.up": unique, stable, what perturbations name. Two ends
  // are written in ascending order, and ".out" leads from the first: "node0.gpu1-gpu4.out". Rail switch k of rail group
  // g is leaf g x rails + k. README.md lists all forms.
  std::string name(LinkId link) const;
  // Links whose name matches `pattern`, in which '*' stands for any characters; a name without direction means both.
  // Ascending; empty if none does. Goes through all links (a million: a tenth of a second).
  std::vector<LinkId> find(std::string_view pattern) const;
  // A name or pattern near `pattern` that names a link, for messages; "" when none is plausibly meant.
  std::string nearest_name(std::string_view pattern) const;

  std::int64_t devices() const { return nodes_ * per_node_; }
  std::int64_t node_of(std::int64_t device) const { return device / per_node_; }
  // Devices are dealt to NICs in order: with fewer NICs than devices neighbours share one; with more, a device's NICs
  // count as one link of their joint rate (an equal part of the node's, where they cannot be dealt evenly). Within the
  // node; 0 where it has none. A node's nics are thus the rails of a rail_fat_tree.
  std::int64_t nic_of(std::int64_t device) const { return device % per_node_ * nics_ / per_node_; }

  // The leaf switch of the NIC that a device uses; 0 where one reaches all.
  std::int64_t leaf_of(std::int64_t device) const {
    return has(LinkKind::leaf) ? up_.leaf_of(node_of(device), nic_of(device)) : 0;
  }

  // Appends the links from one endpoint to another, in order; nothing if they are equal. Pure; some 50 ns, in
  // a torus 5 ns a hop. Over `scale_up_first` a message to another node is first handed to the local device on the
  // destination's rail (NCCL's PXN: the one of the destination's place), if the fabric has rails and the node a
  // scale-up fabric that joins all devices (nvswitch, direct_mesh). Throws InputError when the cluster states no rate
  // for a link on the way, and std::logic_error for endpoints that are not there or not joined: a scale-up switch joins
  // the devices of its node; host memory and storage are reached within the node only.
  void route(Endpoint from, Endpoint to, std::vector<LinkId>& way, bool scale_up_first = false) const;

 private:
  struct TorusDimension {
    std::int64_t dimension = 0;  // in the fabric's list
    std::int64_t length = 1, stride = 1;
    std::int64_t first_link = 0, links = 2;  // of a node
  };

  void lay_out_node(const Cluster& cluster);
  void lay_out_network(const Cluster& cluster);
  void lay_out_torus(const Cluster& cluster);
  void number_links();

  bool has(LinkKind kind) const { return count_[static_cast<std::size_t>(kind)] > 0; }
  LinkId link(LinkKind kind, std::int64_t at) const {
    return static_cast<LinkId>(first_[static_cast<std::size_t>(kind)] + at);
  }
  std::int64_t place(LinkId link) const;  // among the links of its kind
  void append_name(LinkId link, std::string& name) const;
  const TorusDimension& torus_dimension_of(std::int64_t place) const;

  std::int64_t node_of(Endpoint end) const;
  bool joins_all_devices() const { return intra_ == IntraFabric::nvswitch || intra_ == IntraFabric::direct_mesh; }
  void route_in_node(std::int64_t from, std::int64_t to, std::vector<LinkId>& way) const;
  void route_between_nodes(std::int64_t from, std::int64_t to, bool scale_up_first, std::vector<LinkId>& way) const;
  void route_over_torus(std::int64_t from_node, std::int64_t to_node, std::vector<LinkId>& way) const;
  void climb(std::int64_t from_node, std::int64_t from_nic, std::int64_t to_node, std::int64_t to_nic,
             std::vector<LinkId>& way) const;
  void route_to_or_from_switch(Endpoint from, Endpoint to, std::vector<LinkId>& way) const;
  void route_over_fabric_switches(Endpoint from, Endpoint to, std::vector<LinkId>& way) const;
  void route_by_host(Endpoint from, Endpoint to, std::vector<LinkId>& way) const;

  std::int64_t nodes_ = 1, per_node_ = 1;
  IntraFabric intra_ = IntraFabric::nvswitch;
  FabricKind fabric_ = FabricKind::single_switch;
  bool sprayed_ = false;
  std::int64_t per_pcie_switch_ = 1, pcie_switches_ = 1;  // devices of a switch, switches of a node
  std::int64_t nics_ = 0;                                 // of a node, as links
  UpLinks up_;                                            // of fat trees
  std::int64_t nodes_per_group_ = 1, groups_ = 1;
  std::vector<TorusDimension> torus_;    // dimensions of more than one node
  std::int64_t torus_links_ = 0;         // of a node
  bool writes_ = false, reads_ = false;  // the storage

  // By kind.
  std::array<std::int64_t, kLinkKinds> count_{};
  std::array<std::int64_t, kLinkKinds + 1> first_{};
  std::array<double, kLinkKinds> rate_{};  // pcie_switch: for each device of the switch; storage: writing
  bool wide_up_links_ = false;             // a PCIe switch's up-link carries all of its devices at once
  double storage_read_bytes_per_second_ = 0;
};

}  // namespace orrery
