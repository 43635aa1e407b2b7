// Seconds of one collective over a group. The models have latency and bandwidth terms, per algorithm and protocol, over
// the levels of the fabric that the group really spans. The fastest legal pair of algorithm and protocol is chosen, as
// NCCL does.
//
//   seconds = base + sum of steps x seconds per step + max(bytes in the node / its rate, bytes over NICs / their rate)
//
// Sources: NCCL src/graph/tuning.cc (which pairs are legal, latencies, protocols' rates); results/calibration/
// collectives.json for measured rates and latencies, one set per accelerator generation and per network.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/cost/exchange_skew.h"
#include "sim/cost/link_map.h"
#include "sim/hardware/cluster.h"
#include "sim/program/op.h"

namespace orrery {

// Seconds or shares per protocol: [simple, ll128, ll].
using ByProtocol = std::array<double, 3>;

// Parameters of one accelerator generation on one kind of scale-up fabric.
struct IntraCalibration {
  // Shares of the link rate that large transfers reach.
  double ring_share = 0;
  double all_to_all_share = 0;
  double send_share = 0;
  double host_bridge_share = 0;  // share of the PCIe rate that a group reaches once it leaves its PCIe switch
  // The first step of a ring also copies within the device. The copy takes this part of a step over the link.
  double local_steps = 0;
  ByProtocol protocol_share{};                  // share of the Simple protocol's rate
  ByProtocol tree_share{};                      // share of a ring's rate in the same protocol
  bool ll128 = false;                           // legal within the node
  std::array<double, 3> ll_bytes_per_second{};  // highest rate of LL on 1, 2-3, and 4 or more nodes
  ByProtocol base_seconds{};                    // once per collective
  ByProtocol step_seconds{};                    // per step of a ring or chain within the node
  ByProtocol send_base_seconds{};               // once per point-to-point message; no LL128
  ByProtocol all_to_all_base_seconds{};         // once per all-to-all; no LL128
  double send_step_seconds = 0;                 // per peer within the node
  double nvls_share = 0;                        // share of the link rate
  double nvls_network_share = 0;      // share of NVLS's rate that is left when the same channels also drive the NICs
  std::int64_t nvls_least_ranks = 0;  // ranks per node; with fewer NCCL does not use NVLS
  double nvls_seconds = 0;            // once per collective
  // Seconds that large sizes take in addition, and the size at which half of them are added.
  double nvls_fill_seconds = 0, nvls_fill_bytes = 0;
  // The same for each rank of a node: r ranks add r times these seconds, half of them at r x nvls_fill_bytes.
  double nvls_rank_seconds = 0;
  std::int64_t nvls_channels = 0;   // channels that carry an NVLSTree
  double network_base_seconds = 0;  // once per collective across nodes, for the network stack
};

// Parameters of one kind of network.
struct InterCalibration {
  double ring_share = 0, tree_share = 0, all_to_all_share = 0;  // shares of the NICs' rate
  bool ll128 = false;                                           // legal over this network
  double ll_share = 0;                                          // largest share of the NICs' rate that LL reaches
  ByProtocol base_seconds{};                                    // once per collective of rings and trees
  ByProtocol send_base_seconds{};                               // once per all-to-all or message; no LL128
  ByProtocol ring_step_seconds{}, tree_step_seconds{};          // per step between nodes
  ByProtocol send_step_seconds{};                               // per further node of an all-to-all; no LL128
  // Seconds that each step takes in addition once chunks have their full size, and the message size in bytes at which
  // half of them are added.
  double ring_fill_seconds = 0, ring_fill_bytes = 0;
  double tree_fill_seconds = 0, tree_fill_bytes = 0;
  double included_latency_seconds = 0;  // the one-way network latency that the step seconds above include
};

// Reduction in the fabric's switches (SHARP), as NCCL's CollNetDirect and NVLS use it. None of these numbers is
// measured by this project.
struct ReductionCalibration {
  double nic_share = 0;             // share of the NICs' rate; 0: no such reduction
  double step_seconds = 0;          // within the node, before and after the network
  double rank_seconds = 0;          // within the node, for each further rank of the node
  double network_seconds = 0;       // once per collective
  double nvls_network_seconds = 0;  // the same where NVSwitch reduces within the node
};

// An exchange of tokens with experts in which each token goes once to a node, and there once to a rank
// (CollectiveAlgorithm::by_token).
struct TokenExchangeCalibration {
  double link_share = 0;  // share of the scale-up link's rate at which a rank receives all its rows, its own included
  double nic_share = 0;   // share of the NICs' rate
};

// The measurements behind the numbers of one class. Zero points: published constants only.
struct CollectiveResidual {
  std::int64_t curves = 0, points = 0, points_from_1_mib = 0;
  double median_error = 0, median_error_from_1_mib = 0;  // |predicted / measured - 1|
};

// The calibration of a cluster's collectives. find_collective_calibration() (sim/cost/collective_calibration.h) finds
// it.
struct CollectiveCalibration {
  std::string intra_class, intra_source;
  std::string inter_class, inter_source;
  bool inter_stands_in = false;  // no class has the network's name; inter_class stands in
  std::string note;  // empty, or which class replaces one that has no measurements
  IntraCalibration intra;
  InterCalibration inter;
  ReductionCalibration reduction;
  TokenExchangeCalibration token_exchange;
  // Seconds in a training step over seconds of collectives alone (sim/cost/step_calibration.h), because ranks wait for
  // the slowest one.
  double step_slowdown = 1;
};

struct CollectiveCost {
  double seconds = 0;
  double bus_bytes_per_second = 0;  // nccl-tests' busbw
  double intra_bytes = 0;           // sent by each rank over the scale-up fabric (mean over the group's ranks)
  double inter_bytes = 0;           // sent by each node over its NICs, for this group (mean over its nodes)
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::ring;
  CollectiveProtocol protocol = CollectiveProtocol::simple;
  bool in_switch = false;    // the scale-up switch reduces within the node (nvls, and collnet where it can)
  bool inter_bound = false;  // links between nodes, not the scale-up fabric, bound the bandwidth term

