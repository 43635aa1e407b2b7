// Is folding exact: does the folded run take the time of the whole one, with as few classes as there should be? And how
// far is an edge's steady flow from its messages?
#include <fmt/format.h>

#include <limits>
#include <map>
#include <random>
#include <set>

#include "sim/des/traffic.h"
#include "tests/des/support.h"

namespace orrery {
namespace {

using Algorithm = CollectiveAlgorithm;
using Vertex = ColourRefinement::Vertex;

// --- Colour refinement

struct Graph {
  std::vector<ColourRefinement::Colour> colours;
  std::vector<std::pair<Vertex, Vertex>> edges;
};
Graph path(std::size_t n) {
  Graph g{std::vector<ColourRefinement::Colour>(n, 1), {}};
  for (Vertex v = 0; v + 1 < n; ++v) g.edges.emplace_back(v, v + 1);
  return g;
}
Graph cycle(std::size_t n) {
  Graph g = path(n);
  g.edges.emplace_back(static_cast<Vertex>(n - 1), 0);
  return g;
}
std::vector<std::uint32_t> classes(const Graph& g) {
  ColourRefinement r;
  for (const auto colour : g.colours) r.add_vertex(colour);
  for (const auto& [a, b] : g.edges) r.add_edge(a, b);
  return r.refine();
}
std::size_t count(const std::vector<std::uint32_t>& classes) { return std::set(classes.begin(), classes.end()).size(); }

TEST(ColourRefinement, ACycleIsOneClassAndAPathMirrorsItself) {
  for (const std::size_t n : {3u, 4u, 7u, 64u}) {
    EXPECT_EQ(count(classes(cycle(n))), 1u) << n;
    const auto found = classes(path(n));
    EXPECT_EQ(count(found), (n + 1) / 2) << n;
    for (std::size_t v = 0; v < n; ++v) {
      EXPECT_EQ(found[v], found[n - 1 - v]) << n;
      EXPECT_EQ(found[v], std::min(v, n - 1 - v)) << "classes are numbered by their first vertex";
    }
  }
}

TEST(ColourRefinement, AMarkedVertexTellsOthersApartByTheirDistance) {
  for (const std::size_t n : {5u, 8u}) {
    Graph g = cycle(n);
    g.colours[2] = 7;
    const auto found = classes(g);
    EXPECT_EQ(count(found), n / 2 + 1);
    for (std::size_t d = 1; d < n; ++d) EXPECT_EQ(found[(2 + d) % n], found[(2 + n - d) % n]) << d;
  }
}

TEST(ColourRefinement, DisjointCopiesShareTheirClasses) {
  Graph g;
  for (int copy = 0; copy < 5; ++copy) {
    const auto base = static_cast<Vertex>(g.colours.size());
    const Graph one = path(6);
    g.colours.insert(g.colours.end(), one.colours.begin(), one.colours.end());
    for (const auto& [a, b] : one.edges) g.edges.emplace_back(base + a, base + b);
  }
  const auto found = classes(g);
  EXPECT_EQ(count(found), 3u);
  for (std::size_t v = 6; v < found.size(); ++v) EXPECT_EQ(found[v], found[v % 6]);
}

TEST(ColourRefinement, ParallelEdgesCount) {
  Graph g{{1, 1, 1, 1}, {{0, 1}, {2, 3}}};
  EXPECT_EQ(count(classes(g)), 1u);
  g.edges.emplace_back(2, 3);
  const auto found = classes(g);
  EXPECT_EQ(count(found), 2u);
  EXPECT_EQ(found[0], found[1]);
  EXPECT_EQ(found[2], found[3]);
}

// Against refinement by the multisets of neighbours' classes, without hashes.
TEST(ColourRefinement, FindsTheCoarsestEquitablePartitionOfRandomGraphs) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    const std::size_t n = 2 + random() % 24;
    Graph g;
    for (std::size_t v = 0; v < n; ++v) g.colours.push_back(random() % 2);
    for (std::size_t e = random() % (2 * n); e > 0; --e)
      g.edges.emplace_back(static_cast<Vertex>(random() % n), static_cast<Vertex>(random() % n));

