// Do routes lead where they should, over links that exist, at the rates that the hardware has?
#include "sim/des/topology.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/error.h"
#include "sim/cost/collective_cost.h"
#include "sim/hardware/presets.h"
#include "sim/hardware/read_cluster.h"

namespace orrery {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Kind = Endpoint::Kind;

constexpr double kGB = 1e9;

// Eight devices, two behind each PCIe switch, a NIC each.
Cluster cluster_of(std::int64_t nodes, IntraFabric intra = IntraFabric::nvswitch,
                   FabricKind fabric = FabricKind::single_switch) {
  Cluster c;
  c.device.pcie_bytes_per_second = 60 * kGB;
  c.node.devices = 8;
  c.node.intra = intra;
  c.node.intra_bytes_per_second = intra == IntraFabric::pcie || intra == IntraFabric::nvlink_pairs ? 0 : 420 * kGB;
  c.node.pair_bytes_per_second = intra == IntraFabric::nvswitch ? 0 : 60 * kGB;
  c.node.nics = 8;
  c.node.nic_bytes_per_second = 50 * kGB;
  c.node.host_memory_bytes_per_second = 300 * kGB;
  c.node.nvme_read_bytes_per_second = 50 * kGB;
  c.node.nvme_write_bytes_per_second = 30 * kGB;
  c.nodes = nodes;
  c.fabric.kind = fabric;
  return c;
}

Cluster fat_tree(FabricKind kind, std::int64_t nodes, std::int64_t nodes_per_leaf, double oversubscription = 1) {
  Cluster c = cluster_of(nodes, IntraFabric::nvswitch, kind);
  c.fabric.nodes_per_leaf = nodes_per_leaf;
  c.fabric.oversubscription = oversubscription;
  return c;
}

Cluster dragonfly(std::int64_t nodes, std::int64_t nodes_per_group, double taper = 1) {
  Cluster c = cluster_of(nodes, IntraFabric::direct_mesh, FabricKind::dragonfly);
  c.fabric.nodes_per_group = nodes_per_group;
  c.fabric.global_taper = taper;
  return c;
}

Cluster torus(std::vector<std::int64_t> dimensions) {
  std::int64_t nodes = 1;
  for (const std::int64_t d : dimensions) nodes *= d;
  Cluster c = cluster_of(nodes, IntraFabric::nvswitch, FabricKind::torus);
  c.fabric.dimensions = std::move(dimensions);
  return c;
}

// Every way of joining devices, and every way of joining nodes, some unevenly filled.
std::vector<std::pair<Cluster, Routing>> small_clusters() {
  std::vector<std::pair<Cluster, Routing>> all;
  for (const IntraFabric intra :
       {IntraFabric::nvswitch, IntraFabric::direct_mesh, IntraFabric::nvlink_pairs, IntraFabric::pcie}) {
    all.emplace_back(cluster_of(1, intra), Routing::automatic);
    Cluster odd = cluster_of(3, intra);
    odd.node.devices = 5;
    odd.node.nics = 2;
    all.emplace_back(odd, Routing::automatic);
  }
  Cluster by_pair = cluster_of(3, IntraFabric::direct_mesh);
  by_pair.node.links = find_node("frontier").links;
  all.emplace_back(by_pair, Routing::automatic);
  Cluster slow_peers = cluster_of(2, IntraFabric::pcie);
  slow_peers.node.intra_bytes_per_second = 20 * kGB;
  all.emplace_back(slow_peers, Routing::automatic);
  Cluster reads_only = cluster_of(2);
  reads_only.node.nvme_write_bytes_per_second = 0;
  all.emplace_back(reads_only, Routing::automatic);
  for (const Routing routing : {Routing::automatic, Routing::per_flow, Routing::sprayed}) {
    for (const FabricKind kind : {FabricKind::fat_tree, FabricKind::rail_fat_tree}) {
      all.emplace_back(fat_tree(kind, 8, 2), routing);
      all.emplace_back(fat_tree(kind, 7, 3, 2.5), routing);
      all.emplace_back(fat_tree(kind, 4, 0), routing);
    }
    all.emplace_back(dragonfly(7, 2, 1.75), routing);
    all.emplace_back(dragonfly(3, 8), routing);
  }
  all.emplace_back(torus({4, 1, 3}), Routing::automatic);
  all.emplace_back(torus({2, 5, 2}), Routing::automatic);
  return all;
}

std::string describe(const Cluster& c) {
  return fmt::format("{} {}, {} nodes", kIntraFabricNames[static_cast<std::size_t>(c.node.intra)],
                     kFabricKindNames[static_cast<std::size_t>(c.fabric.kind)], c.nodes);
}

std::vector<LinkId> way(const Topology& t, Endpoint from, Endpoint to, bool scale_up_first = false) {
  std::vector<LinkId> links;
  t.route(from, to, links, scale_up_first);
  return links;
}
std::vector<LinkId> way(const Topology& t, std::int64_t from, std::int64_t to, bool scale_up_first = false) {
  return way(t, Endpoint::device(from), Endpoint::device(to), scale_up_first);
}

std::vector<std::string> names(const Topology& t, const std::vector<LinkId>& links) {
  std::vector<std::string> result;
  for (const LinkId link : links) result.push_back(t.name(link));
  return result;
}

double narrowest(const Topology& t, const std::vector<LinkId>& links) {
  double least = std::numeric_limits<double>::infinity();
  for (const LinkId link : links) least = std::min(least, t.bytes_per_second(link));
  return least;
}

// Seconds until all of these messages of one byte have passed their links.
class Load {
 public:
  explicit Load(const Topology& topology) : topology_(topology) {}
  void add(std::int64_t from, std::int64_t to, bool scale_up_first = false) {
    for (const LinkId link : way(topology_, from, to, scale_up_first)) ++messages_[link];
  }
  double seconds() const {
    double most = 0;
    for (const auto& [link, messages] : messages_) most = std::max(most, messages / topology_.bytes_per_second(link));
    return most;
  }
  double most_on(LinkKind kind) const {
    double most = 0;
    for (const auto& [link, messages] : messages_)
      if (topology_.kind(link) == kind) most = std::max(most, messages);
    return most;
  }
  std::size_t used(LinkKind kind) const {
    return static_cast<std::size_t>(std::count_if(messages_.begin(), messages_.end(),
                                                  [&](const auto& m) { return topology_.kind(m.first) == kind; }));
  }

