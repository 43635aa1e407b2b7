// What do groups of a node's devices get from links that differ by pair?
#include "sim/cost/link_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "sim/cost/collective_calibration.h"
#include "sim/hardware/presets.h"
#include "sim/hardware/read_cluster.h"

namespace orrery {
namespace {

constexpr double kGigabyte = 1e9;
constexpr double kRelative = 1e-9;

using ::testing::ElementsAre;

Node mesh_of(std::int64_t devices, double pair) {
  Node node;
  node.devices = devices;
  node.intra = IntraFabric::direct_mesh;
  node.intra_bytes_per_second = 1e12;
  node.pair_bytes_per_second = pair;
  return node;
}
Node with_links(Node node, const std::vector<double>& rates) {
  std::size_t i = 0;
  for (std::int64_t a = 0; a < node.devices; ++a)
    for (std::int64_t b = a + 1; b < node.devices; ++b) node.links.push_back({rates[i++ % rates.size()], {{a, b}}});
  return node;
}

TEST(LinkMap, MessagesTakeTheirPairsLinksOrTheWidestOfTheShortestWays) {
  const LinkMap map(find_node("frontier"));
  EXPECT_THAT(map.way(0, 6), ElementsAre(0, 6));
  EXPECT_THAT(map.way(0, 7), ElementsAre(0, 6, 7)) << "the only way of two links";
  EXPECT_THAT(map.way(0, 4), ElementsAre(0, 2, 4)) << "as wide as over 6";
  EXPECT_THAT(map.way(6, 2), ElementsAre(6, 4, 2)) << "so that both ways of 50 GB/s share the link of 100";
  Node node = mesh_of(4, 0);
  node.links = {{1, {{0, 1}, {1, 3}}}, {2, {{0, 2}, {2, 3}}}};
  EXPECT_THAT(LinkMap(node).way(3, 0), ElementsAre(3, 2, 0));
  node.links = {{1, {{0, 1}, {1, 2}, {2, 3}}}};
  EXPECT_THAT(LinkMap(node).way(3, 0), ElementsAre(3, 2, 1, 0));
}

// RCCL has two rings for this node, each in both directions (src/graph/rome_models.cc, rome_model_74). The first is
// this one; the second is as wide as RCCL's and passes the same links of the odd devices.
TEST(LinkMap, AFrontierNodeHasAsManyRingsAsRcclGivesIt) {
  std::vector<std::int64_t> devices(8);
  std::iota(devices.begin(), devices.end(), 0);
  const std::vector<NodeRing> rings = LinkMap(find_node("frontier")).rings(devices);
  ASSERT_EQ(rings.size(), 4u);
  EXPECT_THAT(rings[0].order, ElementsAre(0, 6, 7, 5, 4, 2, 3, 1));
  EXPECT_THAT(rings[1].order, ElementsAre(1, 3, 2, 4, 5, 7, 6, 0));
  for (const NodeRing& ring : rings) EXPECT_DOUBLE_EQ(ring.share, 0.25);
}

TEST(LinkMap, GroupsOfAFrontierNodeGetWhatTheirLinksCarry) {
  const LinkMap map(find_node("frontier"));
  const auto expect = [&](std::int64_t ranks, std::int64_t stride, double ring, double exchange, double shift) {
    const LinkMap::Rates rates = map.rates(ranks, stride);
    EXPECT_NEAR(rates.ring, ring * kGigabyte, kRelative * ring * kGigabyte) << ranks << " " << stride;
    EXPECT_NEAR(rates.exchange, exchange * kGigabyte, kRelative * exchange * kGigabyte) << ranks << " " << stride;
    EXPECT_NEAR(rates.shift, shift * kGigabyte, kRelative * shift * kGigabyte) << ranks << " " << stride;
  };
  expect(2, 1, 200, 200, 200);  // the four links of a package
  expect(2, 2, 50, 50, 50);
  expect(2, 4, 50, 50, 50);  // two links one after the other
  expect(4, 1, 100, 50, 50);
  expect(8, 1, 200, 70, 50);  // four rings of 50; five messages share a link
}

// A mesh at one rate is predicted as without the list, to the last bit.
TEST(LinkMap, EvenLinksAreThePairRate) {
  Cluster plain = read_cluster("mi300x-8", {}), listed = plain;
  listed.node = with_links(plain.node, {plain.node.pair_bytes_per_second});
  listed.node.pair_bytes_per_second = 1;
  const CollectiveCalibration calibration = find_collective_calibration(plain);
  const CollectiveModel a(plain, calibration), b(listed, calibration);
  for (const OpKind kind : {OpKind::all_reduce, OpKind::all_gather, OpKind::all_to_all, OpKind::broadcast,
                            OpKind::ring_shift, OpKind::send})
    for (const std::int64_t ranks : {2, 3, 8}) {
      const GroupSpan span{.ranks = ranks, .ranks_per_node = ranks, .nodes = 1};
      EXPECT_EQ(a.cost(kind, 1e9, span).seconds, b.cost(kind, 1e9, span).seconds) << name_of(kind) << ranks;
    }
}

// Slightly uneven pairs get slightly other rates: no ring is lost.
TEST(LinkMap, RatesAreContinuousAroundAnEvenMesh) {
  for (const std::int64_t devices : {3, 4, 5, 6, 8}) {
    const double even = static_cast<double>(devices - 1) * 50 * kGigabyte;
    const LinkMap map(with_links(mesh_of(devices, 0), {50 * kGigabyte, 50.5 * kGigabyte}));
    EXPECT_EQ(map.even_rate(), 0);
    const LinkMap::Rates rates = map.rates(devices, 1);
    for (const double rate : {rates.ring, rates.exchange}) {
      EXPECT_GE(rate, even * (1 - kRelative)) << devices;
      EXPECT_LE(rate, 1.01 * even) << devices;
    }
  }
}

TEST(LinkMap, NoLinkOfAGroupCarriesMoreThanItsRate) {
  const LinkMap map(find_node("frontier"));
  for (std::int64_t ranks = 2; ranks <= 8; ++ranks) {
    std::vector<std::int64_t> devices(static_cast<std::size_t>(ranks));
    std::iota(devices.begin(), devices.end(), 0);
    std::map<std::pair<std::int64_t, std::int64_t>, double> loads;
    double all = 0;
    for (const NodeRing& ring : map.rings(devices)) {
      EXPECT_EQ(std::set<std::int32_t>(ring.order.begin(), ring.order.end()).size(), devices.size());
      all += ring.share;
      for (std::size_t i = 0; i < devices.size(); ++i) {
        const auto way = map.way(ring.order[i], ring.order[(i + 1) % devices.size()]);
        for (std::size_t p = 0; p + 1 < way.size(); ++p) loads[{way[p], way[p + 1]}] += ring.share;
      }
    }
    EXPECT_NEAR(all, 1, kRelative);
    for (const auto& [pair, load] : loads)
      EXPECT_LE(load * map.rates(ranks, 1).ring, map.bytes_per_second(pair.first, pair.second) * (1 + kRelative))
          << ranks;
  }
}

}  // namespace
}  // namespace orrery
