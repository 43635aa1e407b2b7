// Do collectives that are under way together share a level as worked out by hand?
#include "sim/analytical/fabric_share.h"

#include "tests/analytical/handmade.h"

namespace orrery {
namespace {

constexpr std::size_t kTensor = static_cast<std::size_t>(Stream::tensor_communication);
constexpr std::size_t kData = static_cast<std::size_t>(Stream::data_communication);
constexpr std::size_t kParameters = static_cast<std::size_t>(Stream::parameter_communication);

FabricWork in_node(double seconds, double latency = 0) { return {.latency_seconds = latency, .seconds = {seconds, 0}}; }
FabricWork over_network(double seconds, double latency = 0) {
  return {.latency_seconds = latency, .seconds = {0, seconds}};
}

// Of ten seconds one is latency, two are the node's; what leaf switches make of three seconds of NICs is the network's.
TEST(FabricWork, WhatNarrowsAGroupBeyondItsNicsIsOfItsNetwork) {
  CollectiveCost cost;
  cost.seconds = 10;
  cost.latency_seconds = 1;
  cost.intra_seconds = 2;
  cost.inter_seconds = 3;
  const FabricWork beside = fabric_work(cost);
  EXPECT_DOUBLE_EQ(beside.latency_seconds, 1);
  EXPECT_DOUBLE_EQ(beside.seconds[0], 2);
  EXPECT_DOUBLE_EQ(beside.seconds[1], 9) << "the node's two seconds pass meanwhile";
  cost.in_sequence = true;
  EXPECT_DOUBLE_EQ(fabric_work(cost).seconds[1], 7) << "behind the node's two seconds";
  cost.intra_seconds = 9;
  cost.in_sequence = false;
  EXPECT_DOUBLE_EQ(fabric_work(cost).seconds[1], 3) << "where the node takes longer there is nothing to see of it";
}

// Where the node's seconds bound a collective, (latency + seconds) - latency may exceed them by a rounding.
TEST(FabricWork, RoundingMakesNoWorkForTheNetwork) {
  int rounded_up = 0;
  for (int i = 1; i <= 1000; ++i) {
    CollectiveCost cost;
    cost.intra_seconds = i * 1e-4 / 3;
    cost.latency_seconds = 0.7 * cost.intra_seconds;
    cost.inter_seconds = cost.intra_seconds / 2;
    cost.seconds = cost.latency_seconds + cost.intra_seconds;
    rounded_up += cost.seconds - cost.latency_seconds > cost.intra_seconds ? 1 : 0;
    EXPECT_EQ(fabric_work(cost).seconds[1], cost.inter_seconds) << i;
  }
  EXPECT_GT(rounded_up, 100);
}

TEST(FabricShare, TwoEqualCollectivesTakeTwiceAsLong) {
  SharedFabric fabric;
  const auto a = fabric.issue(kTensor, 0, in_node(3), 0);
  EXPECT_DOUBLE_EQ(fabric.end(kTensor, a), 3) << "alone so far";
  const auto b = fabric.issue(kData, 0, in_node(3), 0);
  EXPECT_DOUBLE_EQ(fabric.end(kTensor, a), 6);
  EXPECT_DOUBLE_EQ(fabric.end(kData, b), 6);
}

// Work far behind is handed on in fewer pieces that take as long together: of one kind, in the order of the stream.
TEST(FabricShare, WorkFarBehindIsJoined) {
  constexpr int kWorks = 1000;
  SharedFabric fabric;
  double seconds = 0, latency = 0;
  for (int i = 0; i < kWorks; ++i) {
    FabricWork work = i < kWorks / 2 ? in_node(1 + i % 3) : over_network(1 + i % 5);
    work.latency_seconds = 0.25;
    seconds += work.seconds[0] + work.seconds[1];
    latency += work.latency_seconds;
    fabric.issue(kData, 0, work, 0);
  }
  FabricBacklog backlog;
  fabric.leave(0, backlog);
  const std::vector<FabricWork>& left = backlog[kData];
  EXPECT_LE(left.size(), 65u);
  double in_node_after = 0, network_after = 0, latency_after = 0;
  for (std::size_t i = 0; i < left.size(); ++i) {
    EXPECT_TRUE(i >= 32 || left[i].latency_seconds == 0.25) << "what is next keeps its pieces";
    in_node_after += left[i].seconds[0];
    network_after += left[i].seconds[1];
    latency_after += left[i].latency_seconds;
  }
  EXPECT_DOUBLE_EQ(in_node_after + network_after, seconds);
  EXPECT_DOUBLE_EQ(latency_after, latency);
  EXPECT_DOUBLE_EQ(left.back().seconds[0], 0);
  EXPECT_DOUBLE_EQ(fabric.work_off(backlog)[kData], seconds + latency);
}

TEST(FabricShare, WhatEndsEarlyFreesTheRest) {
  SharedFabric fabric;
  const auto a = fabric.issue(kTensor, 0, over_network(1), 0);
  const auto b = fabric.issue(kData, 0, over_network(5), 0);
  EXPECT_DOUBLE_EQ(fabric.end(kTensor, a), 2);
  EXPECT_DOUBLE_EQ(fabric.end(kData, b), 6) << "half for two seconds, then all of it";
  // Three at once: a third each until the shortest has ended, then halves.
  SharedFabric three;
  three.issue(kTensor, 0, in_node(1), 0);
  three.issue(kData, 0, in_node(2), 0);
  three.issue(kParameters, 0, in_node(4), 0);
  EXPECT_DOUBLE_EQ(three.end(kTensor), 3);
  EXPECT_DOUBLE_EQ(three.end(kData), 3 + 2);
  EXPECT_DOUBLE_EQ(three.end(kParameters), 1 + 2 + 4);
}

TEST(FabricShare, AnotherLevelIsNotDisturbed) {
  SharedFabric fabric;
  fabric.issue(kTensor, 0, in_node(3), 0);
  fabric.issue(kData, 0, over_network(5), 0);
  EXPECT_DOUBLE_EQ(fabric.end(kTensor), 3);
  EXPECT_DOUBLE_EQ(fabric.end(kData), 5);
}

// A mesh's links between neighbouring ranks, an NVLink bridge: other groups of the node do not use them.
TEST(FabricShare, LinksOfNeighboursAreTheirOwn) {
  FabricWork beside = in_node(3);
  beside.in_node = FabricLevel::neighbours;
  SharedFabric fabric;
  fabric.issue(kTensor, 0, beside, 0);
  fabric.issue(kData, 0, in_node(5), 0);
  EXPECT_DOUBLE_EQ(fabric.end(kTensor), 3);
  EXPECT_DOUBLE_EQ(fabric.end(kData), 5);
  SharedFabric same;
  same.issue(kTensor, 0, beside, 0);
  same.issue(kData, 0, beside, 0);
  EXPECT_DOUBLE_EQ(same.end(kData), 6);
}

// Its bytes in the node take twice as long beside another's; those over the network take their time meanwhile.
TEST(FabricShare, ACollectiveOnBothLevelsEndsWithTheSlowerOne) {
  for (const double network : {3.0, 5.0}) {
    SharedFabric fabric;
    fabric.issue(kTensor, 0, in_node(2), 0);
    fabric.issue(kData, 0, {.seconds = {2, network}}, 0);
    EXPECT_DOUBLE_EQ(fabric.end(kTensor), 4);
    EXPECT_DOUBLE_EQ(fabric.end(kData), std::max(4.0, network));
  }
  SharedFabric in_phases;  // first in the node, then between nodes
  in_phases.issue(kTensor, 0, in_node(2), 0);
  in_phases.issue(kData, 0, {.seconds = {2, 3}, .in_sequence = true}, 0);
  EXPECT_DOUBLE_EQ(in_phases.end(kTensor), 4);
  EXPECT_DOUBLE_EQ(in_phases.end(kData), 4 + 3);
}

TEST(FabricShare, LatencyTakesNoPartOfALevel) {
  SharedFabric fabric;
  fabric.issue(kTensor, 0, in_node(3, 0.5), 0);
  fabric.issue(kData, 0, in_node(1, 2.5), 0);
  EXPECT_DOUBLE_EQ(fabric.end(kData), 2.5 + 2);
  EXPECT_DOUBLE_EQ(fabric.end(kTensor), 0.5 + 3 + 1);
}

TEST(FabricShare, OneThatBeginsLaterSharesFromThenOn) {
  SharedFabric fabric;
  const auto a = fabric.issue(kTensor, 0, in_node(4), 0);
  const auto b = fabric.issue(kData, 3, in_node(4), 3);
  EXPECT_DOUBLE_EQ(fabric.end(kTensor, a), 3 + 2);
  EXPECT_DOUBLE_EQ(fabric.end(kData, b), 3 + 2 + 3);
}

// Those of one stream run one after the other, and the queue is served as long as it has any.
TEST(FabricShare, AStreamsOwnRunInOrder) {
  SharedFabric fabric;
  const auto a = fabric.issue(kData, 0, in_node(1), 0);
  const auto b = fabric.issue(kData, 0, in_node(2), 0);
  const auto c = fabric.issue(kTensor, 0, in_node(2), 0);
  EXPECT_DOUBLE_EQ(fabric.end(kData, a), 2);
  EXPECT_DOUBLE_EQ(fabric.end(kTensor, c), 4);
  EXPECT_DOUBLE_EQ(fabric.end(kData, b), 5);
  const SharedFabric::Stretch busy = fabric.busy(1, 10);
  EXPECT_DOUBLE_EQ(busy.from, 1);
  EXPECT_DOUBLE_EQ(busy.until, 5);
}

TEST(FabricShare, ABacklogIsWorkedOff) {
  SharedFabric fabric;
  fabric.issue(kTensor, 0, in_node(9), 0);  // of another slot
  FabricBacklog backlog;
  backlog[kData] = {over_network(3, 1), in_node(2)};
  EXPECT_DOUBLE_EQ(fabric.work_off(backlog)[kData], 1 + 3 + 2);
  EXPECT_DOUBLE_EQ(fabric.work_off(backlog)[kTensor], 0);
  fabric.work_off(2, backlog);
  ASSERT_EQ(backlog[kData].size(), 2u);
  EXPECT_DOUBLE_EQ(backlog[kData].front().alone(), 2);
  fabric.work_off(3, backlog);
  ASSERT_EQ(backlog[kData].size(), 1u);
  EXPECT_DOUBLE_EQ(fabric.work_off(backlog)[kData], 1);
  fabric.work_off(1, backlog);
  EXPECT_TRUE(backlog[kData].empty());
}

TEST(FabricShare, WhatIsLeftGoesOnInTheNextSlot) {
  SharedFabric fabric;
  fabric.issue(kTensor, 0, in_node(2), 0);
  fabric.issue(kData, 0, over_network(5, 1), 0);
  fabric.issue(kData, 0, over_network(7, 1), 0);
  FabricBacklog left;
  fabric.leave(2, left);
  EXPECT_TRUE(left[kTensor].empty());
  ASSERT_EQ(left[kData].size(), 2u);
  EXPECT_DOUBLE_EQ(left[kData][0].alone(), 4);
  EXPECT_DOUBLE_EQ(left[kData][0].latency_seconds, 0);
  EXPECT_DOUBLE_EQ(left[kData][1].alone(), 8);
}

// --- In a line

class SharedLine : public testing::Test {
 protected:
  SharedLine() {
    Mesh mesh;
    mesh.add(MeshAxis::tp, 8);
    mesh.add(MeshAxis::dp_shard, 2);
    w.set_mesh(mesh);
  }
  Op& collective(Handmade& h, Stream stream, MeshAxis axis, std::int64_t bytes, TensorId reads = kNoTensor) {
    Op op;
    op.kind = OpKind::all_gather;
    op.name = "gather";
    op.stream = stream;
    op.group = w.mesh.group(axis);
    op.reads[0] = h.tensor(bytes / 8);
    op.reads[1] = reads;
    op.writes[0] = h.tensor(bytes);
    op.free_running = true;
    h.piece.forward.ops.push_back(op);
    return h.piece.forward.ops.back();
  }
  double alone(const Handmade& h, std::size_t op) {
    return w.costs.cost(h.piece.forward.ops[op], h.piece.tensors, 1).seconds;
  }