    std::vector<std::size_t> expected(g.colours.begin(), g.colours.end());
    for (std::size_t before = 0;;) {
      std::vector<std::pair<std::size_t, std::multiset<std::size_t>>> seen(n);
      for (std::size_t v = 0; v < n; ++v) seen[v].first = expected[v];
      for (const auto& [a, b] : g.edges) {
        seen[a].second.insert(expected[b]);
        seen[b].second.insert(expected[a]);
      }
      std::map<std::pair<std::size_t, std::multiset<std::size_t>>, std::size_t> number;
      for (std::size_t v = 0; v < n; ++v) expected[v] = number.try_emplace(seen[v], number.size()).first->second;
      if (number.size() == before) break;
      before = number.size();
    }
    const auto found = classes(g);
    for (std::size_t a = 0; a < n; ++a)
      for (std::size_t b = 0; b < n; ++b) ASSERT_EQ(found[a] == found[b], expected[a] == expected[b]) << round;
  }
}

// --- Folded collectives

constexpr double kSame = 1e-9;  // relative

std::string describe(const CollectiveRequest& r) {
  return fmt::format("{} {} of {} bytes", name_of(r.kind), name_of(r.algorithm), r.bytes);
}

// Returns the folded run.
CollectiveRun expect_folds(const Cluster& c, const CollectiveRequest& request, const CollectiveCalibration& collectives,
                           const std::vector<Perturbation>& perturbations = {}, DiscreteEventOptions options = {}) {
  const CollectiveRun folded = run(c, request, perturbations, options, collectives);
  options.fold = false;
  const CollectiveRun whole = run(c, request, perturbations, options, collectives);
  EXPECT_NEAR(folded.seconds / whole.seconds, 1, kSame) << describe(request);
  EXPECT_EQ(folded.flows, whole.flows);
  EXPECT_GE(whole.flow_classes, whole.flows) << describe(request);  // background traffic is no flow of the collective
  EXPECT_LE(folded.flow_classes, whole.flow_classes) << describe(request);
  EXPECT_EQ(folded.link_kinds.size(), whole.link_kinds.size()) << describe(request);
  for (std::size_t k = 0; k < std::min(folded.link_kinds.size(), whole.link_kinds.size()); ++k) {
    const LinkReport &a = folded.link_kinds[k], &b = whole.link_kinds[k];
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.links, b.links) << a.name << " " << describe(request);
    EXPECT_NEAR(a.bytes / b.bytes, 1, kSame) << a.name << " " << describe(request);
    EXPECT_NEAR(a.busiest_bytes / b.busiest_bytes, 1, kSame) << a.name << " " << describe(request);
  }
  return folded;
}

struct CollectiveKind {
  OpKind kind;
  Algorithm algorithm;
};
const std::vector<CollectiveKind>& all_kinds() {
  static const std::vector<CollectiveKind> kinds{{OpKind::all_reduce, Algorithm::ring},
                                                 {OpKind::all_reduce, Algorithm::bidirectional_ring},
                                                 {OpKind::all_reduce, Algorithm::tree},
                                                 {OpKind::all_reduce, Algorithm::nvls},
                                                 {OpKind::all_reduce, Algorithm::hierarchical},
                                                 {OpKind::all_reduce, Algorithm::halving_doubling},
                                                 {OpKind::all_gather, Algorithm::ring},
                                                 {OpKind::all_gather, Algorithm::hierarchical},
                                                 {OpKind::reduce_scatter, Algorithm::halving_doubling},
                                                 {OpKind::all_to_all, Algorithm::direct},
                                                 {OpKind::all_to_all, Algorithm::hierarchical},
                                                 {OpKind::broadcast, Algorithm::ring},
                                                 {OpKind::ring_shift, Algorithm::direct}};
  return kinds;
}

// The ones that differ most in what they load.
const std::vector<CollectiveKind>& some_kinds() {
  static const std::vector<CollectiveKind> kinds{{OpKind::all_reduce, Algorithm::ring},
                                                 {OpKind::all_reduce, Algorithm::tree},
                                                 {OpKind::all_reduce, Algorithm::hierarchical},
                                                 {OpKind::reduce_scatter, Algorithm::halving_doubling},
                                                 {OpKind::all_to_all, Algorithm::direct}};
  return kinds;
}

// Real rates and latencies: four nodes of eight H100 under two leaves.
struct World {
  Cluster cluster;
  CollectiveCalibration collectives;
};
World h100(std::int64_t nodes, FabricKind fabric, double oversubscription) {
  World w;
  w.cluster = read_cluster({{"node", "dgx-h100"}, {"nodes", nodes}}, {});
  w.cluster.fabric.kind = fabric;
  w.cluster.fabric.nodes_per_leaf = nodes / 2;
  w.cluster.fabric.oversubscription = oversubscription;
  w.collectives = find_collective_calibration(w.cluster);
  return w;
}