  // The terms of `seconds`, which is latency_seconds + moving_seconds(t). Here t is inter_seconds, or longer where
  // links beyond the leaf switches are narrower: inter_seconds counts NICs and leaf switches only.
  double latency_seconds = 0;
  double intra_seconds = 0, inter_seconds = 0;
  bool in_sequence = false;
  // Returns the seconds of both bandwidth terms together, with `between_nodes` in place of inter_seconds.
  double moving_seconds(double between_nodes) const {
    return in_sequence ? intra_seconds + between_nodes : std::max(intra_seconds, between_nodes);
  }
  // Within the node the collective uses only links that groups of other strides do not use: a mesh's links between
  // neighbouring ranks, or the NVLink bridge of a pair.
  bool between_neighbours = false;
  TokenShares token_shares = {};  // for by_token
  // The parts of latency_seconds for a step-by-step run: once per collective, per message within the node, and per
  // message between nodes.
  double base_seconds = 0, intra_step_seconds = 0, inter_step_seconds = 0;
};

class CollectiveModel {
 public:
  // Copies what it needs of the cluster and the calibration.
  CollectiveModel(const Cluster& cluster, const CollectiveCalibration& calibration);

  // Seconds of a collective and how it runs. `bytes` is nccl-tests' size, the full buffer of one rank. That is the
  // gathered buffer for all_gather, the unreduced one for reduce_scatter, and for all_to_all what a rank sends to all
  // ranks, itself included. For ring_shift and send it is the message. `span` describes one group; the other groups of
  // its kind run the same collective at the same time. A group of one rank, or no bytes, costs nothing. An algorithm or
  // protocol that is not legal for this op and group counts as automatic; the result says what ran. Pure; cost ~100 ns.
  // halving_doubling over a number of nodes or ranks that is not a power of two counts rank by rank: ~10 ns x ranks x
  // log2(ranks). Throws InputError if the cluster states no rate for a level that the group spans, or if `kind` does
  // not communicate.
  CollectiveCost cost(OpKind kind, double bytes, const GroupSpan& span,
                      CollectiveAlgorithm algorithm = CollectiveAlgorithm::automatic,
                      CollectiveProtocol protocol = CollectiveProtocol::automatic) const;
  // Cost of an all-to-all by_token under balanced routing. `bytes`: of the rows that a rank sends, where a token counts
  // once for each of its experts.
  CollectiveCost token_exchange(double bytes, const Router& router, const GroupSpan& span) const;