  Clockwork w;
};

TEST_F(SharedLine, StreamsThatMeetInTheNodeEndLaterTogether) {
  Handmade h;
  const TensorId a = collective(h, Stream::tensor_communication, MeshAxis::tp, 1 << 30).writes[0];
  const TensorId b = collective(h, Stream::context_communication, MeshAxis::tp, 1 << 30).writes[0];
  h.kernel(h.piece.forward, 0, {a, b});
  const CollectiveCost one = w.costs.collective(h.piece.forward.ops[0], h.piece.tensors, 1);
  EXPECT_NEAR(w.run(h.piece).seconds, one.latency_seconds + 2 * one.intra_seconds, 1e-12);
}

TEST_F(SharedLine, StreamsOnOtherLevelsRunSideBySide) {
  Handmade h;
  const TensorId a = collective(h, Stream::tensor_communication, MeshAxis::tp, 1 << 30).writes[0];
  const TensorId b = collective(h, Stream::parameter_communication, MeshAxis::dp_shard, 1 << 30).writes[0];
  h.kernel(h.piece.forward, 0, {a, b});
  EXPECT_DOUBLE_EQ(w.run(h.piece).seconds, std::max(alone(h, 0), alone(h, 1)));
}

// A gather that was issued ahead slows the exchange that a kernel waits for, and is slowed by it.
TEST_F(SharedLine, WhatIsIssuedAheadSlowsWhatIsWaitedFor) {
  Handmade h;
  Op& ahead = collective(h, Stream::parameter_communication, MeshAxis::tp, std::int64_t{4} << 30);
  ahead.prefetch = 1;
  const TensorId weights = ahead.writes[0];
  const TensorId input = h.kernel(h.piece.forward, 0, {weights}).writes[0];
  const TensorId x = collective(h, Stream::tensor_communication, MeshAxis::tp, 1 << 30, input).writes[0];
  h.kernel(h.piece.forward, 0, {x});
  const CollectiveCost gather = w.costs.collective(h.piece.forward.ops[0], h.piece.tensors, 1);
  const CollectiveCost exchange = w.costs.collective(h.piece.forward.ops[2], h.piece.tensors, 1);
  // The first gather alone; then the second one beside the first exchange; the second exchange alone.
  EXPECT_NEAR(w.run(h.piece, 2).seconds, gather.seconds + gather.seconds + exchange.intra_seconds + exchange.seconds,
              1e-9);
}

TEST_F(SharedLine, ARunThatJumpsEqualsOneThatWalksEveryInstance) {
  std::int64_t walked = 0;
  constexpr std::int64_t kSecond = 200'000'000'000;  // about that of a collective
  for (const std::int64_t seconds : {1, 2, 3, 8})
    for (const int prefetch : {0, 1, 2})
      for (const std::int64_t kernel : {0, 1, 4}) {
        SCOPED_TRACE(testing::Message() << seconds << " s, prefetch " << prefetch << ", kernels of " << kernel << " s");
        Handmade h;
        Op& ahead = collective(h, Stream::parameter_communication, MeshAxis::tp, seconds * kSecond);
        ahead.prefetch = static_cast<std::uint16_t>(prefetch);
        const TensorId weights = ahead.writes[0];
        const TensorId y = h.kernel(h.piece.forward, kernel, {weights}).writes[0];
        const TensorId x = collective(h, Stream::tensor_communication, MeshAxis::tp, kSecond, y).writes[0];
        h.piece.output = h.kernel(h.piece.forward, kernel, {x}).writes[0];
        Op& reduce = collective(h, Stream::data_communication, MeshAxis::tp, seconds * kSecond, x);
        reduce.free_running = false;
        w.overlap_slowdown = 0.1;
        const std::vector<LineItem> line{{&w.compile(h.piece), 60}};
        const LineResult every = w.run(line, kUsual, false, false);
        const std::int64_t before = w.clock.walked();
        const LineResult jumped = w.run(line);
        walked += w.clock.walked() - before;
        EXPECT_NEAR(jumped.seconds / every.seconds, 1, 1e-9);
        EXPECT_NEAR(total(jumped) / jumped.seconds, 1, 1e-9);
        for (std::size_t s = 0; s < kStreams; ++s)
          EXPECT_NEAR(jumped.stream_end[s], every.stream_end[s], 1e-9 * every.seconds) << s;
      }
  EXPECT_LT(walked, 36 * 60 / 2);
}

}  // namespace
}  // namespace orrery