TEST(Fold, EveryCollectiveTakesTheTimeOfTheWhole) {
  const World w = h100(4, FabricKind::rail_fat_tree, 1);
  for (const auto& [kind, algorithm] : all_kinds())
    for (const double bytes : {1e5, 1e9}) {
      CollectiveRequest request = over_all(w.cluster, kind, algorithm, bytes);
      const CollectiveRun r = expect_folds(w.cluster, request, w.collectives);
      EXPECT_EQ(r.algorithm, algorithm) << describe(request);
      // A chain has an end and a tree a root: less is alike.
      if (kind != OpKind::broadcast && algorithm != Algorithm::tree && algorithm != Algorithm::nvls) {
        EXPECT_LE(r.flow_classes, 10) << describe(request);  // halving and doubling: a class each of ten steps
      }
      request = over_strided(w.cluster, 4, kind, algorithm, bytes);
      if (bytes > 1e6) expect_folds(w.cluster, request, w.collectives);
    }
}

TEST(Fold, MessageByMessageToo) {
  const World w = h100(2, FabricKind::rail_fat_tree, 1);
  for (const auto& [kind, algorithm] : all_kinds())
    for (const double bytes : {1e5, 3e7})
      expect_folds(w.cluster, over_all(w.cluster, kind, algorithm, bytes), w.collectives, {},
                   {.fidelity = Fidelity::step_exact});
}

TEST(Fold, OversubscribedFabricsAndStaticRoutes) {
  for (const FabricKind fabric : {FabricKind::fat_tree, FabricKind::rail_fat_tree})
    for (const Routing routing : {Routing::sprayed, Routing::per_flow}) {
      const World w = h100(4, fabric, 4);
      for (const auto& [kind, algorithm] : some_kinds())
        expect_folds(w.cluster, over_all(w.cluster, kind, algorithm), w.collectives, {}, {.routing = routing});
      for (const auto& [kind, algorithm] :
           {CollectiveKind{OpKind::all_to_all, Algorithm::direct}, {OpKind::all_reduce, Algorithm::ring}})
        expect_folds(w.cluster, over_strided(w.cluster, 8, kind, algorithm), w.collectives, {}, {.routing = routing});
    }
}

TEST(Fold, OtherNodesAndFabrics) {
  std::vector<Cluster> clusters;
  Cluster c = ideal_cluster(8, 2, 2);
  c.fabric.kind = FabricKind::dragonfly;
  c.fabric.nodes_per_group = 4;
  c.fabric.global_taper = 3;
  clusters.push_back(c);
  c.fabric.kind = FabricKind::torus;
  c.fabric.dimensions = {4, 2};
  clusters.push_back(c);
  for (const char* node : {"dgx-1v", "mi300x-8", "frontier", "summit"})
    clusters.push_back(read_cluster({{"node", node}, {"nodes", 2}}, {}));
  for (const char* node : {"pcie-8", "nvlink-pairs-8"})
    clusters.push_back(read_cluster(
        {{"node", node}, {"device", "A100-PCIe-80GB"}, {"nodes", 2}, {"inter_node_bytes_per_second", 25e9}}, {}));
  for (const Cluster& cluster : clusters) {
    SCOPED_TRACE(cluster.node.name);
    const CollectiveCalibration collectives =
        cluster.node.name.empty() ? ideal_collectives() : find_collective_calibration(cluster);
    for (const auto& [kind, algorithm] : some_kinds())
      expect_folds(cluster, over_all(cluster, kind, algorithm), collectives);
    expect_folds(cluster, over_strided(cluster, 2, OpKind::all_to_all), collectives);
    expect_folds(cluster, over_strided(cluster, 2, OpKind::all_reduce, Algorithm::ring), collectives);
  }
}

TEST(Fold, WhatASlowLinkTellsApart) {
  const World w = h100(4, FabricKind::rail_fat_tree, 2);
  for (const auto& [kind, algorithm] : all_kinds())
    for (const char* link : {"node1.nic3.out", "leaf0.*", "node*.gpu5.scale_up"}) {
      const CollectiveRequest request = over_all(w.cluster, kind, algorithm);
      expect_folds(w.cluster, request, w.collectives, {slow_link(link, 0.3)});
    }
  for (const auto& [kind, algorithm] : some_kinds())
    expect_folds(w.cluster, over_all(w.cluster, kind, algorithm), w.collectives,
                 {slow_link("leaf0.*", 0.3, 1e-3, 4e-3)});
}

