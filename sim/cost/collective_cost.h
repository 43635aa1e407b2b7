// Seconds of one collective over a group, from latency-bandwidth models per algorithm and protocol over the levels of
// the fabric that the group really spans; the fastest legal pair is chosen, as NCCL does.
//
//   seconds = base + sum of steps x seconds per step + max(bytes in the node / its rate, bytes over NICs / their rate)
//
// Sources: NCCL src/graph/tuning.cc (which pairs are legal, latencies, protocols' rates); results/calibration/
// collectives.json for measured rates and latencies, one set per accelerator generation and per network.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "sim/cost/token_exchange.h"
#include "sim/hardware/cluster.h"
#include "sim/program/collective_algorithm.h"
#include "sim/program/op.h"

namespace orrery {

// Seconds or shares per protocol: [simple, ll128, ll].
using ByProtocol = std::array<double, 3>;

// What belongs to an accelerator generation on a kind of scale-up fabric.
struct IntraCalibration {
  // Shares of the link rate that large transfers reach.
  double ring_share = 0;
  double all_to_all_share = 0;
  double send_share = 0;
  double host_bridge_share = 0;  // of the PCIe rate, once a PCIe group leaves its switch
  // A ring's first step also copies within the device; it costs this part of a step over the link.
  double local_steps = 0;
  ByProtocol protocol_share{};                        // of the Simple rate
  ByProtocol tree_share{};                            // of a ring's rate in the same protocol
  bool ll128 = false;                                 // legal within the node
  std::array<double, 3> ll_bytes_per_second{};        // most that LL gives on 1, 2-3, and 4 or more nodes
  ByProtocol base_seconds{};                          // once per collective
  ByProtocol step_seconds{};                          // per step of a ring or chain within the node
  ByProtocol send_base_seconds{};                     // once per point-to-point message; no LL128
  ByProtocol all_to_all_base_seconds{};               // once per all-to-all; no LL128
  double send_step_seconds = 0;                       // per peer within the node
  double nvls_share = 0;                              // of the link rate
  double nvls_network_share = 0;                      // of that when the same channels also drive the NICs
  std::int64_t nvls_least_ranks = 0;                  // per node, below which NCCL does not use it
  double nvls_seconds = 0;                            // once per collective
  double nvls_fill_seconds = 0, nvls_fill_bytes = 0;  // further seconds at large sizes, and the size of half of them
  double nvls_rank_seconds = 0;  // as nvls_fill_seconds, times the ranks of a node; so is nvls_fill_bytes for these
  std::int64_t nvls_channels = 0;                     // that carry a NVLSTree
  double network_base_seconds = 0;                    // once per collective across nodes: the stack's own
};

// What belongs to a kind of network.
struct InterCalibration {
  double ring_share = 0, tree_share = 0, all_to_all_share = 0;  // of the NICs' rate
  bool ll128 = false;                                           // legal over this network
  double ll_share = 0;                                          // most that LL gets of the NICs' rate
  ByProtocol base_seconds{};                                    // once per collective
  ByProtocol ring_step_seconds{}, tree_step_seconds{};          // per step between nodes
  ByProtocol send_step_seconds{};                               // per further node of an all-to-all; no LL128
  // Further seconds per step once chunks have their full size, and the message size of half of them.
  double ring_fill_seconds = 0, ring_fill_bytes = 0;
  double tree_fill_seconds = 0, tree_fill_bytes = 0;
  double included_latency_seconds = 0;  // one-way network latency that the steps above contain
};

// Reduction in the fabric's switches (SHARP), as NCCL's CollNetDirect and NVLS use it: nothing of it is measured here.
struct ReductionCalibration {
  double nic_share = 0;             // of the NICs' rate; 0: none
  double step_seconds = 0;          // within the node, before and after
  double rank_seconds = 0;          // likewise, for each further rank of the node
  double network_seconds = 0;       // once per collective
  double nvls_network_seconds = 0;  // the same where NVSwitch reduces within the node
};

// Tokens to experts, each once to a node and there once to a rank (CollectiveAlgorithm::by_token).
struct TokenExchangeCalibration {
  double link_share = 0;  // of the scale-up link's rate, counting all that a rank receives, from itself too
  double nic_share = 0;   // of the NICs' rate
};

// What stands behind the numbers of one class; zero points: published constants only.
struct CollectiveResidual {
  std::int64_t curves = 0, points = 0, points_from_1_mib = 0;
  double median_error = 0, median_error_from_1_mib = 0;  // |predicted / measured - 1|
};

// See sim/cost/collective_calibration.h for how one is found.
struct CollectiveCalibration {
  std::string intra_class, intra_source;
  std::string inter_class, inter_source;
  std::string note;  // empty, or which class stands in for one that has no measurements
  IntraCalibration intra;
  InterCalibration inter;
  ReductionCalibration reduction;
  TokenExchangeCalibration token_exchange;
  CollectiveResidual intra_residual, inter_residual;
  // In a training step, relative to collectives alone (sim/cost/step_calibration.h): ranks wait for the slowest.
  double step_slowdown = 1;
};

struct CollectiveCost {
  double seconds = 0;
  double bus_bytes_per_second = 0;  // nccl-tests' busbw
  double intra_bytes = 0;           // sent by each rank over the scale-up fabric (mean over the group's ranks)
  double inter_bytes = 0;           // sent by each node over its NICs, for this group (mean over its nodes)
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::ring;
  CollectiveProtocol protocol = CollectiveProtocol::simple;
  bool in_switch = false;    // the scale-up switch sums up within the node (nvls, and collnet where it can)
  bool inter_bound = false;  // the NICs, not the scale-up fabric, bound the bandwidth term

