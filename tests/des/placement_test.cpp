// Do both engines say the same of nodes that lie scattered over a fabric, and what is right by hand? Everywhere
// seconds = bytes / rate: shares of 1, no latencies.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <tuple>

#include "sim/analytical/op_cost.h"
#include "sim/cost/calibration.h"
#include "sim/cost/fabric_traffic.h"
#include "sim/hardware/read_cluster.h"
#include "sim/hardware/read_placement.h"
#include "sim/program/rewrite.h"
#include "strategies/read_scenario.h"
#include "tests/des/support.h"

namespace orrery {
namespace {

using Algorithm = CollectiveAlgorithm;

Cluster on(Cluster cluster, std::vector<std::int64_t> nodes, std::int64_t of = 0,
           RingOrder ring_order = RingOrder::rank) {
  cluster.nodes = static_cast<std::int64_t>(nodes.size());
  const std::int64_t last = *std::max_element(nodes.begin(), nodes.end());
  cluster.placement = {.nodes = std::move(nodes), .of = std::max(of, last + 1), .ring_order = ring_order};
  return cluster;
}

CollectiveCost closed_form(const Cluster& cluster, const CollectiveRequest& r) {
  return CollectiveModel(cluster, ideal_collectives())
      .cost(r.kind, r.bytes, span_of(r.mesh, r.group, cluster), r.algorithm, r.protocol);
}

double difference(const Cluster& cluster, const CollectiveRequest& request) {
  return closed_form(cluster, request).seconds / run(cluster, request).seconds - 1;
}

struct Layout {
  std::string name;
  std::vector<std::int64_t> nodes;
};

// Of 16 nodes on leaves of 4: part-filled leaves, every order and any.
std::vector<Layout> layouts() {
  return {{"every second node", {0, 2, 4, 6, 8, 10, 12, 14}},
          {"two of each leaf", {0, 1, 4, 5, 8, 9, 12, 13}},
          {"leaves in turn", {0, 4, 8, 12, 1, 5, 9, 13}},
          {"a full leaf and strays", {0, 1, 2, 3, 4, 8, 12, 13}},
          {"drawn", drawn_numbers(8, 16, 1)},
          {"drawn again", drawn_numbers(8, 16, 2)}};
}

// Each layout with static and with adaptive routing, and with rings in either order.
template <class Check>
void for_each_cluster(Check&& check) {
  bool by_leaf = false;
  for (const FabricKind kind : {FabricKind::fat_tree, FabricKind::rail_fat_tree})
    for (const double oversubscription : {1, 4, 8}) {
      by_leaf = !by_leaf;  // another order for each layout than before
      for (const Layout& layout : layouts()) {
        by_leaf = !by_leaf;
        for (const bool adaptive : {false, true}) {
          const RingOrder order = by_leaf != adaptive ? RingOrder::leaf : RingOrder::rank;
          Cluster c = on(ideal_fat_tree(kind, 8, 4, 4, oversubscription), layout.nodes, 16, order);
          c.fabric.adaptive_routing = adaptive;
          SCOPED_TRACE(fmt::format("{}, {}, 1:{}, rings by {}, {}", layout.name,
                                   kind == FabricKind::fat_tree ? "fat tree" : "rails", oversubscription,
                                   kRingOrderNames[static_cast<std::size_t>(order)], adaptive ? "adaptive" : "static"));
          check(c);
        }
      }
    }
}

// Rings and shifts send equal flows, which end together on the busiest link: to rounding.
TEST(Placement, RingsTakeEquallyLongInBothEngines) {
  for_each_cluster([](const Cluster& c) {
    for (const auto& [inner, kind] : {std::pair{1, OpKind::all_gather}, std::pair{2, OpKind::all_reduce},
                                      std::pair{4, OpKind::all_gather}, std::pair{8, OpKind::all_reduce}})
      EXPECT_NEAR(difference(c, over_strided(c, inner, kind, Algorithm::ring)), 0, 1e-6) << inner;
    for (const std::int64_t inner : {4, 8})
      EXPECT_NEAR(difference(c, over_strided(c, inner, OpKind::ring_shift)), 0, 1e-6) << inner;
  });
}

TEST(Placement, AllToAllTakesEquallyLongInBothEngines) {
  for_each_cluster([](const Cluster& c) {
    for (const std::int64_t inner : {1, 4, 8})
      EXPECT_NEAR(difference(c, over_strided(c, inner, OpKind::all_to_all)), 0, 1e-6) << inner;
  });
}

TEST(Placement, HalvingAndDoublingTakesEquallyLongInBothEngines) {
  for_each_cluster([](const Cluster& c) {
    for (const std::int64_t inner : {1, 4})
      EXPECT_NEAR(difference(c, over_strided(c, inner, OpKind::all_reduce, Algorithm::halving_doubling)), 0, 1e-6);
  });
}

// A tree's edges carry unlike amounts, which the discrete-event engine scales so that they take the closed form's time
// on an idle network.
TEST(Placement, TreesTakeAboutEquallyLongInBothEngines) {
  for_each_cluster([](const Cluster& c) {
    for (const std::int64_t inner : {1, 4})
      EXPECT_NEAR(difference(c, over_strided(c, inner, OpKind::all_reduce, Algorithm::tree)), 0, 0.09) << inner;
  });
}

// Nodes that are counted one by one, and the closed forms of nodes that lie leaf by leaf.
TEST(Placement, CountedLinkByLinkNodesInOrderTakeTheirClosedForms) {
  std::vector<std::int64_t> all(16);
  std::iota(all.begin(), all.end(), 0);
  for (const FabricKind kind : {FabricKind::fat_tree, FabricKind::rail_fat_tree})
    for (const double oversubscription : {1, 2, 4}) {
      const Cluster in_order = ideal_fat_tree(kind, 16, 4, 4, oversubscription);
      const Cluster counted = on(in_order, all);
      for (const OpKind op : {OpKind::all_gather, OpKind::all_to_all})
        for (const std::int64_t inner : {1, 4, 8, 16}) {
          const CollectiveRequest r = over_strided(in_order, inner, op);
          EXPECT_NEAR(closed_form(counted, r).seconds / closed_form(in_order, r).seconds, 1, 1e-9) << inner;
        }
    }
}

// Nodes leaf by leaf whose devices do not fill their NICs, or whose NICs are fewer than their devices: up-links are as
// wide as NICs, whatever reaches these.
TEST(Placement, NodesWithOtherNicsThanDevicesTakeEquallyLongInBothEngines) {
  for (const FabricKind kind : {FabricKind::fat_tree, FabricKind::rail_fat_tree})
    for (const double oversubscription : {1, 2, 7})
      for (const std::int64_t nodes_per_leaf : {0, 1, 2})
        for (const auto& [devices, nics, pcie] : {std::tuple{1, 8, 60e9},
                                                  {1, 8, 1e12},
                                                  {4, 8, 60e9},
                                                  {8, 1, 1e12},
                                                  {8, 2, 1e12},
                                                  {8, 8, 20e9},
                                                  {8, 8, 1e12}}) {
          Cluster c = ideal_cluster(4, devices, nics);
          c.fabric.kind = kind;
          c.fabric.nodes_per_leaf = nodes_per_leaf;
          c.fabric.oversubscription = oversubscription;
          c.node.pcie_bytes_per_second = pcie;
          SCOPED_TRACE(fmt::format("{} 1:{}, {} nodes a leaf, {} devices, {} NICs, PCIe {}",
                                   kind == FabricKind::fat_tree ? "fat tree" : "rails", oversubscription,
                                   nodes_per_leaf, devices, nics, pcie));
          for (const OpKind op : {OpKind::all_gather, OpKind::all_to_all})
            for (const std::int64_t inner : {1, 8}) {
              if (inner > devices) continue;
              EXPECT_NEAR(difference(c, over_strided(c, inner, op)), 0, 1e-6) << name_of(op) << " " << inner;
            }
        }
}

// There are as many channels as the node with the fewest ranks has ranks.
TEST(Placement, ANodeThatIsPartlyUsedLimitsTheRing) {
  Cluster c = ideal_cluster(2, 8, 8);
  CollectiveRequest r = over_all(c, OpKind::all_gather);
  r.mesh = mesh_of({{MeshAxis::dp_shard, 12}});
  r.group = r.mesh.group(MeshAxis::dp_shard);
  const GroupSpan span = span_of(r.mesh, r.group, c.node.devices);
  EXPECT_EQ(span.ranks_per_node, 8);
  EXPECT_EQ(span.fewest_per_node, 4);
  EXPECT_NEAR(difference(c, r), 0, 1e-6);
  r.kind = OpKind::all_to_all;
  EXPECT_NEAR(difference(c, r), 0, 1e-6);
}

// One switch has no links between switches for placement to load.
TEST(Placement, ScatteredNodesUnderOneSwitchExchangeAsOthersDo) {
  Cluster c = on(ideal_fat_tree(FabricKind::single_switch, 16, 4, 0, 1), {0, 3, 5, 6}, 16);
  EXPECT_NEAR(difference(c, over_strided(c, 1, OpKind::all_reduce, Algorithm::halving_doubling)), 0, 1e-6);
}

Cluster placed_in_order(Cluster cluster) {
  cluster.placement.nodes.clear();
  return cluster;
}

double ring_slowdown(const Cluster& cluster, std::int64_t inner = 4) {
  const CollectiveRequest r = over_strided(cluster, inner, OpKind::all_gather, Algorithm::ring);
  Cluster idle = cluster;
  idle.fabric.kind = FabricKind::single_switch;
  idle.placement = {};
  return closed_form(cluster, r).seconds / closed_form(idle, r).seconds;
}

TEST(Placement, ARingCostsTheUpLinkThatMostOfItsHopsCross) {
  // Leaves of four nodes; rails with two up-links each, to even and to odd places of a leaf.
  const Cluster two_up = ideal_fat_tree(FabricKind::rail_fat_tree, 8, 4, 4, 2);
  EXPECT_EQ(ring_slowdown(two_up), 1);
  EXPECT_EQ(ring_slowdown(on(two_up, {0, 1, 2, 3, 4, 5, 6, 7}, 16)), 1);
  // Every hop leaves its leaf: of four from each, 0 -> 4 -> 1 -> 5 ..., two take the way to even places.
  EXPECT_EQ(ring_slowdown(on(two_up, {0, 4, 1, 5, 2, 6, 3, 7})), 2);
  // To even places all: 0 -> 4 -> 2 -> 6 share a link, and those of 1, 3, 5, 7 another; one hop joins the two.
  EXPECT_EQ(ring_slowdown(on(two_up, {0, 4, 2, 6, 1, 5, 3, 7})), 2);
  // The same with rings laid leaf by leaf.
  EXPECT_EQ(ring_slowdown(on(two_up, {0, 4, 1, 5, 2, 6, 3, 7}, 0, RingOrder::leaf)), 1);
  // One up-link, which carries all four.
  EXPECT_EQ(ring_slowdown(on(ideal_fat_tree(FabricKind::rail_fat_tree, 8, 4, 4, 4), {0, 4, 1, 5, 2, 6, 3, 7})), 4);
  // Rings of every second node: the two of a leaf pair share the one up-link, and in turn with the other leaf twice so.
  EXPECT_EQ(ring_slowdown(ideal_fat_tree(FabricKind::rail_fat_tree, 8, 4, 4, 4), 8), 2);
  EXPECT_EQ(ring_slowdown(on(ideal_fat_tree(FabricKind::rail_fat_tree, 8, 4, 4, 4), {0, 1, 4, 5, 2, 3, 6, 7}), 8), 4);
  // A leaf's nodes alone never leave it.
  EXPECT_EQ(ring_slowdown(on(ideal_fat_tree(FabricKind::rail_fat_tree, 4, 4, 4, 4), {7, 5, 6, 4}, 64)), 1);
}

// Of the same nodes, for groups that have all of them. (Groups of every second node can be lucky, and of leaves that
// are filled in part each node has more of the up-links.)
TEST(Placement, NoOrderIsFasterThanLeafByLeaf) {
  for (const FabricKind kind : {FabricKind::fat_tree, FabricKind::rail_fat_tree})
    for (const double oversubscription : {1, 4})
      for (const std::int64_t seed : {1, 2, 3, 4}) {
        const Cluster by_leaf = ideal_fat_tree(kind, 16, 4, 4, oversubscription);
        for (const RingOrder order : {RingOrder::rank, RingOrder::leaf})
          for (const OpKind op : {OpKind::all_gather, OpKind::all_reduce, OpKind::all_to_all, OpKind::ring_shift})
            for (const std::int64_t inner : {1, 2, 4}) {
              const Cluster drawn = on(by_leaf, drawn_numbers(16, 16, seed), 16, order);
              const CollectiveRequest r = over_strided(drawn, inner, op);
              EXPECT_GE(closed_form(drawn, r).seconds, closed_form(by_leaf, r).seconds * (1 - 1e-12)) << inner;
            }
      }
  // Nodes that change places between leaves, more and more of them: a ring's hops leave their leaves more often.
  const Cluster c = ideal_fat_tree(FabricKind::rail_fat_tree, 32, 4, 16, 16);
  std::vector<std::int64_t> nodes(32);
  std::iota(nodes.begin(), nodes.end(), 0);
  double before = ring_slowdown(on(c, nodes));
  for (std::size_t i = 1; i < 15; i += 2) {
    std::swap(nodes[i], nodes[16 + i]);
    const double now = ring_slowdown(on(c, nodes));
    EXPECT_GT(now, before) << i;
    before = now;
  }
  EXPECT_NEAR(before, 15, 1e-9);  // all hops but one, the last
}

// What one group loads the fabric with is no other group's, whichever is asked for first.
TEST(Placement, EachGroupOfAMeshHasItsOwnLoad) {
  // Leaves of four nodes; pairs of the inner digit lie under one leaf, what is further apart does not.
  Cluster c = on(ideal_fat_tree(FabricKind::rail_fat_tree, 8, 4, 4, 4), {4, 5, 0, 1, 6, 7, 2, 3});
  c.device = read_cluster({{"node", "dgx-h100"}}, {}).device;
  const Mesh mesh = mesh_of({{MeshAxis::tp, 4}, {MeshAxis::cp, 2}, {MeshAxis::pp, 4}});
  const std::vector<std::vector<std::uint16_t>> stages{{0, 2}, {0, 1}};
  Tensor vector;
  vector.rank = 1;
  vector.sizes[0] = 1 << 28;
  const std::vector<Tensor> tensors{vector};
  const auto op_over = [](MeshGroup group, TableIndex<StageGroup> of_stages) {
    Op op = communication(OpKind::all_reduce, "sum", Phase::forward, Stream::data_communication, group, 0, 0);
    op.stages = of_stages;
    return op;
  };
  const std::vector<Op> ops{op_over(mesh.group(MeshAxis::cp), {}), op_over(mesh.group(MeshAxis::pp), {}),
                            op_over({}, TableIndex<StageGroup>(0)), op_over({}, TableIndex<StageGroup>(1))};
  const Calibration kernels = find_calibration(c.device);
  const CollectiveCalibration collectives = ideal_collectives();
  const auto seconds_in_turn = [&](const std::vector<Op>& in_turn) {
    OpCostModel model(c, kernels, collectives);
    model.set_mesh(mesh, Algorithm::ring, CollectiveProtocol::simple, stages);
    std::vector<double> seconds;
    for (const Op& op : in_turn) seconds.push_back(model.cost(op, tensors, 1).seconds);
    return seconds;
  };
  std::vector<double> alone;
  for (const Op& op : ops) alone.push_back(seconds_in_turn({op})[0]);
  EXPECT_GT(alone[1], alone[0]);
  EXPECT_NE(alone[3], alone[2]);
  EXPECT_EQ(seconds_in_turn(ops), alone);
  std::vector<double> backwards = seconds_in_turn({ops.rbegin(), ops.rend()});
  std::reverse(backwards.begin(), backwards.end());
  EXPECT_EQ(backwards, alone);
}

// --- Reduction in the fabric's switches

Cluster reducing(Cluster cluster, bool in_node = true) {
  cluster.fabric.in_network_reduction = true;
  cluster.node.in_switch_reduction = in_node;
  return cluster;
}
CollectiveCalibration ideal_with_reduction() {
  CollectiveCalibration c = ideal_collectives();
  c.reduction.nic_share = 1;
  c.intra.nvls_least_ranks = 2;
  return c;
}
double reduction_seconds(const Cluster& cluster, const CollectiveRequest& r) {
  const CollectiveCost cost = CollectiveModel(cluster, ideal_with_reduction())
                                  .cost(r.kind, r.bytes, span_of(r.mesh, r.group, cluster), r.algorithm, r.protocol);
  EXPECT_EQ(cost.algorithm, Algorithm::collnet);
  return cost.seconds;
}

// Whatever the number of nodes, each sends its vector once; a ring's nodes send it 2 (n-1)/n times.
TEST(Placement, SwitchesThatReduceTakeTheVectorOnce) {
  for (const std::int64_t nodes : {2, 4, 16, 64}) {
    const Cluster c = reducing(ideal_cluster(nodes, 4, 4));
    EXPECT_NEAR(reduction_seconds(c, over_all(c, OpKind::all_reduce, Algorithm::collnet)), kSize / (4 * kNicRate),
                1e-9);
    const double n = static_cast<double>(nodes);
    EXPECT_NEAR(closed_form(c, over_all(c, OpKind::all_reduce, Algorithm::ring)).seconds /
                    reduction_seconds(c, over_all(c, OpKind::all_reduce, Algorithm::collnet)),
                2 * (4 * n - 1) / (4 * n), 1e-9);
    // Nothing of it where the fabric does not say that it can.
    EXPECT_NE(closed_form(ideal_cluster(nodes, 4, 4), over_all(c, OpKind::all_reduce, Algorithm::collnet)).algorithm,
              Algorithm::collnet);
  }
}

// Groups that lie alike in their nodes, but one of them across leaves: what it hands up crosses the spine.
TEST(Placement, EachGroupIsReducedByTheLeavesThatItIsUnder) {
  const Cluster c = reducing(ideal_fat_tree(FabricKind::fat_tree, 6, 1, 3, 1), false);
  CollectiveRequest r = over_all(c, OpKind::all_reduce, Algorithm::collnet);
  r.mesh = mesh_of({{MeshAxis::dp_shard, 2}, {MeshAxis::pp, 3}});
  r.group = r.mesh.group(MeshAxis::dp_shard);
  EXPECT_NEAR(links_of(run(c, r, {}, {}, ideal_with_reduction()).link_kinds, "leaf").busiest_bytes, kSize, 1);
}

// They add up, and nothing else.
TEST(Placement, SwitchesThatReduceDoNotGather) {
  const Cluster c = reducing(ideal_cluster(4, 4, 4));
  for (const OpKind kind : {OpKind::all_gather, OpKind::broadcast, OpKind::reduce}) {
    const CollectiveRequest r = over_all(c, kind, Algorithm::collnet);
    const CollectiveModel model(c, ideal_with_reduction());
    EXPECT_NE(model.cost(kind, r.bytes, span_of(r.mesh, r.group, c), r.algorithm, r.protocol).algorithm,
              Algorithm::collnet);
  }
}

// A message of a chunk goes up and its sum comes down, at the share of the NICs that was measured.
TEST(Placement, SwitchesThatReduceAreReachedOverTheWire) {
  Cluster c = reducing(ideal_cluster(4, 4, 4), false);
  const CollectiveRequest r = over_strided(c, 4, OpKind::reduce_scatter, Algorithm::collnet);
  const auto cost = [&](double share) {
    CollectiveCalibration calibration = ideal_with_reduction();
    calibration.reduction.nic_share = share;
    return CollectiveModel(c, calibration).cost(r.kind, r.bytes, span_of(r.mesh, r.group, c), r.algorithm, r.protocol);
  };
  const double seconds = cost(1).seconds;
  EXPECT_NEAR(cost(0.5).seconds, 2 * seconds, 1e-12);
  c.fabric.latency_seconds = 1e-3;
  EXPECT_NEAR(cost(1).seconds, seconds + 2e-3, 1e-12);
}

TEST(Placement, ReductionInSwitchesTakesEquallyLongInBothEngines) {
  for_each_cluster([&](const Cluster& scattered) {
    for (const auto& [kind, in_node, inner] :
         {std::tuple{OpKind::all_reduce, true, 1}, {OpKind::all_reduce, false, 4}, {OpKind::reduce_scatter, false, 1}})
      for (const Cluster& placed : {scattered, placed_in_order(scattered)}) {
        const Cluster c = reducing(placed, in_node);
        const CollectiveRequest r = over_strided(c, inner, kind, Algorithm::collnet);
        EXPECT_NEAR(reduction_seconds(c, r) / run(c, r, {}, {}, ideal_with_reduction()).seconds, 1, 1e-6) << inner;
      }
  });
}

// The leaf sums up before the up-links: they carry one vector, however many nodes are below.
TEST(Placement, ALeafHandsUpOneSum) {
  const Cluster c = reducing(ideal_fat_tree(FabricKind::rail_fat_tree, 32, 4, 16, 16));  // one up-link a rail
  const CollectiveRun r = run(c, over_all(c, OpKind::all_reduce, Algorithm::collnet), {}, {}, ideal_with_reduction());
  EXPECT_EQ(r.algorithm, Algorithm::collnet);
  EXPECT_NEAR(r.seconds, kSize / (4 * kNicRate), 1e-9);
  EXPECT_NEAR(links_of(r.link_kinds, "leaf").busiest_bytes, kSize / 4, 1);
  EXPECT_NEAR(links_of(r.link_kinds, "nic").busiest_bytes, kSize / 4, 1);
  // Step by step no link carries more.
  const CollectiveRun exact = run(c, over_all(c, OpKind::all_reduce, Algorithm::collnet), {},
                                  {.fidelity = Fidelity::step_exact, .chunks = 32}, ideal_with_reduction());
  EXPECT_NEAR(exact.seconds / r.seconds, 1, 0.25);
  EXPECT_GE(exact.seconds, r.seconds * (1 - 1e-9));
}

// Whole steps: what one engine says of an allocation the other says as well.
TEST(Placement, StepsTakeAboutEquallyLongInBothEngines) {
  for (const char* fabric : {"ib-ndr-rail", "ib-ndr-fat-tree"})
    for (const int oversubscription : {1, 4, 8})
      for (const nlohmann::json& placement :
           {nlohmann::json{{"nodes", "scattered"}, {"of", 16}}, nlohmann::json{{"fill", 2}},
            nlohmann::json{{"nodes", "n[0-1,4-5],n[8,12],n3,n7"}, {"ring_order", "leaf"}}})
        for (const nlohmann::json& plan :
             {nlohmann::json{{"zero_stage", 3}, {"recompute", "full"}},
              nlohmann::json{{"zero_stage", 1}, {"tensor_parallel", 8}, {"sequence_parallel", true}},
              nlohmann::json{{"zero_stage", 1}, {"tensor_parallel", 4}, {"pipeline_parallel", 2}}}) {
          const Scenario s = read_scenario(
              {{"model", "gpt3-1.3B"},
               {"cluster",
                {{"node", "dgx-h100"},
                 {"nodes", 8},
                 {"fabric", {{"base", fabric}, {"nodes_per_leaf", 4}, {"oversubscription", oversubscription}}},
                 {"placement", placement}}},
               {"workload", {{"sequence_length", 2048}, {"global_batch_size", 64}}},
               {"plan", plan}},
              {});
          const double both = simulate(s).step_seconds / simulate_des(s).step_seconds - 1;
          // The stages of a pipeline do not all communicate at the same time, as the closed forms take them to.
          EXPECT_NEAR(both, 0, plan.contains("pipeline_parallel") ? 0.08 : 0.02)
              << fabric << " 1:" << oversubscription << ' ' << placement << ' ' << plan;
        }
}

}  // namespace
}  // namespace orrery