TEST(Fold, WhatBackgroundTrafficTellsApart) {
  const World w = h100(4, FabricKind::rail_fat_tree, 2);
  for (const auto& [kind, algorithm] : some_kinds())
    for (const char* link : {"node2.nic1", "leaf*.up"}) {
      const CollectiveRequest request = over_all(w.cluster, kind, algorithm);
      expect_folds(w.cluster, request, w.collectives, {background(link, 20e9)});
      expect_folds(w.cluster, request, w.collectives, {background(link, 20e9, 1e-3, 4e-3)});
    }
}

// Any groups of any mesh on any fabric, some of whose links are slow.
TEST(Fold, RandomMeshesAndSlowLinks) {
  std::mt19937_64 random(7);
  const auto pick = [&](std::initializer_list<std::int64_t> from) { return from.begin()[random() % from.size()]; };
  for (int round = 0; round < 80; ++round) {
    Cluster c = ideal_cluster(pick({2, 3, 4, 6}), pick({1, 2, 3, 4}), pick({1, 2, 4}));
    c.device.pcie_bytes_per_second = random() % 2 == 0 ? 0 : 60e9;
    c.fabric.kind =
        std::array{FabricKind::single_switch, FabricKind::fat_tree, FabricKind::rail_fat_tree}[random() % 3];
    c.fabric.nodes_per_leaf = pick({1, 2, 3});
    c.fabric.oversubscription = static_cast<double>(pick({1, 2, 3}));
    CollectiveRequest request;
    const auto& [kind, algorithm] = all_kinds()[random() % all_kinds().size()];
    request.kind = kind;
    request.algorithm = algorithm;
    request.bytes = kSize;
    request.protocol = CollectiveProtocol::simple;
    std::int64_t left = c.devices();
    for (const MeshAxis axis :
         {MeshAxis::tp, MeshAxis::cp, MeshAxis::ep, MeshAxis::dp_shard, MeshAxis::dp_replicate, MeshAxis::pp}) {
      std::vector<std::int64_t> divisors;
      for (std::int64_t d = 1; d <= left; ++d)
        if (left % d == 0) divisors.push_back(d);
      request.mesh.add(axis, divisors[random() % divisors.size()]);
      left /= request.mesh.size(axis);
      if (random() % 2 == 0) request.group = request.group | request.mesh.group(axis);
    }
    if (request.group.empty()) continue;
    std::vector<Perturbation> perturbations;
    for (std::uint64_t p = random() % 3; p > 0; --p) {
      perturbations.push_back(
          slow_link(random() % 2 == 0 ? "node*" : "*.in", 0.25 + 0.1 * static_cast<double>(random() % 5)));
      perturbations.back().count = pick({1, 2, 5});
      perturbations.back().seed = static_cast<std::int64_t>(random() % 100);
    }
    SCOPED_TRACE(
        fmt::format("round {}: {} nodes of {}, digits {}", round, c.nodes, c.node.devices, request.group.bits()));
    expect_folds(c, request, ideal_collectives(), perturbations,
                 {.fidelity = random() % 3 == 0 ? Fidelity::step_exact : Fidelity::steady_flow,
                  .routing = random() % 2 == 0 ? Routing::per_flow : Routing::sprayed});
    if (HasFailure()) break;
  }
}

// --- Folded steps

Scenario small(const char* node = "dgx-h100", std::int64_t nodes = 2) {
  Scenario s = scenario_of("gpt3-1.3B", node, nodes);
  s.model.layers = 4;
  s.workload = {2048, 0, 32};
  return s;
}
// Returns the folded step.
DiscreteEventReport expect_step_folds(const Scenario& s, const std::string& what, DiscreteEventOptions options = {}) {
  const Report folded = simulate_des(s, options);
  options.fold = false;
  const Report whole = simulate_des(s, options);
  EXPECT_NEAR(folded.step_seconds / whole.step_seconds, 1, kSame) << what;
  EXPECT_EQ(whole.discrete_event->rank_classes, whole.discrete_event->ranks) << what;
  EXPECT_LT(folded.discrete_event->rank_classes, whole.discrete_event->rank_classes) << what;
  EXPECT_LE(folded.discrete_event->events, whole.discrete_event->events) << what;
  EXPECT_EQ(folded.stages.size(), whole.stages.size()) << what;
  for (std::size_t i = 0; i < folded.stages.size(); ++i) {
    EXPECT_NEAR(folded.stages[i].busy_seconds / whole.stages[i].busy_seconds, 1, kSame) << what;
    EXPECT_NEAR(folded.stages[i].time.matmul / whole.stages[i].time.matmul, 1, kSame) << what;
    for (std::size_t stream = 0; stream < kStreams; ++stream)
      EXPECT_NEAR(folded.stages[i].time.exposed[stream], whole.stages[i].time.exposed[stream],
                  kSame * whole.step_seconds)
          << what << " " << name_of(static_cast<Stream>(stream));
  }
  for (std::size_t k = 0; k < folded.discrete_event->link_kinds.size(); ++k)
    EXPECT_NEAR(folded.discrete_event->link_kinds[k].bytes / whole.discrete_event->link_kinds[k].bytes, 1, kSame)
        << what;
  return *folded.discrete_event;
}