  // What `seconds` is made of: latency_seconds + max(intra_seconds, inter_seconds), or + both if in_sequence. Except
  // that inter_seconds is that of NICs and leaf switches alone: `seconds` also counts what narrows the group beyond
  // them.
  double latency_seconds = 0;
  double intra_seconds = 0, inter_seconds = 0;
  bool in_sequence = false;
  // Within the node over links that groups of other strides do not use: a mesh's links between neighbouring ranks, the
  // NVLink bridge of a pair.
  bool between_neighbours = false;
  TokenShares token_shares;  // of by_token
  // latency_seconds, split for a run step by step: once, and per message within the node and between nodes.
  double base_seconds = 0, intra_step_seconds = 0, inter_step_seconds = 0;
};

class CollectiveModel {
 public:
  // Copies what it needs of the cluster and the calibration.
  CollectiveModel(const Cluster& cluster, const CollectiveCalibration& calibration);

  // `bytes` is nccl-tests' size: the full buffer (for all_gather the gathered, for reduce_scatter the unreduced one,
  // for all_to_all what a rank sends to all ranks, itself included); for ring_shift, send and receive the message.
  // Pure; ~100 ns. A group of one rank, and no bytes, cost nothing. An algorithm or protocol that is not legal for this
  // op and group is treated as automatic; the result says what ran. All like groups are taken to run at once.
  // halving_doubling over nodes or ranks that are no powers of two counts rank by rank: ~10 ns x ranks x log2(ranks).
  // Throws InputError when the cluster states no rate for a level that the group spans, or `kind` does not communicate.
  CollectiveCost cost(OpKind kind, double bytes, const GroupSpan& span,
                      CollectiveAlgorithm algorithm = CollectiveAlgorithm::automatic,
                      CollectiveProtocol protocol = CollectiveProtocol::automatic) const;
  // An all-to-all by_token: `bytes` of all rows that a rank's tokens become.
  CollectiveCost token_exchange(double bytes, const Router& router, const GroupSpan& span) const;

  // One message between two ranks `distance` apart in rank order, of which `concurrent` leave the node at a time.
  // It leaves the node iff distance >= devices per node.
  // `load`: of all these messages, where nodes are scattered.
  CollectiveCost transfer(double bytes, std::int64_t distance, std::int64_t concurrent,
                          const std::shared_ptr<const FabricLoad>& load = nullptr) const;
  double transfer_seconds(double bytes, std::int64_t distance, std::int64_t concurrent) const {
    return transfer(bytes, distance, concurrent).seconds;
  }

  // The formula of cost() with its numbers and sources, and the other pairs that were considered.
  std::string explain(OpKind kind, double bytes, const GroupSpan& span) const;

 private:
  struct Group;      // what a span makes of the rates
  struct Candidate;  // one algorithm and protocol
  struct Formulas;   // the candidates of one group and size

  // How much slower than the NICs a group is beyond its leaf switches (dragonfly group, torus neighbours); >= 1.
  struct Crossing {
    double ring = 1, tree = 1, all_to_all = 1;
    double shift = 1, send = 1;  // messages to the next rank, from the first to the second
    double reduction = 1;        // in the switches
    double latency_seconds = 0;  // one way
  };
  Crossing crossing_of(const GroupSpan& span) const;
  // The same of scattered nodes, from what they put on the links between switches. `group`: its rates.
  Crossing crossing_of(const FabricLoad& load, const Group& group) const;
  // The same when each node of a block of 2 x `apart` exchanges with that `apart` nodes away.
  Crossing exchange_crossing(std::int64_t apart) const;
  Group group_of(const GroupSpan& span) const;

  // Within the node, before any share: bytes per second of each rank, for rings over `ranks` devices `stride` apart.
  // `leaves_switch`: over PCIe they leave their switch (or NVLink pair); `leaves_root`: they cross a host bridge, too.
  struct Link {
    double bytes_per_second = 0;
    bool leaves_switch = false, leaves_root = false;
    double share_of(const IntraCalibration& c) const { return leaves_root ? c.host_bridge_share : c.ring_share; }
  };
  Link link_of(std::int64_t ranks, std::int64_t stride) const;
  double all_to_all_intra_seconds(double bytes, const Group& group) const;
  CollectiveCost cost_of(OpKind kind, double bytes, const Group& group, const Candidate& best) const;
  Candidate message(OpKind kind, double bytes, const Group& group, CollectiveProtocol protocol) const;
  Candidate routed_shift(double bytes, const Group& group, CollectiveProtocol protocol) const;
  void split_latency(OpKind kind, double bytes, const Group& group, CollectiveCost& cost) const;

  template <class Visit>
  void for_each_candidate(OpKind kind, double bytes, const Group& group, CollectiveAlgorithm wanted,
                          Visit&& visit) const;

  IntraCalibration intra_;
  InterCalibration inter_;
  ReductionCalibration reduction_;
  TokenExchangeCalibration token_exchange_;
  double step_slowdown_ = 1;
  Node node_;
  Fabric fabric_;
  std::string provenance_;
  // Worked out once: rates before shares, and the network's one-way latency beyond what the calibration contains.
  double nic_bytes_per_second_ = 0;       // of all NICs of a node
  double rank_nic_bytes_per_second_ = 0;  // the most that one rank gets
  double pcie_bytes_per_second_ = 0;
  double extra_latency_seconds_ = 0;
};

}  // namespace orrery
