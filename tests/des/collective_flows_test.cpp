// Do the edges of every collective carry what theory says over every port and NIC, can their messages be run, and does
// every member end with what the collective promises?
#include "sim/cost/collective_flows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/error.h"
#include "sim/cost/collective_calibration.h"
#include "sim/hardware/presets.h"
#include "tests/cost/dgx.h"

namespace orrery {
namespace {

using Algorithm = CollectiveAlgorithm;
using Mask = std::uint64_t;

constexpr OpKind kKinds[] = {OpKind::all_reduce, OpKind::all_gather, OpKind::reduce_scatter, OpKind::all_to_all,
                             OpKind::broadcast,  OpKind::reduce,     OpKind::ring_shift,     OpKind::send};
constexpr Algorithm kAlgorithms[] = {Algorithm::automatic,
                                     Algorithm::ring,
                                     Algorithm::tree,
                                     Algorithm::hierarchical,
                                     Algorithm::nvls,
                                     Algorithm::direct,
                                     Algorithm::halving_doubling,
                                     Algorithm::bidirectional_ring};

bool legal(OpKind kind, Algorithm a) {
  const bool ring = a == Algorithm::ring || a == Algorithm::bidirectional_ring;
  switch (kind) {
    case OpKind::all_reduce:
      return a != Algorithm::automatic && a != Algorithm::direct;
    case OpKind::all_gather:
    case OpKind::reduce_scatter:
      return ring || a == Algorithm::hierarchical || a == Algorithm::halving_doubling;
    case OpKind::broadcast:
    case OpKind::reduce:
      return ring;
    case OpKind::all_to_all:
    case OpKind::ring_shift:
      return a == Algorithm::direct || a == Algorithm::hierarchical;
    default:
      return a == Algorithm::direct;
  }
}

// A group: so many members on each node, the first devices of each.
struct Group {
  std::vector<std::int64_t> devices;
  std::int64_t per_node = 8;
  bool full_mesh = false, both_directions = false;