TEST(FoldedStep, RanksOfAStageAreOneClass) {
  for (const std::int64_t tp : {1, 8})
    for (const std::int64_t pp : {1, 2, 4})
      for (const std::int64_t zero : {0, 3}) {
        Scenario s = small();
        if (tp * pp > s.cluster.devices()) continue;
        s.plan.tensor.degree = tp;
        s.plan.tensor.sequence_parallel = tp > 1;
        s.plan.pipeline.degree = pp;
        s.plan.data.zero_stage = zero;
        const std::string what = fmt::format("tp {} pp {} zero {}", tp, pp, zero);
        EXPECT_EQ(expect_step_folds(s, what).rank_classes, pp) << what;
      }
}

TEST(FoldedStep, ContextParallelRingsAndHybridSharding) {
  Scenario s = small("dgx-h100", 4);
  s.plan.context.degree = 4;
  s.plan.data.zero_stage = 3;
  s.plan.data.shard_degree = 4;
  EXPECT_EQ(expect_step_folds(s, "cp 4, HSDP").rank_classes, 1);
  s.plan.tensor.degree = 2;
  s.plan.pipeline.degree = 2;
  s.plan.data.zero_stage = 1;
  s.plan.data.shard_degree = 0;
  EXPECT_EQ(expect_step_folds(s, "tp 2 cp 4 pp 2").rank_classes, 2);
}

TEST(FoldedStep, AStragglerTellsOnlyWhatMeetsItApart) {
  for (const std::int64_t nodes : {2, 4})
    for (const std::int64_t zero : {1, 3}) {
      Scenario s = small("dgx-h100", nodes);
      s.model.layers = 2;
      s.plan.data.zero_stage = zero;
      s.perturbations = {slow_device(13, 0.7)};
      const std::string what = fmt::format("{} nodes, zero {}", nodes, zero);
      EXPECT_EQ(expect_step_folds(s, "data parallel, " + what).rank_classes, 2) << what;
      // Itself, its tensor-parallel group, the ranks of its place in other groups, and the rest.
      s.plan.tensor.degree = 8;
      EXPECT_EQ(expect_step_folds(s, "tp 8, " + what).rank_classes, 4) << what;
      s.plan.tensor.degree = 2;
      s.plan.pipeline.degree = 2;
      expect_step_folds(s, "tp 2 pp 2, " + what);
    }
}

TEST(FoldedStep, SlowLinksAndOversubscribedFabrics) {
  for (const Routing routing : {Routing::per_flow, Routing::sprayed}) {
    Scenario s = small("dgx-h100", 4);
    s.cluster.fabric.kind = FabricKind::fat_tree;
    s.cluster.fabric.nodes_per_leaf = 2;
    s.cluster.fabric.oversubscription = 4;
    s.plan.data.zero_stage = 3;
    s.workload.global_batch_size = 32;
    expect_step_folds(s, "oversubscribed", {.routing = routing});
    s.perturbations = {slow_link("node2.nic5", 0.25)};
    expect_step_folds(s, "slow NIC", {.routing = routing});
    s.plan.tensor.degree = 2;
    s.plan.pipeline.degree = 2;
    expect_step_folds(s, "slow NIC, tp 2 pp 2", {.routing = routing});
  }
}

TEST(FoldedStep, MessageByMessage) {
  Scenario s = small();
  s.model.layers = 2;
  s.workload.global_batch_size = 16;
  s.plan.data.zero_stage = 3;
  EXPECT_EQ(expect_step_folds(s, "zero 3", {.fidelity = Fidelity::step_exact}).rank_classes, 1);
  s.plan.tensor.degree = 4;
  s.plan.pipeline.degree = 2;
  s.plan.data.zero_stage = 1;
  EXPECT_EQ(expect_step_folds(s, "tp 4 pp 2", {.fidelity = Fidelity::step_exact}).rank_classes, 2);
}

