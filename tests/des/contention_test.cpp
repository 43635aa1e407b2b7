// Do collectives that share links take the time of their closed forms, and carry the bytes that theory says? Everywhere
// seconds = bytes / rate: shares of 1, no latencies.
#include <cmath>

#include "tests/des/support.h"

namespace orrery {
namespace {

using Algorithm = CollectiveAlgorithm;

constexpr double kExact = 1e-9;  // relative
constexpr double kMs = 1e-3;
// What takes a NIC to itself for a second.
constexpr double kNicSecond = kNicRate;

#define EXPECT_SAME(actual, expected) EXPECT_NEAR((actual) / (expected), 1, kExact)

// --- Rings and NICs

TEST(Contention, RingsThroughOneNicShareIt) {
  for (const std::int64_t nodes : {2, 3, 8})
    for (const std::int64_t rings : {1, 2, 3, 4}) {
      const Cluster c = ideal_cluster(nodes, rings, 1);
      const double n = static_cast<double>(nodes), k = static_cast<double>(rings);
      const CollectiveRun r = run(c, over_strided(c, rings, OpKind::all_gather));
      EXPECT_SAME(r.seconds, k * (n - 1) / n * kSize / kNicRate);
      EXPECT_SAME(links_of(r.link_kinds, "nic").busiest_bytes, k * (n - 1) / n * kSize);
      // With a NIC each they do not meet.
      const Cluster apart = ideal_cluster(nodes, rings, rings);
      EXPECT_SAME(seconds(apart, over_strided(apart, rings, OpKind::all_gather)), (n - 1) / n * kSize / kNicRate);
    }
}

// A message goes in slices of half a MiB on a channel for each device of a node: 8 MiB on two are eight, one behind the
// other over three hops.
TEST(StepExact, AChainPassesTheSlicesOfItsChannels) {
  const Cluster c = ideal_cluster(4, 2, 2);
  constexpr double kMessage = 8 << 20;
  const double took = seconds(c, over_strided(c, 2, OpKind::broadcast, Algorithm::automatic, kMessage), {},
                              {.fidelity = Fidelity::step_exact});
  EXPECT_SAME(took, (8 + 3 - 1) * kMessage / 8 / kNicRate);
}

// Two collectives of unequal size begin together on streams of their own: the smaller one takes half of the NICs until
// it ends, the larger one then has all.
TEST(Contention, TwoCollectivesShareNicsUntilTheSmallerOneEnds) {
  const Cluster c = ideal_cluster(2);
  HandmadeProgram two(mesh_of({{MeshAxis::dp_shard, 2}})), one = two;
  for (HandmadeProgram* p : {&two, &one})  // half of the bytes pass a NIC
    p->collective(0, OpKind::all_gather, Stream::parameter_communication, MeshAxis::dp_shard, 2 * 2 * kNicSecond,
                  "large");
  two.collective(0, OpKind::reduce_scatter, Stream::context_communication, MeshAxis::dp_shard, 2 * kNicSecond, "small");
  EXPECT_SAME(run_program(c, one.finish()).step_seconds, 2.0);
  const Report r = run_program(c, two.finish());
  EXPECT_SAME(r.step_seconds, 3.0);
  const auto& contention = r.discrete_event->contention;
  ASSERT_EQ(contention.size(), 2u);
  for (const ContentionReport& row : contention) {
    const bool large = row.op.find("large") != std::string::npos;
    EXPECT_SAME(row.seconds_alone, large ? 2.0 : 1.0) << row.op;
    EXPECT_SAME(row.seconds, large ? 3.0 : 2.0) << row.op;
    EXPECT_THAT(row.link, testing::HasSubstr(".nic0")) << row.op;
  }
}

// The flows of an exchange that has its links to itself have a course that is known, until another comes half-way: then
// each goes on with what it has left. An all-to-all of 2 s, four flows to a NIC, and from second 1 on two more of half
// a NIC-second each: the four end at 2.5 s, which leaves a NIC-second's quarter to each of the two.
TEST(Contention, AnExchangeUnderWayGoesOnWithWhatItHasLeft) {
  const Cluster c = ideal_cluster(2, 2, 1);
  HandmadeProgram p(mesh_of({{MeshAxis::tp, 2}, {MeshAxis::dp_shard, 2}}));
  p.collective(0, OpKind::all_to_all, Stream::tensor_communication,
               p.program.mesh.group({MeshAxis::tp, MeshAxis::dp_shard}), 2 * kNicSecond, "first");
  p.pieces[0].kernel(p.pieces[0].piece.forward, 1);
  p.collective(0, OpKind::all_gather, Stream::parameter_communication, MeshAxis::dp_shard, kNicSecond, "second");
  p.finish();
  for (const bool fold : {true, false}) {
    const Report r = run_program(c, p.program, {}, {.fold = fold});
    EXPECT_SAME(r.step_seconds, 3.0);
    for (const ContentionReport& row : r.discrete_event->contention) {
      const bool first = row.op.find("first") != std::string::npos;
      EXPECT_SAME(row.seconds_alone, first ? 2.0 : 1.0) << row.op;
      EXPECT_SAME(row.seconds, first ? 2.5 : 2.0) << row.op;
    }
    EXPECT_EQ(r.discrete_event->contention.empty(), false);
  }
}

// Two rings over the same NIC in one program: one joins all ranks, one those of equal place in their nodes.
TEST(Contention, RingsOfDifferentGroupsMeetAtTheNic) {
  const Cluster c = ideal_cluster(2, 2, 1);
  HandmadeProgram p(mesh_of({{MeshAxis::tp, 2}, {MeshAxis::dp_shard, 2}}));
  // Over all four: 3/4 of the bytes leave a node, on two channels. Over two: half of the bytes of either ring.
  p.collective(0, OpKind::all_gather, Stream::tensor_communication,
               p.program.mesh.group({MeshAxis::tp, MeshAxis::dp_shard}), 4.0 / 3 * kNicSecond);
  p.collective(0, OpKind::all_gather, Stream::parameter_communication, MeshAxis::dp_shard, kNicSecond);
  // Four flows of half a NIC-second each, which all get a quarter of the NIC.
  const Report r = run_program(c, p.finish());
  EXPECT_SAME(r.step_seconds, 2.0);
  EXPECT_SAME(links_of(r.discrete_event->link_kinds, "nic").busiest_bytes, 2 * kNicSecond);
}

// --- Switches above the NICs

TEST(Contention, AllToAllOverAnOversubscribedSpineTakesTheUpLinksTime) {
  for (const std::int64_t leaves : {2, 3}) {
    const Cluster c = ideal_fat_tree(FabricKind::fat_tree, 8 * leaves, 1, 8, 4);  // two ways up from eight NICs
    const double n = static_cast<double>(c.nodes);
    const double leaving = 8 * (n - 8) / n * kSize, up = 8 * kNicRate / 4;
    for (const Routing routing : {Routing::sprayed, Routing::per_flow}) {
      const CollectiveRun r = run(c, over_all(c, OpKind::all_to_all), {}, {.routing = routing});
      EXPECT_SAME(r.seconds, leaving / up);
      const LinkReport leaf = links_of(r.link_kinds, "leaf");
      const double ways = routing == Routing::sprayed ? 1 : 2;
      EXPECT_EQ(leaf.links, 2 * leaves * static_cast<std::int64_t>(ways));
      EXPECT_SAME(leaf.bytes, leaving / ways);
      EXPECT_SAME(leaf.busiest_bytes, leaving / ways);
      EXPECT_SAME(leaf.utilisation, 1.0);
    }
    // Without oversubscription the NICs bound it.
    Cluster full = c;
    full.fabric.oversubscription = 1;
    EXPECT_SAME(seconds(full, over_all(full, OpKind::all_to_all)), (n - 1) / n * kSize / kNicRate);
  }
}

// Static routing sends to every second node over every second spine only.
TEST(Contention, DestinationsThatAreAlikeModuloTheUpLinksCollideUnlessSprayed) {
  const Cluster c = ideal_fat_tree(FabricKind::fat_tree, 16, 1, 8, 4);
  HandmadeProgram p(mesh_of({{MeshAxis::ep, 8}}));
  p.collective(0, OpKind::all_to_all, Stream::expert_communication, MeshAxis::ep, kNicSecond);
  p.finish();
  const JobNodes every_second{.first_node = 0, .node_stride = 2};
  const double leaving = 4 * 4.0 / 8;  // in NIC-seconds, from each of two leaves
  const auto step = [&](Routing routing) {
    return run_programs(c, {{&p.program, every_second}}, {}, {.routing = routing}).front().step_seconds;
  };
  EXPECT_SAME(step(Routing::sprayed), leaving / 2);
  EXPECT_SAME(step(Routing::per_flow), leaving / 1);
}

// Two jobs on alternating nodes: each ring leaves its leaves once, over the one up-link.
TEST(Contention, JobsOnAlternatingNodesShareTheSpine) {
  const Cluster c = ideal_fat_tree(FabricKind::fat_tree, 8, 1, 4, 4);
  HandmadeProgram p(mesh_of({{MeshAxis::dp_shard, 4}}));
  p.collective(0, OpKind::all_gather, Stream::parameter_communication, MeshAxis::dp_shard, 4.0 / 3 * kNicSecond);
  p.finish();
  const JobNodes even{.first_node = 0, .node_stride = 2}, odd{.first_node = 1, .node_stride = 2};
  EXPECT_SAME(run_programs(c, {{&p.program, even}}).front().step_seconds, 1.0);
  for (const Report& r : run_programs(c, {{&p.program, even}, {&p.program, odd}})) EXPECT_SAME(r.step_seconds, 2.0);
  // On leaves of their own they do not meet.
  for (const Report& r : run_programs(c, {{&p.program, {0, 1}}, {&p.program, {4, 1}}}))
    EXPECT_SAME(r.step_seconds, 1.0);
}

TEST(Contention, RailsMeetAtTheSpineUnlessTheSwitchHandsMessagesToTheirRail) {
  for (const double oversubscription : {1.0, 2.0, 4.0}) {
    Cluster c = ideal_fat_tree(FabricKind::rail_fat_tree, 4, 4, 4, oversubscription);
    const double to_a_rank = kSize / 16, over_nic = 12 * to_a_rank;
    // PXN: rank d sends to the 3 other nodes what is for rail d; the node's devices hand it theirs.
    const CollectiveRun aligned = run(c, over_all(c, OpKind::all_to_all));
    EXPECT_SAME(aligned.seconds, over_nic / kNicRate);
    EXPECT_EQ(links_of(aligned.link_kinds, "leaf").bytes, 0);
    EXPECT_SAME(links_of(aligned.link_kinds, "nic").bytes, over_nic);
    // To 3 peers for themselves, and 3 x 3 messages for ranks of their rail on other nodes.
    EXPECT_SAME(links_of(aligned.link_kinds, "scale_up").bytes, (3 + 9) * to_a_rank);
    // Without the switch 9 of 12 messages change the rail.
    c.node.intra = IntraFabric::pcie;
    c.node.intra_bytes_per_second = 0;
    c.device.pcie_bytes_per_second = 100 * kNicRate;
    const CollectiveRun crossing = run(c, over_all(c, OpKind::all_to_all));
    const double up = 4 * kNicRate / oversubscription, crossing_bytes = 4 * 9 * to_a_rank;
    EXPECT_SAME(crossing.seconds, std::max(crossing_bytes / up, over_nic / kNicRate));
    EXPECT_SAME(
        links_of(crossing.link_kinds, "leaf").bytes * static_cast<double>(links_of(crossing.link_kinds, "leaf").links),
        2 * 4 * crossing_bytes);
  }
}

// Groups of six on nodes of four: the second one begins in the middle of a node, and its channels run from rails 2 and
// 3 to rails 0 and 1.
TEST(Contention, GroupsThatBeginInsideANodeCrossRails) {
  Cluster c = ideal_fat_tree(FabricKind::rail_fat_tree, 3, 4, 3, 6);
  const CollectiveRequest request{.kind = OpKind::all_gather,
                                  .bytes = kSize,
                                  .mesh = mesh_of({{MeshAxis::tp, 6}, {MeshAxis::dp_shard, 2}}),
                                  .group = MeshGroup::of_digit(0),
                                  .protocol = CollectiveProtocol::simple};
  const double of_a_channel = 5.0 / 6 / 2 * kSize, up = 3 * kNicRate / 6;
  const CollectiveRun r = run(c, request);
  EXPECT_SAME(r.seconds, of_a_channel / up);
  EXPECT_EQ(links_of(r.link_kinds, "leaf").links, 2 * 4);
  EXPECT_SAME(links_of(r.link_kinds, "leaf").bytes, of_a_channel);
  c.fabric.kind = FabricKind::fat_tree;  // one leaf for all
  EXPECT_SAME(seconds(c, request), of_a_channel / kNicRate);
}

TEST(Contention, DragonflyGroupsShareTheirGlobalLinks) {
  Cluster c = ideal_cluster(8);
  c.fabric.kind = FabricKind::dragonfly;
  c.fabric.nodes_per_group = 4;
  c.fabric.global_taper = 2;
  EXPECT_SAME(seconds(c, over_all(c, OpKind::all_to_all)), 4 * 4.0 / 8 * kSize / (4 * kNicRate / 2));
}

// --- Slow links

constexpr double kRingSeconds = 3.0 / 4 * kSize / kNicRate;  // an all-gather over four nodes: 15 ms

TEST(SlowLink, HalfTheRateTakesTwiceTheTime) {
  const Cluster c = ideal_cluster(4);
  const CollectiveRequest ring = over_all(c, OpKind::all_gather);
  for (const Fidelity fidelity : {Fidelity::steady_flow, Fidelity::step_exact}) {
    const DiscreteEventOptions options{.fidelity = fidelity};
    EXPECT_SAME(seconds(c, ring, {}, options), kRingSeconds);
    for (const char* link : {"node1.nic0.out", "node2.nic0.in", "node0.nic0", "node*.nic0"})
      EXPECT_SAME(seconds(c, ring, {slow_link(link, 0.5)}, options), 2 * kRingSeconds) << link;
    // Both at once, on the same link and on two in a row.
    EXPECT_SAME(seconds(c, ring, {slow_link("node1.nic0.out", 0.5), slow_link("node1.nic0.out", 0.5)}, options),
                4 * kRingSeconds);
    EXPECT_SAME(seconds(c, ring, {slow_link("node1.nic0.out", 0.5), slow_link("node2.nic0.in", 0.5)}, options),
                2 * kRingSeconds);
    // A link that nothing uses.
    EXPECT_SAME(seconds(ideal_cluster(5), ring, {slow_link("node4.nic0", 0.5)}, options), kRingSeconds);
    // Below a millionth of a rate times would lose their digits: each is above, not both.
    EXPECT_THROW(seconds(c, ring, {slow_link("node1.nic0.out", 1e-4), slow_link("node1.*", 1e-3)}, options),
                 InputError);
  }
}

TEST(SlowLink, ATimeWindowCostsWhatDoesNotPassInIt) {
  const Cluster c = ideal_cluster(4);
  const CollectiveRequest ring = over_all(c, OpKind::all_gather);
  const auto took = [&](const std::vector<Perturbation>& p) { return seconds(c, ring, p); };
  EXPECT_SAME(took({slow_link("node1.nic0.out", 0.25, 2 * kMs, 8 * kMs)}), kRingSeconds + 0.75 * 6 * kMs);
  EXPECT_SAME(took({slow_link("node1.nic0.out", 0.25, 0, 8 * kMs)}), kRingSeconds + 0.75 * 8 * kMs);
  EXPECT_SAME(took({slow_link("node1.nic0.out", 0.5, 10 * kMs)}), 10 * kMs + 2 * (kRingSeconds - 10 * kMs));
  EXPECT_SAME(took({slow_link("node1.nic0.out", 0.5, 20 * kMs)}), kRingSeconds);
  EXPECT_SAME(
      took({slow_link("node1.nic0.out", 0.5, 1 * kMs, 3 * kMs), slow_link("node3.nic0.in", 0.5, 2 * kMs, 5 * kMs)}),
      kRingSeconds + 0.5 * 3 * kMs);  // the ring ends with its slower edge
}

// One NIC of eight, of which the ring uses four.
TEST(SlowLink, OnlyAsManyAsToldAndAnyOfThoseNamed) {
  const Cluster c = ideal_cluster(8);
  const CollectiveRequest ring = over_all(ideal_cluster(4), OpKind::all_gather);
  int slower = 0;
  for (const std::int64_t seed : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}) {
    Perturbation one = slow_link("node*.nic0.out", 0.5);
    one.count = 1;
    one.seed = seed;
    const double took = seconds(c, ring, {one});
    EXPECT_EQ(took, seconds(c, ring, {one})) << "the same seed picks the same one";
    slower += took > 1.5 * kRingSeconds;
    EXPECT_SAME(took, (took > 1.5 * kRingSeconds ? 2 : 1) * kRingSeconds);
  }
  EXPECT_GT(slower, 0);
  EXPECT_LT(slower, 12);
  Perturbation all = slow_link("node*.nic0.out", 0.5);
  all.count = 8;
  EXPECT_SAME(seconds(c, ring, {all}), 2 * kRingSeconds);
}

// --- Background traffic

TEST(BackgroundTraffic, LeavesTheFairShareOrWhatItDoesNotTake) {
  const Cluster c = ideal_cluster(4);
  const CollectiveRequest ring = over_all(c, OpKind::all_gather);
  for (const double taken : {0.1, 0.25, 0.5, 0.8, 1.0, 3.0})
    EXPECT_SAME(seconds(c, ring, {background("node1.nic0.out", taken * kNicRate)}),
                kRingSeconds / std::max(0.5, 1 - taken));
  // Two rings and the traffic are three.
  const Cluster shared = ideal_cluster(4, 2, 1);
  for (const double taken : {0.1, 0.25, 0.5, 0.8})
    EXPECT_SAME(
        seconds(shared, over_strided(shared, 2, OpKind::all_gather), {background("node1.nic0.out", taken * kNicRate)}),
        kRingSeconds / std::max(1.0 / 3, (1 - taken) / 2));
}

TEST(BackgroundTraffic, LastsAsLongAsItIsTold) {
  const Cluster c = ideal_cluster(4);
  const CollectiveRequest ring = over_all(c, OpKind::all_gather);
  const auto took = [&](double from, double until) {
    return seconds(c, ring, {background("node1.nic0.out", 0.75 * kNicRate, from, until)});
  };
  EXPECT_SAME(took(3 * kMs, 9 * kMs), kRingSeconds + 0.5 * 6 * kMs);
  EXPECT_SAME(took(0, 9 * kMs), kRingSeconds + 0.5 * 9 * kMs);
  EXPECT_SAME(took(3 * kMs, 0), 3 * kMs + 2 * (kRingSeconds - 3 * kMs));
  EXPECT_SAME(took(16 * kMs, 0), kRingSeconds);
}

// SimGrid would complain of a flow that is left behind.
TEST(BackgroundTraffic, ThatOutlastsTheRunEndsWithItQuietly) {
  const Cluster c = ideal_cluster(4);
  testing::internal::CaptureStderr();
  for (const double until : {0.0, 1.0})
    EXPECT_SAME(seconds(c, over_all(c, OpKind::all_gather), {background("node1.nic0.out", 0.25 * kNicRate, 0, until)}),
                kRingSeconds / 0.75);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

// --- Host memory

TEST(Contention, CopiesOfANodeShareItsHostMemory) {
  Cluster c = ideal_cluster(1, 4);
  c.device.pcie_bytes_per_second = 100e9;
  for (const double memory : {100e9, 150e9, 300e9, 1000e9}) {
    c.node.host_memory_bytes_per_second = memory;
    HandmadeProgram p(mesh_of({{MeshAxis::dp_shard, 4}}));
    p.pieces[0].copy(p.pieces[0].piece.forward, Stream::device_to_host, 100'000'000'000);
    const Report r = run_program(c, p.finish());
    EXPECT_SAME(r.step_seconds, std::max(1.0, 4 * 100e9 / memory));
    EXPECT_SAME(links_of(r.discrete_event->link_kinds, "host_memory").busiest_bytes, 4 * 100e9);
  }
}

// --- Bytes

TEST(Bytes, TreesLoadTheirBusiestNodeMoreThanRings) {
  for (const std::int64_t nodes : {2, 3, 4, 5, 6, 7, 8, 16}) {
    const Cluster c = ideal_cluster(nodes);
    const double n = static_cast<double>(nodes);
    const CollectiveRun ring = run(c, over_all(c, OpKind::all_reduce, Algorithm::ring));
    const CollectiveRun tree = run(c, over_all(c, OpKind::all_reduce, Algorithm::tree));
    EXPECT_EQ(ring.algorithm, Algorithm::ring);
    EXPECT_EQ(tree.algorithm, Algorithm::tree);
    EXPECT_SAME(ring.seconds, 2 * (n - 1) / n * kSize / kNicRate);
    EXPECT_SAME(links_of(ring.link_kinds, "nic").busiest_bytes, 2 * (n - 1) / n * kSize);
    // As many bytes altogether. A node is a leaf of one tree and inside the other: 1/2 + 3/2 (of two: 1/2 + 1/2).
    EXPECT_SAME(links_of(tree.link_kinds, "nic").bytes, 2 * (n - 1) / n * kSize);
    const double busiest = nodes == 2 ? 1 : nodes == 3 ? 1.5 : 2;
    EXPECT_SAME(links_of(tree.link_kinds, "nic").busiest_bytes, busiest * kSize);
    EXPECT_SAME(tree.seconds, busiest * kSize / kNicRate) << nodes;
  }
}

struct Theory {
  OpKind kind;
  Algorithm algorithm;
  double busiest;  // of kSize, over a port
  double mean;     // over those that carry anything
  std::int64_t ports;
};

// A group of eight, in one node or on eight: what each port or NIC carries, in and out.
TEST(Bytes, EveryCollectiveCarriesWhatTheorySays) {
  constexpr double kPart = 7.0 / 8;
  const std::vector<Theory> all{
      {OpKind::all_reduce, Algorithm::ring, 2 * kPart, 2 * kPart, 16},
      {OpKind::all_reduce, Algorithm::bidirectional_ring, 2 * kPart, 2 * kPart, 16},
      {OpKind::all_reduce, Algorithm::halving_doubling, 2 * kPart, 2 * kPart, 16},
      {OpKind::all_gather, Algorithm::ring, kPart, kPart, 16},
      {OpKind::all_gather, Algorithm::halving_doubling, kPart, kPart, 16},
      {OpKind::reduce_scatter, Algorithm::ring, kPart, kPart, 16},
      {OpKind::reduce_scatter, Algorithm::bidirectional_ring, kPart, kPart, 16},
      {OpKind::reduce_scatter, Algorithm::halving_doubling, kPart, kPart, 16},
      {OpKind::all_to_all, Algorithm::direct, kPart, kPart, 16},
      {OpKind::broadcast, Algorithm::ring, 1, 1, 14},
      {OpKind::reduce, Algorithm::ring, 1, 1, 14},
      {OpKind::ring_shift, Algorithm::direct, 1, 1, 16},
      {OpKind::send, Algorithm::direct, 1, 1, 2},
  };
  for (const bool in_node : {true, false}) {
    const Cluster c = in_node ? ideal_cluster(1, 8) : ideal_cluster(8);
    const double rate = in_node ? kScaleUpRate : kNicRate;
    for (const Theory& theory : all) {
      const std::string what = std::string(name_of(theory.kind)) + " " + name_of(theory.algorithm);
      for (const Fidelity fidelity : {Fidelity::steady_flow, Fidelity::step_exact}) {
        const CollectiveRun r = run(c, over_all(c, theory.kind, theory.algorithm), {}, {.fidelity = fidelity});
        EXPECT_EQ(r.algorithm, theory.algorithm) << what;
        ASSERT_EQ(r.link_kinds.size(), 1u) << what;
        const LinkReport& ports = r.link_kinds.front();
        EXPECT_EQ(ports.name, in_node ? "scale_up" : "nic") << what;
        EXPECT_EQ(ports.links, theory.ports) << what;
        EXPECT_SAME(ports.bytes, theory.mean * kSize) << what;
        EXPECT_SAME(ports.busiest_bytes, theory.busiest * kSize) << what;
        if (fidelity == Fidelity::step_exact) continue;  // chains take a while to fill
        EXPECT_SAME(r.seconds, theory.busiest * kSize / rate) << what;
      }
    }
  }
}

TEST(Bytes, NvlsPassesEachPortOnceAndTheReducedShardOnceMore) {
  Cluster c = ideal_cluster(1, 8);
  c.node.in_switch_reduction = true;
  const CollectiveRun r = run(c, over_all(c, OpKind::all_reduce, Algorithm::nvls));
  EXPECT_EQ(r.algorithm, Algorithm::nvls);
  EXPECT_SAME(links_of(r.link_kinds, "scale_up").busiest_bytes, 9.0 / 8 * kSize);
  EXPECT_SAME(links_of(r.link_kinds, "scale_up").bytes, 9.0 / 8 * kSize);
  EXPECT_SAME(r.seconds, 9.0 / 8 * kSize / kScaleUpRate);
}

TEST(Bytes, HierarchicalPhasesFollowEachOther) {
  const Cluster c = ideal_cluster(4, 4, 4);
  struct Case {
    OpKind kind;
    double rounds;
  };
  for (const auto& [kind, rounds] :
       {Case{OpKind::all_reduce, 2}, {OpKind::all_gather, 1}, {OpKind::reduce_scatter, 1}}) {
    const double inside = rounds * 3 / 4 * kSize, outside = rounds * 3 / 4 * kSize / 4;
    const CollectiveRun r = run(c, over_all(c, kind, Algorithm::hierarchical));
    EXPECT_EQ(r.algorithm, Algorithm::hierarchical);
    EXPECT_SAME(links_of(r.link_kinds, "scale_up").busiest_bytes, inside);
    EXPECT_SAME(links_of(r.link_kinds, "nic").busiest_bytes, outside);
    EXPECT_SAME(r.seconds, inside / kScaleUpRate + outside / kNicRate);
    EXPECT_SAME(links_of(r.link_kinds, "nic").busy_seconds, outside / kNicRate);
    // The ring's levels overlap, and more bytes leave the nodes.
    const CollectiveRun ring = run(c, over_all(c, kind, Algorithm::ring));
    EXPECT_SAME(links_of(ring.link_kinds, "nic").busiest_bytes, rounds * 15 / 16 * kSize / 4);
    EXPECT_SAME(links_of(ring.link_kinds, "scale_up").bytes, rounds * 15 / 16 * 3 / 4 * kSize);
  }
}

// The report's bins are the same bytes again, where they were sent: over NICs in the middle phase of three.
TEST(Bytes, LinksOverTimeAddUpToTheirBytes) {
  const Cluster c = ideal_cluster(4, 4, 4);
  const CollectiveRun r = run(c, over_all(c, OpKind::all_reduce, Algorithm::hierarchical));
  for (const LinkReport& link : r.link_kinds) {
    double mean = 0;
    for (const double share : link.over_time) mean += share / static_cast<double>(kLinkBins);
    EXPECT_SAME(mean * r.seconds * link.bytes_per_second, link.busiest_bytes) << link.name;
    EXPECT_SAME(link.utilisation, mean) << link.name;
    EXPECT_SAME(link.busy_seconds, mean * r.seconds) << "at its full rate";
  }
  const LinkReport nic = links_of(r.link_kinds, "nic");
  EXPECT_EQ(nic.over_time.front(), 0);
  EXPECT_EQ(nic.over_time.back(), 0);
  EXPECT_SAME(nic.over_time[kLinkBins / 2], 1.0);
  // Of what a slow link still carries.
  const CollectiveRun slow = run(c, over_all(c, OpKind::all_gather), {slow_link("node1.nic0.out", 0.5)});
  EXPECT_SAME(links_of(slow.link_kinds, "nic").utilisation, 1.0);
  // Or carries in the time that is left to it.
  const Cluster single = ideal_cluster(4);
  const double window = 8 * kMs, took = kRingSeconds + 0.75 * window;
  const CollectiveRun for_a_while =
      run(single, over_all(single, OpKind::all_gather), {slow_link("node1.nic0.out", 0.25, 0, window)});
  EXPECT_SAME(for_a_while.seconds, took);
  EXPECT_SAME(links_of(for_a_while.link_kinds, "nic").bytes_per_second, kNicRate * kRingSeconds / took);
  EXPECT_SAME(links_of(for_a_while.link_kinds, "nic").utilisation, 1.0);
}

}  // namespace
}  // namespace orrery