  GroupMembers members() const {
    return {
        .devices = devices, .devices_per_node = per_node, .full_mesh = full_mesh, .both_directions = both_directions};
  }
  int size() const { return static_cast<int>(devices.size()); }
  std::int64_t node(int member) const { return devices[static_cast<std::size_t>(member)] / per_node; }
  int nodes() const { return static_cast<int>(node(size() - 1) - node(0)) + 1; }
};
Group uneven(const std::vector<int>& sizes) {
  Group g;
  for (std::size_t a = 0; a < sizes.size(); ++a)
    for (int i = 0; i < sizes[a]; ++i) g.devices.push_back(static_cast<std::int64_t>(a) * 8 + i);
  return g;
}
Group even(int nodes, int per_node) { return uneven(std::vector<int>(static_cast<std::size_t>(nodes), per_node)); }

FlowGraph flows(OpKind kind, Algorithm algorithm, const Group& group, const FlowOptions& options = {}) {
  FlowGraph graph;
  collective_flows(kind, algorithm, group.members(), options, graph);
  return graph;
}

std::string describe(OpKind kind, Algorithm a, const Group& g) {
  return std::string(name_of(kind)) + " " + name_of(a) + " " + std::to_string(g.size()) + " on " +
         std::to_string(g.nodes()) + (g.full_mesh ? " mesh" : "") + (g.both_directions ? " both ways" : "");
}

// Shares of the op's bytes over ports and NICs, by member, and between nodes.
struct Loads {
  explicit Loads(const Group& g)
      : out(g.devices.size()),
        in(out.size()),
        nic_out(out.size()),
        nic_in(out.size()),
        node_out(g.nodes()),
        node_in(g.nodes()) {}
  std::vector<double> out, in, nic_out, nic_in, node_out, node_in;
  std::map<std::pair<int, int>, double> pair;       // members of a node
  std::map<std::pair<int, int>, double> node_pair;  // nodes
  double mean_out() const { return std::accumulate(out.begin(), out.end(), 0.0) / static_cast<double>(out.size()); }
  double mean_node_out() const {
    return std::accumulate(node_out.begin(), node_out.end(), 0.0) / static_cast<double>(node_out.size());
  }
};
Loads loads_of(const FlowGraph& graph, const Group& g) {
  Loads l(g);
  for (const FlowEdge& e : graph.edges) {
    const double bytes = e.bytes * e.messages;
    const int from = e.from.member, to = e.to.member;
    const auto a = static_cast<std::size_t>(g.node(from) - g.node(0)),
               b = static_cast<std::size_t>(g.node(to) - g.node(0));
    if (a == b) {
      if (!e.from.at_switch) l.out[static_cast<std::size_t>(from)] += bytes;
      if (!e.to.at_switch) l.in[static_cast<std::size_t>(to)] += bytes;
      l.pair[{from, to}] += bytes;
    } else {
      l.nic_out[static_cast<std::size_t>(from)] += bytes;
      l.nic_in[static_cast<std::size_t>(to)] += bytes;
      l.node_out[a] += bytes;
      l.node_in[b] += bytes;
      l.node_pair[{static_cast<int>(a), static_cast<int>(b)}] += bytes;
    }
  }
  return l;
}
void expect_all(const std::vector<double>& values, double expected, const std::string& what) {
  for (const double v : values) EXPECT_NEAR(v, expected, 1e-9) << what;
}

TEST(EstimatedFlows, AreAboutWhatIsMade) {
  for (const Group& g :
       {even(1, 2), even(1, 8), even(2, 1), even(2, 8), even(4, 8), even(16, 4), even(32, 8), even(64, 1)})
    for (const OpKind kind : kKinds)
      for (const Algorithm a : kAlgorithms)
        for (const bool by_node : {false, true}) {
          if (!legal(kind, a) || (a == Algorithm::nvls && g.size() < 4)) continue;
          const FlowOptions options{.by_node = by_node};
          const auto made = static_cast<double>(flows(kind, a, g, options).edges.size());
          const double estimated = estimated_flows(kind, a, g.size(), g.nodes(), options);
          EXPECT_LE(made, 4 * estimated) << describe(kind, a, g) << by_node;
          EXPECT_GE(4 * made, kind == OpKind::send ? 0 : estimated) << describe(kind, a, g) << by_node;
        }
}

TEST(EstimatedFlows, OfSwitchesThatReduceAreAboutWhatIsMade) {
  for (const Group& g : {even(2, 1), even(2, 8), even(4, 8), even(16, 4), even(64, 1)})
    for (const OpKind kind : {OpKind::all_reduce, OpKind::reduce_scatter})
      for (const bool in_switch : {false, true}) {
        GroupMembers members = g.members();
        members.in_switch_reduction = in_switch;
        FlowGraph graph;
        collective_flows(kind, Algorithm::collnet, members, {}, graph);
        const auto made = static_cast<double>(graph.edges.size());
        const double estimated = estimated_flows(kind, Algorithm::collnet, g.size(), g.nodes(), {});
        EXPECT_LE(made, 4 * estimated) << describe(kind, Algorithm::collnet, g) << in_switch;
        EXPECT_GE(4 * made, estimated) << describe(kind, Algorithm::collnet, g) << in_switch;
      }
}

// --- Running the messages
// ---------------------------------------------------------------------------------------------

struct Message {
  int edge = 0, number = 0;
};

// Runs a graph's messages in an order of chance that its rules allow: message k of an edge after message k - 1, after
// what `after` names has arrived, and after the edges of earlier phases that start or end at its sender. Calls start
// and arrive for each. False if it comes to a standstill.
template <class Start, class Arrive>
bool run(const FlowGraph& graph, int members, unsigned seed, bool heed_phases, Start&& start, Arrive&& arrive) {
  std::mt19937 random(seed);
  const std::size_t edges = graph.edges.size();
  std::vector<int> started(edges, 0), arrived(edges, 0);
  std::vector<std::vector<int>> open(static_cast<std::size_t>(members),
                                     std::vector<int>(static_cast<std::size_t>(graph.phases), 0));
  const auto each_end = [&](const FlowEdge& e, int change) {
    open[static_cast<std::size_t>(e.from.member)][e.phase] += change;
    if (e.to.member != e.from.member) open[static_cast<std::size_t>(e.to.member)][e.phase] += change;
  };
  std::int64_t left = 0;
  for (const FlowEdge& e : graph.edges) {
    each_end(e, e.messages);
    left += e.messages;
  }
  const auto may_start = [&](std::size_t i) {
    const FlowEdge& e = graph.edges[i];
    if (started[i] == e.messages) return false;
    for (const std::int32_t f : graph.after_of(e)) {
      const int needed = started[i] + e.lag;
      if (needed < 0 || needed >= graph.edges[static_cast<std::size_t>(f)].messages) continue;
      if (arrived[static_cast<std::size_t>(f)] <= needed) return false;
    }
    for (std::size_t p = 0; heed_phases && p < e.phase; ++p)
      if (open[static_cast<std::size_t>(e.from.member)][p] > 0) return false;
    return true;
  };
  std::vector<std::size_t> order(edges);
  std::iota(order.begin(), order.end(), 0);
  while (left > 0) {
    std::shuffle(order.begin(), order.end(), random);
    bool progress = false, skipped = false;
    for (const std::size_t i : order) {
      if (may_start(i)) {
        if (random() % 2 == 0) {
          skipped = true;
        } else {
          start(Message{static_cast<int>(i), started[i]++});
          progress = true;
        }
      }
      if (arrived[i] < started[i]) {
        if (random() % 2 == 0) {
          skipped = true;
          continue;
        }
        arrive(Message{static_cast<int>(i), arrived[i]++});
        each_end(graph.edges[i], -1);
        --left;
        progress = true;
      }
    }
    if (!progress && !skipped) return false;
  }
  return true;
}

// Where an edge's message comes from: see FlowEdge::from.
int holder_of(const FlowGraph& graph, const FlowEdge& e, OpKind kind) {
  if (e.afters > 0) return graph.edges[static_cast<std::size_t>(graph.after_of(e)[0])].to.member;
  return kind == OpKind::broadcast ? 0 : e.from.member;
}

// Whose data each member holds at the end, if every message contains its holder's own data, what reached the holder in
// earlier phases, and what the messages that it waited for contained; nothing that merely happened to be there.
std::vector<Mask> knowledge(OpKind kind, const FlowGraph& graph, int members, unsigned seed, bool heed_phases = true) {
  std::vector<std::vector<Mask>> content(graph.edges.size());
  for (std::size_t i = 0; i < content.size(); ++i) content[i].resize(static_cast<std::size_t>(graph.edges[i].messages));
  std::vector<std::vector<Mask>> reached(static_cast<std::size_t>(members),
                                         std::vector<Mask>(static_cast<std::size_t>(graph.phases), 0));
  const bool finished = run(
      graph, members, seed, heed_phases,
      [&](Message m) {
        const FlowEdge& e = graph.edges[static_cast<std::size_t>(m.edge)];
        Mask mask = 0;
        if (!e.from.at_switch) mask |= Mask{1} << holder_of(graph, e, kind);
        for (std::size_t p = 0; p < e.phase; ++p) mask |= reached[static_cast<std::size_t>(e.from.member)][p];
        for (const std::int32_t f : graph.after_of(e)) {
          const int k = m.number + e.lag;
          const auto& before = content[static_cast<std::size_t>(f)];
          if (k >= 0 && k < static_cast<int>(before.size())) mask |= before[static_cast<std::size_t>(k)];
        }
        content[static_cast<std::size_t>(m.edge)][static_cast<std::size_t>(m.number)] = mask;
      },
      [&](Message m) {
        const FlowEdge& e = graph.edges[static_cast<std::size_t>(m.edge)];
        if (e.to.at_switch) return;
        reached[static_cast<std::size_t>(e.to.member)][e.phase] |=
            content[static_cast<std::size_t>(m.edge)][static_cast<std::size_t>(m.number)];
      });
  if (!finished) return {};
  std::vector<Mask> result(static_cast<std::size_t>(members));
  for (int m = 0; m < members; ++m) {
    result[static_cast<std::size_t>(m)] = Mask{1} << m;
    for (const Mask mask : reached[static_cast<std::size_t>(m)]) result[static_cast<std::size_t>(m)] |= mask;
  }
  return result;
}

std::vector<Group> groups() {
  std::vector<Group> all;
  for (const auto& [nodes, r] :
       {std::pair{1, 2}, {1, 3}, {1, 4}, {1, 8}, {2, 1}, {2, 8}, {3, 1}, {3, 8}, {4, 2}, {5, 3}, {7, 1}, {8, 4}})
    all.push_back(even(nodes, r));
  for (const auto& sizes : {std::vector{8, 8, 3}, {1, 8}, {5, 3, 2, 8}, {8, 4, 8, 4}}) all.push_back(uneven(sizes));
  const std::size_t plain = all.size();
  for (std::size_t i = 0; i < plain; ++i)
    for (const auto& [mesh, both] : {std::pair{true, false}, {false, true}, {true, true}}) {
      Group g = all[i];
      g.full_mesh = mesh;
      g.both_directions = both;
      all.push_back(g);
    }
  return all;
}

TEST(CollectiveFlows, EveryCollectiveRunsToItsEndAndEveryMemberHasWhatItPromises) {
  int graphs = 0;
  for (const Group& g : groups()) {
    const int n = g.size();
    const Mask all = n == 64 ? ~Mask{0} : (Mask{1} << n) - 1;
    for (const OpKind kind : kKinds)
      for (const Algorithm a : kAlgorithms) {
        if (!legal(kind, a)) continue;
        for (const FlowOptions options : {FlowOptions{}, FlowOptions{.chunks = 1, .rail_aligned = true}}) {
          const FlowGraph graph = flows(kind, a, g, options);
          const std::vector<Mask> known = knowledge(kind, graph, n, 17);
          ASSERT_FALSE(known.empty()) << describe(kind, a, g) << " stands still";
          ++graphs;
          if (kind == OpKind::ring_shift || kind == OpKind::send) continue;
          for (int m = 0; m < n; ++m) {
            const Mask has = known[static_cast<std::size_t>(m)];
            if (kind == OpKind::reduce && m != 0) continue;
            const Mask promised = kind == OpKind::broadcast ? Mask{1} : all;
            EXPECT_EQ(has & promised, promised) << describe(kind, a, g) << " member " << m;
          }
        }
      }
  }
  EXPECT_GT(graphs, 1000);
}

TEST(CollectiveFlows, EdgesAreWellFormed) {
  for (const Group& g : groups())
    for (const OpKind kind : kKinds)
      for (const Algorithm a : kAlgorithms) {
        if (!legal(kind, a)) continue;
        const FlowGraph graph = flows(kind, a, g);
        ASSERT_FALSE(graph.edges.empty());
        int phase = 0;
        for (const FlowEdge& e : graph.edges) {
          ASSERT_GT(e.bytes, 0) << describe(kind, a, g);
          ASSERT_GT(e.messages, 0);
          ASSERT_FALSE(e.from == e.to) << describe(kind, a, g);
          ASSERT_LT(e.from.member, g.size());
          ASSERT_LT(e.to.member, g.size());
          // Phases follow each other without gaps.
          ASSERT_GE(e.phase, phase);
          ASSERT_LE(e.phase, phase + 1);
          phase = e.phase;
          for (const std::int32_t f : graph.after_of(e))
            ASSERT_EQ(graph.edges[static_cast<std::size_t>(f)].phase <= e.phase, true);
        }
        ASSERT_EQ(graph.phases, phase + 1);
      }
}

// --- Against the analytical formulas
// ----------------------------------------------------------------------------------

TEST(CollectiveFlows, PortsAndNicsCarryTheBytesOfTheAnalyticalModel) {
  constexpr double kBytes = 1e9;
  std::set<std::pair<OpKind, Algorithm>> met;
  for (const int nodes : {1, 2, 3, 4, 8})
    for (const int r : {1, 2, 4, 6, 8}) {
      const Group g = even(nodes, r);
      if (g.size() == 1) continue;
      const Cluster cluster = dgx_h100(nodes);
      const CollectiveModel model(cluster, find_collective_calibration(cluster));
      const GroupSpan span{.ranks = g.size(), .ranks_per_node = r, .nodes = nodes, .stride = r == 1 ? 8 : 1};
      for (const OpKind kind : kKinds)
        for (const Algorithm a : kAlgorithms) {
          // A sent message is one rank's; the model counts every rank as a sender.
          if (!legal(kind, a) || kind == OpKind::send) continue;
          const CollectiveCost cost = model.cost(kind, kBytes, span, a, CollectiveProtocol::simple);
          if (cost.algorithm != a) continue;
          met.insert({kind, a});
          const Loads l = loads_of(flows(kind, a, g), g);
          const std::string what = describe(kind, a, g);
          EXPECT_NEAR(l.mean_out(), cost.intra_bytes / kBytes, 1e-9) << what;
          EXPECT_NEAR(l.mean_node_out(), cost.inter_bytes / kBytes, 1e-9) << what;
          EXPECT_EQ(cost.in_sequence, flows(kind, a, g).phases > 1 || a == Algorithm::halving_doubling) << what;
        }
    }
  for (const OpKind kind : kKinds)
    for (const Algorithm a : kAlgorithms)
      EXPECT_EQ(met.contains({kind, a}), legal(kind, a) && kind != OpKind::send) << name_of(kind) << " " << name_of(a);
}

// --- Rings
// ------------------------------------------------------------------------------------------------------------

TEST(Ring, EveryMemberSendsTheTheoreticalShare) {
  for (const auto& [nodes, r] : {std::pair{1, 2}, {1, 5}, {1, 8}, {2, 1}, {2, 8}, {3, 2}, {7, 3}, {16, 8}})
    for (const bool both : {false, true})
      for (const bool mesh : {false, true})
        for (const Algorithm a : {Algorithm::ring, Algorithm::bidirectional_ring})
          for (const OpKind kind : {OpKind::all_reduce, OpKind::all_gather, OpKind::reduce_scatter}) {
            Group g = even(nodes, r);
            g.both_directions = both;
            g.full_mesh = mesh;
            const double n = g.size(), edge = (kind == OpKind::all_reduce ? 2 : 1) * (n - 1) / n;
            const Loads l = loads_of(flows(kind, a, g), g);
            // One of a node's r edges leaves it, each time over another NIC.
            const double inside = nodes > 1 ? (r - 1.0) / r : 1, outside = nodes > 1 ? 1.0 / r : 0;
            expect_all(l.out, edge * inside, describe(kind, a, g) + " out");
            expect_all(l.in, edge * inside, describe(kind, a, g) + " in");
            expect_all(l.nic_out, edge * outside, describe(kind, a, g) + " NIC out");
            expect_all(l.nic_in, edge * outside, describe(kind, a, g) + " NIC in");
          }
}

TEST(Ring, StaysOnItsRail) {
  for (const Algorithm a : {Algorithm::ring, Algorithm::bidirectional_ring, Algorithm::tree, Algorithm::nvls,
                            Algorithm::hierarchical, Algorithm::halving_doubling})
    for (const Group& g : {even(3, 8), even(8, 4), even(5, 1), uneven({8, 4, 8})}) {
      // Partners n / 2 apart are on one rail only in powers of two, and shares of uneven nodes meet across rails.
      if (a == Algorithm::halving_doubling && g.size() != 32) continue;
      if (a == Algorithm::hierarchical && g.size() == 20) continue;
      int across = 0;
      for (const FlowEdge& e : flows(OpKind::all_reduce, a, g).edges) {
        if (g.node(e.from.member) == g.node(e.to.member)) continue;
        ++across;
        EXPECT_EQ(g.devices[static_cast<std::size_t>(e.from.member)] % 8,
                  g.devices[static_cast<std::size_t>(e.to.member)] % 8)
            << describe(OpKind::all_reduce, a, g);
      }
      EXPECT_GT(across, 0);
    }
}

// The chunks of a ring, by place: in step k the member at place i passes on chunk i - k, first summing, then finished.
TEST(Ring, EveryChunkEndsReducedOnEveryMember) {
  for (const OpKind kind : {OpKind::all_reduce, OpKind::reduce_scatter, OpKind::all_gather})
    for (const Group& base : {even(1, 5), even(2, 4), even(3, 3), uneven({3, 1, 4})})
      for (const bool mesh : {false, true})
        for (unsigned seed = 0; seed < 4; ++seed) {
          Group g = base;
          g.full_mesh = mesh;
          const FlowGraph graph = flows(kind, Algorithm::bidirectional_ring, g);
          const int n = g.size();
          ASSERT_EQ(graph.edges.size() % static_cast<std::size_t>(n), 0u);
          const int rings = static_cast<int>(graph.edges.size()) / n;
          // chunk[ring][place][chunk]: whose contributions are in it.
          std::vector<std::vector<std::vector<Mask>>> chunk(
              static_cast<std::size_t>(rings),
              std::vector<std::vector<Mask>>(static_cast<std::size_t>(n),
                                             std::vector<Mask>(static_cast<std::size_t>(n), 0)));
          std::vector<std::vector<Mask>> in_flight(graph.edges.size());
          std::vector<std::set<int>> members(static_cast<std::size_t>(rings));
          for (int ring = 0; ring < rings; ++ring)
            for (int i = 0; i < n; ++i) {
              const FlowEdge& e = graph.edges[static_cast<std::size_t>(ring * n + i)];
              ASSERT_EQ(graph.after_of(e)[0], ring * n + (i + n - 1) % n);
              members[static_cast<std::size_t>(ring)].insert(holder_of(graph, e, kind));
              for (int c = 0; c < n; ++c)
                if (kind != OpKind::all_gather || c == i)
                  chunk[static_cast<std::size_t>(ring)][static_cast<std::size_t>(i)][static_cast<std::size_t>(c)] =
                      Mask{1} << i;
            }
          for (const auto& m : members) EXPECT_EQ(m.size(), static_cast<std::size_t>(n)) << "a ring passes all members";
          const auto chunk_of = [&](int place, int k) { return static_cast<std::size_t>(((place - k) % n + n) % n); };
          ASSERT_TRUE(run(
              graph, n, seed, true,
              [&](Message m) {
                const auto ring = static_cast<std::size_t>(m.edge / n), place = static_cast<std::size_t>(m.edge % n);
                in_flight[static_cast<std::size_t>(m.edge)].push_back(
                    chunk[ring][place][chunk_of(m.edge % n, m.number)]);
              },
              [&](Message m) {
                const auto ring = static_cast<std::size_t>(m.edge / n),
                           next = static_cast<std::size_t>((m.edge + 1) % n);
                Mask& there = chunk[ring][next][chunk_of(m.edge % n, m.number)];
                const Mask sent = in_flight[static_cast<std::size_t>(m.edge)][static_cast<std::size_t>(m.number)];
                const bool sums = kind != OpKind::all_gather && m.number < n - 1;
                EXPECT_FALSE(sums && (there & sent)) << "nothing is added twice";
                there = sums ? there | sent : sent;
              }));
          const Mask all = (Mask{1} << n) - 1;
          for (const auto& ring : chunk)
            for (int i = 0; i < n; ++i)
              for (int c = 0; c < n; ++c) {
                const Mask has = ring[static_cast<std::size_t>(i)][static_cast<std::size_t>(c)];
                if (kind == OpKind::reduce_scatter && c != (i + 1) % n) continue;
                EXPECT_EQ(has, kind == OpKind::all_gather ? Mask{1} << c : all);
              }
        }
}

TEST(Ring, OverAFullMeshEveryLinkCarriesTheSame) {
  for (int n = 2; n <= 9; ++n)
    for (const OpKind kind : {OpKind::all_reduce, OpKind::all_gather}) {
      Group g = uneven({n});
      g.per_node = 16;
      g.full_mesh = true;
      const double edge = (kind == OpKind::all_reduce ? 2.0 : 1.0) * (n - 1) / n;
      const Loads l = loads_of(flows(kind, Algorithm::ring, g), g);
      ASSERT_EQ(l.pair.size(), static_cast<std::size_t>(n * (n - 1)));
      for (const auto& [pair, bytes] : l.pair) EXPECT_NEAR(bytes, edge / (n - 1), 1e-9) << n;
    }
  // Between nodes too: chains instead of rings, as many as a node has members (twice for odd numbers).
  for (const int r : {2, 3, 4, 5, 6, 7, 8})
    for (const Algorithm a : {Algorithm::ring, Algorithm::bidirectional_ring, Algorithm::tree}) {
      Group g = even(4, r);
      g.full_mesh = true;
      const double n = g.size(), inside = a == Algorithm::tree ? 2.0 : 2 * (n - 1) / n;
      const Loads l = loads_of(flows(OpKind::all_reduce, a, g), g);
      ASSERT_EQ(l.pair.size(), static_cast<std::size_t>(4 * r * (r - 1)));
      for (const auto& [pair, bytes] : l.pair) EXPECT_NEAR(bytes, inside / r, 1e-9) << r << " " << name_of(a);
    }
}

TEST(Ring, FollowsTheLinksOfAMeshWhosePairsDiffer) {
  const LinkMap links(find_node("frontier"));
  for (const int nodes : {1, 3}) {
    const Group g = even(nodes, 8);
    GroupMembers members = g.members();
    members.links = &links;
    FlowGraph graph;
    collective_flows(OpKind::all_gather, Algorithm::ring, members, {}, graph);
    double sent = 0;
    for (const FlowEdge& e : graph.edges) {
      sent += e.bytes * e.messages;
      const bool inside = g.node(e.from.member) == g.node(e.to.member);
      EXPECT_TRUE(!inside || links.bytes_per_second(e.from.member % 8, e.to.member % 8) > 0);
    }
    EXPECT_NEAR(sent, g.size() - 1, 1e-9);
  }
}

TEST(Ring, BothWaysSplitsTheBytes) {
  Group g = even(1, 6);
  g.both_directions = true;
  const Loads l = loads_of(flows(OpKind::all_gather, Algorithm::ring, g), g);
  EXPECT_EQ(l.pair.size(), 12u);
  for (const auto& [pair, bytes] : l.pair) EXPECT_NEAR(bytes, 5.0 / 6 / 2, 1e-12);
  const Group rail = even(5, 1);
  const Loads r = loads_of(flows(OpKind::all_gather, Algorithm::bidirectional_ring, rail), rail);
  EXPECT_EQ(r.node_pair.size(), 10u);
  for (const auto& [pair, bytes] : r.node_pair) EXPECT_NEAR(bytes, 4.0 / 5 / 2, 1e-12);
}

TEST(Ring, UsesAsManyNicsAsThereAreChannels) {
  const Group g = even(3, 8);
  const Loads even_nodes = loads_of(flows(OpKind::all_gather, Algorithm::ring, g), g);
  expect_all(even_nodes.nic_out, 23.0 / 24 / 8, "a NIC's");
  expect_all(even_nodes.node_out, 23.0 / 24, "a node's");
  // As many as the smallest node has members, each through all members.
  const Group odd = uneven({8, 3, 5});
  const Loads l = loads_of(flows(OpKind::all_gather, Algorithm::ring, odd), odd);
  expect_all(l.node_out, 15.0 / 16, "uneven");
  EXPECT_NEAR(l.nic_out[8], 15.0 / 16 / 3, 1e-9);
  EXPECT_EQ(l.nic_out[3], 0);
}

TEST(Ring, SixteenThousandMembersShareItAlike) {
  const Group g = even(2048, 8);
  FlowGraph graph;
  collective_flows(OpKind::all_reduce, Algorithm::ring, g.members(), {}, graph);
  EXPECT_EQ(graph.edges.size(), 16384u * 8);
  const Loads l = loads_of(graph, g);
  const double edge = 2 * 16383.0 / 16384;
  expect_all(l.out, edge * 7 / 8, "out");
  expect_all(l.nic_in, edge / 8, "NIC in");
  // The graph of another group takes its place.
  collective_flows(OpKind::all_reduce, Algorithm::ring, even(1, 2).members(), {}, graph);
  EXPECT_EQ(graph.edges.size(), 2u);
  EXPECT_EQ(graph.after.size(), 2u);
}

// --- Broadcast and reduce
// ---------------------------------------------------------------------------------------------

TEST(Broadcast, ReachesEveryMemberOnceAndReduceLeavesOnce) {
  for (const Group& g : groups()) {
    const int n = g.size();
    for (const OpKind kind : {OpKind::broadcast, OpKind::reduce}) {
      const FlowGraph graph = flows(kind, Algorithm::ring, g, {.chunks = 5});
      // Into each member but the root (out of each, by holder) the whole buffer, in five chunks per channel.
      std::vector<double> bytes(static_cast<std::size_t>(n), 0);
      for (const FlowEdge& e : graph.edges) {
        EXPECT_EQ(e.messages, 5);
        const int member = kind == OpKind::broadcast ? e.to.member : holder_of(graph, e, kind);
        if (e.afters > 0 || kind == OpKind::broadcast) bytes[static_cast<std::size_t>(member)] += e.bytes * 5;
      }
      EXPECT_EQ(bytes[0], 0) << describe(kind, Algorithm::ring, g);
      for (int m = 1; m < n && kind == OpKind::broadcast; ++m) EXPECT_NEAR(bytes[static_cast<std::size_t>(m)], 1, 1e-9);
    }
  }
}

// --- Trees
// ------------------------------------------------------------------------------------------------------------

TEST(Tree, NodesAreInsideOneOfTheTwoTreesOnly) {
  for (int nodes = 2; nodes <= 33; ++nodes)
    for (const int r : {1, 4}) {
      const Group g = even(nodes, r);
      const FlowGraph graph = flows(OpKind::all_reduce, Algorithm::tree, g);
      const int n = g.size();
      ASSERT_EQ(graph.edges.size(), static_cast<std::size_t>(2 * r * 2 * (n - 1)));
      std::vector<std::array<int, 2>> children(static_cast<std::size_t>(nodes), {0, 0});
      std::array<std::set<std::int64_t>, 2> below;  // nodes with a parent
      for (std::size_t i = 0; i < graph.edges.size(); ++i) {
        const FlowEdge& e = graph.edges[i];
        const std::size_t tree = i / static_cast<std::size_t>(2 * (n - 1)) % 2;
        const bool down = i % static_cast<std::size_t>(2 * (n - 1)) >= static_cast<std::size_t>(n - 1);
        if (down || g.node(e.from.member) == g.node(e.to.member)) continue;
        ++children[static_cast<std::size_t>(g.node(e.to.member))][tree];
        below[tree].insert(g.node(e.from.member));
      }
      int both = 0;
      for (const auto& c : children) {
        both += c[0] > 0 && c[1] > 0;
        EXPECT_LE(c[0], 2 * r);
        EXPECT_LE(c[1], 2 * r);
      }
      // For odd counts the root of the first tree, which has one child, may also have one in the other.
      EXPECT_LE(both, nodes % 2) << nodes;
      for (const auto& b : below) EXPECT_EQ(b.size(), static_cast<std::size_t>(nodes - 1)) << "one root";
      // Up and down weigh the same; all but the roots and their like send twice the buffer.
      const Loads l = loads_of(graph, g);
      double most = 0, total = 0;
      for (std::size_t a = 0; a < l.node_out.size(); ++a) {
        EXPECT_NEAR(l.node_out[a], l.node_in[a], 1e-9);
        most = std::max(most, l.node_out[a]);
        total += l.node_out[a];
      }
      EXPECT_NEAR(total, 2.0 * (nodes - 1), 1e-9);
      EXPECT_NEAR(most, nodes == 2 ? 1.0 : nodes == 3 ? 1.5 : 2.0, 1e-9) << nodes;
      // All members of a node alike.
      for (std::size_t m = 0; m < l.nic_out.size(); ++m)
        EXPECT_NEAR(l.nic_out[m], l.node_out[m / static_cast<std::size_t>(r)] / r, 1e-9);
      expect_all(l.out, 2 * (r - 1.0) / r, "in the node");
    }
}

TEST(Tree, DownWaitsForUpAtTheRoot) {
  const Group g = even(4, 2);
  for (const Algorithm a : {Algorithm::tree, Algorithm::nvls}) {
    const FlowGraph graph = flows(OpKind::all_reduce, a, g, {.chunks = 3});
    // What ends in no other edge's `after` is the result: it has all contributions, chunk by chunk.
    std::vector<std::vector<Mask>> content(graph.edges.size(), std::vector<Mask>(3, 0));
    ASSERT_TRUE(run(
        graph, g.size(), 5, true,
        [&](Message m) {
          const FlowEdge& e = graph.edges[static_cast<std::size_t>(m.edge)];
          Mask& mask = content[static_cast<std::size_t>(m.edge)][static_cast<std::size_t>(m.number)];
          if (!e.from.at_switch) mask = Mask{1} << e.from.member;
          for (const std::int32_t f : graph.after_of(e))
            mask |= content[static_cast<std::size_t>(f)][static_cast<std::size_t>(m.number)];
        },
        [](Message) {}));
    std::set<std::int32_t> waited_for(graph.after.begin(), graph.after.end());
    int results = 0;
    for (std::size_t i = 0; i < graph.edges.size(); ++i) {
      if (waited_for.contains(static_cast<std::int32_t>(i))) continue;
      ++results;
      for (const Mask mask : content[i]) EXPECT_EQ(mask, 0xffu) << name_of(a);
    }
    // Each node's last member gets the chain's on both trees and channels; from the switch every member once.
    EXPECT_EQ(results, a == Algorithm::tree ? 4 * 2 * 2 : g.size());
  }
}

TEST(Nvls, PortsPassTheBufferAndAShardEachWay) {
  for (const auto& [nodes, r] : {std::pair{1, 8}, {2, 8}, {5, 4}}) {
    const Group g = even(nodes, r);
    const Loads l = loads_of(flows(OpKind::all_reduce, Algorithm::nvls, g), g);
    expect_all(l.out, (r + 1.0) / r, "up");
    expect_all(l.in, (r + 1.0) / r, "down");
    for (std::size_t m = 0; m < l.nic_out.size(); ++m)
      EXPECT_NEAR(l.nic_out[m], l.node_out[m / static_cast<std::size_t>(r)] / r, 1e-9);
  }
}

// --- Halving and doubling
// ---------------------------------------------------------------------------------------------

// Moves blocks, as many as participants, by the rule of recursive halving and doubling; `after` alone must do.
TEST(HalvingDoubling, BlocksEndReducedOnEveryMember) {
  for (const OpKind kind : {OpKind::all_reduce, OpKind::reduce_scatter, OpKind::all_gather})
    for (const int n : {2, 3, 4, 5, 6, 7, 8, 11, 12, 16, 24})
      for (unsigned seed = 0; seed < 4; ++seed) {
        Group g = uneven({n});
        g.per_node = 32;
        const FlowGraph graph = flows(kind, Algorithm::halving_doubling, g);
        int count = 1, bits = 0;
        for (; 2 * count <= n; count *= 2) ++bits;
        const int extra = n - count;
        const auto participant = [&](int member) { return member < 2 * extra ? member / 2 : member - extra; };
        // Shards of a participant's block: its own, and that of the rank it stands for; all_reduce: equal blocks.
        const auto weight = [&](int block) {
          return kind == OpKind::all_reduce ? 1.0 / count : (block < extra ? 2.0 : 1.0) / n;
        };
        const bool sums = kind != OpKind::all_gather;
        std::vector<std::vector<Mask>> has(static_cast<std::size_t>(n),
                                           std::vector<Mask>(static_cast<std::size_t>(count), 0));
        for (int m = 0; m < n; ++m)
          for (int b = 0; b < count; ++b)
            if (sums || b == participant(m))
              has[static_cast<std::size_t>(m)][static_cast<std::size_t>(b)] = Mask{1} << m;
        const int first = extra > 0 ? 1 : 0, steps = (kind == OpKind::all_reduce ? 2 : 1) * bits;
        ASSERT_EQ(graph.phases, steps + 2 * first);
        std::vector<std::vector<Mask>> in_flight(graph.edges.size());
        const Mask all = (Mask{1} << n) - 1;
        ASSERT_TRUE(run(
            graph, n, seed, false,
            [&](Message m) {
              const FlowEdge& e = graph.edges[static_cast<std::size_t>(m.edge)];
              std::vector<Mask> sent(static_cast<std::size_t>(count), 0);
              const int step = e.phase - first;
              double bytes = 0;
              for (int b = 0; b < count; ++b) {
                bool part = true;
                if (step >= 0 && step < steps) {
                  const bool halving = sums && step < bits;
                  const int bit = halving ? step : steps - 1 - step, low = (2 << bit) - 1;
                  const int from = participant(e.from.member), to = participant(e.to.member);
                  EXPECT_EQ(from ^ to, 1 << bit);
                  part = ((halving ? to : from) & low) == (b & low);
                } else if (kind == OpKind::reduce_scatter && step >= steps) {
                  part = b == participant(e.from.member);
                } else if (kind == OpKind::all_gather && step < 0) {
                  part = b == participant(e.from.member);
                }
                if (!part) continue;
                bytes += weight(b);
                sent[static_cast<std::size_t>(b)] =
                    has[static_cast<std::size_t>(e.from.member)][static_cast<std::size_t>(b)];
              }
              // Extra ranks' shards: only the one that is not there yet, all but their own.
              if (kind != OpKind::all_reduce && step < 0) bytes = sums ? (n - 1.0) / n : 1.0 / n;
              if (kind != OpKind::all_reduce && step >= steps) bytes = sums ? 1.0 / n : (n - 1.0) / n;
              EXPECT_NEAR(e.bytes, bytes, 1e-12) << name_of(kind) << " " << n << " step " << step;
              in_flight[static_cast<std::size_t>(m.edge)] = sent;
            },
            [&](Message m) {
              const FlowEdge& e = graph.edges[static_cast<std::size_t>(m.edge)];
              for (int b = 0; b < count; ++b) {
                Mask& there = has[static_cast<std::size_t>(e.to.member)][static_cast<std::size_t>(b)];
                const Mask sent = in_flight[static_cast<std::size_t>(m.edge)][static_cast<std::size_t>(b)];
                const bool adds = sums && e.phase - first < bits;
                EXPECT_FALSE(adds && (there & sent) != 0) << "nothing is added twice";
                there = adds || sent == 0 ? there | sent : sent | (sums ? 0 : there);
              }
            }));
        for (int m = 0; m < n; ++m)
          for (int b = 0; b < count; ++b) {
            const Mask mask = has[static_cast<std::size_t>(m)][static_cast<std::size_t>(b)];
            if (kind == OpKind::reduce_scatter && b != participant(m)) continue;
            const Mask owners = b < extra ? Mask{3} << (2 * b) : Mask{1} << (b + extra);
            EXPECT_EQ(mask, kind == OpKind::all_gather ? owners : all) << n << " member " << m << " block " << b;
          }
      }
}

TEST(HalvingDoubling, SendsTheLeastBytesInTheFewestStepsForPowersOfTwo) {
  for (const int nodes : {1, 2, 4, 8}) {
    const Group g = even(nodes, 8);
    const double n = g.size(), k = nodes;
    const FlowGraph graph = flows(OpKind::all_reduce, Algorithm::halving_doubling, g);
    EXPECT_EQ(graph.phases, 2 * std::lround(std::log2(n)));
    const Loads l = loads_of(graph, g);
    // The first halves stay in the node; what leaves it is the buffer once each way, as with rings.
    expect_all(l.out, 2 * 7.0 / 8, "in the node");
    expect_all(l.nic_out, 2 * (k - 1) / k / 8, "over NICs");
  }
}

// --- Hierarchical
// -----------------------------------------------------------------------------------------------------

TEST(Hierarchical, PhasesAreOfOneLevelEach) {
  const Group g = even(4, 8);
  const auto levels = [&](OpKind kind) {
    std::string text;
    const FlowGraph graph = flows(kind, Algorithm::hierarchical, g);
    for (int phase = 0; phase < graph.phases; ++phase) {
      std::set<char> met;
      for (const FlowEdge& e : graph.edges)
        if (e.phase == phase) met.insert(g.node(e.from.member) == g.node(e.to.member) ? 'i' : 'o');
      EXPECT_EQ(met.size(), 1u);
      text += *met.begin();
    }
    return text;
  };
  EXPECT_EQ(levels(OpKind::all_reduce), "ioi");
  EXPECT_EQ(levels(OpKind::all_gather), "oi");
  EXPECT_EQ(levels(OpKind::reduce_scatter), "io");
  EXPECT_EQ(levels(OpKind::all_to_all), "io");
}

TEST(Hierarchical, BothWaysSplitsTheBytes) {
  for (const OpKind kind : {OpKind::all_reduce, OpKind::all_gather, OpKind::reduce_scatter}) {
    const Group one_way = even(5, 4);
    Group both = one_way;
    both.both_directions = true;
    const Loads a = loads_of(flows(kind, Algorithm::hierarchical, one_way), one_way);
    const Loads b = loads_of(flows(kind, Algorithm::hierarchical, both), both);
    for (std::size_t m = 0; m < a.out.size(); ++m) {
      EXPECT_NEAR(a.out[m], b.out[m], 1e-9);
      EXPECT_NEAR(a.nic_out[m], b.nic_out[m], 1e-9);
    }
    EXPECT_EQ(a.node_pair.size(), 5u);
    EXPECT_EQ(b.node_pair.size(), 10u);
    for (const auto& [pair, bytes] : b.node_pair) EXPECT_NEAR(bytes, a.node_pair.begin()->second / 2, 1e-9);
  }
}

TEST(Hierarchical, UnevenNodesSendAndGetWhatTheyMust) {
  const Group g = uneven({8, 3, 5, 8});
  const double n = g.size();
  const std::vector<double> share{8 / n, 3 / n, 5 / n, 8 / n};
  const Loads gather = loads_of(flows(OpKind::all_gather, Algorithm::hierarchical, g), g);
  const Loads scatter = loads_of(flows(OpKind::reduce_scatter, Algorithm::hierarchical, g), g);
  const Loads reduce = loads_of(flows(OpKind::all_reduce, Algorithm::hierarchical, g), g);
  for (std::size_t a = 0; a < 4; ++a) {
    EXPECT_NEAR(gather.node_in[a], 1 - share[a], 1e-9);
    EXPECT_NEAR(scatter.node_out[a], 1 - share[a], 1e-9);
    EXPECT_NEAR(reduce.node_out[a], 2 * 3.0 / 4, 1e-9);
    EXPECT_NEAR(reduce.node_in[a], 2 * 3.0 / 4, 1e-9);
  }
  // Each member of a node sends the same over its NIC.
  for (std::size_t m = 0; m < 8; ++m) EXPECT_NEAR(reduce.nic_out[m], 1.5 / 8, 1e-9);
  for (std::size_t m = 8; m < 11; ++m) EXPECT_NEAR(reduce.nic_out[m], 1.5 / 3, 1e-9);
}

// --- First ranks
// ----------------------------------------------------------------------------------------------------

// A ring over the first members of the nodes; then each member gets all bytes once, from a chain that the first begins.
TEST(FirstRanks, OneNicOfANodeSendsAndOthersReceiveFromIt) {
  for (const bool mesh : {false, true})
    for (const bool both : {false, true})
      for (Group g : {even(4, 8), even(2, 5), uneven({8, 3, 5, 1})}) {
        g.full_mesh = mesh, g.both_directions = both;
        const FlowGraph graph = flows(OpKind::all_reduce, Algorithm::first_ranks, g);
        const std::string what = describe(OpKind::all_reduce, Algorithm::first_ranks, g);
        EXPECT_EQ(graph.phases, 2) << what;
        const Loads l = loads_of(graph, g);
        const double edge = 2 * (g.nodes() - 1.0) / g.nodes();
        for (int m = 0; m < g.size(); ++m) {
          const bool first = m == 0 || g.node(m) != g.node(m - 1);
          const auto i = static_cast<std::size_t>(m);
          EXPECT_NEAR(l.nic_out[i], first ? edge : 0, 1e-9) << what;
          EXPECT_NEAR(l.nic_in[i], first ? edge : 0, 1e-9) << what;
          EXPECT_NEAR(l.in[i], first ? 0 : 1, 1e-9) << what;
        }
        for (const FlowEdge& e : graph.edges)
          EXPECT_EQ(g.node(e.from.member) != g.node(e.to.member), e.phase == 0) << what;
      }
}

// --- All-to-all
// -------------------------------------------------------------------------------------------------------

void expect_same_node_pairs(const Loads& a, const Loads& b) {
  ASSERT_EQ(a.node_pair.size(), b.node_pair.size());
  for (const auto& [pair, bytes] : a.node_pair) EXPECT_NEAR(bytes, b.node_pair.at(pair), 1e-9);
}

TEST(AllToAll, EveryOrderedPairGetsItsPart) {
  for (const Group& g : {even(1, 5), even(3, 4), uneven({4, 1, 2})}) {
    const FlowGraph graph = flows(OpKind::all_to_all, Algorithm::direct, g, {.rail_aligned = true});
    std::map<std::pair<int, int>, double> bytes;
    for (const FlowEdge& e : graph.edges) {
      bytes[{e.from.member, e.to.member}] += e.bytes * e.messages;
      EXPECT_EQ(e.scale_up_first, g.node(e.from.member) != g.node(e.to.member));
    }
    ASSERT_EQ(bytes.size(), static_cast<std::size_t>(g.size() * (g.size() - 1)));
    for (const auto& [pair, b] : bytes) EXPECT_NEAR(b, 1.0 / g.size(), 1e-12);
  }
}

TEST(AllToAll, OneFlowToANodeCarriesWhatItsMembersGet) {
  for (const Group& g : {even(3, 4), even(4, 8), even(9, 8), uneven({4, 1, 2}), even(5, 1), even(1, 8)}) {
    const FlowGraph graph = flows(OpKind::all_to_all, Algorithm::direct, g, {.by_node = true});
    const Loads whole = loads_of(flows(OpKind::all_to_all, Algorithm::direct, g), g), l = loads_of(graph, g);
    expect_same_node_pairs(whole, l);
    for (std::size_t m = 0; m < l.out.size(); ++m) {
      EXPECT_NEAR(l.out[m], whole.out[m], 1e-9);
      EXPECT_NEAR(l.nic_out[m], whole.nic_out[m], 1e-9);
      if (g.size() % g.nodes() != 0) continue;
      EXPECT_NEAR(l.nic_in[m], whole.nic_in[m], 1e-9);
    }
  }
  // Members in turn: over eight others, node 0's first member sends to every rail.
  const Group g = even(9, 8);
  std::set<int> rails;
  for (const FlowEdge& e : flows(OpKind::all_to_all, Algorithm::direct, g, {.by_node = true}).edges)
    if (e.from.member == 0 && g.node(e.to.member) != 0) rails.insert(e.to.member % 8);
  EXPECT_EQ(rails.size(), 8u);
}

TEST(AllToAll, HierarchicallyOnlyRailsLeaveTheNode) {
  for (const Group& g : {even(3, 4), even(8, 8), uneven({4, 1, 2}), uneven({2, 8, 6})}) {
    const FlowGraph graph = flows(OpKind::all_to_all, Algorithm::hierarchical, g);
    const Loads direct = loads_of(flows(OpKind::all_to_all, Algorithm::direct, g), g), l = loads_of(graph, g);
    expect_same_node_pairs(direct, l);
    // Into each member what others have for it: that of other nodes directly, that of its own node among the rest.
    for (std::size_t m = 0; m < l.nic_in.size(); ++m) EXPECT_NEAR(l.nic_in[m], direct.nic_in[m], 1e-9);
    if (g.size() % g.nodes() != 0) continue;
    const int r = g.size() / g.nodes();
    for (const FlowEdge& e : graph.edges) EXPECT_TRUE(e.phase == 0 || e.from.member % r == e.to.member % r);
    expect_all(l.out, (r - 1.0) / r, "collected in the node");
  }
}

TEST(AllToAll, OfUnequalPartsSendsWhatTheMatrixSays) {
  const Group g = uneven({3, 2, 4});
  const std::size_t n = g.devices.size();
  std::vector<double> rows(n * n);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = i % 5 == 0 ? 0 : 100.0 + static_cast<double>(i * i % 37);
  GroupMembers members = g.members();
  members.rows = rows;
  FlowGraph graph, by_node;
  collective_flows(OpKind::all_to_all, Algorithm::direct, members, {.rail_aligned = true}, graph);
  collective_flows(OpKind::all_to_all, Algorithm::direct, members, {.by_node = true}, by_node);
  std::vector<double> sent(n * n, 0);
  for (const FlowEdge& e : graph.edges) {
    EXPECT_GT(e.bytes, 0);
    EXPECT_EQ(e.scale_up_first, g.node(e.from.member) != g.node(e.to.member));
    sent[static_cast<std::size_t>(e.from.member) * n + static_cast<std::size_t>(e.to.member)] += e.bytes;
  }
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j)
      EXPECT_DOUBLE_EQ(sent[i * n + j], i == j ? 0 : rows[i * n + j] / static_cast<double>(n));
  expect_same_node_pairs(loads_of(graph, g), loads_of(by_node, g));
  EXPECT_LT(by_node.edges.size(), graph.edges.size());