TEST(FoldedStep, JobsThatShareASpine) {
  Scenario s = small("dgx-a100", 4);
  s.plan.data.zero_stage = 3;
  s.workload.global_batch_size = 32;
  Cluster all = s.cluster;
  all.nodes = 8;
  all.fabric.kind = FabricKind::fat_tree;
  all.fabric.nodes_per_leaf = 4;
  all.fabric.oversubscription = 4;
  const std::vector<std::pair<Scenario, JobNodes>> jobs{{s, {0, 2}}, {s, {1, 2}}};
  const auto folded = simulate_jobs(all, jobs), whole = simulate_jobs(all, jobs, {}, {.fold = false});
  for (std::size_t j = 0; j < 2; ++j) EXPECT_NEAR(folded[j].step_seconds / whole[j].step_seconds, 1, kSame);
  EXPECT_EQ(folded[0].discrete_event->rank_classes, 2);
  EXPECT_EQ(whole[0].discrete_event->rank_classes, 64);
}

// --- In lockstep

// As expect_step_folds, but with the edges of collectives in lockstep, to a share of the step; its terms to twice that.
void expect_lockstep_within(const Scenario& s, double share, const std::string& what) {
  const Report lockstep = simulate_des(s, {.most_exact_works = 0});
  const Report exact = simulate_des(s, {.most_exact_works = std::numeric_limits<double>::infinity()});
  const Report whole = simulate_des(s, {.fold = false});
  EXPECT_NEAR(lockstep.step_seconds / whole.step_seconds, 1, share) << what;
  EXPECT_LT(lockstep.discrete_event->rank_classes, exact.discrete_event->rank_classes) << what;
  EXPECT_EQ(lockstep.discrete_event->flows, whole.discrete_event->flows) << what;
  EXPECT_EQ(lockstep.discrete_event->links, whole.discrete_event->links) << what;
  for (std::size_t i = 0; i < lockstep.stages.size(); ++i) {
    const TimeBreakdown &a = lockstep.stages[i].time, &b = whole.stages[i].time;
    const double most = 2 * share * whole.step_seconds;
    EXPECT_NEAR(a.matmul, b.matmul, most) << what;
    EXPECT_NEAR(a.bubble, b.bubble, most) << what;
    for (std::size_t stream = 0; stream < kStreams; ++stream)
      EXPECT_NEAR(a.exposed[stream], b.exposed[stream], most) << what << " " << name_of(static_cast<Stream>(stream));
  }
  for (std::size_t k = 0; k < lockstep.discrete_event->link_kinds.size(); ++k) {
    const LinkReport &a = lockstep.discrete_event->link_kinds[k], &b = whole.discrete_event->link_kinds[k];
    EXPECT_NEAR(a.bytes / b.bytes, 1, kSame) << what << " " << a.name;
    EXPECT_EQ(a.links, b.links) << what << " " << a.name;
  }
  EXPECT_THAT(lockstep.notes, ::testing::Contains(::testing::HasSubstr("in lockstep")));
  EXPECT_THAT(exact.notes, ::testing::Not(::testing::Contains(::testing::HasSubstr("in lockstep"))));
}

// Pipelines whose transfers share NICs with the rings over replicas: where exact folding tells all places of a ring
// apart.
Scenario rings_beside_transfers(std::int64_t nodes, std::int64_t zero_stage) {
  Scenario s = small("dgx-h100", nodes);
  s.plan.tensor.degree = 4;
  s.plan.tensor.sequence_parallel = true;
  s.plan.pipeline.degree = 2;
  s.plan.data.zero_stage = zero_stage;
  s.workload.global_batch_size = 8 * nodes;
  return s;
}

TEST(Lockstep, ChangesNothingWhereNothingIsDisturbed) {
  for (const std::int64_t zero : {1, 3}) {
    const Scenario s = rings_beside_transfers(4, zero);
    const Report lockstep = simulate_des(s, {.most_exact_works = 0}), exact = simulate_des(s);
    EXPECT_NEAR(lockstep.step_seconds / exact.step_seconds, 1, kSame) << zero;
    EXPECT_EQ(lockstep.discrete_event->rank_classes, 2) << zero;
  }
}

// A torus' links pass others' traffic, too: what a node sends is counted by edges.
TEST(Lockstep, ChangesNothingOnATorus) {
  Scenario s = rings_beside_transfers(8, 1);
  s.cluster.fabric.kind = FabricKind::torus;
  s.cluster.fabric.dimensions = {2, 2, 2};
  const Report lockstep = simulate_des(s, {.most_exact_works = 0}), exact = simulate_des(s);
  EXPECT_NEAR(lockstep.step_seconds / exact.step_seconds, 1, 0.01);
}