  // One message between two ranks `distance` apart in rank order, while `concurrent` such messages leave the node at
  // the same time. The message leaves the node if and only if distance >= devices per node. `load`: the load of all
  // these messages, if the nodes are scattered.
  CollectiveCost transfer(double bytes, std::int64_t distance, std::int64_t concurrent,
                          const std::shared_ptr<const FabricTraffic>& load = nullptr) const;
  double transfer_seconds(double bytes, std::int64_t distance, std::int64_t concurrent) const {
    return transfer(bytes, distance, concurrent).seconds;
  }

  // The formula of cost() with its numbers and sources, and the other algorithms and protocols that were considered.
  std::string explain(OpKind kind, double bytes, const GroupSpan& span) const;

 private:
  struct Group;      // the rates that a span has
  struct Candidate;  // one pair of algorithm and protocol
  struct Formulas;   // the candidates for one group and size
  struct MappedRates;

  // How many times longer transfers take than the NICs alone would allow, because of links beyond the leaf switches
  // (between dragonfly groups or torus neighbours); at least 1.
  struct Crossing {
    double ring = 1, tree = 1, all_to_all = 1;
    double shift = 1, send = 1;  // messages to the next rank; messages from the first rank to the second
    double reduction = 1;        // reduction in the switches
    double latency_seconds = 0;  // one way
  };
  // `used`: the share of the leaf switches' NICs, or of those on the group's rails, that groups of this kind fill.
  Crossing crossing_of(const GroupSpan& span, double used) const;
  // The same for scattered nodes, from the load that they put on the links between switches. `group`: the group's
  // rates.
  Crossing crossing_of(const FabricTraffic& load, const Group& group) const;
  // The same if in each block of 2 x `apart` nodes, each node exchanges with the node `apart` away.
  Crossing exchange_crossing(std::int64_t apart, double used) const;
  Group group_of(const GroupSpan& span) const;

  // Links within the node, before any share: bytes per second of each rank, for rings over `ranks` devices `stride`
  // apart. In a mesh whose pairs differ, these and the rates below are those of LinkMap. `leaves_switch`: PCIe traffic
  // leaves its PCIe switch (or NVLink pair). `leaves_root`: it also crosses a host bridge.
  struct Link {
    double bytes_per_second = 0;
    bool leaves_switch = false, leaves_root = false;
    double share_of(const IntraCalibration& c) const { return leaves_root ? c.host_bridge_share : c.ring_share; }
  };
  Link link_of(std::int64_t ranks, std::int64_t stride) const;
  // The same for messages to all other ranks, and for one message of `kind` to the next rank.
  double exchange_rate(const Group& group) const;
  double message_rate(OpKind kind, const Group& group) const;
  // Returns what a process keeps for all nodes with these links.
  static const MappedRates& mapped_rates_of(const Node& node, const LinkMap& map);
  const LinkMap::Rates& mapped_rates(std::int64_t ranks, std::int64_t stride) const;
  CollectiveCost cost_of(OpKind kind, const Formulas& formulas, const Candidate& best) const;
  template <class Visit>
  void for_each_candidate(OpKind kind, const Formulas& formulas, CollectiveAlgorithm wanted, Visit&& visit) const;

  IntraCalibration intra_;
  InterCalibration inter_;
  ReductionCalibration reduction_;
  TokenExchangeCalibration token_exchange_;
  double step_slowdown_ = 1;
  Node node_;
  Fabric fabric_;
  const MappedRates* mapped_ = nullptr;  // of a mesh whose pairs differ; null for all other nodes
  std::string provenance_;
  // Computed once: rates before shares, and the network's one-way latency beyond the part that the calibration
  // includes.
  double nic_bytes_per_second_ = 0;       // of all NICs of a node
  double rank_nic_bytes_per_second_ = 0;  // the most that one rank gets
  double pcie_bytes_per_second_ = 0;
  double extra_latency_seconds_ = 0;
};

}  // namespace orrery
