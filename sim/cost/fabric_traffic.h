// The load that collectives over nodes scattered over a fabric put on the links between its switches. If nodes lie leaf
// by leaf, CollectiveModel uses closed forms instead.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/hardware/cluster.h"
#include "sim/program/mesh.h"

namespace orrery {

// The load of all groups of a communicator at once, message by message over the links that the fabric's routing
// chooses, as the discrete-event engine sends them (sim/cost/collective_flows.h). Each value is the seconds for which
// the busiest link between switches is busy, per byte of the stated quantity.
struct FabricTraffic {
  double ring_seconds = 0;        // bytes that a node passes to the next node of its ring
  double tree_seconds = 0;        // bytes of an all-reduce over double binary trees
  double all_to_all_seconds = 0;  // bytes that a rank sends to all ranks, itself included
  double shift_seconds = 0;       // bytes that each rank sends to the next rank of its group
  double send_seconds = 0;        // bytes that each first rank sends to the second, or the reverse; the mean of both
  double reduction_seconds = 0;   // bytes of an all-reduce in the switches: each leaf sends and gets one sum
  // Bytes that partners exchange whose numbers differ in bit 0, 1, ... (exchange_patterns.h).
  std::vector<double> exchange_seconds;

  bool leaves_switch = false;  // dragonfly: some group has nodes under several switches
  bool leaves_leaf = false;    // some group has nodes under several leaves (dragonfly: in several groups)
};

// `members`: the ranks of the communicator, group after group, each of `size` ranks; rank r is on device r of the
// cluster. Cost: ~100 ns per rank; for all-to-all, times the leaves that a group touches.
FabricTraffic fabric_load(const Cluster& cluster, std::span<const std::int64_t> members, std::int64_t size);

// The ranks of all groups, group after group, each in ascending order.
std::vector<std::int64_t> members_of_groups(const Mesh& mesh, MeshGroup group);

// span_of() on the cluster's nodes; includes a FabricTraffic if they are scattered.
GroupSpan span_of(const Mesh& mesh, MeshGroup group, const Cluster& cluster);

}  // namespace orrery