 private:
  const Topology& topology_;
  std::map<LinkId, double> messages_;
};

// What stands at the two ends of a link, from its name alone and this description of the hardware.
struct Ends {
  std::string from, to;
};

std::vector<std::int64_t> numbers_in(const std::string& name) {
  std::vector<std::int64_t> numbers;
  for (std::size_t i = 0; i < name.size(); ++i)
    if (std::isdigit(static_cast<unsigned char>(name[i])) &&
        (i == 0 || !std::isdigit(static_cast<unsigned char>(name[i - 1]))))
      numbers.push_back(std::atoll(name.c_str() + i));
  return numbers;
}

std::string fabric_switch(const Cluster& c, std::int64_t node, std::int64_t nic) {
  const std::int64_t rails = std::min(c.node.nics, c.node.devices);
  const std::int64_t per_leaf = c.fabric.nodes_per_leaf > 0 ? c.fabric.nodes_per_leaf : c.nodes;
  switch (c.fabric.kind) {
    case FabricKind::rail_fat_tree:
      return fmt::format("leaf{}", node / per_leaf * rails + nic);
    case FabricKind::fat_tree:
      return fmt::format("leaf{}", node / per_leaf);
    case FabricKind::dragonfly:
      return fmt::format("group{}", node / c.fabric.nodes_per_group);
    default:
      return "switch";
  }
}

Ends ends_of(const Cluster& c, const Topology& t, LinkId link) {
  const std::string name = t.name(link);
  const std::vector<std::int64_t> n = numbers_in(name);
  const bool there =
      name.ends_with(".out") || name.ends_with(".up") || name.ends_with(".write") || name.ends_with(".forward");
  const std::string node = fmt::format("node{}", n[0]);
  const std::string gpu = n.size() > 1 ? fmt::format("{}.gpu{}", node, n[1]) : "";
  const bool mesh = c.node.intra == IntraFabric::direct_mesh;
  // Ports that the two-sided rates of direct meshes and slow peers put before the device's other links.
  const auto port = [&](std::int64_t g) { return fmt::format("{}.gpu{}.port", node, g); };
  const auto pcie_switch = [&](std::int64_t k) { return fmt::format("{}.pcie_switch{}", node, k); };
  Ends ends;
  switch (t.kind(link)) {
    case LinkKind::scale_up:
      ends = {gpu, c.node.intra == IntraFabric::nvswitch ? node + ".nvswitch" : port(n[1])};
      break;
    case LinkKind::scale_up_pair:
      ends = mesh ? Ends{port(n[1]), port(n[2])} : Ends{gpu, fmt::format("{}.gpu{}", node, n[2])};
      break;
    case LinkKind::pcie:
      ends = {gpu, pcie_switch(n[1] / c.node.devices_per_pcie_switch)};
      break;
    case LinkKind::pcie_switch:
      ends = {pcie_switch(n[1]), node + ".host"};
      break;
    case LinkKind::host_memory:
      ends = {node + ".host", node + ".memory"};
      break;
    case LinkKind::storage:
      ends = {node + ".host", node + ".storage"};
      break;
    case LinkKind::nic:
      ends = {fmt::format("{}.nic{}", node, n[1]), fabric_switch(c, n[0], n[1])};
      break;
    case LinkKind::leaf:
      ends = {fmt::format("leaf{}", n[0]), n.size() > 1 ? fmt::format("spine{}", n[1]) : "spine"};
      break;
    case LinkKind::global:
      ends = {fmt::format("group{}", n[0]), n.size() > 1 ? fmt::format("group{}", n[1]) : "global"};
      break;
    case LinkKind::torus: {
      std::int64_t stride = 1;
      for (std::int64_t d = 0; d < n[1]; ++d) stride *= c.fabric.dimensions[static_cast<std::size_t>(d)];
      const std::int64_t length = c.fabric.dimensions[static_cast<std::size_t>(n[1])];
      const std::int64_t here = n[0] / stride % length, next = (here + (there ? 1 : length - 1)) % length;
      return {node + ".router", fmt::format("node{}.router", n[0] + (next - here) * stride)};
    }
  }
  if (!there && t.kind(link) != LinkKind::host_memory) std::swap(ends.from, ends.to);
  return ends;
}

// A PCIe switch reaches the NICs and, in a torus, the router of its node; a port of a PCIe device is the device.
bool same_place(const Cluster& c, const std::string& a, const std::string& b) {
  if (a == b) return true;
  const auto within = [](const std::string& s) { return s.substr(0, s.find('.')); };
  const auto is = [](const std::string& s, const char* what) { return s.find(what) != std::string::npos; };
  if (within(a) != within(b)) return false;
  if (is(a, ".pcie_switch")) return is(b, ".nic") || is(b, ".router");
  if (is(b, ".pcie_switch")) return is(a, ".nic") || is(a, ".router");
  const bool over_pcie = c.node.intra == IntraFabric::pcie || c.node.intra == IntraFabric::nvlink_pairs;
  return over_pcie && (a + ".port" == b || b + ".port" == a);
}

std::string place_of(const Cluster& c, Endpoint end) {
  if (end.kind == Kind::device)
    return fmt::format("node{}.gpu{}", end.index / c.node.devices, end.index % c.node.devices);
  const char* what = end.kind == Kind::scale_up_switch ? "nvswitch" : end.kind == Kind::storage ? "storage" : "memory";
  return fmt::format("node{}.{}", end.index, what);
}

void expect_connected(const Cluster& c, const Topology& t, Endpoint from, Endpoint to, bool scale_up_first = false) {
  const std::vector<LinkId> links = way(t, from, to, scale_up_first);
  std::string at = place_of(c, from);
  for (const LinkId link : links) {
    Ends ends = ends_of(c, t, link);
    if (t.kind(link) == LinkKind::host_memory && ends.from != at && from.kind == Kind::host_memory)
      std::swap(ends.from, ends.to);
    EXPECT_TRUE(same_place(c, at, ends.from)) << at << " does not meet " << t.name(link) << " in " << describe(c);
    EXPECT_GT(t.bytes_per_second(link), 0) << t.name(link);
    at = ends.to;
  }
  EXPECT_TRUE(same_place(c, at, place_of(c, to))) << at << " is not " << place_of(c, to) << " in " << describe(c);
}

// The ideal machine as the analytical engine sees it: no latencies, no losses.
double analytical_rate(Cluster c, std::int64_t distance) {
  c.fabric.latency_seconds = c.fabric.hop_latency_seconds = 0;
  CollectiveCalibration ideal;
  ideal.intra.send_share = 1;
  ideal.intra.protocol_share = {1, 1, 1};
  ideal.inter.ring_share = 1;
  return 1 / CollectiveModel(c, ideal).transfer_seconds(1, distance, 1);
}

TEST(Topology, EveryRouteIsAChainFromEndToEnd) {
  for (const auto& [c, routing] : small_clusters()) {
    const Topology t(c, routing);
    ASSERT_EQ(t.devices(), c.devices());
    for (std::int64_t from = 0; from < t.devices(); ++from)
      for (std::int64_t to = 0; to < t.devices(); ++to) {
        expect_connected(c, t, Endpoint::device(from), Endpoint::device(to));
        expect_connected(c, t, Endpoint::device(from), Endpoint::device(to), true);
        EXPECT_EQ(way(t, from, to).empty(), from == to);
      }
    for (std::int64_t d = 0; d < t.devices(); ++d) {
      const Endpoint device = Endpoint::device(d), memory{Kind::host_memory, t.node_of(d)},
                     storage{Kind::storage, t.node_of(d)}, in_switch{Kind::scale_up_switch, t.node_of(d)};
      expect_connected(c, t, device, memory);
      expect_connected(c, t, memory, device);
      expect_connected(c, t, storage, device);
      expect_connected(c, t, storage, memory);
      if (c.node.nvme_write_bytes_per_second > 0) {
        expect_connected(c, t, device, storage);
        expect_connected(c, t, memory, storage);
      }
      if (c.node.intra == IntraFabric::nvswitch) {
        expect_connected(c, t, device, in_switch);
        expect_connected(c, t, in_switch, device);
      }
    }
  }
}

TEST(Topology, NoRoutePassesALinkTwice) {
  for (const auto& [c, routing] : small_clusters()) {
    const Topology t(c, routing);
    for (std::int64_t from = 0; from < t.devices(); ++from)
      for (std::int64_t to = 0; to < t.devices(); ++to) {
        const std::vector<LinkId> links = way(t, from, to, true);
        EXPECT_THAT(std::set<LinkId>(links.begin(), links.end()), SizeIs(links.size())) << describe(c);
      }
  }
}

TEST(Topology, ANameFindsItsLinkAndNoOther) {
  for (const auto& [c, routing] : small_clusters()) {
    const Topology t(c, routing);
    std::set<std::string> met;
    std::map<std::string, std::vector<LinkId>> by_both_directions;
    for (std::int64_t i = 0; i < t.links(); ++i) {
      const auto link = static_cast<LinkId>(i);
      const std::string name = t.name(link);
      EXPECT_TRUE(met.insert(name).second) << name << " twice in " << describe(c);
      EXPECT_THAT(t.find(name), ElementsAre(link)) << name;
      if (t.kind(link) != LinkKind::host_memory) by_both_directions[name.substr(0, name.rfind('.'))].push_back(link);
    }
    for (const auto& [name, links] : by_both_directions) EXPECT_EQ(t.find(name), links) << name;
    EXPECT_THAT(t.find("*"), SizeIs(static_cast<std::size_t>(t.links())));
  }
}

TEST(Topology, EveryLinkIsOnTheWayOfAMessage) {  // torus: of a message between neighbours; pairs: of the pair's
  for (const auto& [c, routing] : small_clusters()) {
    const Topology t(c, routing);
    std::set<LinkId> used;
    std::vector<LinkId> links;
    for (std::int64_t a = 0; a < t.devices(); ++a) {
      for (std::int64_t b = 0; b < t.devices(); ++b) t.route(Endpoint::device(a), Endpoint::device(b), links);
      for (const Kind kind : {Kind::host_memory, Kind::storage}) {
        t.route({kind, t.node_of(a)}, Endpoint::device(a), links);
        if (kind == Kind::host_memory || c.node.nvme_write_bytes_per_second > 0)
          t.route(Endpoint::device(a), {kind, t.node_of(a)}, links);
      }
    }
    used.insert(links.begin(), links.end());
    for (std::int64_t i = 0; i < t.links(); ++i) {
      const auto link = static_cast<LinkId>(i);
      // A leaf that is not full, or whose up-links are not as many as its NICs' multiples, has ways that nothing takes.
      EXPECT_TRUE(t.kind(link) == LinkKind::leaf || used.contains(link)) << t.name(link) << ", " << describe(c);
      EXPECT_GT(t.bytes_per_second(link), 0) << t.name(link);
    }
  }
}

TEST(Topology, PatternsStandForManyLinks) {
  const Topology t(fat_tree(FabricKind::rail_fat_tree, 4, 2));
  EXPECT_THAT(names(t, t.find("node3.nic2")), ElementsAre("node3.nic2.out", "node3.nic2.in"));
  EXPECT_THAT(names(t, t.find("node3.nic2.in")), ElementsAre("node3.nic2.in"));
  EXPECT_THAT(names(t, t.find("node3.gpu5.*")), ElementsAre("node3.gpu5.scale_up.out", "node3.gpu5.scale_up.in",
                                                            "node3.gpu5.pcie.out", "node3.gpu5.pcie.in"));
  EXPECT_THAT(names(t, t.find("node*.host_memory")),
              ElementsAre("node0.host_memory", "node1.host_memory", "node2.host_memory", "node3.host_memory"));
  EXPECT_THAT(t.find("node*.nic*"), SizeIs(4 * 8 * 2));
  EXPECT_THAT(t.find("leaf*.spine1.up"), SizeIs(16));
  EXPECT_THAT(t.find("node4.nic2"), IsEmpty());
  EXPECT_THAT(t.find("node3"), IsEmpty());
  EXPECT_THAT(t.find("nic2"), IsEmpty());
  EXPECT_THAT(t.find(""), IsEmpty());
}

TEST(Topology, AMisspelledLinkHasANearName) {
  const Topology t(fat_tree(FabricKind::rail_fat_tree, 4, 2));
  EXPECT_EQ(t.nearest_name("node3.gpu5.scaleup.out"), "node3.gpu5.scale_up.out");
  EXPECT_EQ(t.nearest_name("node3.gpu5.scaleup"), "node3.gpu5.scale_up");
  EXPECT_EQ(t.nearest_name("node*.nics2.in"), "node*.nic2.in");
  EXPECT_EQ(t.nearest_name("node31.nic2"), "node3.nic2");  // beyond the last
  EXPECT_EQ(t.nearest_name("leaf4.spine7.down"), "leaf4.spine1.down");
  EXPECT_EQ(t.nearest_name("entirely different"), "");
  const Topology pairs(cluster_of(1, IntraFabric::nvlink_pairs));
  EXPECT_THAT(pairs.find(pairs.nearest_name("node0.gpu1-gpu2.out")), SizeIs(1));  // no pair, but there is one nearby
}

TEST(Topology, LinksHaveTheRatesOfTheHardware) {
  Cluster c = fat_tree(FabricKind::rail_fat_tree, 4, 2);
  const auto rate = [](const Topology& t, const char* name) { return t.bytes_per_second(t.find(name).at(0)) / kGB; };
  const Topology t(c);
  EXPECT_DOUBLE_EQ(rate(t, "node1.gpu3.scale_up.out"), 420);
  EXPECT_DOUBLE_EQ(rate(t, "node1.gpu3.pcie.in"), 60);
  EXPECT_DOUBLE_EQ(rate(t, "node1.pcie_switch1.up"), 120);
  EXPECT_DOUBLE_EQ(rate(t, "node1.nic3.in"), 50);
  EXPECT_DOUBLE_EQ(rate(t, "leaf9.spine1.down"), 50);
  EXPECT_DOUBLE_EQ(rate(t, "node1.host_memory"), 300);
  EXPECT_DOUBLE_EQ(rate(t, "node1.storage.write"), 30);
  EXPECT_DOUBLE_EQ(rate(t, "node1.storage.read"), 50);
  c.node.pcie_bytes_per_second = 200 * kGB;  // of this node, rather than of the device
  c.node.devices_per_pcie_switch = 3;
  c.node.nvme_write_bytes_per_second = 0;
  EXPECT_DOUBLE_EQ(rate(Topology(c), "node1.gpu3.pcie.in"), 200);
  EXPECT_DOUBLE_EQ(rate(Topology(c), "node1.pcie_switch0.up"), 600);
  EXPECT_DOUBLE_EQ(rate(Topology(c), "node1.pcie_switch2.up"), 400);  // the two that are left
  EXPECT_DOUBLE_EQ(rate(Topology(c), "node1.storage.read"), 50);
}

TEST(Topology, ADirectMeshIsBoundByThePortAndByThePair) {
  const Topology t(cluster_of(1, IntraFabric::direct_mesh));
  EXPECT_THAT(names(t, way(t, 5, 2)),
              ElementsAre("node0.gpu5.scale_up.out", "node0.gpu2-gpu5.in", "node0.gpu2.scale_up.in"));
  EXPECT_DOUBLE_EQ(narrowest(t, way(t, 5, 2)), 60 * kGB);
  Load all(t);
  for (std::int64_t to = 1; to < 8; ++to) all.add(0, to);
  EXPECT_DOUBLE_EQ(all.seconds(), 1 / (60 * kGB));  // 7 links of 60 are the device's 420
  Cluster without = cluster_of(1, IntraFabric::direct_mesh);
  without.node.pair_bytes_per_second = 0;
  EXPECT_DOUBLE_EQ(narrowest(Topology(without), way(Topology(without), 5, 2)), 420 * kGB);
}

TEST(Topology, PairsHaveTheirOwnLinksAndOthersTakeTheWidestWay) {
  const Topology t(read_cluster("frontier", {}));
  EXPECT_THAT(names(t, way(t, 1, 0)),
              ElementsAre("node0.gpu1.scale_up.out", "node0.gpu0-gpu1.in", "node0.gpu0.scale_up.in"));
  EXPECT_DOUBLE_EQ(narrowest(t, way(t, 1, 0)), 200 * kGB);
  EXPECT_DOUBLE_EQ(narrowest(t, way(t, 0, 6)), 100 * kGB);
  EXPECT_DOUBLE_EQ(narrowest(t, way(t, 0, 2)), 50 * kGB);
  EXPECT_THAT(names(t, way(t, 7, 0)), ElementsAre("node0.gpu7.scale_up.out", "node0.gpu6-gpu7.in", "node0.gpu0-gpu6.in",
                                                  "node0.gpu0.scale_up.in"));
  EXPECT_THAT(t.find("node0.gpu0-gpu7"), IsEmpty());
}

TEST(Topology, BridgedPairsAreJoinedDirectlyAndTheRestOverPcie) {
  Cluster c = cluster_of(1, IntraFabric::nvlink_pairs);
  c.node.pair_bytes_per_second = 300 * kGB;
  const Topology t(c);
  EXPECT_THAT(names(t, way(t, 4, 5)), ElementsAre("node0.gpu4-gpu5.out"));
  EXPECT_THAT(names(t, way(t, 5, 4)), ElementsAre("node0.gpu4-gpu5.in"));
  EXPECT_DOUBLE_EQ(narrowest(t, way(t, 4, 5)), 300 * kGB);
  EXPECT_THAT(names(t, way(t, 5, 6)), ElementsAre("node0.gpu5.pcie.out", "node0.pcie_switch2.up",
                                                  "node0.pcie_switch3.down", "node0.gpu6.pcie.in"));
}

// CollectiveModel::link_of: groups whose ranks lie interleaved share the up-link of a switch.
TEST(Topology, RingsOverAPcieTreeShareUpLinks) {
  for (const std::int64_t per_switch : {1, 2, 4}) {
    Cluster c = cluster_of(1, IntraFabric::pcie);
    c.node.devices_per_pcie_switch = per_switch;
    const Topology t(c);
    for (const std::int64_t stride : {1, 2, 4}) {
      const std::int64_t ranks = 8 / stride;
      Load load(t);
      for (std::int64_t d = 0; d < 8; ++d) load.add(d, (d + stride) % (ranks * stride));
      EXPECT_DOUBLE_EQ(load.seconds(), static_cast<double>(std::min(stride, per_switch)) / (60 * kGB));
    }
  }
}

// One NIC for four switches: all but the devices of the first reach it, and it them, through their switch's up-link.
TEST(Topology, ANicIsBehindThePcieSwitchOfItsFirstDevice) {
  Cluster c = read_cluster({{"node", "pcie-8"}, {"device", "A100-PCIe-80GB"}, {"nodes", 2}}, {});
  const Topology one(c);
  EXPECT_THAT(names(one, way(one, 1, 9)),
              ElementsAre("node0.gpu1.pcie.out", "node0.nic0.out", "node1.nic0.in", "node1.gpu1.pcie.in"));
  EXPECT_THAT(names(one, way(one, 5, 10)),
              ElementsAre("node0.gpu5.pcie.out", "node0.pcie_switch2.up", "node0.pcie_switch0.down", "node0.nic0.out",
                          "node1.nic0.in", "node1.pcie_switch0.up", "node1.pcie_switch1.down", "node1.gpu2.pcie.in"));
  c.node.nics = 2;
  const Topology two(c);
  EXPECT_THAT(names(two, way(two, 5, 13)),
              ElementsAre("node0.gpu5.pcie.out", "node0.nic1.out", "node1.nic1.in", "node1.gpu5.pcie.in"));
  EXPECT_THAT(names(two, way(two, 6, 13)),
              ElementsAre("node0.gpu6.pcie.out", "node0.pcie_switch3.up", "node0.pcie_switch2.down", "node0.nic1.out",
                          "node1.nic1.in", "node1.gpu5.pcie.in"));
}

TEST(Topology, SlowPeersDoNotSlowNicsAndHost) {
  Cluster c = cluster_of(2, IntraFabric::pcie);
  c.node.intra_bytes_per_second = 20 * kGB;
  const Topology t(c);
  EXPECT_DOUBLE_EQ(narrowest(t, way(t, 0, 1)), 20 * kGB);
  EXPECT_DOUBLE_EQ(narrowest(t, way(t, 0, 7)), 20 * kGB);
  EXPECT_DOUBLE_EQ(narrowest(t, way(t, 0, 8)), 50 * kGB);
  EXPECT_DOUBLE_EQ(narrowest(t, way(t, Endpoint::device(0), {Kind::host_memory, 0})), 60 * kGB);
  EXPECT_THAT(Topology(cluster_of(2, IntraFabric::pcie)).find("*scale_up*"), IsEmpty());
}

TEST(Topology, DevicesAreDealtToNicsInOrder) {
  Cluster c = cluster_of(2);
  const auto nics = [&](std::int64_t count) {
    c.node.nics = count;
    const Topology t(c);
    std::vector<std::int64_t> result;
    for (std::int64_t d = 8; d < 16; ++d) result.push_back(t.nic_of(d));
    return result;
  };
  EXPECT_THAT(nics(1), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(nics(3), ElementsAre(0, 0, 0, 1, 1, 1, 2, 2));
  EXPECT_THAT(nics(4), ElementsAre(0, 0, 1, 1, 2, 2, 3, 3));
  EXPECT_THAT(nics(8), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(nics(32), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  c.nodes = 1;
  EXPECT_EQ(Topology(c).nic_of(5), 5);
}

TEST(Topology, ANodesNicLinksAddUpToItsNics) {
  for (const std::int64_t nics : {1, 3, 8, 12, 32}) {
    Cluster c = cluster_of(2);
    c.node.nics = nics;
    const Topology t(c);
    double sum = 0;
    for (const LinkId link : t.find("node1.nic*.out")) sum += t.bytes_per_second(link);
    EXPECT_DOUBLE_EQ(sum, c.inter_node_bytes_per_second());
    const double of_a_device = std::max(50 * kGB, 50 * kGB * static_cast<double>(nics) / 8);
    EXPECT_DOUBLE_EQ(narrowest(t, way(t, 3, 11)), std::min(of_a_device, 60 * kGB));
  }
}

TEST(Topology, RoutesAreAsLongAsTheLevelsTheyCross) {
  Cluster c = fat_tree(FabricKind::fat_tree, 8, 2);
  const Topology t(c);
  EXPECT_THAT(names(t, way(t, 1, 6)), ElementsAre("node0.gpu1.scale_up.out", "node0.gpu6.scale_up.in"));
  EXPECT_THAT(names(t, way(t, 1, 14)),
              ElementsAre("node0.gpu1.pcie.out", "node0.nic1.out", "node1.nic6.in", "node1.gpu6.pcie.in"));
  EXPECT_THAT(names(t, way(t, 1, 22)), ElementsAre("node0.gpu1.pcie.out", "node0.nic1.out", "leaf0.spine6.up",
                                                   "leaf1.spine6.down", "node2.nic6.in", "node2.gpu6.pcie.in"));
  EXPECT_THAT(names(t, way(t, Endpoint::device(11), {Kind::host_memory, 1})),
              ElementsAre("node1.gpu3.pcie.out", "node1.pcie_switch1.up", "node1.host_memory"));
  EXPECT_THAT(names(t, way(t, {Kind::storage, 1}, Endpoint::device(11))),
              ElementsAre("node1.storage.read", "node1.pcie_switch1.down", "node1.gpu3.pcie.in"));
  EXPECT_THAT(names(t, way(t, {Kind::host_memory, 1}, {Kind::storage, 1})),
              ElementsAre("node1.host_memory", "node1.storage.write"));
  EXPECT_THAT(names(t, way(t, Endpoint::device(11), {Kind::scale_up_switch, 1})),
              ElementsAre("node1.gpu3.scale_up.out"));
  EXPECT_THAT(names(t, way(t, {Kind::scale_up_switch, 1}, Endpoint::device(11))),
              ElementsAre("node1.gpu3.scale_up.in"));
  c.device.pcie_bytes_per_second = 0;  // unknown: nothing to pass
  EXPECT_THAT(names(Topology(c), way(Topology(c), 1, 14)), ElementsAre("node0.nic1.out", "node1.nic6.in"));
}

TEST(Topology, RailsMeetAtTheSpineUnlessTheNodeIsCrossedFirst) {
  Cluster c = fat_tree(FabricKind::rail_fat_tree, 4, 2);
  const Topology t(c);
  EXPECT_THAT(names(t, way(t, 1, 9)),
              ElementsAre("node0.gpu1.pcie.out", "node0.nic1.out", "node1.nic1.in", "node1.gpu1.pcie.in"));
  EXPECT_THAT(names(t, way(t, 1, 14)), ElementsAre("node0.gpu1.pcie.out", "node0.nic1.out", "leaf1.spine1.up",
                                                   "leaf6.spine1.down", "node1.nic6.in", "node1.gpu6.pcie.in"));
  EXPECT_THAT(names(t, way(t, 1, 14, true)),
              ElementsAre("node0.gpu1.scale_up.out", "node0.gpu6.scale_up.in", "node0.gpu6.pcie.out", "node0.nic6.out",
                          "node1.nic6.in", "node1.gpu6.pcie.in"));
  EXPECT_EQ(way(t, 1, 9, true), way(t, 1, 9));
  c.node.nics = 4;  // devices 6 and 7 share a rail: nothing to hand over
  EXPECT_EQ(way(Topology(c), 6, 15, true), way(Topology(c), 6, 15));
  EXPECT_NE(way(Topology(c), 5, 15, true), way(Topology(c), 5, 15));
  // Over PCIe nothing is gained, and without rails there is nothing to reach.
  for (Cluster other :
       {fat_tree(FabricKind::fat_tree, 4, 2), cluster_of(4, IntraFabric::pcie, FabricKind::rail_fat_tree)})
    EXPECT_EQ(way(Topology(other), 1, 14, true), way(Topology(other), 1, 14));
  c = cluster_of(4, IntraFabric::direct_mesh, FabricKind::rail_fat_tree);
  EXPECT_EQ(names(Topology(c), way(Topology(c), 1, 14, true)).at(1), "node0.gpu1-gpu6.out");
}

TEST(Topology, UpLinksCarryWhatDownLinksDoOverTheOversubscription) {
  for (const FabricKind kind : {FabricKind::fat_tree, FabricKind::rail_fat_tree})
    for (const Routing routing : {Routing::per_flow, Routing::sprayed})
      for (const double oversubscription : {1.0, 2.0, 3.0, 7.0, 1000.0}) {
        const Cluster c = fat_tree(kind, 12, 4, oversubscription);
        const Topology t(c, routing);
        const bool rails = kind == FabricKind::rail_fat_tree;
        for (const char* way_up : {"up", "down"}) {
          double sum = 0;
          for (const LinkId link : t.find(fmt::format("leaf1.*{}", way_up))) sum += t.bytes_per_second(link);
          EXPECT_NEAR(sum, (rails ? 4 : 32) * 50 * kGB / oversubscription, 1) << describe(c);
        }
        EXPECT_THAT(t.find("leaf*.up"),
                    SizeIs(rails ? 24 * t.find("leaf0.*up").size() : 3 * t.find("leaf0.*up").size()));
        EXPECT_THAT(t.find("leaf2.up"), SizeIs(routing == Routing::sprayed ? 1 : 0));
      }
}

TEST(Topology, OneLeafNeedsNoSpine) {
  for (const std::int64_t nodes_per_leaf : {0, 4, 5}) {
    EXPECT_THAT(Topology(fat_tree(FabricKind::fat_tree, 4, nodes_per_leaf)).find("leaf*"), IsEmpty());
    EXPECT_THAT(Topology(fat_tree(FabricKind::rail_fat_tree, 4, nodes_per_leaf)).find("leaf*"), SizeIs(8 * 4 * 2));
    Cluster one_rail = fat_tree(FabricKind::rail_fat_tree, 4, nodes_per_leaf);
    one_rail.node.nics = 1;
    EXPECT_THAT(Topology(one_rail).find("leaf*"), IsEmpty());
  }
  EXPECT_THAT(Topology(cluster_of(4)).find("leaf*"), IsEmpty());
}

// Zahavi 2012: D-mod-k passes shifts without contention, so that each way up carries the oversubscription's share.
TEST(Topology, AShiftBetweenLeavesUsesEveryUpLinkAlike) {
  for (const FabricKind kind : {FabricKind::fat_tree, FabricKind::rail_fat_tree})
    for (const std::int64_t oversubscription : {1, 2, 4})
      for (const std::int64_t leaves_on : {1, 2}) {
        const Cluster c = fat_tree(kind, 16, 4, static_cast<double>(oversubscription));
        const Topology t(c);
        Load load(t);
        for (std::int64_t d = 0; d < t.devices(); ++d) load.add(d, (d + leaves_on * 4 * 8) % t.devices());
        EXPECT_EQ(load.most_on(LinkKind::leaf), static_cast<double>(oversubscription));
        EXPECT_EQ(load.used(LinkKind::leaf), static_cast<std::size_t>(2 * 128 / oversubscription));  // all of them
        EXPECT_EQ(load.most_on(LinkKind::nic), 1);
        // As CollectiveModel::crossing_of has it for neighbours a leaf apart.
        EXPECT_DOUBLE_EQ(load.seconds(), static_cast<double>(oversubscription) / (50 * kGB));
      }
}

TEST(Topology, AnyShiftIsFreeOfContention) {
  for (const FabricKind kind : {FabricKind::fat_tree, FabricKind::rail_fat_tree}) {
    const Topology t(fat_tree(kind, 16, 4));
    for (std::int64_t shift = 8; shift < 128; shift += 8) {  // by whole nodes
      Load load(t);
      for (std::int64_t d = 0; d < 128; ++d) load.add(d, (d + shift) % 128);
      EXPECT_LE(load.most_on(LinkKind::leaf), 1) << shift;
    }
  }
}

TEST(Topology, FlowsToOneDestinationCollideWhereSprayedOnesDoNot) {
  // Two nodes of leaf 0 send to nodes whose NICs are alike modulo the four ways up.
  const Cluster c = fat_tree(FabricKind::rail_fat_tree, 12, 4);
  for (const auto& [routing, seconds] : {std::pair{Routing::per_flow, 2.0}, {Routing::sprayed, 1.0}}) {
    const Topology t(c, routing);
    Load load(t);
    load.add(0, 4 * 8);
    load.add(8, 8 * 8);
    EXPECT_DOUBLE_EQ(load.seconds(), seconds / (50 * kGB));
  }
}

TEST(Topology, AllToAllOverRailsIsNarrowedAsTheAnalyticalEngineHasIt) {
  // CollectiveModel::crossing_of: oversubscription times the share of other rails, under one rail group.
  const Cluster c = fat_tree(FabricKind::rail_fat_tree, 8, 8, 2);
  const Topology t(c);
  Load direct(t), rail_aligned(t);
  for (std::int64_t a = 0; a < 64; ++a)
    for (std::int64_t b = 0; b < 64; ++b)
      if (t.node_of(a) != t.node_of(b)) {
        direct.add(a, b);
        rail_aligned.add(a, b, true);
      }
  EXPECT_DOUBLE_EQ(direct.seconds(), 56 / (50 * kGB) * 2 * 7 / 8);
  EXPECT_EQ(rail_aligned.most_on(LinkKind::leaf), 0);
  EXPECT_DOUBLE_EQ(rail_aligned.seconds(), 56 / (50 * kGB));
}

TEST(Topology, DragonflyGroupsLeaveAtTheInjectionRateOverTheTaper) {
  const Cluster c = dragonfly(12, 4, 1.6);
  const double leaving = 4 * 400 * kGB / 1.6;
  const Topology sprayed(c);  // automatic
  ASSERT_THAT(sprayed.find("group*"), SizeIs(3 * 2));
  EXPECT_DOUBLE_EQ(sprayed.bytes_per_second(sprayed.find("group1.global.out").at(0)), leaving);
  EXPECT_THAT(names(sprayed, way(sprayed, 0, 95)),
              ElementsAre("node0.gpu0.pcie.out", "node0.nic0.out", "group0.global.out", "group2.global.in",
                          "node11.nic7.in", "node11.gpu7.pcie.in"));
  const Topology minimal(c, Routing::per_flow);
  ASSERT_THAT(minimal.find("group*"), SizeIs(3 * 2));
  EXPECT_DOUBLE_EQ(minimal.bytes_per_second(minimal.find("group1-group2.in").at(0)), leaving / 2);
  EXPECT_EQ(names(minimal, way(minimal, 95, 0)).at(2), "group0-group2.in");
  EXPECT_THAT(way(minimal, 0, 31), SizeIs(4));  // within a group
  Load shift(sprayed);                          // every group to the next: as CollectiveModel::crossing_of
  for (std::int64_t d = 0; d < 96; ++d) shift.add(d, (d + 32) % 96);
  EXPECT_DOUBLE_EQ(shift.seconds(), 1.6 / (50 * kGB));
}

TEST(Topology, AGroupsGlobalLinksAddUpUnderEitherRouting) {
  for (const std::int64_t nodes : {8, 20, 23}) {
    double sums[2] = {0, 0};
    for (const Routing routing : {Routing::sprayed, Routing::per_flow}) {
      const Topology t(dragonfly(nodes, 4, 1.75), routing);
      for (std::int64_t i = 0; i < t.links(); ++i) {
        const auto link = static_cast<LinkId>(i);
        if (t.kind(link) == LinkKind::global && (routing == Routing::per_flow || t.name(link).ends_with("out")))
          sums[routing == Routing::per_flow] += t.bytes_per_second(link);
      }
    }
    EXPECT_DOUBLE_EQ(sums[0], sums[1]);
  }
}

TEST(Topology, TorusRoutesAreShortest) {
  for (const std::vector<std::int64_t>& dimensions :
       {std::vector<std::int64_t>{4, 4, 4}, {5, 1, 3}, {2, 6}, {7}, {2, 2, 2}}) {
    const Cluster c = torus(dimensions);
    const Topology t(c);
    EXPECT_THAT(t.find("*.nic*"), IsEmpty());
    for (std::int64_t a = 0; a < c.nodes; ++a)
      for (std::int64_t b = 0; b < c.nodes; ++b) {
        if (a == b) continue;
        std::int64_t hops = 0, stride = 1;
        for (const std::int64_t d : dimensions) {
          const std::int64_t apart = std::abs(a / stride % d - b / stride % d);
          hops += std::min(apart, d - apart);
          stride *= d;
        }
        EXPECT_THAT(way(t, a * 8, b * 8 + 3), SizeIs(static_cast<std::size_t>(hops + 2)));
      }
  }
}

TEST(Topology, ATorusNodesLinksAddUpToItsNics) {
  for (const std::vector<std::int64_t>& dimensions : {std::vector<std::int64_t>{4, 3, 5}, {2, 4}, {2, 2, 2}}) {
    const Topology t(torus(dimensions));
    double sum = 0;
    for (const LinkId link : t.find("node1.dimension*")) sum += t.bytes_per_second(link);
    EXPECT_DOUBLE_EQ(sum, 400 * kGB);
  }
  const Topology flat(torus({4, 1}));  // the dimension of one takes its share, as in CollectiveModel::crossing_of
  EXPECT_DOUBLE_EQ(flat.bytes_per_second(flat.find("node1.dimension0.forward").at(0)), 100 * kGB);
  EXPECT_THAT(flat.find("node1.dimension1*"), IsEmpty());
}

// Dally and Towles, section 3.3: half of the bytes cross the bisection; with ties split evenly all links of a dimension
// of length d carry nodes x d / 8 messages (the joint ones of length 2: both links' share).
TEST(Topology, AllToAllLoadsATorusEvenly) {
  for (const std::vector<std::int64_t>& dimensions : {std::vector<std::int64_t>{4, 4, 4}, {8, 4}, {6, 2, 2}}) {
    Cluster c = torus(dimensions);
    c.device.pcie_bytes_per_second = 0;  // one device of each node sends for all
    const Topology t(c);
    Load load(t);
    for (std::int64_t a = 0; a < c.nodes; ++a)
      for (std::int64_t b = 0; b < c.nodes; ++b) load.add(a * 8, b * 8);
    const auto longest = static_cast<double>(*std::max_element(dimensions.begin(), dimensions.end()));
    const double link = 400 * kGB / 2 / static_cast<double>(dimensions.size());
    const double odd_half = dimensions[0] % 4 == 0 ? 1 : 10.0 / 9;  // six: ties of even coordinates overlap
    const double busiest = static_cast<double>(c.nodes) * longest / 8;
    EXPECT_GE(load.seconds() * link, busiest * (1 - 1e-9));
    EXPECT_LE(load.seconds() * link, busiest * odd_half * (1 + 1e-9));
  }
}

TEST(Topology, AnIdleMessageIsAsFastAsTheAnalyticalEngineHasIt) {
  for (const std::string& name : node_names()) {
    nlohmann::json json{{"nodes", 2}, {"node", name}};
    Node node = find_node(name);
    if (node.device.empty()) json["device"] = "A100-PCIe-80GB";
    if (node.nics == 0) json["inter_node_bytes_per_second"] = 10e9;
    const Cluster c = read_cluster(json, {});
    const Topology t(c);
    const std::int64_t n = c.node.devices;
    if (n > 1) {
      double slowest = narrowest(t, way(t, 0, 1));
      if (!t.link_map().empty())
        for (std::int64_t d = 1; d + 1 < n; ++d) slowest = std::min(slowest, narrowest(t, way(t, d, d + 1)));
      EXPECT_NEAR(slowest / analytical_rate(c, 1), 1, 1e-12) << name;
      Load halves(t);  // like groups at once, as the analytical engine takes them: they share PCIe switches
      for (std::int64_t d = 0; d < n / 2; ++d) halves.add(d, d + n / 2);
      EXPECT_NEAR(halves.seconds() * analytical_rate(c, n / 2), 1, 1e-12) << name;
    }
    EXPECT_NEAR(narrowest(t, way(t, 0, n)) / analytical_rate(c, n), 1, 1e-12) << name;
    // OpCostModel: copies pass at the host link's rate, as long as the host's memory does.
    ASSERT_GT(c.node.host_memory_bytes_per_second, 0) << name;
    EXPECT_DOUBLE_EQ(narrowest(t, way(t, Endpoint::device(0), {Kind::host_memory, 0})),
                     std::min(c.node.pcie_bytes_per_second, c.node.host_memory_bytes_per_second))
        << name;
    expect_connected(c, t, Endpoint::device(0), Endpoint::device(t.devices() - 1));
  }
}

TEST(Topology, EveryBundledClusterRoutesFromItsFirstToItsLastDevice) {
  for (const std::string& name : cluster_names()) {
    const Cluster c = find_cluster(name);
    for (const Routing routing : {Routing::automatic, Routing::per_flow, Routing::sprayed}) {
      const Topology t(c, routing);
      EXPECT_EQ(t.devices(), c.devices());
      for (const bool scale_up_first : {false, true}) {
        expect_connected(c, t, Endpoint::device(0), Endpoint::device(t.devices() - 1), scale_up_first);
        expect_connected(c, t, Endpoint::device(t.devices() - 1), Endpoint::device(0), scale_up_first);
      }
    }
  }
}

TEST(Topology, AClusterOf131072DevicesWeighsNothing) {
  const Cluster c = read_cluster({{"node", "dgx-h100"}, {"nodes", 16384}}, {});
  const Topology t(c);
  EXPECT_EQ(t.devices(), 131072);
  EXPECT_GT(t.links(), 1'000'000);
  std::vector<LinkId> links;
  for (std::int64_t d = 0; d < t.devices(); ++d) {
    links.clear();
    t.route(Endpoint::device(d), Endpoint::device(131071 - d), links);
    ASSERT_THAT(links, SizeIs(6));
    for (const LinkId link : links) ASSERT_LT(link, t.links());
  }
  expect_connected(c, t, Endpoint::device(0), Endpoint::device(131071));
  EXPECT_THAT(t.find("node16383.gpu7.pcie"), SizeIs(2));
  EXPECT_THAT(t.find("node*.nic7.in"), SizeIs(16384));
}

// What a message throws: the pointer of an InputError.
std::string pointer_of(const auto& act) {
  try {
    act();
  } catch (const InputError& e) {
    return e.where().pointer;
  }
  return "nothing thrown";
}

TEST(Topology, SaysWhichRateALevelOfSeveralMembersLacks) {
  Cluster c = cluster_of(1);
  c.node.intra_bytes_per_second = 0;
  EXPECT_EQ(pointer_of([&] { Topology t(c); }), "/cluster/intra_node_bytes_per_second");
  c.node.devices = 1;  // nothing to join
  EXPECT_EQ(pointer_of([&] { Topology t(c); }), "nothing thrown");
  c = cluster_of(1, IntraFabric::nvlink_pairs);
  c.node.pair_bytes_per_second = 0;
  EXPECT_EQ(pointer_of([&] { Topology t(c); }), "/cluster/pair_bytes_per_second");
  c = cluster_of(1, IntraFabric::pcie);
  c.device.pcie_bytes_per_second = 0;
  EXPECT_EQ(pointer_of([&] { Topology t(c); }), "/cluster/intra_node_bytes_per_second");
  for (const bool without_nics : {false, true}) {
    c = cluster_of(2);
    (without_nics ? c.node.nics : c.nodes) = without_nics ? 0 : 2;
    if (!without_nics) c.node.nic_bytes_per_second = 0;
    EXPECT_EQ(pointer_of([&] { Topology t(c); }), "/cluster/inter_node_bytes_per_second");
    c.nodes = 1;
    EXPECT_EQ(pointer_of([&] { Topology t(c); }), "nothing thrown");
  }
  c = torus({3, 3});
  c.nodes = 8;
  EXPECT_EQ(pointer_of([&] { Topology t(c); }), "/cluster/fabric/dimensions");
  c.fabric.dimensions = {};
  EXPECT_EQ(pointer_of([&] { Topology t(c); }), "/cluster/fabric/dimensions");
  c = cluster_of(kMostNodes, IntraFabric::direct_mesh);
  c.node.devices = kMostDevicesPerNode;
  EXPECT_EQ(pointer_of([&] { Topology t(c); }), "/cluster/nodes");
}

TEST(Topology, SaysWhichRateARouteLacks) {
  Cluster c = cluster_of(2);
  c.node.host_memory_bytes_per_second = c.node.nvme_read_bytes_per_second = 0;
  const auto lacking = [&](Endpoint from, Endpoint to) { return pointer_of([&] { way(Topology(c), from, to); }); };
  const Endpoint device = Endpoint::device(0), memory{Kind::host_memory, 0}, storage{Kind::storage, 0};
  EXPECT_EQ(lacking(device, memory), "/cluster/node/host_memory_bytes_per_second");
  EXPECT_EQ(lacking(storage, device), "/cluster/node/nvme_read_bytes_per_second");
  EXPECT_EQ(lacking(device, storage), "nothing thrown");
  c.node.nvme_write_bytes_per_second = 0;
  EXPECT_EQ(lacking(device, storage), "/cluster/node/nvme_write_bytes_per_second");
  c.device.pcie_bytes_per_second = 0;
  EXPECT_EQ(lacking(device, storage), "/cluster/device/pcie_bytes_per_second");
}

TEST(Topology, RefusesEndpointsThatAreNotJoined) {
  const Topology t(cluster_of(2)), mesh(cluster_of(2, IntraFabric::direct_mesh));
  EXPECT_THROW(way(t, 0, 16), std::logic_error);
  EXPECT_THROW(way(t, -1, 0), std::logic_error);
  EXPECT_THROW(way(t, Endpoint::device(0), {Kind::storage, 2}), std::logic_error);
  EXPECT_THROW(way(t, Endpoint::device(0), {Kind::host_memory, 1}), std::logic_error);
  EXPECT_THROW(way(t, Endpoint::device(0), {Kind::scale_up_switch, 1}), std::logic_error);
  EXPECT_THROW(way(t, {Kind::host_memory, 0}, {Kind::scale_up_switch, 0}), std::logic_error);
  EXPECT_THROW(way(mesh, Endpoint::device(0), {Kind::scale_up_switch, 0}), std::logic_error);
}

}  // namespace
}  // namespace orrery
