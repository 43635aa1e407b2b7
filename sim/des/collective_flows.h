// What a collective sends, as edges between the members of its group: who sends to whom, how much, how often, and what
// each message waits for. One description serves both fidelities: step-exact runs every message; steady-flow sends an
// edge's total as one flow. Bytes are shares of the op's size as nccl-tests counts it (see CollectiveModel::cost).
//
// Sources: Patarasuk and Yuan 2009 (ring); Sanders, Speck and Traeff 2009 (two-tree); Thakur, Rabenseifner and Gropp
// 2005 (recursive halving and doubling); NCCL's src/graph (channels, chains in the node, NVLS, PXN); Rajbhandari et al.
// 2022 (DeepSpeed-MoE: hierarchical all-to-all).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/cost/collective_cost.h"
#include "sim/program/op.h"

namespace orrery {

// The members of a group in rank order: the device each sits on. Nodes are device / devices_per_node, and count in the
// order of their first members, or of the fabric.
struct GroupMembers {
  std::span<const std::int64_t> devices;
  std::int64_t devices_per_node = 1;
  bool full_mesh = false;        // within the node every pair has a link of its own (IntraFabric::direct_mesh): rings
                                 // are laid over all of them
  bool both_directions = false;  // rings run both ways, half of the bytes each (tori); bidirectional_ring always does
  RingOrder order = RingOrder::rank;
  // collnet: the leaf switch of each member's NIC; empty: one for all. And whether NVSwitch sums up within the node.
  std::span<const std::int64_t> leaves = {};
  bool in_switch_reduction = false;
  TokenShares tokens = {};  // by_token
  // Of an all-to-all whose parts are unequal, [from * members + to]: over what each sends each other one where all are
  // equal (Load::rows); by_token: how many of the rows, of which a token's travel once. Empty: equal.
  std::span<const double> rows = {};
};

// A member, or a switch that reduces and multicasts: the scale-up switch of a member's node, the leaf switch of its
// NIC, the spine over which it is reached.
struct FlowEnd {
  enum class Fabric : std::uint8_t { none, leaf, spine };
  std::int32_t member = 0;
  bool at_switch = false;  // the switch of that member's node
  Fabric fabric = Fabric::none;
  bool operator==(const FlowEnd&) const = default;
};

struct FlowEdge {
  // A ring's message to another node goes from the device whose NIC the channel uses, to which the last device of the
  // node's chain hands it (NCCL_CROSS_NIC=0). The message itself is what the edges in `after` brought, wherever they
  // end.
  FlowEnd from, to;
  double bytes = 0;           // of each message, as a share of the op's bytes
  std::int32_t messages = 1;  // sent one after the other
  // Message k starts when message k-1 of this edge has left and, for every edge in `after`, message k + lag of that
  // edge (if there is one: 0 <= k + lag < its messages) has arrived.
  std::int32_t lag = 0;
  std::int32_t first_after = 0, afters = 0;  // into FlowGraph::after; edges may share a range
  // A phase starts when the one before has ended, from 0 (hierarchical algorithms; each step of halving_doubling). It
  // is enough if a member's edges of a phase wait for all edges of the phases before that start or end at that member.
  std::uint8_t phase = 0;
  bool scale_up_first = false;  // rail-aligned (PXN), see Topology::route
};

struct FlowGraph {
  std::vector<FlowEdge> edges;      // by phase; several may join the same two ends
  std::vector<std::int32_t> after;  // indices of edges, also of later ones
  std::int32_t phases = 1;

  void clear();
  std::span<const std::int32_t> after_of(const FlowEdge& e) const {
    return {after.data() + e.first_after, static_cast<std::size_t>(e.afters)};
  }
};

struct FlowOptions {
  // Chunks that a chain or tree passes on while the next arrive (step-exact); rings have as many as members.
  std::int32_t chunks = 8;
  // Channels of rings and trees across nodes: 0 means one per member of the smallest node, so that each leaves the node
  // over its own NIC (on full meshes of an odd number of members two, so that every link carries the same).
  std::int32_t channels = 0;
  // Direct all-to-all: messages go to the device of the destination's rail first, over the scale-up switch (NCCL's
  // PXN).
  bool rail_aligned = false;
  // Direct all-to-all: a member sends one flow to each other node instead of one to each of its members, to that node's
  // members in turn (between many ranks, steady-flow only): the same bytes on every link if nodes have equally many
  // members, and always between every two nodes.
  bool by_node = false;
};

// Replaces `graph`. `algorithm` as CollectiveModel::cost resolved it:
//   all_reduce                                ring, bidirectional_ring, tree, hierarchical, nvls, collnet,
//                                             halving_doubling
//   all_gather, reduce_scatter                ring, bidirectional_ring, hierarchical, halving_doubling
//   reduce_scatter                            collnet
//   all_to_all                                direct, hierarchical, by_token
//   broadcast, reduce                         ring, bidirectional_ring; from and to member 0
//   ring_shift                                direct, hierarchical
//   send, receive                             direct: members 0 -> 1
// Which edges leave the node follows from the members' nodes and may be uneven. A group of one makes no edges. The same
// input gives the same edges in the same order. O(edges); a ring has members x channels of them.
// Throws InputError for an algorithm that the kind does not have, an op that does not communicate, options out of their
// range, and more edges than FlowGraph::after can number.
void collective_flows(OpKind kind, CollectiveAlgorithm algorithm, const GroupMembers& members,
                      const FlowOptions& options, FlowGraph& graph);

// About how many edges those are, or messages (`every_message`), of a group of `members` evenly on `nodes`: to refuse
// what would take too long before anything is made. Within a factor of four. 0 where collective_flows refuses.
double estimated_flows(OpKind kind, CollectiveAlgorithm algorithm, std::int64_t members, std::int64_t nodes,
                       const FlowOptions& options, bool every_message);

// All-to-all with unequal parts: bytes[i * members + j] from member i to j, in bytes (edges' bytes are then bytes, not
// shares). For MoE routing. Nothing is sent for 0 bytes. Throws InputError unless there are members x members finite
// numbers >= 0.
void all_to_all_v_flows(std::span<const double> bytes, const GroupMembers& members, const FlowOptions& options,
                        FlowGraph& graph);

}  // namespace orrery
