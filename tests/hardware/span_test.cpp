// Do span_of and crossing_groups say what their definitions say?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <ostream>
#include <random>
#include <set>

#include "sim/hardware/cluster.h"
#include "sim/hardware/stage_span.h"

namespace orrery {

bool operator==(const GroupSpan& a, const GroupSpan& b) {
  return a.ranks == b.ranks && a.ranks_per_node == b.ranks_per_node && a.nodes == b.nodes &&
         a.groups_sharing_nics == b.groups_sharing_nics && a.stride == b.stride;
}
void PrintTo(const GroupSpan& s, std::ostream* out) {
  *out << s.ranks << " ranks, " << s.ranks_per_node << " per node, " << s.nodes << " nodes, " << s.groups_sharing_nics
       << " sharing NICs, stride " << s.stride;
}

namespace {

// Axes that ranks are laid over, but for workers, which are laid as replicas are; etp is folded over others.
constexpr std::size_t kLaid = 6;
static_assert(kLaid == kMeshAxes - 2);
constexpr std::array<MeshAxis, kLaid> kOrder{MeshAxis::tp,       MeshAxis::cp,           MeshAxis::ep,
                                             MeshAxis::dp_shard, MeshAxis::dp_replicate, MeshAxis::pp};

// `degree`: in that order; laid in `order`, innermost first.
Mesh mesh_of(const std::array<std::int64_t, kLaid>& degree, const std::array<MeshAxis, kLaid>& order = kOrder) {
  Mesh mesh;
  for (const MeshAxis axis : order)
    mesh.add(axis, degree[static_cast<std::size_t>(std::ranges::find(kOrder, axis) - kOrder.begin())]);
  return mesh;
}

// By definition: every rank's group is looked up from its coordinates.
std::map<std::int64_t, std::vector<std::int64_t>> ranks_of_groups(const Mesh& mesh, MeshGroup group) {
  std::map<std::int64_t, std::vector<std::int64_t>> groups;  // by the ranks' other coordinates
  for (std::int64_t rank = 0; rank < mesh.ranks(); ++rank) {
    std::int64_t key = rank;
    const auto digits = mesh.digits();
    for (std::size_t d = 0; d < digits.size(); ++d)
      if (group.contains(static_cast<int>(d))) key -= rank / digits[d].stride % digits[d].size * digits[d].stride;
    groups[key].push_back(rank);
  }
  return groups;
}

// Every node's ranks are counted.
GroupSpan counted(const Mesh& mesh, MeshGroup group, std::int64_t devices_per_node) {
  const auto groups = ranks_of_groups(mesh, group);
  GroupSpan span{.ranks = mesh.size(group), .ranks_per_node = 0, .nodes = 0};
  std::map<std::int64_t, std::int64_t> leaving;
  for (const auto& [key, ranks] : groups) {
    EXPECT_EQ(static_cast<std::int64_t>(ranks.size()), span.ranks);
    std::map<std::int64_t, std::int64_t> on;
    for (const std::int64_t rank : ranks) ++on[rank / devices_per_node];
    const auto nodes = static_cast<std::int64_t>(on.size());
    std::int64_t most = 0;
    for (const auto& [node, count] : on) most = std::max(most, count);
    if (nodes > span.nodes) span.ranks_per_node = most;
    if (nodes == span.nodes) span.ranks_per_node = std::max(span.ranks_per_node, most);
    span.nodes = std::max(span.nodes, nodes);
    if (nodes > 1)
      for (const auto& [node, count] : on)
        span.groups_sharing_nics = std::max(span.groups_sharing_nics, ++leaving[node]);
  }
  if (span.ranks > 1) {
    const auto& first = groups.begin()->second;
    span.stride = first[1] - first[0];
  }
  return span;
}

TEST(Span, TensorParallelGroupInsideANode) {
  const Mesh mesh = mesh_of({8, 1, 1, 4, 1, 2});  // tp, cp, ep, dp_shard, dp_replicate, pp
  EXPECT_EQ(span_of(mesh, mesh.group(MeshAxis::tp), 8), (GroupSpan{.ranks = 8, .ranks_per_node = 8, .nodes = 1}));
}

TEST(Span, DataParallelGroupsOfEightTensorRanksShareTheNics) {
  const Mesh mesh = mesh_of({8, 1, 1, 4, 1, 2});
  EXPECT_EQ(span_of(mesh, mesh.group(MeshAxis::dp_shard), 8),
            (GroupSpan{.ranks = 4, .ranks_per_node = 1, .nodes = 4, .groups_sharing_nics = 8, .stride = 8}));
  EXPECT_EQ(span_of(mesh, mesh.group(MeshAxis::pp), 8),
            (GroupSpan{.ranks = 2, .ranks_per_node = 1, .nodes = 2, .groups_sharing_nics = 8, .stride = 32}));
}

TEST(Span, GroupPartlyInsideANode) {
  const Mesh mesh = mesh_of({2, 1, 1, 16, 1, 1});
  EXPECT_EQ(span_of(mesh, mesh.group(MeshAxis::dp_shard), 8),
            (GroupSpan{.ranks = 16, .ranks_per_node = 4, .nodes = 4, .groups_sharing_nics = 2, .stride = 2}));
}

TEST(Span, DigitsApartFromEachOther) {  // tp and pp without the data axes between them
  const Mesh mesh = mesh_of({4, 1, 1, 4, 1, 2});
  EXPECT_EQ(span_of(mesh, mesh.group({MeshAxis::tp, MeshAxis::pp}), 8),
            (GroupSpan{.ranks = 8, .ranks_per_node = 4, .nodes = 2, .groups_sharing_nics = 2, .stride = 1}));
}

TEST(Span, TensorParallelFourOnNodesOfSixTakesTheWorstGroup) {
  const Mesh mesh = mesh_of({4, 1, 1, 3, 1, 1});  // 0-3 | 4,5 + 6,7 | 8-11
  EXPECT_EQ(span_of(mesh, mesh.group(MeshAxis::tp), 6), (GroupSpan{.ranks = 4, .ranks_per_node = 2, .nodes = 2}));
}

TEST(Span, MeshSmallerThanANode) {
  const Mesh mesh = mesh_of({2, 1, 1, 3, 1, 1});
  EXPECT_EQ(span_of(mesh, mesh.group(MeshAxis::dp_shard), 8),
            (GroupSpan{.ranks = 3, .ranks_per_node = 3, .nodes = 1, .stride = 2}));
}

TEST(Span, NoDigitsAreOneRank) {
  EXPECT_EQ(span_of(mesh_of({8, 1, 1, 4, 1, 2}), {}, 8), GroupSpan{});
  const Mesh mesh = mesh_of({1, 1, 1, 4, 1, 2});
  EXPECT_EQ(span_of(mesh, mesh.group(MeshAxis::tp), 8), GroupSpan{});
}

TEST(Span, EverySmallMeshAndEveryGroupAgreesWithCounting) {
  constexpr std::array<std::int64_t, 4> kDegrees{1, 2, 3, 4};
  int checked = 0;
  for (const std::int64_t tp : kDegrees)
    for (const std::int64_t cp : {std::int64_t{1}, std::int64_t{2}})
      for (const std::int64_t dp : kDegrees)
        for (const std::int64_t pp : kDegrees)
          for (const std::int64_t devices_per_node : {1, 2, 3, 4, 6, 8})
            for (std::uint16_t bits = 0; bits < 16; ++bits) {
              const Mesh mesh = mesh_of({tp, cp, 1, dp, 1, pp});
              const MeshGroup group = MeshGroup::from_bits(bits);
              if (bits >= 1u << mesh.digits().size()) break;
              SCOPED_TRACE(::testing::Message() << "tp " << tp << " cp " << cp << " dp " << dp << " pp " << pp
                                                << " digits " << int{bits} << " on nodes of " << devices_per_node);
              ASSERT_EQ(span_of(mesh, group, devices_per_node), counted(mesh, group, devices_per_node));
              std::int64_t crossing = 0;
              const auto groups = ranks_of_groups(mesh, group);
              for (const auto& [key, ranks] : groups)
                crossing += ranks.front() / devices_per_node != ranks.back() / devices_per_node;
              const CrossingGroups found = crossing_groups(mesh, group, devices_per_node);
              ASSERT_EQ(found.groups, static_cast<std::int64_t>(groups.size()));
              ASSERT_EQ(found.crossing, crossing);
              ++checked;
            }
  // A digit doubles the groups: of 4 degrees 3 have one, of cp's 2 degrees 1.
  EXPECT_EQ(checked, (1 + 3 * 2) * (1 + 2) * (1 + 3 * 2) * (1 + 3 * 2) * 6);
}

// An axis of two digits spans what one of one digit does, but where a node ends inside the inner one.
TEST(Span, DigitsOfAnAxisSpanWhatTheAxisDoes) {
  for (const std::int64_t devices_per_node : {4, 8, 16}) {
    Mesh whole, split;
    whole.add(MeshAxis::tp, 16);
    split.add(MeshAxis::tp, 4, "tp.shared");
    split.add(MeshAxis::tp, 4, "tp.groups");
    for (Mesh* mesh : {&whole, &split}) mesh->add(MeshAxis::dp_shard, 3);
    for (const MeshAxis axis : {MeshAxis::tp, MeshAxis::dp_shard})
      EXPECT_EQ(span_of(split, split.group(axis), devices_per_node),
                span_of(whole, whole.group(axis), devices_per_node));
    EXPECT_EQ(span_of(split, split.group("tp.shared"), devices_per_node).ranks_per_node, 4);
    EXPECT_EQ(span_of(split, split.group("tp.groups"), devices_per_node).stride, 4);
  }
}

TEST(Span, RandomMeshesInAnyOrderAgreeWithCounting) {
  std::mt19937 random(20240607);
  const auto pick = [&](std::initializer_list<std::int64_t> values) {
    return values.begin()[random() % values.size()];
  };
  for (int i = 0; i < 1500; ++i) {
    std::array<MeshAxis, kLaid> order = kOrder;
    std::shuffle(order.begin(), order.end(), random);
    const Mesh mesh = mesh_of(
        {pick({1, 2, 4, 8}), pick({1, 1, 2, 5}), pick({1, 2}), pick({1, 2, 3, 6}), pick({1, 2}), pick({1, 2, 4, 7})},
        order);
    const MeshGroup group = MeshGroup::from_bits(static_cast<std::uint16_t>(random() % (1u << mesh.digits().size())));
    const std::int64_t devices_per_node = pick({1, 2, 3, 4, 5, 6, 7, 8, 16, 72});
    ASSERT_EQ(span_of(mesh, group, devices_per_node), counted(mesh, group, devices_per_node)) << "mesh " << i;
  }
}

// Four stages of six ranks, pairs of tensor-parallel ones, on three nodes of eight with one NIC: the groups of the
// first and the last stage lie in a node, the others' two each straddle, and the middle node's NIC has all four.
// Two ranks of a group on either node: two rings, each with half of what the group sends over the NIC.
TEST(StageSpan, AGroupIsOneWhateverItsRanksOnANode) {
  Mesh mesh;
  mesh.add(MeshAxis::dp_shard, 4);
  mesh.add(MeshAxis::pp, 3);
  Node node;
  node.devices = 6;
  node.nics = 1;
  ASSERT_FALSE(stages_lie_alike(mesh, node));
  const std::vector<StageSpan> spans = spans_by_stage(mesh, mesh.group(MeshAxis::dp_shard), node);
  EXPECT_EQ(spans[1].span,
            (GroupSpan{.ranks = 4, .ranks_per_node = 2, .nodes = 2, .groups_sharing_nics = 1, .stride = 1}));
}

// Sixty-three others, each there half of the time: more subsets than can be visited. How many are there is binomial.
TEST(StageSpan, ManyStagesShareANic) {
  constexpr int kOthers = 63;
  StageSpan span;
  span.span.groups_sharing_nics = 1;
  SharedNic& nic = span.shared.emplace_back();
  nic.groups = 1;
  for (std::int32_t s = 1; s <= kOthers; ++s) nic.others.push_back({s, 1});
  const double n = kOthers + 1;
  // The mean of 1 / (1 + k) over binomial k is (2^n - 1) / n / 2^(n - 1).
  EXPECT_NEAR(slowdown_by_others(span, std::vector<double>(kOthers + 1, 0.5)), n / (2 - std::exp2(1 - n)), 1e-9);
}

TEST(StageSpan, StagesThatStraddleNodesShareNics) {
  Mesh mesh;
  mesh.add(MeshAxis::tp, 2);
  mesh.add(MeshAxis::dp_shard, 3);
  mesh.add(MeshAxis::pp, 4);
  Node node;
  node.devices = 8;
  node.nics = 1;
  EXPECT_FALSE(stages_lie_alike(mesh, node));
  const std::vector<StageSpan> spans = spans_by_stage(mesh, mesh.group(MeshAxis::dp_shard), node);
  ASSERT_EQ(spans.size(), 4u);
  for (const std::size_t s : {0u, 3u}) {
    EXPECT_EQ(spans[s].span, (GroupSpan{.ranks = 3, .ranks_per_node = 3, .nodes = 1, .stride = 2}));
    EXPECT_TRUE(spans[s].shared.empty());
  }
  for (const std::size_t s : {1u, 2u}) {
    EXPECT_EQ(spans[s].span,
              (GroupSpan{.ranks = 3, .ranks_per_node = 2, .nodes = 2, .groups_sharing_nics = 2, .stride = 2}));
    ASSERT_EQ(spans[s].shared.size(), 1u);
    EXPECT_EQ(spans[s].shared[0].others.at(0).stage, s == 1 ? 2 : 1);
    EXPECT_DOUBLE_EQ(spans[s].shared[0].others.at(0).groups, 2);
    // Half the rate for all of the time, or for half of it.
    EXPECT_DOUBLE_EQ(slowdown_by_others(spans[s], std::vector<double>{1, 0, 0, 1}), 1);
    EXPECT_DOUBLE_EQ(slowdown_by_others(spans[s], std::vector<double>{0, 1, 1, 0}), 2);
    EXPECT_DOUBLE_EQ(slowdown_by_others(spans[s], std::vector<double>{0, 0.5, 0.5, 0}), 1 / 0.75);
  }
  // With a NIC for each device no two groups meet, but a group passes the one NIC of its single rank on a node.
  node.nics = 8;
  const StageSpan own = spans_by_stage(mesh, mesh.group(MeshAxis::dp_shard), node)[1];
  EXPECT_EQ(own.span.groups_sharing_nics, 8);
  EXPECT_TRUE(own.shared.empty());
  mesh = {};
  mesh.add(MeshAxis::tp, 2);
  mesh.add(MeshAxis::dp_shard, 4);
  mesh.add(MeshAxis::pp, 3);
  EXPECT_TRUE(stages_lie_alike(mesh, node));
}

}  // namespace
}  // namespace orrery
