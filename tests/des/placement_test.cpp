// Do both engines say the same of nodes that lie scattered over a fabric, and what is right by hand? Everywhere
// seconds = bytes / rate: shares of 1, no latencies.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <tuple>

#include "sim/cost/fabric_load.h"
#include "sim/hardware/read_placement.h"
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
          {"drawn", scattered_nodes(8, 16, 1)},
          {"drawn again", scattered_nodes(8, 16, 2)}};
}

template <class Check>
void for_each_cluster(Check&& check) {
  for (const FabricKind kind : {FabricKind::fat_tree, FabricKind::rail_fat_tree})
    for (const double oversubscription : {1, 4, 8})
      for (const Layout& layout : layouts())
        for (const RingOrder order : {RingOrder::rank, RingOrder::leaf})
          for (const bool adaptive : {false, true}) {
            Cluster c = on(ideal_fat_tree(kind, 8, 4, 4, oversubscription), layout.nodes, 16, order);
            c.fabric.adaptive_routing = adaptive;
            SCOPED_TRACE(fmt::format(
                "{}, {}, 1:{}, rings by {}, {}", layout.name, kind == FabricKind::fat_tree ? "fat tree" : "rails",
                oversubscription, kRingOrderNames[static_cast<std::size_t>(order)], adaptive ? "adaptive" : "static"));
            check(c);
          }
}

// Rings and shifts send equal flows, which end together on the busiest link: to rounding.
TEST(Placement, RingsTakeEquallyLongInBothEngines) {
  for_each_cluster([](const Cluster& c) {
    for (const std::int64_t inner : {1, 2, 4, 8}) {
      EXPECT_NEAR(difference(c, over_strided(c, inner, OpKind::all_gather, Algorithm::ring)), 0, 1e-6) << inner;
      EXPECT_NEAR(difference(c, over_strided(c, inner, OpKind::all_reduce, Algorithm::ring)), 0, 1e-6) << inner;
    }
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
              const Cluster drawn = on(by_leaf, scattered_nodes(16, 16, seed), 16, order);
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
