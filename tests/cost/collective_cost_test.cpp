// Does the collective model move the bytes that theory says, at rates and latencies that fit the fabric?
#include "sim/cost/collective_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "sim/cost/collective_calibration.h"
#include "sim/hardware/presets.h"
#include "tests/cost/dgx.h"

namespace orrery {
namespace {

using Algorithm = CollectiveAlgorithm;
using Protocol = CollectiveProtocol;

constexpr double kMiB = 1 << 20;
constexpr double kGB = 1e9;

Cluster dgx_a100(std::int64_t nodes) {
  Cluster c = dgx_h100(nodes);
  c.device.architecture = "Ampere";
  c.device.pcie_bytes_per_second = 31.5e9;
  c.node.intra_bytes_per_second = 300e9;
  c.node.in_switch_reduction = false;
  c.node.nic_bytes_per_second = 25e9;
  c.fabric.name = "ib-hdr-rail";
  return c;
}

Cluster mi300x() {
  Cluster c = dgx_h100(2);
  c.device.architecture = "CDNA3";
  c.node.intra = IntraFabric::direct_mesh;
  c.node.intra_bytes_per_second = 448e9;
  c.node.pair_bytes_per_second = 64e9;
  c.node.in_switch_reduction = false;
  return c;
}

Cluster pcie_tree(std::int64_t devices_per_switch) {
  Cluster c = dgx_a100(1);
  c.node.intra = IntraFabric::pcie;
  c.node.intra_bytes_per_second = 0;
  c.node.devices_per_pcie_switch = devices_per_switch;
  return c;
}

CollectiveModel model_of(const Cluster& cluster) { return {cluster, find_collective_calibration(cluster)}; }

GroupSpan in_node(std::int64_t ranks, std::int64_t stride = 1) {
  return {.ranks = ranks, .ranks_per_node = ranks, .nodes = 1, .groups_sharing_nics = 1, .stride = stride};
}
// Whole nodes of eight.
GroupSpan whole_nodes(std::int64_t nodes, std::int64_t devices = 8) {
  return {.ranks = nodes * devices, .ranks_per_node = devices, .nodes = nodes};
}
// One rank on each node; all eight ranks of a node are in such groups.
GroupSpan rail(std::int64_t nodes) {
  return {.ranks = nodes, .ranks_per_node = 1, .nodes = nodes, .groups_sharing_nics = 8, .stride = 8};
}

constexpr OpKind kKinds[] = {OpKind::all_reduce, OpKind::all_gather, OpKind::reduce_scatter, OpKind::all_to_all,
                             OpKind::broadcast,  OpKind::reduce,     OpKind::ring_shift,     OpKind::send};

std::vector<GroupSpan> usual_spans() {
  return {in_node(2),     in_node(4),       in_node(8), whole_nodes(2), whole_nodes(3),
          whole_nodes(4), whole_nodes(128), rail(2),    rail(16)};
}

// --- Bytes, against closed forms
// --------------------------------------------------------------------------------------

TEST(CollectiveBytes, RingInANode) {
  const CollectiveModel m = model_of(dgx_h100(1));
  const double s = 64 * kMiB;
  for (const std::int64_t n : {2, 3, 4, 8}) {
    const double q = static_cast<double>(n - 1) / static_cast<double>(n);
    EXPECT_DOUBLE_EQ(m.cost(OpKind::all_reduce, s, in_node(n), Algorithm::ring).intra_bytes, 2 * q * s);
    EXPECT_DOUBLE_EQ(m.cost(OpKind::all_gather, s, in_node(n)).intra_bytes, q * s);
    EXPECT_DOUBLE_EQ(m.cost(OpKind::reduce_scatter, s, in_node(n)).intra_bytes, q * s);
    EXPECT_DOUBLE_EQ(m.cost(OpKind::all_to_all, s, in_node(n)).intra_bytes, q * s);
    // A chain: all but the last rank send the buffer on.
    EXPECT_DOUBLE_EQ(m.cost(OpKind::broadcast, s, in_node(n)).intra_bytes, q * s);
    EXPECT_EQ(m.cost(OpKind::all_reduce, s, in_node(n)).inter_bytes, 0);
  }
}

// Counts the bytes of a ring edge by edge: rank i of node i / r sends to rank i + 1.
TEST(CollectiveBytes, RingAcrossNodesCountedByEdges) {
  const CollectiveModel m = model_of(dgx_h100(8));
  const double s = 96 * kMiB;
  for (const std::int64_t nodes : {2, 3, 8}) {
    const std::int64_t n = nodes * 8;
    double inside = 0, outside = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const bool leaves = i / 8 != ((i + 1) % n) / 8;
      for (std::int64_t step = 0; step < 2 * (n - 1); ++step) (leaves ? outside : inside) += s / static_cast<double>(n);
    }
    const CollectiveCost c = m.cost(OpKind::all_reduce, s, whole_nodes(nodes), Algorithm::ring);
    EXPECT_NEAR(c.intra_bytes, inside / static_cast<double>(n), 1e-6 * s);
    EXPECT_NEAR(c.inter_bytes, outside / static_cast<double>(nodes), 1e-6 * s);
    const CollectiveCost g = m.cost(OpKind::all_gather, s, whole_nodes(nodes));
    EXPECT_NEAR(g.inter_bytes, outside / static_cast<double>(nodes) / 2, 1e-6 * s);
  }
}

TEST(CollectiveBytes, HierarchicalSendsEachByteOverTheNicsOncePerNodePair) {
  const CollectiveModel m = model_of(dgx_a100(8));
  const double s = 256 * kMiB, r = 8;
  for (const std::int64_t nodes : {2, 4, 8}) {
    const double q = static_cast<double>(nodes - 1) / static_cast<double>(nodes);
    const CollectiveCost ar = m.cost(OpKind::all_reduce, s, whole_nodes(nodes), Algorithm::hierarchical);
    EXPECT_EQ(ar.algorithm, Algorithm::hierarchical);
    EXPECT_DOUBLE_EQ(ar.inter_bytes, 2 * q * s);
    EXPECT_DOUBLE_EQ(ar.intra_bytes, 2 * (r - 1) / r * s);
    const CollectiveCost ag = m.cost(OpKind::all_gather, s, whole_nodes(nodes), Algorithm::hierarchical);
    EXPECT_DOUBLE_EQ(ag.inter_bytes, q * s);
    EXPECT_DOUBLE_EQ(ag.intra_bytes, (r - 1) / r * s);
  }
}

// One NIC of each node carries all of it, one ring edge long; within the node a chain from the first rank.
TEST(CollectiveBytes, FirstRanksSendOverOneNicOfTheirNode) {
  const Cluster cluster = dgx_a100(8);
  const CollectiveModel m = model_of(cluster);
  const double s = 256 * kMiB, r = 8;
  for (const std::int64_t nodes : {2, 4, 8}) {
    const double q = static_cast<double>(nodes - 1) / static_cast<double>(nodes);
    const CollectiveCost all =
        m.cost(OpKind::all_reduce, s, whole_nodes(nodes), Algorithm::first_ranks, Protocol::simple);
    EXPECT_EQ(all.algorithm, Algorithm::first_ranks);
    EXPECT_DOUBLE_EQ(all.inter_bytes, 2 * q * s);
    EXPECT_DOUBLE_EQ(all.intra_bytes, (r - 1) / r * s);
    EXPECT_DOUBLE_EQ(all.seconds, all.latency_seconds + all.intra_seconds + all.inter_seconds);
    // As long as a ring over one rank of each node, and then a broadcast.
    const CollectiveCost ring = m.cost(OpKind::all_reduce, s, {.ranks = nodes, .nodes = nodes}, Algorithm::ring,
                                       Protocol::simple),
                         chain = m.cost(OpKind::broadcast, s, in_node(8), Algorithm::ring, Protocol::simple);
    EXPECT_DOUBLE_EQ(all.inter_seconds, ring.inter_seconds);
    EXPECT_DOUBLE_EQ(all.intra_seconds, chain.intra_seconds);
    EXPECT_NEAR(all.seconds, ring.seconds + chain.seconds, 1e-9 * all.seconds);
    EXPECT_NEAR(
        all.base_seconds + 7 * all.intra_step_seconds + 2 * static_cast<double>(nodes - 1) * all.inter_step_seconds,
        all.latency_seconds, 1e-12);
  }
  EXPECT_EQ(m.cost(OpKind::all_reduce, s, in_node(8), Algorithm::first_ranks).algorithm, Algorithm::ring);
}

// Sends of NCCL's double binary tree, from its construction (Sanders et al. 2009; NCCL src/graph/trees.cc): in the
// first tree, the children of a node with lowest set bit b are those b / 2 away; the second is the mirror (shift, for
// odd counts) of the first. Each tree carries half the message up and down.
struct TreeSends {
  double mean = 0, busiest = 0;
};
TreeSends double_tree_sends(int nodes) {
  const auto children_of = [nodes](int node) {
    std::vector<int> children;
    if (node == 0) {
      int bit = 1;
      while (2 * bit < nodes) bit *= 2;
      if (nodes > 1) children.push_back(bit);
      return children;
    }
    const int low = node & -node;
    if (low > 1) children.push_back(node - low / 2);
    for (int step = low / 2; step >= 1; step /= 2)
      if (node + step < nodes) {
        children.push_back(node + step);
        break;
      }
    return children;
  };
  std::vector<double> sends(static_cast<std::size_t>(nodes), 0);
  for (int node = 0; node < nodes; ++node) {
    const double of_a_tree = 0.5 * ((node != 0 ? 1 : 0) + static_cast<double>(children_of(node).size()));
    sends[static_cast<std::size_t>(node)] += of_a_tree;
    const int twin = nodes % 2 == 0 ? nodes - 1 - node : (node + 1) % nodes;
    sends[static_cast<std::size_t>(twin)] += of_a_tree;
  }
  TreeSends result;
  for (const double x : sends) {
    result.mean += x / nodes;
    result.busiest = std::max(result.busiest, x);
  }
  return result;
}

TEST(CollectiveBytes, TreeAgainstTheConstructionOfTheTrees) {
  const CollectiveModel m = model_of(dgx_a100(64));
  const double s = 16 * 1024 * kMiB;
  const double nic = 25e9 * 8 * find_collective_calibration(dgx_a100(64)).inter.tree_share;
  for (const int nodes : {2, 3, 4, 7, 8, 32, 64}) {
    const TreeSends expected = double_tree_sends(nodes);
    const CollectiveCost c = m.cost(OpKind::all_reduce, s, whole_nodes(nodes), Algorithm::tree, Protocol::simple);
    EXPECT_EQ(c.algorithm, Algorithm::tree);
    EXPECT_NEAR(c.inter_bytes, expected.mean * s, 1e-9 * s) << nodes;
    // One rank per node, so that only NICs count: the busiest node's sends bound the time.
    GroupSpan alone = rail(nodes);
    const CollectiveCost one = m.cost(OpKind::all_reduce, s, alone, Algorithm::tree, Protocol::simple);
    const double share = find_collective_calibration(dgx_a100(64)).intra.tree_share[0];
    EXPECT_NEAR(one.seconds, expected.busiest * s / (nic / 8 * share), 2e-3 * one.seconds) << nodes;
  }
}

TEST(CollectiveBytes, AllToAllSendsToEachPeerAlike) {
  const CollectiveModel m = model_of(dgx_h100(4));
  const double s = 32 * kMiB;
  const CollectiveCost c = m.cost(OpKind::all_to_all, s, whole_nodes(4));
  EXPECT_DOUBLE_EQ(c.intra_bytes, 7.0 / 32 * s);
  EXPECT_DOUBLE_EQ(c.inter_bytes, 8 * 24.0 / 32 * s);
  // By node first: the same bytes leave the node, more move within it.
  const CollectiveCost by_node = m.cost(OpKind::all_to_all, s, whole_nodes(4), Algorithm::hierarchical);
  EXPECT_EQ(by_node.algorithm, Algorithm::hierarchical);
  EXPECT_DOUBLE_EQ(by_node.inter_bytes, c.inter_bytes);
  EXPECT_DOUBLE_EQ(by_node.intra_bytes, 7.0 / 8 * s);
}

// One edge after another of each channel's ring, which starts at the root and enters and leaves node a over the NIC of
// the channel's rank: rank i of channel c's ring is c + i mod r of node i / r.
TEST(CollectiveBytes, BroadcastAndReduceGoAlongTheRingsButForOneEdge) {
  const CollectiveModel m = model_of(dgx_h100(4));
  const double s = 96 * kMiB;
  for (const std::int64_t nodes : {2, 3, 4}) {
    const std::int64_t n = nodes * 8;
    double inside = 0, outside = 0;
    for (std::int64_t channel = 0; channel < 8; ++channel) {
      const std::int64_t root = (8 - channel) % 8;  // its place in the ring
      for (std::int64_t i = 0; i < n; ++i)
        if ((i + 1) % n != root) (i % 8 == 7 ? outside : inside) += s / 8;
    }
    for (const OpKind kind : {OpKind::broadcast, OpKind::reduce}) {
      const CollectiveCost c = m.cost(kind, s, whole_nodes(nodes));
      EXPECT_NEAR(c.intra_bytes, inside / static_cast<double>(n), 1e-6 * s);
      EXPECT_NEAR(c.inter_bytes, outside / static_cast<double>(nodes), 1e-6 * s);
    }
  }
}

TEST(CollectiveBytes, HalvingAndDoublingSendsTheLargeHalvesInTheNode) {
  const CollectiveModel m = model_of(dgx_a100(8));
  const double s = 256 * kMiB;
  const auto cost = [&](OpKind kind, const GroupSpan& span) {
    const CollectiveCost c = m.cost(kind, s, span, Algorithm::halving_doubling);
    EXPECT_EQ(c.algorithm, Algorithm::halving_doubling);
    return c;
  };
  for (const std::int64_t nodes : {1, 2, 4, 8}) {
    // Half, a quarter, an eighth among eight ranks; then halves of the eighth, from eight ranks of a node.
    const double inside = 0.5 + 0.25 + 0.125, outside = nodes == 1 ? 0 : nodes == 2 ? 0.5 : nodes == 4 ? 0.75 : 0.875;
    EXPECT_DOUBLE_EQ(cost(OpKind::all_gather, whole_nodes(nodes)).intra_bytes, inside * s);
    EXPECT_DOUBLE_EQ(cost(OpKind::reduce_scatter, whole_nodes(nodes)).inter_bytes, outside * s);
    EXPECT_DOUBLE_EQ(cost(OpKind::all_reduce, whole_nodes(nodes)).intra_bytes, 2 * inside * s);
    EXPECT_DOUBLE_EQ(cost(OpKind::all_reduce, whole_nodes(nodes)).inter_bytes, 2 * outside * s);
  }
  // Three ranks: the first hands its buffer to the second and gets the result; those two exchange halves twice.
  EXPECT_DOUBLE_EQ(cost(OpKind::all_reduce, rail(3)).inter_bytes, (1 + 4 * 0.5 + 1) / 3 * s);
  // Its shard, and all but its shard; the second has two of the three shards then, which is what it sends the third.
  EXPECT_DOUBLE_EQ(cost(OpKind::all_gather, rail(3)).inter_bytes, (1.0 / 3 + 2.0 / 3 + 1.0 / 3 + 2.0 / 3) / 3 * s);
  EXPECT_DOUBLE_EQ(cost(OpKind::reduce_scatter, rail(3)).inter_bytes, cost(OpKind::all_gather, rail(3)).inter_bytes);
}

TEST(CollectiveBytes, BusBandwidthIsThatOfNcclTests) {
  const CollectiveModel m = model_of(dgx_h100(4));
  const double s = 128 * kMiB;
  const auto bus = [&](OpKind kind, double factor) {
    const CollectiveCost c = m.cost(kind, s, whole_nodes(4));
    EXPECT_NEAR(c.bus_bytes_per_second, factor * s / c.seconds, 1e-6 * c.bus_bytes_per_second);
  };
  bus(OpKind::all_reduce, 2 * 31.0 / 32);
  bus(OpKind::all_gather, 31.0 / 32);
  bus(OpKind::reduce_scatter, 31.0 / 32);
  bus(OpKind::all_to_all, 31.0 / 32);
  bus(OpKind::broadcast, 1);
  bus(OpKind::reduce, 1);
  bus(OpKind::ring_shift, 1);
}

// --- Shape
// ------------------------------------------------------------------------------------------------------------

TEST(CollectiveCost, GroupsOfOneAndNoBytesCostNothing) {
  const CollectiveModel m = model_of(dgx_h100(2));
  for (const OpKind kind : kKinds) {
    const CollectiveCost one = m.cost(kind, 1e9, GroupSpan{});
    EXPECT_EQ(one.seconds, 0);
    EXPECT_EQ(one.intra_bytes + one.inter_bytes, 0);
    EXPECT_EQ(m.cost(kind, 0, whole_nodes(2)).seconds, 0);
  }
}

TEST(CollectiveCost, LargerMessagesAreNeverFaster) {
  for (const Cluster& cluster : {dgx_h100(128), dgx_a100(128), mi300x(), pcie_tree(2)}) {
    const CollectiveModel m = model_of(cluster);
    for (const OpKind kind : kKinds)
      for (const GroupSpan& span : usual_spans()) {
        if (span.nodes > cluster.nodes) continue;
        double before = 0;
        int changes = 0;
        CollectiveCost last;
        for (double bytes = 8; bytes < 64e9; bytes *= 1.07) {
          const CollectiveCost c = m.cost(kind, bytes, span);
          ASSERT_GE(c.seconds, before) << name_of(kind) << " " << bytes << " over " << span.ranks;
          ASSERT_TRUE(std::isfinite(c.seconds));
          changes += c.algorithm != last.algorithm || c.protocol != last.protocol;
          before = c.seconds;
          last = c;
        }
        EXPECT_GE(changes, 1) << "the sweep crosses no switch of algorithm or protocol";
      }
  }
}

TEST(CollectiveCost, MoreBandwidthIsNeverSlower) {
  for (const Cluster& cluster : {dgx_h100(128), dgx_a100(128), mi300x(), pcie_tree(2)}) {
    Cluster faster_links = cluster, faster_nics = cluster;
    faster_links.node.intra_bytes_per_second *= 1.5;
    faster_links.node.pair_bytes_per_second *= 1.5;
    faster_links.device.pcie_bytes_per_second *= 1.5;
    faster_nics.node.nic_bytes_per_second *= 1.5;
    // The calibration stays that of the slower cluster: only the rates differ.
    const CollectiveCalibration calibration = find_collective_calibration(cluster);
    const CollectiveModel m(cluster, calibration), links(faster_links, calibration), nics(faster_nics, calibration);
    int improved = 0;
    for (const OpKind kind : kKinds)
      for (const GroupSpan& span : usual_spans()) {
        if (span.nodes > cluster.nodes) continue;
        for (double bytes = 64; bytes < 1e10; bytes *= 16) {
          const double before = m.cost(kind, bytes, span).seconds;
          EXPECT_LE(links.cost(kind, bytes, span).seconds, before) << name_of(kind) << bytes;
          EXPECT_LE(nics.cost(kind, bytes, span).seconds, before) << name_of(kind) << bytes;
          improved += links.cost(kind, bytes, span).seconds < before || nics.cost(kind, bytes, span).seconds < before;
        }
      }
    EXPECT_GT(improved, 50);
  }
}

TEST(CollectiveCost, MoreNodesAreNeverFaster) {
  const CollectiveModel m = model_of(dgx_a100(512));
  for (const OpKind kind : {OpKind::all_reduce, OpKind::all_gather, OpKind::reduce_scatter, OpKind::broadcast})
    for (const double bytes : {4e3, 4e6, 4e9}) {
      double before = 0;
      for (const std::int64_t nodes : {1, 2, 4, 8, 16, 64, 256, 512}) {
        const double seconds = m.cost(kind, bytes, whole_nodes(nodes)).seconds;
        // At large sizes a ring over more nodes keeps fewer of its edges inside them; allow that much.
        EXPECT_GE(seconds, 0.85 * before) << name_of(kind) << " " << bytes << " " << nodes;
        before = seconds;
      }
    }
}

TEST(CollectiveCost, IsTheSumOfItsTerms) {
  Cluster narrow = dgx_a100(64);
  narrow.fabric.kind = FabricKind::fat_tree;
  narrow.fabric.nodes_per_leaf = 4;
  Cluster full = narrow;
  narrow.fabric.oversubscription = 8;
  const CollectiveModel m = model_of(full), n = model_of(narrow);
  // Every fourth node: all edges leave the leaf.
  const GroupSpan apart{.ranks = 16, .ranks_per_node = 1, .nodes = 16, .groups_sharing_nics = 8, .stride = 32};
  int narrowed = 0;
  for (const GroupSpan& span : {in_node(8), whole_nodes(2), whole_nodes(64), whole_nodes(6), rail(16), apart})
    for (const OpKind kind : kKinds)
      for (const Algorithm a : {Algorithm::automatic, Algorithm::tree, Algorithm::hierarchical,
                                Algorithm::halving_doubling, Algorithm::bidirectional_ring})
        for (const double bytes : {1e3, 1e6, 1e9}) {
          const CollectiveCost c = m.cost(kind, bytes, span, a, Protocol::simple);
          const double terms =
              c.in_sequence ? c.intra_seconds + c.inter_seconds : std::max(c.intra_seconds, c.inter_seconds);
          EXPECT_NEAR(c.seconds, c.latency_seconds + terms, 1e-12 * c.seconds) << name_of(kind) << name_of(c.algorithm);
          EXPECT_EQ(c.in_sequence,
                    c.algorithm == Algorithm::hierarchical || c.algorithm == Algorithm::halving_doubling);
          EXPECT_EQ(c.inter_seconds > 0, span.nodes > 1);
          // The terms are those of NICs and leaf switches, whatever lies beyond.
          const CollectiveCost beyond = n.cost(kind, bytes, span, c.algorithm, c.protocol);
          ASSERT_EQ(beyond.algorithm, c.algorithm);
          EXPECT_NEAR(beyond.inter_seconds, c.inter_seconds, 1e-12 * c.inter_seconds);
          EXPECT_EQ(beyond.intra_seconds, c.intra_seconds);
          EXPECT_EQ(beyond.latency_seconds, c.latency_seconds);
          narrowed += beyond.seconds > 1.5 * c.seconds;
        }
  EXPECT_GT(narrowed, 20);
}

// --- Rates
// ------------------------------------------------------------------------------------------------------------

double bus_rate(const CollectiveModel& m, OpKind kind, const GroupSpan& span,
                Algorithm algorithm = Algorithm::automatic) {
  return m.cost(kind, 1e12, span, algorithm).bus_bytes_per_second;
}

TEST(CollectiveRates, LargeRingsReachTheCalibratedShareOfTheBottleneck) {
  const Cluster h100 = dgx_h100(4);
  const CollectiveCalibration c = find_collective_calibration(h100);
  const CollectiveModel m(h100, c);
  // In the node the link, lengthened by the local copy of the first step.
  EXPECT_NEAR(bus_rate(m, OpKind::all_gather, in_node(8)), 450e9 * c.intra.ring_share * 7 / (7 + c.intra.local_steps),
              1e8);
  EXPECT_NEAR(bus_rate(m, OpKind::all_reduce, in_node(8), Algorithm::ring),
              450e9 * c.intra.ring_share * 14 / (14 + c.intra.local_steps), 1e8);
  // Slow NICs are the bottleneck of a group across nodes.
  Cluster slow = dgx_h100(4);
  slow.node.nic_bytes_per_second = 5e9;
  const CollectiveModel s(slow, c);
  EXPECT_NEAR(bus_rate(s, OpKind::all_gather, whole_nodes(4)), 40e9 * c.inter.ring_share, 1e7);
  EXPECT_TRUE(s.cost(OpKind::all_gather, 1e12, whole_nodes(4)).inter_bound);
  EXPECT_FALSE(s.cost(OpKind::all_gather, 1e12, in_node(8)).inter_bound);
}

TEST(CollectiveRates, InSwitchReductionBeatsTheRing) {
  const CollectiveModel m = model_of(dgx_h100(1));
  const CollectiveCost automatic = m.cost(OpKind::all_reduce, 8.6e9, in_node(8));
  EXPECT_EQ(automatic.algorithm, Algorithm::nvls);
  // NVIDIA GTC24 S62129: 480 GB/s with NVLink SHARP, 370 with the ring; DGX A100 235.
  EXPECT_NEAR(automatic.bus_bytes_per_second, 480 * kGB, 20 * kGB);
  EXPECT_NEAR(m.cost(OpKind::all_reduce, 8.6e9, in_node(8), Algorithm::ring).bus_bytes_per_second, 370 * kGB, 20 * kGB);
  EXPECT_NEAR(bus_rate(model_of(dgx_a100(1)), OpKind::all_reduce, in_node(8)), 232 * kGB, 12 * kGB);
  // NCCL keeps the ring for few ranks, and where nothing is reduced.
  EXPECT_EQ(m.cost(OpKind::all_reduce, 8.6e9, in_node(4)).algorithm, Algorithm::ring);
  EXPECT_EQ(m.cost(OpKind::all_gather, 8.6e9, in_node(8)).algorithm, Algorithm::ring);
}

TEST(CollectiveCost, SmallReductionsInASwitchTakeAsLongWithManyRanks) {
  Cluster rack = dgx_h100(1);
  rack.device = find_device("GB200");
  rack.node = find_node("gb200-nvl72");
  const CollectiveModel model = model_of(rack);
  const auto seconds = [&](std::int64_t ranks, double bytes) {
    return model.cost(OpKind::all_reduce, bytes, in_node(ranks), Algorithm::nvls).seconds;
  };
  // tuning.cc: the latency of NVLS has no term of the ranks, that of a ring has 2 (ranks - 1) steps.
  EXPECT_NEAR(seconds(72, 1 << 16), seconds(8, 1 << 16), 0.1 * seconds(8, 1 << 16));
  EXPECT_LT(seconds(72, 1 << 16), model.cost(OpKind::all_reduce, 1 << 16, in_node(72), Algorithm::ring).seconds);
  EXPECT_EQ(model.cost(OpKind::all_reduce, 32 << 20, in_node(72)).algorithm, Algorithm::nvls);
}

TEST(CollectiveRates, ADirectMeshGivesASubgroupOnlyItsOwnLinks) {
  const CollectiveModel m = model_of(mi300x());
  const double two = bus_rate(m, OpKind::all_reduce, in_node(2)), four = bus_rate(m, OpKind::all_reduce, in_node(4)),
               eight = bus_rate(m, OpKind::all_reduce, in_node(8));
  // One link of seven, three, all: 48 usable GB/s each (RCCL topo.h); measured 47.7 and 312.9.
  EXPECT_NEAR(two, 48 * kGB, 3 * kGB);
  EXPECT_NEAR(four / two, 3, 0.05);
  EXPECT_NEAR(eight / two, 7, 0.1);
}

TEST(CollectiveRates, BridgedPairsAreFastAndLargerGroupsArePcie) {
  Cluster c = dgx_a100(1);
  c.node.intra = IntraFabric::nvlink_pairs;
  c.node.intra_bytes_per_second = 31.5e9;
  c.node.pair_bytes_per_second = 300e9;
  const CollectiveModel m = model_of(c);
  EXPECT_GT(bus_rate(m, OpKind::all_reduce, in_node(2)), 180 * kGB);
  EXPECT_LT(bus_rate(m, OpKind::all_reduce, in_node(4)), 31.5 * kGB);
  EXPECT_LT(bus_rate(m, OpKind::all_reduce, in_node(2, 2)), 31.5 * kGB);  // not neighbours: no bridge
}

TEST(CollectiveRates, InterleavedGroupsShareAPcieSwitch) {
  const CollectiveModel m = model_of(pcie_tree(4));
  const double neighbours = bus_rate(m, OpKind::all_gather, in_node(4, 1));   // under one switch
  const double whole = bus_rate(m, OpKind::all_gather, in_node(8, 1));        // one crossing per switch
  const double interleaved = bus_rate(m, OpKind::all_gather, in_node(2, 4));  // four groups cross the same up-link
  EXPECT_GT(neighbours, whole);
  EXPECT_LT(interleaved, 0.4 * whole);
}

TEST(CollectiveRates, LikeGroupsShareTheNics) {
  const CollectiveModel m = model_of(dgx_a100(16));
  GroupSpan alone = rail(16), with_all = rail(16);
  alone.groups_sharing_nics = 1;
  // One rank alone uses the NIC nearest to it; all eight together have one each as well.
  EXPECT_NEAR(bus_rate(m, OpKind::all_gather, alone), bus_rate(m, OpKind::all_gather, with_all), 1e7);
  // Four NICs for eight devices: groups that run at once get half a NIC each.
  Cluster few = dgx_a100(16);
  few.node.nics = 4;
  const CollectiveModel f = model_of(few);
  EXPECT_NEAR(bus_rate(f, OpKind::all_gather, alone), 2 * bus_rate(f, OpKind::all_gather, with_all), 1e8);
  GroupSpan halves = {.ranks = 64, .ranks_per_node = 4, .nodes = 16, .groups_sharing_nics = 2};
  EXPECT_NEAR(bus_rate(f, OpKind::all_gather, whole_nodes(16)), 2 * bus_rate(f, OpKind::all_gather, halves), 1e9);
}

TEST(CollectiveRates, OversubscriptionHalvesWhatCrossesTheLeaves) {
  Cluster full = dgx_a100(64);
  full.fabric.kind = FabricKind::fat_tree;
  full.fabric.nodes_per_leaf = 16;
  Cluster half = full;
  half.fabric.oversubscription = 2;
  const CollectiveModel m = model_of(full), h = model_of(half);
  // One node of each leaf: every edge of the ring crosses.
  const GroupSpan across{.ranks = 4, .ranks_per_node = 1, .nodes = 4, .groups_sharing_nics = 8, .stride = 8 * 16};
  EXPECT_NEAR(bus_rate(m, OpKind::all_gather, across) / bus_rate(h, OpKind::all_gather, across), 2, 0.01);
  EXPECT_NEAR(bus_rate(m, OpKind::all_to_all, across) / bus_rate(h, OpKind::all_to_all, across), 2, 0.01);
  // Under one leaf nothing crosses; a ring over neighbouring nodes crosses once per leaf, which the up-links carry.
  EXPECT_EQ(bus_rate(m, OpKind::all_gather, whole_nodes(16)), bus_rate(h, OpKind::all_gather, whole_nodes(16)));
  EXPECT_NEAR(bus_rate(m, OpKind::all_gather, whole_nodes(64)), bus_rate(h, OpKind::all_gather, whole_nodes(64)), 1e8);
  // Of an all-to-all over 64 nodes, 48 of 63 parts leave the leaf.
  EXPECT_NEAR(bus_rate(m, OpKind::all_to_all, whole_nodes(64)) / bus_rate(h, OpKind::all_to_all, whole_nodes(64)),
              2 * 48.0 / 63, 0.01);
}

TEST(CollectiveRates, HalvingAndDoublingFillsTheLinksStepByStep) {
  const auto seconds = [](const Cluster& cluster, OpKind kind, const GroupSpan& span) {
    const CollectiveCost c = model_of(cluster).cost(kind, 1e12, span, Algorithm::halving_doubling, Protocol::simple);
    EXPECT_EQ(c.algorithm, Algorithm::halving_doubling);
    return c.seconds;
  };
  const Cluster a100 = dgx_a100(64);
  const CollectiveCalibration c = find_collective_calibration(a100);
  const double link = 300e9 * c.intra.ring_share, nics = 8 * 25e9 * c.inter.ring_share;
  const auto expect = [](double value, double expected) { EXPECT_NEAR(value, expected, 1e-3 * expected); };
  expect(seconds(a100, OpKind::all_gather, in_node(8)), 7.0 / 8 * 1e12 / link);
  expect(seconds(a100, OpKind::all_reduce, whole_nodes(4)), 2 * (7.0 / 8 / link + 3.0 / 4 / nics) * 1e12);
  expect(seconds(a100, OpKind::all_reduce, rail(16)), 2 * 15.0 / 16 * 1e12 / (nics / 8));
  // Two extra ranks among six: their buffers first, then halves and quarters of four, and the result back.
  expect(seconds(a100, OpKind::all_reduce, rail(6)), (1 + 2 * 3.0 / 4 + 1) * 1e12 / (nics / 8));

  // On a mesh two partners have one link of seven; a ring is laid over all.
  const CollectiveModel mesh = model_of(mi300x());
  expect(seconds(mi300x(), OpKind::all_gather, in_node(8)),
         7.0 / 8 * 1e12 / (64e9 * find_collective_calibration(mi300x()).intra.ring_share));
  EXPECT_LT(mesh.cost(OpKind::all_gather, 1e12, in_node(8), Algorithm::ring).seconds,
            0.2 * seconds(mi300x(), OpKind::all_gather, in_node(8)));
  // Partners under one PCIe switch have its links; farther ones share the switch's up-link with all others.
  const Cluster pcie = pcie_tree(4);
  const CollectiveCalibration p = find_collective_calibration(pcie);
  expect(seconds(pcie, OpKind::all_gather, in_node(8)),
         (0.75 / p.intra.ring_share + 0.125 * 4 / p.intra.host_bridge_share) * 1e12 / 31.5e9);

  // Of 64 nodes, leaves of 16: the last two halvings, 1/32 and 1/64, cross.
  Cluster full = dgx_a100(64);
  full.fabric.kind = FabricKind::fat_tree;
  full.fabric.nodes_per_leaf = 16;
  Cluster half = full;
  half.fabric.oversubscription = 2;
  expect(seconds(half, OpKind::all_gather, rail(64)) / seconds(full, OpKind::all_gather, rail(64)), 66.0 / 63);
  // A torus of one dimension: the exchanges over d hops share the middle link of 2d nodes, half of a node's rate.
  Cluster torus = dgx_a100(16);
  torus.node.devices = torus.node.nics = 1;
  torus.fabric.kind = FabricKind::torus;
  torus.fabric.dimensions = {16};
  const double node_rate = 25e9 * find_collective_calibration(torus).inter.ring_share;
  expect(seconds(torus, OpKind::all_gather, {.ranks = 16, .nodes = 16}),
         2 * (1 / 2.0 + 2 / 4.0 + 4 / 8.0 + 8 / 16.0) * 1e12 / node_rate);
}

TEST(CollectiveRates, TwoWaysRoundAreNoFasterThanOneOverFullDuplexLinks) {
  for (const Cluster& cluster : {dgx_h100(16), mi300x(), pcie_tree(2)})
    for (const GroupSpan& span : {in_node(8), whole_nodes(std::max<std::int64_t>(1, cluster.nodes))})
      for (const OpKind kind : {OpKind::all_reduce, OpKind::all_gather, OpKind::broadcast, OpKind::reduce}) {
        const CollectiveModel m = model_of(cluster);
        const CollectiveCost both = m.cost(kind, 1e8, span, Algorithm::bidirectional_ring);
        const CollectiveCost one = m.cost(kind, 1e8, span, Algorithm::ring);
        EXPECT_EQ(both.algorithm, Algorithm::bidirectional_ring);
        EXPECT_EQ(both.seconds, one.seconds);
        EXPECT_EQ(both.inter_bytes, one.inter_bytes);
      }
}

TEST(CollectiveRates, RailsKeepAlignedTrafficFromTheSpine) {
  // Without NVLink inside the node, an all-to-all on a rail-optimised fabric meets at the spine even within a pod.
  Cluster c = pcie_tree(2);
  c.nodes = 8;
  c.fabric.nodes_per_leaf = 32;
  c.fabric.oversubscription = 4;
  Cluster one_leaf = c;
  one_leaf.fabric.kind = FabricKind::fat_tree;
  EXPECT_LT(bus_rate(model_of(c), OpKind::all_to_all, whole_nodes(8)),
            0.5 * bus_rate(model_of(one_leaf), OpKind::all_to_all, whole_nodes(8)));
  EXPECT_EQ(bus_rate(model_of(c), OpKind::all_gather, rail(8)),
            bus_rate(model_of(one_leaf), OpKind::all_gather, rail(8)));
  // Over NVSwitch bytes first move to the right rail (PXN).
  Cluster nvlink = dgx_a100(8);
  nvlink.fabric.nodes_per_leaf = 32;
  Cluster narrow = nvlink;
  narrow.fabric.oversubscription = 4;
  EXPECT_EQ(bus_rate(model_of(nvlink), OpKind::all_to_all, whole_nodes(8)),
            bus_rate(model_of(narrow), OpKind::all_to_all, whole_nodes(8)));
}

TEST(CollectiveRates, DragonflyTaperAndTorusBisectionBoundAllToAll) {
  Cluster fly = dgx_a100(256);
  fly.fabric.name = "slingshot-dragonfly";
  fly.fabric.kind = FabricKind::dragonfly;
  fly.fabric.nodes_per_leaf = 16;
  fly.fabric.nodes_per_group = 64;
  Cluster tapered = fly;
  tapered.fabric.global_taper = 2;
  EXPECT_NEAR(bus_rate(model_of(fly), OpKind::all_to_all, whole_nodes(256)) /
                  bus_rate(model_of(tapered), OpKind::all_to_all, whole_nodes(256)),
              2 * 192.0 / 255, 0.01);
  EXPECT_EQ(bus_rate(model_of(fly), OpKind::all_to_all, whole_nodes(64)),
            bus_rate(model_of(tapered), OpKind::all_to_all, whole_nodes(64)));
  // A 16 x 16 torus of one device per node: bisection 2 x 16 links each way, of a node's 4.
  Cluster torus = dgx_a100(256);
  torus.node.devices = 1;
  torus.node.nics = 1;
  torus.fabric.name = "torus";
  torus.fabric.kind = FabricKind::torus;
  torus.fabric.dimensions = {16, 16};
  const double node_rate = 25e9 * find_collective_calibration(torus).inter.all_to_all_share;
  // Bytes across the middle, one way: 128 ranks send half their buffers. Each of 32 links carries a quarter of a NIC.
  const double s = 1e12, seconds = 128 * (s / 2) / (32 * node_rate / 4);
  const GroupSpan all{.ranks = 256, .ranks_per_node = 1, .nodes = 256};
  EXPECT_NEAR(model_of(torus).cost(OpKind::all_to_all, s, all).seconds, seconds, 0.01 * seconds);
}

// A group along one axis of a torus has that axis' links only: of a node's rate its share.
TEST(CollectiveRates, AGroupAlongOneAxisOfATorusHasItsLinksOnly) {
  Cluster torus = dgx_a100(32);
  torus.node.devices = torus.node.nics = 1;
  torus.fabric.kind = FabricKind::torus;
  torus.fabric.dimensions = {4, 8};
  const CollectiveModel m = model_of(torus);
  const InterCalibration c = find_collective_calibration(torus).inter;
  const auto expect = [&](OpKind kind, const GroupSpan& span, double share, double of_nics) {
    const double n = static_cast<double>(span.ranks), sent = (n - 1) / n * 1e12;
    const CollectiveCost cost = m.cost(kind, 1e12, span, Algorithm::automatic, Protocol::simple);
    EXPECT_NEAR((cost.seconds - cost.latency_seconds) / (sent / (25e9 * share * of_nics)), 1, 1e-9) << span.ranks;
  };
  const GroupSpan along_first{.ranks = 4, .nodes = 4}, along_second{.ranks = 8, .nodes = 8, .stride = 4},
      all{.ranks = 32, .nodes = 32};
  expect(OpKind::all_gather, along_first, c.ring_share, 1.0 / 2);
  expect(OpKind::all_gather, along_second, c.ring_share, 1.0 / 2);
  expect(OpKind::all_gather, all, c.ring_share, 1);
  // An all-to-all over d nodes in a ring loads its links d/8 times as long as they take to send all; two of the four.
  expect(OpKind::all_to_all, along_first, c.all_to_all_share, 1.0 / 2);
  expect(OpKind::all_to_all, along_second, c.all_to_all_share, 1.0 / 4);
}

// Boards of one root meet without the host bridge between roots; what leaves a switch still shares its up-link.
TEST(CollectiveRates, BoardsBelowOneRootPassNoHostBridge) {
  Cluster c = pcie_tree(2);
  const IntraCalibration rates = find_collective_calibration(c).intra;
  ASSERT_LT(rates.host_bridge_share, rates.ring_share);
  const auto seconds = [&](std::int64_t root, OpKind kind, const GroupSpan& span) {
    c.node.devices_per_pcie_root = root;
    return model_of(c).cost(kind, 1e11, span, Algorithm::automatic, CollectiveProtocol::simple).seconds;
  };
  const double slower = rates.ring_share / rates.host_bridge_share;
  for (const std::int64_t root : {4, 8}) {
    const auto ratio = [&](OpKind kind, const GroupSpan& span) {
      return seconds(0, kind, span) / seconds(root, kind, span);
    };
    EXPECT_NEAR(ratio(OpKind::all_reduce, in_node(4)), slower, 1e-3) << root;
    EXPECT_NEAR(ratio(OpKind::all_reduce, in_node(8)), root == 8 ? slower : 1, 1e-3) << root;
    EXPECT_NEAR(ratio(OpKind::all_reduce, in_node(2)), 1, 1e-9) << root;
    EXPECT_GT(ratio(OpKind::all_to_all, in_node(8)), 1.05) << root;
    // Interleaved: two groups share an up-link.
    EXPECT_NEAR(ratio(OpKind::all_reduce, in_node(2, 2)), slower, 1e-3) << root;
  }
}

// A rank reaches its NIC over PCIe.
TEST(CollectiveRates, NoRankSendsFasterThanItsPcieLink) {
  Cluster fast = dgx_a100(16);
  fast.node.nic_bytes_per_second = 100e9;
  ASSERT_EQ(fast.device.pcie_bytes_per_second, 31.5e9);
  const double share = find_collective_calibration(fast).inter.ring_share;
  const auto rate = [&](const Cluster& c, const GroupSpan& span) {
    const CollectiveCost cost = model_of(c).cost(OpKind::all_gather, 1e12, span, Algorithm::ring, Protocol::simple);
    return cost.inter_bytes / (cost.seconds - cost.latency_seconds) / share;
  };
  EXPECT_NEAR(rate(fast, rail(16)), 31.5e9, 1);
  GroupSpan halves{.ranks = 32, .ranks_per_node = 2, .nodes = 16, .groups_sharing_nics = 4};
  EXPECT_NEAR(rate(fast, halves), 2 * 31.5e9, 1);
  fast.node.pcie_bytes_per_second = 40e9;  // the node's own figure goes first
  EXPECT_NEAR(rate(fast, rail(16)), 40e9, 1);
  fast.node.pcie_bytes_per_second = 200e9;
  EXPECT_NEAR(rate(fast, rail(16)), 100e9, 1);
  EXPECT_NEAR(rate(dgx_a100(16), rail(16)), 25e9, 1);
}

// A leaf that a group fills is not left: latency and rate are those of one switch. One node more crosses it.
TEST(CollectiveCost, AGroupThatFillsItsLeafStaysUnderIt) {
  constexpr double kHop = 2e-7;
  Cluster leaves = dgx_a100(64);
  leaves.fabric.kind = FabricKind::fat_tree;
  leaves.fabric.nodes_per_leaf = 16;
  leaves.fabric.oversubscription = 4;
  leaves.fabric.hop_latency_seconds = kHop;
  Cluster one_switch = leaves;
  one_switch.fabric.kind = FabricKind::single_switch;
  const CollectiveModel l = model_of(leaves), s = model_of(one_switch);
  const auto ring_hops = [&](const CollectiveModel& a, const CollectiveModel& b, const GroupSpan& span) {
    const auto latency = [&](const CollectiveModel& m) {
      return m.cost(OpKind::all_gather, 8, span, Algorithm::ring, Protocol::ll).latency_seconds;
    };
    return (latency(a) - latency(b)) / kHop / static_cast<double>(span.nodes - 1);  // of each step
  };
  EXPECT_NEAR(ring_hops(l, s, whole_nodes(16)), 0, 1e-6);
  EXPECT_NEAR(ring_hops(l, s, whole_nodes(17)), 2, 1e-6);  // up and down
  // Two nodes half a leaf apart: under it. One farther: across, and a tree's edges at the up-links' rate.
  const auto apart = [](std::int64_t nodes) {
    return GroupSpan{.ranks = 2, .ranks_per_node = 1, .nodes = 2, .groups_sharing_nics = 8, .stride = 8 * nodes};
  };
  const auto tree = [&](const CollectiveModel& m, const GroupSpan& span) {
    const CollectiveCost c = m.cost(OpKind::all_reduce, 1e12, span, Algorithm::tree, Protocol::simple);
    return c.seconds - c.latency_seconds;
  };
  EXPECT_NEAR(tree(l, apart(8)) / tree(s, apart(8)), 1, 1e-9);
  EXPECT_NEAR(tree(l, apart(9)) / tree(s, apart(9)), 4, 1e-9);  // all of them leave

  Cluster fly = leaves;
  fly.nodes = 256;
  fly.fabric.kind = FabricKind::dragonfly;
  fly.fabric.nodes_per_group = 64;
  const CollectiveModel f = model_of(fly);
  EXPECT_NEAR(ring_hops(f, s, whole_nodes(16)), 0, 1e-6);
  EXPECT_NEAR(ring_hops(f, s, whole_nodes(17)), 1, 1e-6);  // to another switch of the group
  EXPECT_NEAR(ring_hops(f, s, whole_nodes(64)), 1, 1e-6);
  EXPECT_NEAR(ring_hops(f, s, whole_nodes(65)), 3, 1e-6);
}

// Eight bytes: what is left is latency, which the calibration states term by term. The network is 5 us longer than the
// calibrated one; Simple crosses it twice.
struct Latencies {
  Cluster cluster = dgx_a100(4);
  CollectiveCalibration calibration = find_collective_calibration(cluster);
  static constexpr double kExtra = 5e-6, kBytes = 8;

