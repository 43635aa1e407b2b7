// The links of a cluster, and the route of a message through them. Links are numbered by their place, and routes are
// computed from coordinates, not tabulated: the memory for a topology of 131,072 devices is that of its parameters.
// Every link is one direction, except host memory: the bus of DRAM serves both. Rates are physical (protocol
// efficiencies belong to the flows, sim/des/engine.h). Switches and paths within the host never limit a rate.
//
//  device --scale_up--> [NVSwitch] --scale_up--> device                          IntraFabric::nvswitch: a port each way
//  device --scale_up--> (port) --scale_up_pair--> (port) --scale_up--> device    direct_mesh; several pairs' links one
//                                                         after the other where no link joins the two (Node::links)
//  device --scale_up_pair--> device                                              nvlink_pairs
//  device --pcie--> [PCIe switch] --pcie_switch--> [host] --pcie_switch--> [PCIe switch] --pcie--> device
//  device --pcie--> [PCIe switch] --nic--> leaf --leaf--> spine --leaf--> leaf --nic--> [PCIe switch] --pcie--> device
//  [host] --host_memory--> DRAM, [host] --storage--> NVMe
//
// README.md beside this file documents rates, routing and sources.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/cost/link_map.h"
#include "sim/hardware/cluster.h"

namespace orrery {

using LinkId = std::int32_t;

enum class LinkKind : std::uint8_t {
  scale_up,       // device to the node's scale-up switch and back; direct_mesh: the sum of a device's links; pcie and
                  // nvlink_pairs: only where devices reach each other more slowly than at PCIe's rate
  scale_up_pair,  // a link between two devices (direct_mesh, nvlink_pairs)
  pcie,           // device and its PCIe switch; absent if the rate is unknown
  pcie_switch,    // PCIe switch and host
  host_memory,    // of a node, both directions together; absent if the rate is unknown
  storage,        // NVMe of a node; absent if the rate is unknown
  nic,            // NIC and its leaf switch (dragonfly: router; torus: none)
  leaf,           // leaf switch and spine (rail_fat_tree: rail switch and spine)
  global,         // dragonfly: between groups
  torus,          // a node and its neighbour; the two links of a dimension of length 2 are one
};
inline constexpr int kLinkKinds = 10;
const char* name_of(LinkKind kind);

// The start or end of a message. Switches take part in in-switch reduction and multicast.
struct Endpoint {
  enum class Kind : std::uint8_t {
    device,
    scale_up_switch,
    host_memory,
    storage,
    leaf_switch,  // of the NIC that the device uses
    spine,        // through which messages reach that device
  };
  Kind kind = Kind::device;
  std::int64_t index = 0;  // device in the cluster (also for switches of the fabric); node for the others

  static Endpoint device(std::int64_t d) { return {Kind::device, d}; }
  bool operator==(const Endpoint&) const = default;
};

// How a switch with several up-links chooses one.
enum class Routing : std::uint8_t {
  automatic,  // per_flow in fat trees, sprayed where switches route adaptively (dragonflies, Fabric::adaptive_routing)
  per_flow,   // fat tree: by destination, counted leaf by leaf, modulo up-links (D-mod-k, as in InfiniBand's static
              // tables; Zahavi 2012); dragonfly: minimal, over the one link between the two groups
  sprayed,    // idealised: packets use all up-links of a switch evenly, so that these act as one
};
inline constexpr std::array<std::string_view, 3> kRoutingNames{"automatic", "per_flow", "sprayed"};

class Topology {
 public:
  // Copies what it needs; memory and time do not depend on the cluster's size. Throws InputError (with a pointer into
  // the cluster document) if a level with several members lacks a rate: no NICs or no NIC rate with several nodes, or
  // no rate between the devices of a node. It also throws for a torus whose dimensions do not multiply to the number of
  // nodes, and for more links than LinkId can count. Levels of one member have no links.
  explicit Topology(const Cluster& cluster, Routing routing = Routing::automatic);

