// What collectives over nodes that lie scattered over a fabric put on the links between its switches. Where nodes lie
// leaf by leaf, CollectiveModel has closed forms instead.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sim/hardware/cluster.h"
#include "sim/program/mesh.h"

namespace orrery {

// All groups of a communicator at once, message by message over the links that the fabric's routing gives them, as the
// discrete-event engine sends them (sim/des/collective_flows.h). Seconds for which the busiest link between switches is
// busy, for each byte ...
struct FabricLoad {
  double ring_seconds = 0;        // ... that a node passes on to the next of its ring
  double tree_seconds = 0;        // of an all-reduce over double binary trees
  double all_to_all_seconds = 0;  // that a rank sends to all ranks, itself included
  double shift_seconds = 0;       // that each rank sends to the next of its group
  double send_seconds = 0;        // that each first rank sends to the second, or gets from it: the mean
  double reduction_seconds = 0;   // of an all-reduce in the switches: each leaf hands one sum up and gets one down
  // That partners exchange whose numbers differ in bit 0, 1, ... (halving_doubling.h).
  std::vector<double> exchange_seconds;

  bool leaves_switch = false;  // dragonfly: of a group's own switches
  bool leaves_leaf = false;    // some group has nodes under several leaves (dragonfly: in several groups)
};

// `members`: ranks of the communicator, group after group of `size`; rank r sits on the cluster's device r.
// Proportional to ranks (~100 ns each), of an all-to-all to ranks times the leaves that a group touches.
FabricLoad fabric_load(const Cluster& cluster, std::span<const std::int64_t> members, std::int64_t size);

// Ranks of all groups, group after group, each in ascending order.
std::vector<std::int64_t> members_of_groups(const Mesh& mesh, MeshGroup group);

// span_of() on the nodes that the cluster has: with FabricLoad where they are scattered.
GroupSpan span_of(const Mesh& mesh, MeshGroup group, const Cluster& cluster);

}  // namespace orrery