  Latencies() {
    cluster.fabric.latency_seconds = calibration.inter.included_latency_seconds + kExtra;
    for (double& seconds : calibration.inter.send_base_seconds) seconds *= 1.5;
  }
  static std::size_t index(Protocol p) { return p == Protocol::simple ? 0 : 2; }
  double network(Protocol p) const {
    return calibration.intra.network_base_seconds + calibration.inter.base_seconds[index(p)];
  }
  double send_network(Protocol p) const {
    return calibration.intra.network_base_seconds + calibration.inter.send_base_seconds[index(p)];
  }
  static double wire(Protocol p) { return p == Protocol::simple ? 2 * kExtra : kExtra; }
};

TEST(CollectiveCost, AnAllToAllOfEightBytesIsItsLatencies) {
  const Latencies l;
  const IntraCalibration& intra = l.calibration.intra;
  const CollectiveModel m(l.cluster, l.calibration);
  for (const Protocol p : {Protocol::simple, Protocol::ll}) {
    const std::size_t i = Latencies::index(p);
    const double once = intra.all_to_all_base_seconds[i] + 7 * intra.send_step_seconds,
                 message = l.calibration.inter.send_step_seconds[i];
    const auto latency = [&](const GroupSpan& span, Algorithm a) {
      const CollectiveCost c = m.cost(OpKind::all_to_all, Latencies::kBytes, span, a, p);
      EXPECT_EQ(c.algorithm, a);
      EXPECT_EQ(c.protocol, p);
      return c.latency_seconds;
    };
    EXPECT_NEAR(latency(in_node(8), Algorithm::direct), once, 1e-15);
    EXPECT_NEAR(latency(whole_nodes(4), Algorithm::direct),
                once + l.send_network(p) + 24 * message + Latencies::wire(p), 1e-15);
    // In the node first, then a message to each other node: each phase begins anew.
    EXPECT_NEAR(latency(whole_nodes(4), Algorithm::hierarchical),
                once + intra.all_to_all_base_seconds[i] + l.send_network(p) + 3 * message + Latencies::wire(p), 1e-15);
  }
}

// LL's limit is one of bytes a second: a message does not take longer over a faster NIC, nor where a node has more NICs
// that it does not use.
TEST(CollectiveCost, LlSendsNoSlowerOverFasterAndOverMoreNics) {
  constexpr double kBytes = 1 << 20;
  const auto seconds = [&](const Cluster& cluster, double bytes) {
    const GroupSpan pair{.ranks = 2, .ranks_per_node = 1, .nodes = 2, .groups_sharing_nics = 1};
    return model_of(cluster).cost(OpKind::send, bytes, pair, Algorithm::direct, Protocol::ll).seconds;
  };
  Cluster cluster = dgx_h100(2);
  double last = 1;
  for (const double rate : {12.5e9, 18e9, 25e9, 50e9, 100e9}) {
    cluster.node.nic_bytes_per_second = rate;
    const double now = seconds(cluster, kBytes);
    EXPECT_LE(now, last * (1 + 1e-12)) << rate;
    last = now;
  }
  Cluster one_nic = dgx_h100(2);
  one_nic.node.nics = 1;
  EXPECT_NEAR(seconds(dgx_h100(2), kBytes), seconds(one_nic, kBytes), 1e-9);
}

// Reduce-scatter, rails, all-gather: a reduction starts three rings, a gathering or a scattering two. LL fills no
// buffers.
TEST(CollectiveCost, AHierarchicalCollectiveOfEightBytesIsItsLatencies) {
  const Latencies l;
  const CollectiveModel m(l.cluster, l.calibration);
  const std::size_t ll = Latencies::index(Protocol::ll);
  const double base = l.calibration.intra.base_seconds[ll], step = l.calibration.intra.step_seconds[ll],
               hop = l.calibration.inter.ring_step_seconds[ll] + Latencies::wire(Protocol::ll);
  for (const auto& [kind, rounds] :
       {std::pair{OpKind::all_gather, 1}, {OpKind::reduce_scatter, 1}, {OpKind::all_reduce, 2}}) {
    const CollectiveCost c = m.cost(kind, Latencies::kBytes, whole_nodes(4), Algorithm::hierarchical, Protocol::ll);
    EXPECT_EQ(c.algorithm, Algorithm::hierarchical);
    EXPECT_NEAR(c.latency_seconds, (rounds + 1) * base + rounds * 7 * step + l.network(Protocol::ll) + rounds * 3 * hop,
                1e-15);
  }
}

TEST(CollectiveCost, TheNetworksLatencyCountsPerStep) {
  Cluster near = dgx_a100(64), far = dgx_a100(64);
  far.fabric.latency_seconds += 1e-3;
  const GroupSpan span = rail(64);
  const double extra = model_of(far).cost(OpKind::all_gather, 1024, span, Algorithm::ring, Protocol::ll).seconds -
                       model_of(near).cost(OpKind::all_gather, 1024, span, Algorithm::ring, Protocol::ll).seconds;
  EXPECT_NEAR(extra, 63e-3, 1e-6);
  // The tree needs only its depth, up and down, and is chosen.
  const CollectiveCost tree = model_of(far).cost(OpKind::all_reduce, 1024, span);
  EXPECT_EQ(tree.algorithm, Algorithm::tree);
  EXPECT_NEAR(tree.seconds - model_of(near).cost(OpKind::all_reduce, 1024, span).seconds, 12e-3, 1e-4);
}

TEST(CollectiveCost, HalvingAndDoublingTakesALogarithmOfTheSteps) {
  Cluster near = dgx_a100(64), far = dgx_a100(64);
  far.fabric.latency_seconds += 1e-3;
  const auto network_steps = [&](OpKind kind, const GroupSpan& span) {
    const auto seconds = [&](const Cluster& c) {
      return model_of(c).cost(kind, 1024, span, Algorithm::halving_doubling, Protocol::ll).seconds;
    };
    return (seconds(far) - seconds(near)) / 1e-3;
  };
  EXPECT_NEAR(network_steps(OpKind::all_gather, rail(64)), 6, 1e-3);
  EXPECT_NEAR(network_steps(OpKind::all_reduce, rail(64)), 12, 1e-3);
  // Partners one, two and four ranks away are in the node.
  EXPECT_NEAR(network_steps(OpKind::all_reduce, whole_nodes(64)), 12, 1e-3);
  EXPECT_NEAR(network_steps(OpKind::reduce_scatter, whole_nodes(2)), 1, 1e-3);
  // Folding in what is more than a power of two takes two more.
  EXPECT_NEAR(network_steps(OpKind::all_reduce, rail(63)), 10 + 2, 1e-3);
  // Nodes of three: of four ranks' exchanges those with the neighbour cross once, those beyond it always.
  EXPECT_NEAR(network_steps(OpKind::all_gather, {.ranks = 6, .ranks_per_node = 3, .nodes = 2}), 1 + 2 + 1, 1e-3);
  // Within the node a step costs what a ring's does.
  const IntraCalibration c = find_collective_calibration(near).intra;
  EXPECT_NEAR(model_of(near).cost(OpKind::all_reduce, 8, in_node(8), Algorithm::halving_doubling, Protocol::ll).seconds,
              c.base_seconds[2] + 6 * c.step_seconds[2], 1e-9);
}

// --- Choice
// -----------------------------------------------------------------------------------------------------------

TEST(CollectiveChoice, SmallMessagesTakeLLLargeOnesSimple) {
  for (const Cluster& cluster : {dgx_h100(16), dgx_a100(16), mi300x(), pcie_tree(2)}) {
    const CollectiveModel m = model_of(cluster);
    for (const OpKind kind : {OpKind::all_reduce, OpKind::all_gather, OpKind::all_to_all}) {
      EXPECT_EQ(m.cost(kind, 1024, in_node(8)).protocol, Protocol::ll) << name_of(kind);
      EXPECT_EQ(m.cost(kind, 4e9, in_node(8)).protocol, Protocol::simple) << name_of(kind);
      if (cluster.nodes < 2) continue;
      EXPECT_EQ(m.cost(kind, 1024, whole_nodes(2)).protocol, Protocol::ll) << name_of(kind);
      EXPECT_EQ(m.cost(kind, 4e9, whole_nodes(2)).protocol, Protocol::simple) << name_of(kind);
    }
  }
}

TEST(CollectiveChoice, LL128OnlyOverNvlink) {
  const auto uses_ll128 = [](const Cluster& cluster, const GroupSpan& span) {
    const CollectiveModel m = model_of(cluster);
    for (double bytes = 1024; bytes < 1e9; bytes *= 1.2)
      if (m.cost(OpKind::all_reduce, bytes, span).protocol == Protocol::ll128) return true;
    return m.cost(OpKind::all_reduce, 1e6, span, Algorithm::ring, Protocol::ll128).protocol == Protocol::ll128;
  };
  EXPECT_TRUE(uses_ll128(dgx_a100(1), in_node(8)));
  EXPECT_FALSE(uses_ll128(pcie_tree(2), in_node(8)));
  Cluster efa = dgx_a100(2);
  efa.fabric.name = "efa-v1";
  EXPECT_FALSE(uses_ll128(efa, whole_nodes(2)));
}

TEST(CollectiveChoice, AutomaticIsTheFastestLegalPairOfThoseThatNcclHas) {
  for (const Cluster& cluster : {dgx_h100(128), dgx_a100(128)}) {
    const CollectiveModel m = model_of(cluster);
    for (const GroupSpan& span : usual_spans())
      for (double bytes = 256; bytes < 1e10; bytes *= 7) {
        const CollectiveCost best = m.cost(OpKind::all_reduce, bytes, span);
        for (const Algorithm a : {Algorithm::hierarchical, Algorithm::halving_doubling, Algorithm::bidirectional_ring})
          EXPECT_NE(best.algorithm, a);
        for (const Algorithm a : {Algorithm::ring, Algorithm::tree, Algorithm::nvls})
          for (const Protocol p : {Protocol::simple, Protocol::ll128, Protocol::ll}) {
            const CollectiveCost wanted = m.cost(OpKind::all_reduce, bytes, span, a, p);
            if (wanted.algorithm != a || wanted.protocol != p) continue;
            EXPECT_GE(wanted.seconds, best.seconds);
          }
      }
  }
}

TEST(CollectiveChoice, EveryAlgorithmHasItsName) {
  constexpr const char* names[] = {"automatic",          "ring",   "tree",
                                   "hierarchical",       "nvls",   "halving_doubling",
                                   "bidirectional_ring", "direct", "first_ranks"};
  constexpr Algorithm algorithms[] = {Algorithm::automatic,          Algorithm::ring,   Algorithm::tree,
                                      Algorithm::hierarchical,       Algorithm::nvls,   Algorithm::halving_doubling,
                                      Algorithm::bidirectional_ring, Algorithm::direct, Algorithm::first_ranks};
  for (std::size_t i = 0; i < std::size(names); ++i) EXPECT_STREQ(name_of(algorithms[i]), names[i]);
}

TEST(CollectiveChoice, WhatIsNotLegalFallsBackAndSaysSo) {
  const CollectiveModel a100 = model_of(dgx_a100(2));
  EXPECT_EQ(a100.cost(OpKind::all_reduce, 1e9, in_node(8), Algorithm::nvls).algorithm, Algorithm::ring);
  EXPECT_EQ(a100.cost(OpKind::all_gather, 1e9, whole_nodes(2), Algorithm::tree).algorithm, Algorithm::ring);
  EXPECT_EQ(a100.cost(OpKind::all_reduce, 1e9, in_node(8), Algorithm::hierarchical).algorithm, Algorithm::ring);
  EXPECT_EQ(a100.cost(OpKind::all_reduce, 1e9, in_node(8), Algorithm::tree).algorithm, Algorithm::tree);
  EXPECT_EQ(a100.cost(OpKind::reduce, 1e9, whole_nodes(2), Algorithm::hierarchical).algorithm, Algorithm::ring);
  EXPECT_EQ(a100.cost(OpKind::broadcast, 1e9, in_node(8), Algorithm::halving_doubling).algorithm, Algorithm::ring);
  EXPECT_EQ(a100.cost(OpKind::all_to_all, 1e9, in_node(8), Algorithm::bidirectional_ring).algorithm, Algorithm::direct);
}

// --- Point to point
// ---------------------------------------------------------------------------------------------------

TEST(Transfers, CrossTheNicsOnlyFromOneNodeToAnother) {
  const Cluster c = dgx_a100(4);
  const CollectiveCalibration calibration = find_collective_calibration(c);
  const CollectiveModel m(c, calibration);
  const double bytes = 1e10;
  EXPECT_NEAR(m.transfer_seconds(bytes, 1, 0), bytes / (300e9 * calibration.intra.send_share), 1e-3 * bytes / 300e9);
  EXPECT_NEAR(m.transfer_seconds(bytes, 8, 1), bytes / (25e9 * calibration.inter.ring_share), 2e-3 * bytes / 25e9);
  EXPECT_EQ(m.transfer_seconds(bytes, 8, 1), m.transfer_seconds(bytes, 8, 8));  // a NIC each
  Cluster few = c;
  few.node.nics = 2;
  EXPECT_NEAR(model_of(few).transfer_seconds(bytes, 8, 8) / m.transfer_seconds(bytes, 8, 8), 4, 0.02);
  EXPECT_EQ(m.transfer_seconds(bytes, 0, 1), 0);
  EXPECT_EQ(m.transfer_seconds(0, 8, 1), 0);
}

TEST(Transfers, OfEightBytesAreTheirLatencies) {
  const Latencies l;
  const IntraCalibration& intra = l.calibration.intra;
  const InterCalibration& inter = l.calibration.inter;
  const CollectiveModel m(l.cluster, l.calibration);
  const GroupSpan other_node{.ranks = 2, .nodes = 2, .stride = 8};
  for (const Protocol p : {Protocol::simple, Protocol::ll}) {
    const std::size_t i = Latencies::index(p);
    const double once = intra.send_base_seconds[i] + intra.send_step_seconds;
    const double fill = p == Protocol::simple
                            ? inter.ring_fill_seconds * Latencies::kBytes / (Latencies::kBytes + inter.ring_fill_bytes)
                            : 0;
    const auto latency = [&](const GroupSpan& span) {
      return m.cost(OpKind::send, Latencies::kBytes, span, Algorithm::automatic, p).latency_seconds;
    };
    EXPECT_NEAR(latency(in_node(2)), once, 1e-15);
    EXPECT_NEAR(latency(other_node), once + l.send_network(p) + inter.ring_step_seconds[i] + fill + Latencies::wire(p),
                1e-15);
  }
  EXPECT_NEAR(m.transfer_seconds(Latencies::kBytes, 8, 1),
              m.cost(OpKind::send, Latencies::kBytes, other_node, Algorithm::automatic, Protocol::ll).seconds, 1e-15)
      << "a short message goes by LL";
}

// Zeppelin's routing layer (arXiv 2509.21841): of a message to another node each of x ranks gets a part and passes it
// on over its NIC; it is put together there. n (x - 1) / x within each node, n / x over each NIC.
TEST(Transfers, ARoutedShiftLeavesOverAllNics) {
  const Cluster c = dgx_a100(4);
  const CollectiveCalibration calibration = find_collective_calibration(c);
  const double bytes = 1e10;
  const auto routed = [&](const Cluster& cluster) {
    return model_of(cluster).cost(OpKind::ring_shift, bytes, whole_nodes(4), Algorithm::hierarchical);
  };
  const CollectiveCost cost = routed(c), direct = model_of(c).cost(OpKind::ring_shift, bytes, whole_nodes(4));
  EXPECT_EQ(cost.algorithm, Algorithm::hierarchical);
  EXPECT_NEAR(cost.inter_seconds, direct.inter_seconds / 8, 1e-9 * direct.inter_seconds);
  EXPECT_NEAR(cost.intra_seconds, 2 * (bytes * 7 / 8) / (300e9 * calibration.intra.send_share),
              1e-9 * cost.intra_seconds);
  EXPECT_NEAR(cost.seconds, cost.latency_seconds + cost.intra_seconds + cost.inter_seconds, 1e-9 * cost.seconds);
  EXPECT_NEAR(cost.latency_seconds - direct.latency_seconds,
              2 * (calibration.intra.send_base_seconds[0] + 7 * calibration.intra.send_step_seconds), 1e-12);
  Cluster few = c;
  few.node.nics = 4;
  EXPECT_NEAR(routed(few).inter_seconds, 2 * cost.inter_seconds, 1e-9 * cost.inter_seconds);
}

TEST(Transfers, ARingShiftTakesAsLongAsItsSlowestHop) {
  const Cluster c = dgx_a100(4);
  const CollectiveModel m = model_of(c);
  const double inside = m.cost(OpKind::ring_shift, 1e9, in_node(8)).seconds;
  const double across = m.cost(OpKind::ring_shift, 1e9, whole_nodes(4)).seconds;
  EXPECT_NEAR(inside, m.transfer_seconds(1e9, 1, 0), 1e-9);
  EXPECT_NEAR(across, m.transfer_seconds(1e9, 8, 1), 1e-9);
  EXPECT_GT(across, 5 * inside);
  // On a mesh a neighbour is one link away, however many links a rank has.
  EXPECT_NEAR(model_of(mi300x()).cost(OpKind::ring_shift, 1e10, in_node(8)).seconds /
                  model_of(mi300x()).cost(OpKind::ring_shift, 1e10, in_node(2)).seconds,
              1, 1e-6);
}

// --- Explanation and faults
// -------------------------------------------------------------------------------------------

TEST(CollectiveExplain, GivesTheNumbersAndTheirSources) {
  const CollectiveModel m = model_of(dgx_h100(4));
  const std::string text = m.explain(OpKind::all_reduce, 1e9, whole_nodes(4));
  for (const char* part : {"all_reduce", "32 ranks", "4 nodes", "nvls", "latency", "GB/s", "Slower: ", "ring", "tree",
                           "tuning.cc", "Hopper NVLink4", "InfiniBand"})
    EXPECT_THAT(text, ::testing::HasSubstr(part));
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.4g us", m.cost(OpKind::all_reduce, 1e9, whole_nodes(4)).seconds * 1e6);
  EXPECT_THAT(text, ::testing::HasSubstr(seconds));
}

TEST(CollectiveCost, RatesThatAreMissingAreNamed) {
  const auto pointer = [](const Cluster& cluster, OpKind kind, const GroupSpan& span) -> std::string {
    try {
      model_of(cluster).cost(kind, 1e6, span);
    } catch (const InputError& e) {
      return e.where().pointer;
    }
    return "none";
  };
  Cluster no_nics = dgx_a100(2);
  no_nics.node.nics = 0;
  EXPECT_EQ(pointer(no_nics, OpKind::all_reduce, whole_nodes(2)), "/cluster/inter_node_bytes_per_second");
  EXPECT_EQ(pointer(no_nics, OpKind::all_reduce, in_node(8)), "none");
  Cluster no_links = dgx_a100(1);
  no_links.node.intra_bytes_per_second = 0;
  EXPECT_EQ(pointer(no_links, OpKind::all_reduce, in_node(8)), "/cluster/intra_node_bytes_per_second");
  EXPECT_THROW(model_of(dgx_a100(1)).cost(OpKind::linear, 1e6, in_node(8)), InputError);
}

}  // namespace
}  // namespace orrery