  // Links are 0 .. links()-1, kind by kind. REQUIRES, for functions that take a LinkId: it is in that range.
  std::int64_t links() const { return first_.back(); }
  LinkKind kind(LinkId link) const;
  double bytes_per_second(LinkId link) const;
  // "node3.gpu5.scale_up.out", "node3.nic2.in", "leaf4.spine7.up": a unique and stable name, which perturbations use.
  // Links between two ends name these in ascending order, and ".out" leads from the first: "node0.gpu1-gpu4.out". Rail
  // switch k of rail group g is leaf g x rails + k. README.md lists all forms.
  std::string name(LinkId link) const;
  // The links whose name matches `pattern`, in which '*' stands for any characters. A name without a direction means
  // both. Ascending; may be empty. Goes through all links (a million take a tenth of a second).
  std::vector<LinkId> find(std::string_view pattern) const;
  // A name or pattern near `pattern` that names a link, for messages; "" if none is plausibly meant.
  std::string nearest_name(std::string_view pattern) const;

  std::int64_t devices() const { return nodes_ * per_node_; }
  std::int64_t node_of(std::int64_t device) const { return device / per_node_; }
  // The index within its node of the NIC that a device uses; 0 if the node has none. Devices are assigned to NICs in
  // order. With fewer NICs than devices, neighbours share one. With more, a device's NICs count as one link of their
  // joint rate (an equal part of the node's rate if they cannot be divided evenly). A node's NICs are thus the rails of
  // a rail_fat_tree.
  std::int64_t nic_of(std::int64_t device) const { return device % per_node_ * nics_ / per_node_; }

  // The links of a mesh whose pairs differ; empty for all other nodes.
  const LinkMap& link_map() const { return link_map_; }

  // The leaf switch of the NIC that a device uses; 0 if one leaf reaches all nodes.
  std::int64_t leaf_of(std::int64_t device) const {
    return has(LinkKind::leaf) ? up_.leaf_of(node_of(device), nic_of(device)) : 0;
  }

  // Appends the links from one endpoint to another, in order; none if the endpoints are equal. Pure; cost about 50 ns,
  // in a torus 5 ns per hop. `scale_up_first`: a message to another node first goes over the scale-up fabric to the
  // local device on the destination's rail (NCCL's PXN: the device at the destination's place), if the fabric has rails
  // and the node's scale-up fabric joins all devices (nvswitch, direct_mesh). Throws InputError if the cluster states
  // no rate for a link on the way. Throws std::logic_error for endpoints that do not exist or are not connected: a
  // scale-up switch joins the devices of its node; host memory and storage are reached within the node only.
  void route(Endpoint from, Endpoint to, std::vector<LinkId>& way, bool scale_up_first = false) const;

 private:
  struct TorusDimension {
    std::int64_t dimension = 0;  // index in the fabric's list
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
  std::int64_t place(LinkId link) const;  // index among the links of its kind
  void append_name(LinkId link, std::string& name) const;
  const TorusDimension& torus_dimension_of(std::int64_t place) const;

  std::int64_t node_of(Endpoint end) const;
  bool joins_all_devices() const { return intra_ == IntraFabric::nvswitch || intra_ == IntraFabric::direct_mesh; }
  // From one PCIe switch of a node to another.
  void cross_switches(std::int64_t node, std::int64_t up, std::int64_t down, std::vector<LinkId>& way) const;
  LinkId pair_link(std::int64_t node, std::int64_t from, std::int64_t to) const;  // of a mesh
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
  LinkMap link_map_;
  std::vector<std::int64_t> joined_pairs_;  // of its ordered pairs those with links, by their index among all
  FabricKind fabric_ = FabricKind::single_switch;
  bool sprayed_ = false;
  std::int64_t per_pcie_switch_ = 1, pcie_switches_ = 1;  // devices of a switch; switches of a node
  std::int64_t nics_ = 0;                                 // NICs of a node, as links
  UpLinks up_;
  std::int64_t leaves_ = 1;              // leaf switches, or groups of a dragonfly
  std::vector<TorusDimension> torus_;    // dimensions of more than one node
  std::int64_t torus_links_ = 0;         // per node
  bool writes_ = false, reads_ = false;  // whether the storage has a rate for each

  // By kind.
  std::array<std::int64_t, kLinkKinds> count_{};
  std::array<std::int64_t, kLinkKinds + 1> first_{};
  std::array<double, kLinkKinds> rate_{};  // pcie_switch: per device of the switch; storage: writing
  bool wide_up_links_ = false;             // the up-link of a PCIe switch carries the full rates of all its devices
  double storage_read_bytes_per_second_ = 0;
};

}  // namespace orrery