TEST(Lockstep, ClassesDoNotGrowWithTheReplicas) {
  std::int64_t exact = 0, lockstep = 0;
  for (const std::int64_t nodes : {8, 16}) {
    Scenario s = rings_beside_transfers(nodes, 1);
    s.perturbations = {slow_device(13, 0.8)};
    const std::int64_t before_exact = exact, before = lockstep;
    exact = simulate_des(s).discrete_event->rank_classes;
    lockstep = simulate_des(s, {.most_exact_works = 0}).discrete_event->rank_classes;
    if (before == 0) continue;
    EXPECT_GT(exact, before_exact);
    EXPECT_EQ(lockstep, before);
  }
}

// Nothing is alike where every device draws its own jitter: there is nothing to win.
TEST(Lockstep, IsLeftAloneWhereItSparesLessThanHalf) {
  Scenario s = rings_beside_transfers(2, 1);
  s.perturbations = {jitter(0.05, 1)};
  const Report r = simulate_des(s, {.most_exact_works = 0});
  EXPECT_EQ(r.discrete_event->rank_classes, 16);
  EXPECT_EQ(r.step_seconds, simulate_des(s, {.fold = false}).step_seconds);
  EXPECT_THAT(r.notes, ::testing::Not(::testing::Contains(::testing::HasSubstr("in lockstep"))));
}

// ZeRO-3 gathers parameters for every micro-batch: NICs are busy most of the step, and rings meet many transfers.
TEST(Lockstep, TakesTheTimeOfTheWholeToLessThanAPercent) {
  const auto jitter_of = [](std::int64_t device) {
    Perturbation p = jitter(0.03, 7);
    p.devices = {device};
    return p;
  };
  const std::vector<std::pair<const char*, std::vector<Perturbation>>> cases{
      {"a slow device", {slow_device(13, 0.8)}},
      {"for a while", {slow_device(13, 0.5, 0.005, 0.015)}},
      {"two of one kind", {slow_device(13, 0.8), slow_device(29, 0.8)}},
      {"two of two kinds, in two stages", {slow_device(3, 0.8), slow_device(44, 0.6)}},
      {"a slow NIC", {slow_link("node2.nic5", 0.25)}},
      {"a slow NVLink port", {slow_link("node1.gpu3.scale_up", 0.25)}},
      {"traffic of others", {background("node1.nic2.out", 25e9)}},
      {"jitter of one device", {jitter_of(9)}},
      {"a slow device and a slow NIC", {slow_device(20, 0.7), slow_link("node0.nic1", 0.5)}}};
  for (const auto& [what, perturbations] : cases)
    for (const std::int64_t zero : {1, 3}) {
      Scenario s = rings_beside_transfers(8, zero);
      s.perturbations = perturbations;
      expect_lockstep_within(s, zero == 1 ? 0.001 : 0.01, fmt::format("{}, zero {}", what, zero));
    }
}

// --- Message by message

double exact_over_steady(const Cluster& c, const CollectiveRequest& request, const CollectiveCalibration& collectives,
                         std::int64_t chunks = 0) {
  const double steady = run(c, request, {}, {}, collectives).seconds;
  return run(c, request, {}, {.fidelity = Fidelity::step_exact, .chunks = chunks}, collectives).seconds / steady;
}

// Where nothing of a collective waits for other levels, steps add up to the steady flow.
TEST(StepExact, RoundsAndRingsOfANodeTakeTheSameTime) {
  for (const std::int64_t nodes : {1, 2}) {
    const World w = h100(nodes, FabricKind::single_switch, 1);
    for (const auto& [kind, algorithm] : all_kinds()) {
      const bool ring = algorithm == Algorithm::ring || algorithm == Algorithm::bidirectional_ring;
      if (algorithm == Algorithm::tree || algorithm == Algorithm::nvls || kind == OpKind::broadcast) continue;
      if (nodes == 1 ? algorithm == Algorithm::hierarchical : ring) continue;
      for (const double bytes : {1e2, 1e5, 1e7, 1e10}) {
        const CollectiveRequest request = over_all(w.cluster, kind, algorithm, bytes);
        EXPECT_NEAR(exact_over_steady(w.cluster, request, w.collectives), 1, 1e-4) << nodes << " " << describe(request);
      }
    }
  }
}