  members.rows = std::span(rows).first(n);
  EXPECT_THROW(collective_flows(OpKind::all_to_all, Algorithm::direct, members, {}, graph), InputError);
}

// --- Messages, and what is refused
// ------------------------------------------------------------------------------------

TEST(Messages, GoToTheNextMember) {
  const Group g = even(2, 3);
  const FlowGraph shift = flows(OpKind::ring_shift, Algorithm::direct, g);
  ASSERT_EQ(shift.edges.size(), 6u);
  for (int m = 0; m < 6; ++m) {
    EXPECT_EQ(shift.edges[static_cast<std::size_t>(m)].from.member, m);
    EXPECT_EQ(shift.edges[static_cast<std::size_t>(m)].to.member, (m + 1) % 6);
    EXPECT_EQ(shift.edges[static_cast<std::size_t>(m)].bytes, 1);
  }
  const FlowGraph message = flows(OpKind::send, Algorithm::direct, even(2, 1));
  ASSERT_EQ(message.edges.size(), 1u);
  EXPECT_EQ(message.edges[0].from.member, 0);
  EXPECT_EQ(message.edges[0].to.member, 1);
  EXPECT_EQ(message.edges[0].bytes, 1);
}

// What leaves a node: a part to each member there, over each one's NIC, and together again.
TEST(Messages, AreRoutedOverAllMembersOfANode) {
  const FlowGraph shift = flows(OpKind::ring_shift, Algorithm::hierarchical, even(2, 3));
  ASSERT_EQ(shift.edges.size(), 4u + 2u * (2u + 3u + 2u));
  EXPECT_EQ(shift.phases, 3);
  double between = 0, out_of_2 = 0, into_3 = 0;
  for (const FlowEdge& e : shift.edges) {
    const bool leaves = e.from.member / 3 != e.to.member / 3;
    EXPECT_EQ(leaves, e.phase == 1);
    if (leaves) {
      EXPECT_DOUBLE_EQ(e.bytes, 1.0 / 3);
    }
    between += leaves ? e.bytes : 0;
    out_of_2 += e.from.member == 2 ? e.bytes : 0;
    into_3 += e.to.member == 3 ? e.bytes : 0;
  }
  EXPECT_DOUBLE_EQ(between, 2);
  EXPECT_DOUBLE_EQ(out_of_2, 1 + 1.0 / 3);  // two parts to others and its own; and one on the way of the other message
  EXPECT_DOUBLE_EQ(into_3, 1 + 1.0 / 3);
}

TEST(CollectiveFlows, RefuseWhatTheKindDoesNotHave) {
  const Group g = even(2, 2);
  for (const OpKind kind : kKinds)
    for (const Algorithm a : kAlgorithms) {
      if (legal(kind, a))
        EXPECT_NO_THROW(flows(kind, a, g));
      else
        EXPECT_THROW(flows(kind, a, g), InputError) << name_of(kind) << " " << name_of(a);
    }
  EXPECT_THROW(flows(OpKind::linear, Algorithm::ring, g), InputError);
  EXPECT_THROW(flows(OpKind::broadcast, Algorithm::ring, g, {.chunks = 0}), InputError);
  Group nowhere = g;
  nowhere.per_node = 0;
  EXPECT_THROW(flows(OpKind::all_reduce, Algorithm::ring, nowhere), InputError);
  // 2^17 members: a message for each two could not be numbered.
  EXPECT_THROW(flows(OpKind::all_to_all, Algorithm::direct, even(16384, 8)), InputError);
}

TEST(CollectiveFlows, AGroupOfOneSendsNothing) {
  for (const OpKind kind : kKinds)
    for (const Algorithm a : kAlgorithms) {
      if (!legal(kind, a)) continue;
      const FlowGraph graph = flows(kind, a, even(1, 1));
      EXPECT_TRUE(graph.edges.empty());
      EXPECT_EQ(graph.phases, 1);
    }
}

TEST(CollectiveFlows, OnlyNodesCountNotWhereTheyAre) {
  // Every other node from the fifth on, members of a rail and of whole nodes.
  for (const int r : {1, 8})
    for (const Algorithm a : {Algorithm::ring, Algorithm::tree, Algorithm::hierarchical}) {
      const Group here = even(4, r);
      Group there = here;
      for (std::int64_t& d : there.devices) d = (5 + 2 * (d / 8)) * 8 + d % 8;
      const FlowGraph one = flows(OpKind::all_reduce, a, here), other = flows(OpKind::all_reduce, a, there);
      ASSERT_EQ(one.edges.size(), other.edges.size());
      for (std::size_t i = 0; i < one.edges.size(); ++i) {
        EXPECT_EQ(one.edges[i].from, other.edges[i].from);
        EXPECT_EQ(one.edges[i].to, other.edges[i].to);
      }
      EXPECT_EQ(one.after, other.after);
    }
  // A node's members need not follow each other: dealt out in turn, they make as good a tree.
  Group dealt = even(3, 4), sorted = dealt;
  for (std::size_t i = 0; i < 12; ++i) dealt.devices[i] = static_cast<std::int64_t>(i % 3 * 8 + i / 3);
  const Loads a = loads_of(flows(OpKind::all_reduce, Algorithm::ring, sorted), sorted);
  GroupMembers members = dealt.members();
  FlowGraph graph;
  collective_flows(OpKind::all_reduce, Algorithm::ring, members, {}, graph);
  double across = 0;
  for (const FlowEdge& e : graph.edges)
    if (dealt.node(e.from.member) != dealt.node(e.to.member)) across += e.bytes * e.messages;
  EXPECT_NEAR(across, std::accumulate(a.node_out.begin(), a.node_out.end(), 0.0), 1e-9);
}

}  // namespace
}  // namespace orrery
