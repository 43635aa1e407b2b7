// The messages of a collective, as edges between the members of its group: who sends to whom, how much, how often, and
// what each message waits for. One description serves both fidelities of the discrete-event engine (step-exact runs
// every message; steady-flow sends an edge's total as one flow), the skew of unequal exchanges (exchange_skew.h), and
// ranks over MPI (realrun/mpi/transfers.h). Bytes are shares of the op's size as nccl-tests counts it (see
// CollectiveModel::cost).
//
// Sources: Patarasuk and Yuan 2009 (ring); Sanders, Speck and Traeff 2009 (two-tree); Thakur, Rabenseifner and Gropp
// 2005 (recursive halving and doubling); NCCL's src/graph (channels, chains in the node, NVLS, PXN); Rajbhandari et al.
// 2022 (DeepSpeed-MoE: hierarchical all-to-all).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/cost/collective_cost.h"
#include "sim/cost/link_map.h"
#include "sim/program/op.h"

namespace orrery {

// The members of a group in rank order, each with the device that it is on. A member's node is
// device / devices_per_node. Nodes are in the order of their first members, or as they lie on the fabric (RingOrder).
struct GroupMembers {
  std::span<const std::int64_t> devices;
  std::int64_t devices_per_node = 1;
  // Within the node every pair has a link of its own (IntraFabric::direct_mesh); rings are laid over all of these
  // links.
  bool full_mesh = false;
  // The links of nodes of another mesh, whose pairs differ; rings are laid as these say. Null: none.
  const LinkMap* links = nullptr;
  // Rings run both ways, half of the bytes each (tori); bidirectional_ring always does.
  bool both_directions = false;
  RingOrder order = RingOrder::rank;
  // For collnet: the leaf switch of each member's NIC (empty: one leaf for all), and whether NVSwitch reduces within
  // the node.
  std::span<const std::int64_t> leaves = {};
  bool in_switch_reduction = false;
  TokenShares tokens = {};  // for by_token
  // For an all-to-all with unequal parts, [from * members + to]: what each member sends each other one, over what it
  // would send if all were equal (Load::rows). For by_token it counts all rows, although the rows of a token to one
  // place travel as one. Empty: equal. Throws InputError unless there are members x members. REQUIRES: finite, >= 0.
  std::span<const double> rows = {};
};

// An end of an edge. It is a member, or a switch that reduces and multicasts. Such a switch is named by a member: the
// scale-up switch of the member's node, the leaf switch of its NIC, or the spine above that leaf.
struct FlowEnd {
  enum class Fabric : std::uint8_t { none, leaf, spine };
  std::int32_t member = 0;
  bool at_switch = false;  // the switch of that member's node
  Fabric fabric = Fabric::none;
  bool operator==(const FlowEnd&) const = default;
};

struct FlowEdge {
  // In a ring, a message to another node starts at the device whose NIC the channel uses; the last device of the node's
  // chain hands it to that device (NCCL_CROSS_NIC=0). The edges in `after` bring the message's data, wherever they end.
  FlowEnd from, to;
  double bytes = 0;           // of each message, as a share of the op's bytes
  std::int32_t messages = 1;  // sent one after the other
  // Message k starts when message k-1 of this edge has left and, for every edge in `after`, message k + lag of that
  // edge has arrived, if there is one (0 <= k + lag < its messages).
  std::int32_t lag = 0;
  std::int32_t first_after = 0, afters = 0;  // range in FlowGraph::after; edges may share a range
  // A phase starts when the one before has ended; the first is 0 (hierarchical algorithms; each step of
  // halving_doubling). It suffices if a member's edges of a phase wait for all edges of earlier phases that start or
  // end at that member.
  std::uint8_t phase = 0;
  bool scale_up_first = false;  // rail-aligned (PXN), see Topology::route
};

struct FlowGraph {
  std::vector<FlowEdge> edges;      // by phase; several may connect the same two ends
  std::vector<std::int32_t> after;  // indices of edges, possibly of later ones
  std::int32_t phases = 1;

  void clear();
  std::span<const std::int32_t> after_of(const FlowEdge& e) const {
    return {after.data() + e.first_after, static_cast<std::size_t>(e.afters)};
  }
};

struct FlowOptions {
  // Number of chunks that a chain or tree passes on one by one (step-exact); rings have as many as members.
  std::int32_t chunks = 8;
  // Direct all-to-all: messages go to the device of the destination's rail first, over the scale-up switch (NCCL's
  // PXN).
  bool rail_aligned = false;
  // Direct all-to-all: a member sends one flow to each other node instead of one to each of its members; the flows go
  // to the node's members in turn (for many ranks, steady-flow only). This puts the same bytes on every link if nodes
  // have equally many members. The bytes between any two nodes are always right.
  bool by_node = false;
};

// Replaces `graph`. `algorithm`: as CollectiveModel::cost() resolved it.
//   all_reduce                                ring, bidirectional_ring, tree, hierarchical, nvls, collnet,
//                                             halving_doubling, first_ranks
//   all_gather, reduce_scatter                ring, bidirectional_ring, hierarchical, halving_doubling
//   reduce_scatter                            collnet
//   all_to_all                                direct, hierarchical, by_token
//   broadcast, reduce                         ring, bidirectional_ring; from and to member 0
//   ring_shift                                direct, hierarchical
//   send                                      direct: members 0 -> 1
// Along a ring, message k of an edge passes on what message k - 1 brought to its start. A tree's edges up come before
// its edges down. halving_doubling has a phase for each step, and one before and one after if it folds ranks into
// others. The members' nodes decide which edges leave the node; nodes may have unequal numbers of members. A group of
// one makes no edges. The same input gives the same edges in the same order. Cost: O(edges); a ring has members x
// channels edges. Throws InputError for an algorithm that the kind does not have, an op that does not communicate,
// options out of range, and more edges than FlowGraph::after can number.
//
// Rings and trees across nodes have a channel for each member of the smallest node, so that each leaves the node over
// its own NIC. On full meshes of an odd number of members rings have two for each, so that every link carries the same.
void collective_flows(OpKind kind, CollectiveAlgorithm algorithm, const GroupMembers& members,
                      const FlowOptions& options, FlowGraph& graph);

// Estimates the number of edges for a group of `members` evenly on `nodes`, without making any; used to refuse runs
// that would take too long. Accurate within a factor of four. 0 if collective_flows() refuses.
double estimated_flows(OpKind kind, CollectiveAlgorithm algorithm, std::int64_t members, std::int64_t nodes,
                       const FlowOptions& options);

}  // namespace orrery