// Across nodes a ring's latencies pass partly under its transfers, which the steady flow takes one after the other: at
// most half of its time can be hidden, at the ends of the scale nothing is.
TEST(StepExact, RingsAcrossNodesAgreeWhereLatencyOrBandwidthIsAll) {
  for (const char* node : {"dgx-h100", "dgx-a100", "mi300x-8"})
    for (const std::int64_t nodes : {2, 4}) {
      const Cluster c = read_cluster({{"node", node}, {"nodes", nodes}}, {});
      const CollectiveCalibration collectives = find_collective_calibration(c);
      const auto ratio = [&](double bytes) {
        CollectiveRequest request = over_all(c, OpKind::all_reduce, Algorithm::ring, bytes);
        request.protocol = CollectiveProtocol::automatic;
        return exact_over_steady(c, request, collectives);
      };
      EXPECT_NEAR(ratio(1e2), 1, 1e-3) << node << " " << nodes;
      EXPECT_NEAR(ratio(1e10), 1, 1e-2) << node << " " << nodes;
      for (const double bytes : {1e4, 1e6, 1e8}) {
        const double r = ratio(bytes);
        EXPECT_GT(r, 0.65) << node << " " << nodes << " " << bytes;
        EXPECT_LT(r, 1.12) << node << " " << nodes << " " << bytes;
      }
    }
}

// A chain of n - 1 edges passes its chunks on: the last one has n - 2 further edges to go when the first has sent all.
TEST(StepExact, AChainFillsChunkByChunk) {
  for (const std::int64_t nodes : {2, 3, 8})
    for (const std::int64_t chunks : {1, 8, 100})
      for (const OpKind kind : {OpKind::broadcast, OpKind::reduce}) {
        const Cluster c = ideal_cluster(nodes);
        EXPECT_NEAR(exact_over_steady(c, over_all(c, kind), ideal_collectives(), chunks),
                    static_cast<double>(chunks + nodes - 2) / static_cast<double>(chunks), kSame);
      }
}

// Chunks are as small as NCCL's: filling a chain or a tree costs little of a large message.
TEST(StepExact, ChainsAndTreesFillQuickly) {
  for (const std::int64_t nodes : {1, 4}) {
    const World w = h100(nodes, FabricKind::single_switch, 1);
    for (const auto& [kind, algorithm] : {CollectiveKind{OpKind::broadcast, Algorithm::ring},
                                          {OpKind::all_reduce, Algorithm::tree},
                                          {OpKind::all_reduce, Algorithm::nvls}})
      for (const double bytes : {1e5, 1e8, 1e10}) {
        const CollectiveRequest request = over_all(w.cluster, kind, algorithm, bytes);
        const double ratio = exact_over_steady(w.cluster, request, w.collectives);
        EXPECT_GT(ratio, 0.8) << nodes << " " << describe(request);
        EXPECT_LT(ratio, 1.5) << nodes << " " << describe(request);
      }
  }
}

TEST(StepExact, SendsEveryMessage) {
  const Cluster c = ideal_cluster(4);
  const DiscreteEventOptions exact{.fidelity = Fidelity::step_exact, .fold = false};
  EXPECT_EQ(run(c, over_all(c, OpKind::all_reduce, Algorithm::ring), {}, exact).messages, 4 * 2 * 3);
  EXPECT_EQ(run(c, over_all(c, OpKind::all_gather, Algorithm::ring), {}, exact).messages, 4 * 3);
  EXPECT_EQ(run(c, over_all(c, OpKind::all_to_all), {}, exact).messages, 4 * 3);
  EXPECT_EQ(run(c, over_all(c, OpKind::all_reduce, Algorithm::ring)).messages, 1) << "folded";
}

// Each step of the latency: base, then 2 (n - 1) steps of which 2 (nodes - 1) go between nodes.
TEST(StepExact, LatenciesOfARingAreItsSteps) {
  CollectiveCalibration collectives = ideal_collectives();
  collectives.intra.base_seconds = {5e-6, 5e-6, 5e-6};
  collectives.intra.step_seconds = {1e-6, 1e-6, 1e-6};
  collectives.inter.base_seconds = {7e-6, 7e-6, 7e-6};
  collectives.inter.ring_step_seconds = {20e-6, 20e-6, 20e-6};
  const Cluster c = ideal_cluster(2, 4, 4);
  const double expected = 12e-6 + 2 * 20e-6 + 12 * 1e-6;
  for (const Fidelity fidelity : {Fidelity::steady_flow, Fidelity::step_exact}) {
    const double took =
        run(c, over_all(c, OpKind::all_reduce, Algorithm::ring, 8), {}, {.fidelity = fidelity}, collectives).seconds;
    EXPECT_NEAR(took, expected, 1e-3 * expected);
  }
}

}  // namespace
}  // namespace orrery
