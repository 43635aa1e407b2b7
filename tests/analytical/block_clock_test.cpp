// Is the clock of a block right? Timelines worked out by hand, one rule each; then runs that jump against runs that
// walk every instance.
#include "sim/program/rewrite.h"
#include "tests/analytical/handmade.h"

namespace orrery {
namespace {

TEST(BlockClock, KernelsOverlapWithACollectiveUntilOneReadsIt) {
  Handmade h;
  Block& block = h.piece.forward;
  const TensorId a = h.kernel(block, 3).writes[0];                                   // 0-3
  const TensorId c = h.copy(block, Stream::tensor_communication, 2, {a}).writes[0];  // 3-5
  h.kernel(block, 1);                                                                // 3-4
  h.kernel(block, 1, {c});                                                           // 5-6
  Clockwork w;
  const LineResult r = w.run(h.piece);
  EXPECT_DOUBLE_EQ(r.seconds, 6);
  EXPECT_DOUBLE_EQ(exposed(r, Stream::tensor_communication), 1);
  EXPECT_DOUBLE_EQ(r.accounts[kMemoryBound], 5);
  EXPECT_DOUBLE_EQ(total(r), 6);
}

TEST(BlockClock, ACollectiveWaitsForKernelsIssuedBeforeItUnlessFreeRunning) {
  for (const bool free_running : {false, true}) {
    Handmade h;
    Block& block = h.piece.forward;
    h.kernel(block, 4);
    Op& copy = h.copy(block, Stream::parameter_communication, 2);
    copy.free_running = free_running;
    const TensorId c = copy.writes[0];
    h.kernel(block, 1, {c});
    Clockwork w;
    const LineResult r = w.run(h.piece);
    EXPECT_DOUBLE_EQ(r.seconds, free_running ? 5 : 7);
    EXPECT_DOUBLE_EQ(exposed(r, Stream::parameter_communication), free_running ? 0 : 2);
  }
}

TEST(BlockClock, AFreeRunningCollectiveStillWaitsForItsData) {
  Handmade h;
  Block& block = h.piece.forward;
  const TensorId a = h.kernel(block, 2).writes[0];
  h.kernel(block, 3);                                               // 2-5, not waited for
  Op& copy = h.copy(block, Stream::context_communication, 4, {a});  // 2-6
  copy.free_running = true;
  const TensorId c = copy.writes[0];
  h.kernel(block, 1, {c});
  Clockwork w;
  EXPECT_DOUBLE_EQ(w.run(h.piece).seconds, 7);
}

TEST(BlockClock, OpsOfOneStreamRunInOrder) {
  Handmade h;
  Block& block = h.piece.forward;
  h.copy(block, Stream::context_communication, 5);                               // 0-5
  const TensorId c = h.copy(block, Stream::context_communication, 1).writes[0];  // 5-6
  h.kernel(block, 1, {c});
  Clockwork w;
  EXPECT_DOUBLE_EQ(w.run(h.piece).seconds, 7);
}

TEST(BlockClock, AnAccumulatingKernelWaitsForWhatItAddsTo) {
  Handmade h;
  Block& block = h.piece.forward;
  const TensorId c = h.copy(block, Stream::data_communication, 3).writes[0];
  Op& add = h.kernel(block, 1);
  add.kind = OpKind::bias_gradient;
  add.writes[0] = c;  // three bytes, read and written
  add.accumulate = true;
  Clockwork w;
  EXPECT_DOUBLE_EQ(w.run(h.piece).seconds, 3 + 6);
}

TEST(BlockClock, ALateHostDelaysKernels) {
  Handmade h;
  for (int i = 0; i < 3; ++i) h.kernel(h.piece.forward, 1);
  Clockwork w;
  w.runtime.host_seconds_per_op = 2;  // issued at 2, 4, 6
  LineResult r = w.run(h.piece);
  EXPECT_DOUBLE_EQ(r.seconds, 7);
  EXPECT_DOUBLE_EQ(r.accounts[kHostIssue], 4);
  EXPECT_DOUBLE_EQ(total(r), 7);
  w.runtime.cuda_graphs = true;  // all issued at 2
  r = w.run(h.piece);
  EXPECT_DOUBLE_EQ(r.seconds, 5);
  EXPECT_DOUBLE_EQ(r.accounts[kHostIssue], 2);
}

// A cast of two kernels is issued twice, and one that another's kernel writes is not.
TEST(BlockClock, EachKernelOfACastIsIssued) {
  Handmade h;
  Clockwork w;
  w.runtime.host_seconds_per_op = 100;
  Op& cast = h.kernel(h.piece.forward, 1);
  for (const int kernels : {0, 1, 2}) {
    cast.passes = static_cast<std::uint8_t>(kernels);
    EXPECT_DOUBLE_EQ(w.run(h.piece).seconds, 1 + kernels * 100) << kernels;
  }
}

TEST(BlockClock, AHostThatIsAheadCostsItsFirstLaunchOnly) {
  Handmade h;
  h.kernel(h.piece.forward, 10);
  for (int i = 0; i < 4; ++i) h.kernel(h.piece.forward, 1);  // issued by 10
  h.kernel(h.piece.forward, 1);                              // issued at 12, the stream is free at 16
  Clockwork w;
  w.runtime.host_seconds_per_op = 2;
  EXPECT_DOUBLE_EQ(w.run(h.piece).seconds, 2 + 15);
}

TEST(BlockClock, CollectivesAndUpdatesHaveIssueTimesOfTheirOwn) {
  Handmade h;
  h.kernel(h.piece.backward, 1);
  h.kernel(h.piece.update, 1);
  h.copy(h.piece.forward, Stream::tensor_communication, 1);
  Clockwork w;
  w.runtime.host_seconds_per_op = 100;
  w.runtime.host_seconds_per_update_op = 3;
  EXPECT_DOUBLE_EQ(w.run({{&w.compile(h.piece, BlockKind::backward), 1}}).seconds, 101);
  EXPECT_DOUBLE_EQ(w.run({{&w.compile(h.piece, BlockKind::update), 1}}).seconds, 1 + 100) << "layer by layer";
  h.piece.update.ops.back().share = 0.25;  // of the layers
  EXPECT_DOUBLE_EQ(w.run({{&w.compile(h.piece, BlockKind::update), 1}}).seconds, 0.25 * (1 + 100));
  h.piece.update.ops.back().share = 1;
  h.piece.update.ops.back().every = kAllInstances;
  EXPECT_DOUBLE_EQ(w.run({{&w.compile(h.piece, BlockKind::update), 1}}).seconds, 4);
}

// Ten seconds of work, the op that puts tokens into rows, and a kernel behind it.
Handmade routing_piece(Phase phase) {
  Handmade h;
  h.kernel(h.piece.forward, 10);
  Op& permute = h.kernel(h.piece.forward, 1);
  permute.kind = OpKind::permute;
  permute.phase = phase;
  h.kernel(h.piece.forward, 1);
  return h;
}

TEST(BlockClock, AHostThatReadsRowCountsWaitsForThem) {
  Clockwork w;
  w.runtime.host_seconds_per_op = 2;
  EXPECT_DOUBLE_EQ(w.run(routing_piece(Phase::forward).piece).seconds, 2 + 10 + 1 + 1);
  w.runtime.reads_row_counts = true;
  for (const Phase phase : {Phase::forward, Phase::recompute}) {
    const Handmade h = routing_piece(phase);
    const LineResult r = w.run(h.piece);  // issued at 2; after the wait until 12, at 14 and 16
    EXPECT_DOUBLE_EQ(r.seconds, 17);
    EXPECT_DOUBLE_EQ(r.accounts[kHostIssue], 2 + 2 + 1);
    // The next layer's first kernel is issued at 18, one second after the last one has ended.
    EXPECT_DOUBLE_EQ(w.run(h.piece, 100).seconds, 17 + 99 * 16);
  }
  // A backward knows the counts of its forward; a graph has fixed sizes.
  EXPECT_DOUBLE_EQ(w.run(routing_piece(Phase::input_gradient).piece).seconds, 14);
  w.runtime.cuda_graphs = true;
  EXPECT_DOUBLE_EQ(w.run(routing_piece(Phase::forward).piece).seconds, 14);
}

// A gather of 3 s before a kernel of 4 s, three instances.
Handmade gathering_piece(int prefetch, std::int64_t gather_seconds = 3) {
  Handmade h;
  Op& gather = h.copy(h.piece.forward, Stream::parameter_communication, gather_seconds);
  gather.prefetch = static_cast<std::uint16_t>(prefetch);
  const TensorId whole = gather.writes[0];
  h.kernel(h.piece.forward, 4, {whole});
  return h;
}

TEST(BlockClock, PrefetchedGathersHideBehindEarlierInstances) {
  Clockwork w;
  Handmade none = gathering_piece(0), one = gathering_piece(1);
  EXPECT_DOUBLE_EQ(w.run(none.piece, 3).seconds, 3 * 7);
  // 0-3 exposed; the next starts with the kernel at 3, 3-6; kernels 3-7, 7-11, 11-15.
  const LineResult r = w.run(one.piece, 3);
  EXPECT_DOUBLE_EQ(r.seconds, 15);
  EXPECT_DOUBLE_EQ(exposed(r, Stream::parameter_communication), 3);
}

TEST(BlockClock, AGatherCannotStartBeforeTheInstanceThatIssuesIt) {
  // Gathers of 5 s behind kernels of 4 s: 0-5; kernel 5-9, gather 5-10; kernel 10-14, gather 10-15; kernel 15-19.
  Clockwork w;
  EXPECT_DOUBLE_EQ(w.run(gathering_piece(1, 5).piece, 3).seconds, 19);
  // Two ahead: gathers 0-5, 5-10 at once, the third issued at 5: 10-15.
  EXPECT_DOUBLE_EQ(w.run(gathering_piece(2, 5).piece, 3).seconds, 19);
  // Kernels of 4 s and gathers of 3 s, two ahead: 0-3, 3-6; kernel 3-7 issues the third: 6-9.
  EXPECT_DOUBLE_EQ(w.run(gathering_piece(2, 3).piece, 3).seconds, 15);
}

TEST(BlockClock, GathersAheadBeginWithTheKernelThatIssuesThem) {
  // Kernels of 4 s and 2 s an instance; a gather of 3 s for the first of them.
  const auto run = [](bool with_second) {
    Handmade h = gathering_piece(1);
    h.kernel(h.piece.forward, 2).issues_ahead = with_second;
    Clockwork w;
    return w.run(h.piece, 3);
  };
  EXPECT_DOUBLE_EQ(run(false).seconds, 3 + 3 * 6);
  // 0-3 exposed; kernels 3-7, 7-9; gather 7-10; kernels 10-14, 14-16; gather 14-17; kernels 17-21, 21-23.
  const LineResult r = run(true);
  EXPECT_DOUBLE_EQ(r.seconds, 23);
  EXPECT_DOUBLE_EQ(exposed(r, Stream::parameter_communication), 3 + 1 + 1);
}

TEST(BlockClock, PrefetchReachesAcrossRuns) {
  Clockwork w;
  const Handmade first = gathering_piece(1), second = gathering_piece(1);
  const BlockCode &a = w.compile(first.piece), &b = w.compile(second.piece);
  EXPECT_DOUBLE_EQ(w.run({{&a, 1}, {&b, 1}, {&a, 1}}).seconds, 15);
}

// A kernel of `kernel` seconds, and a copy to the host of what it has written, from one of `buffers` buffers.
Handmade copying_piece(std::int64_t kernel, std::int64_t copy, std::uint16_t buffers) {
  Handmade h;
  const TensorId written = h.kernel(h.piece.forward, kernel).writes[0];
  h.copy(h.piece.forward, Stream::device_to_host, copy, {written}).buffers = buffers;
  return h;
}

TEST(BlockClock, KernelsWaitForTheCopyFromTheBufferThatTheyTakeOver) {
  Clockwork w;
  // Nobody waits: kernels 0-2, 2-4, 4-6, 6-8; copies end at 22, behind the line.
  const LineResult own = w.run(copying_piece(2, 5, 0).piece, 4);
  EXPECT_DOUBLE_EQ(own.seconds, 8);
  EXPECT_DOUBLE_EQ(own.stream_end[static_cast<std::size_t>(Stream::device_to_host)], 22);
  // Two: copies 2-7, 7-12, ..; the third kernel waits for the first copy, 7-9, the fourth for the second, 12-14.
  const LineResult two = w.run(copying_piece(2, 5, 2).piece, 4);
  EXPECT_DOUBLE_EQ(two.seconds, 14);
  EXPECT_DOUBLE_EQ(exposed(two, Stream::device_to_host), 3 + 3);
  EXPECT_DOUBLE_EQ(total(two), 14);
  // One: kernel and copy in turn, 0-2-7-9-14-16-21-23.
  EXPECT_DOUBLE_EQ(w.run(copying_piece(2, 5, 1).piece, 4).seconds, 23);
  // Copies that hide are not felt.
  EXPECT_DOUBLE_EQ(w.run(copying_piece(5, 2, 1).piece, 4).seconds, 4 * 5 + 3 * 2);
  EXPECT_DOUBLE_EQ(w.run(copying_piece(5, 2, 2).piece, 4).seconds, 4 * 5);
}

TEST(BlockClock, BuffersAreTakenOverByWhateverInstanceComesNext) {
  Clockwork w;
  const Handmade copying = copying_piece(2, 5, 2);
  Handmade plain;
  plain.kernel(plain.piece.forward, 1);
  const BlockCode &a = w.compile(copying.piece), &b = w.compile(plain.piece);
  // Copies 2-7, 7-12: the plain kernels behind them 7-8 and 12-13, a third one 13-14.
  EXPECT_DOUBLE_EQ(w.run({{&a, 2}, {&b, 3}}).seconds, 14);
}

TEST(BlockClock, JumpsOverInstancesThatWaitForBuffers) {
  for (std::uint16_t buffers = 1; buffers <= kMostBuffers; ++buffers)
    for (std::int64_t kernel = 1; kernel < 6; ++kernel)
      for (std::int64_t copy = 1; copy < 8; ++copy) {
        Clockwork w;
        const Handmade h = copying_piece(kernel, copy, buffers), other = copying_piece(3, 2, 2);
        const std::vector<LineItem> line{{&w.compile(other.piece), 2}, {&w.compile(h.piece), 100}};
        const LineResult walked = w.run(line, kUsual, false, false), jumped = w.run(line);
        EXPECT_NEAR(jumped.seconds, walked.seconds, 1e-9) << buffers << " " << kernel << " " << copy;
        EXPECT_NEAR(total(jumped), jumped.seconds, 1e-9);
      }
}

TEST(OpCosts, CopiesOfDevicesBehindASwitchShareItsUpLink) {
  Clockwork w;
  Handmade h;
  const Op copy = h.copy(h.piece.forward, Stream::device_to_host, 6);
  const auto seconds = [&](double up_link, std::int64_t behind) {
    w.world.cluster.node.pcie_switch_bytes_per_second = up_link;
    w.world.cluster.node.devices_per_pcie_switch = behind;
    EXPECT_DOUBLE_EQ(w.costs.copy_seconds_alone(copy, h.piece.tensors, 1), 6) << "a device fills its own link";
    return w.costs.cost(copy, h.piece.tensors, 1).seconds;
  };
  EXPECT_DOUBLE_EQ(seconds(0, 2), 6) << "not known to be shared";
  EXPECT_DOUBLE_EQ(seconds(1, 2), 12);
  EXPECT_DOUBLE_EQ(seconds(1, 1), 6);
  EXPECT_DOUBLE_EQ(seconds(1, 100), 6 * 8) << "no more than the node has";
  EXPECT_DOUBLE_EQ(seconds(4, 2), 6) << "wide enough";
}

TEST(BlockClock, BucketsRunOnceForSeveralInstances) {
  Handmade h;
  h.kernel(h.piece.forward, 1);
  Op& reduce = h.copy(h.piece.forward, Stream::data_communication, 1);
  reduce.every = 2;
  Clockwork w;
  // Instances end at 1..5; buckets 2-4 (two), 4-6 (two), 6-7 (the last alone).
  const LineResult r = w.run(h.piece, 5);
  EXPECT_DOUBLE_EQ(r.seconds, 5);
  EXPECT_DOUBLE_EQ(r.stream_work[static_cast<std::size_t>(Stream::data_communication)], 5);
  EXPECT_DOUBLE_EQ(r.stream_end[static_cast<std::size_t>(Stream::data_communication)], 7);
}

TEST(BlockClock, OnceForAllInstancesRunsInTheLast) {
  Handmade h;
  h.kernel(h.piece.forward, 1);
  Op& all = h.kernel(h.piece.forward, 2);
  all.every = kAllInstances;
  Clockwork w;
  const LineResult r = w.run(h.piece, 100);
  EXPECT_DOUBLE_EQ(r.seconds, 100 + 200);
  EXPECT_DOUBLE_EQ(total(r), 300);
}

TEST(BlockClock, ASplitCollectivePaysItsLatencyEachTime) {
  Handmade h;
  Op op;
  op.kind = OpKind::all_reduce;
  op.stream = Stream::tensor_communication;
  op.group = MeshGroup::of_digit(0);
  op.name = "all_reduce";
  op.reads[0] = op.writes[0] = h.tensor(1 << 20);
  op.count = 4;
  h.piece.forward.ops.push_back(op);
  Clockwork w;
  w.mesh.add(MeshAxis::tp, 8);
  w.set_mesh(w.mesh);
  const CollectiveModel model(w.world.cluster, w.world.collectives);
  const double quarter =
      model.cost(OpKind::all_reduce, 1 << 18, span_of(w.mesh, w.mesh.group(MeshAxis::tp), 8)).seconds;
  const double whole = model.cost(OpKind::all_reduce, 1 << 20, span_of(w.mesh, w.mesh.group(MeshAxis::tp), 8)).seconds;
  EXPECT_DOUBLE_EQ(w.run(h.piece).seconds, 4 * quarter);
  EXPECT_GT(4 * quarter, whole);
}

// Over whatever axes.
TEST(BlockClock, ACollectiveOnTheComputeStreamIsBookedUnderItsAccount) {
  Handmade h;
  Clockwork w;
  w.mesh.add(MeshAxis::tp, 8);
  w.set_mesh(w.mesh);
  const TensorId x = h.tensor(1 << 20);
  Op op = communication(OpKind::all_reduce, "all_reduce", Phase::forward, Stream::compute, w.mesh.group(MeshAxis::tp),
                        x, x);
  op.account = Stream::data_communication;
  h.piece.forward.ops.push_back(op);
  const LineResult r = w.run(h.piece);
  EXPECT_GT(r.seconds, 0);
  EXPECT_DOUBLE_EQ(exposed(r, Stream::data_communication), r.seconds);
}

TEST(BlockClock, ACollectiveOfOneRankIsNotIssued) {
  Handmade h;
  const TensorId a = h.kernel(h.piece.forward, 1).writes[0];
  Op op;
  op.kind = OpKind::all_reduce;
  op.stream = Stream::tensor_communication;
  op.reads[0] = a;
  op.writes[0] = h.tensor(1);
  h.piece.forward.ops.push_back(op);
  h.kernel(h.piece.forward, 1, {op.writes[0]});
  Clockwork w;
  w.runtime.host_seconds_per_op = 5;
  EXPECT_DOUBLE_EQ(w.run(h.piece).seconds, 11);  // two launches
}

TEST(BlockClock, OpsOfEqualCountsRunPartByPart) {
  // A gather in four parts of 1 s and a product in four of 1 s: the product starts with the first part.
  const auto seconds = [](std::uint16_t parts, std::int64_t product) {
    Handmade h;
    Op& gather = h.copy(h.piece.forward, Stream::tensor_communication, 4);
    gather.free_running = true;
    gather.count = parts;
    const TensorId whole = gather.writes[0];
    h.kernel(h.piece.forward, product, {whole}).count = parts;
    Clockwork w;
    const LineResult r = w.run(h.piece);
    EXPECT_DOUBLE_EQ(total(r), r.seconds);
    return r.seconds;
  };
  EXPECT_DOUBLE_EQ(seconds(1, 4), 8);
  EXPECT_DOUBLE_EQ(seconds(4, 4), 5);
  EXPECT_DOUBLE_EQ(seconds(4, 8), 9);    // bound by the product
  EXPECT_DOUBLE_EQ(seconds(4, 2), 4.5);  // bound by the gather: the last part's half second follows it
}

TEST(BlockClock, AnOpInPartsIsLaunchedPartByPart) {
  Handmade h;
  h.kernel(h.piece.forward, 4).count = 4;  // issued at 2, 4, 6 and 8: a second each
  h.kernel(h.piece.forward, 1);            // issued at 10
  Clockwork w;
  w.runtime.host_seconds_per_op = 2;
  EXPECT_DOUBLE_EQ(w.run(h.piece).seconds, 11);
}

TEST(OpCosts, EachPartOfAKernelIsAKernel) {
  SlowCluster world;
  world.kernels.kernel_fixed_seconds = 3;
  const OpCostModel costs(world.cluster, world.kernels, world.collectives);
  Handmade h;
  Op& op = h.kernel(h.piece.forward, 8);
  EXPECT_DOUBLE_EQ(costs.cost(op, h.piece.tensors, 1).seconds, 3 + 8);
  op.count = 4;
  EXPECT_DOUBLE_EQ(costs.cost(op, h.piece.tensors, 1).seconds, 4 * 3 + 8);
  EXPECT_DOUBLE_EQ(costs.cost(op, h.piece.tensors, 1).last_seconds, 3 + 2);
}

// What crosses a border in parts is gathered behind it: an all-gather of the tensor-parallel ranks, as any.
TEST(OpCosts, GatheringBehindABorderIsAnAllGather) {
  SlowCluster world;
  OpCostModel costs(world.cluster, world.kernels, world.collectives);
  Mesh mesh;
  mesh.add(MeshAxis::tp, 8, "tensor_parallel");
  mesh.add(MeshAxis::pp, 2, "pipeline_parallel");
  costs.set_mesh(mesh);
  Piece piece;
  Tensor whole;
  whole.rank = 1;
  whole.sizes[0] = 1 << 26;
  whole.dtype = Dtype::uint8;
  Op gather;
  gather.kind = OpKind::all_gather;
  gather.group = mesh.group(MeshAxis::tp);
  gather.reads[0] = gather.writes[0] = piece.add(whole);
  const auto bytes = static_cast<double>(whole.sizes[0]);
  const CollectiveCost sent = costs.transfer({bytes / 8, 0}, 0), gathered = costs.transfer({bytes / 8, bytes}, 0);
  const double seconds = costs.collective(gather, piece.tensors, 1).seconds;
  EXPECT_GT(seconds, 0);
  EXPECT_DOUBLE_EQ(gathered.seconds, sent.seconds + seconds);
}

// Eight ranks a node hold the first of two stages, each in a group of its own with its twin of the second, and one NIC
// carries them all.
TEST(OpCosts, SumsOverStagesShareTheNicsOfANode) {
  SlowCluster world;
  world.cluster.node.nics = 1;
  world.cluster.node.pcie_bytes_per_second = 1e12;
  Mesh mesh;
  mesh.add(MeshAxis::dp_shard, 8);
  mesh.add(MeshAxis::pp, 2);
  const std::vector<std::vector<std::uint16_t>> stages{{0, 1}};
  OpCostModel costs(world.cluster, world.kernels, world.collectives);
  costs.set_mesh(mesh, CollectiveAlgorithm::automatic, CollectiveProtocol::automatic, stages);
  Handmade h;
  const TensorId x = h.tensor(1 << 26);
  Op op = communication(OpKind::all_reduce, "sum", Phase::forward, Stream::pipeline_communication, {}, x, x);
  op.stages = TableIndex<StageGroup>(0);
  const CollectiveModel model(world.cluster, world.collectives);
  const auto seconds = [&](std::int64_t groups) {
    const GroupSpan span{.ranks = 2, .ranks_per_node = 1, .nodes = 2, .groups_sharing_nics = groups, .stride = 8};
    return model.cost(OpKind::all_reduce, 1 << 26, span).seconds;
  };
  EXPECT_DOUBLE_EQ(costs.cost(op, h.piece.tensors, 1).seconds, seconds(8));
  EXPECT_GT(seconds(8), 4 * seconds(1));
}

TEST(BlockClock, MicroBatchesRunWhatIsMarkedForThem) {
  Handmade h;
  h.kernel(h.piece.forward, 1);
  h.kernel(h.piece.forward, 10).when = When::first_micro_batch;
  h.kernel(h.piece.forward, 100).when = When::last_micro_batch;
  Clockwork w;
  EXPECT_DOUBLE_EQ(w.run(h.piece, 1, kUsual).seconds, 1);
  EXPECT_DOUBLE_EQ(w.run(h.piece, 1, kFirst).seconds, 11);
  EXPECT_DOUBLE_EQ(w.run(h.piece, 1, kLast).seconds, 101);
  const LineResult only = w.run(h.piece, 1, kOnly);
  EXPECT_DOUBLE_EQ(only.seconds, 111);
  EXPECT_DOUBLE_EQ(total(only), 111);
}

TEST(BlockClock, GradientReductionOutlivesTheLineUnlessDrained) {
  Handmade h;
  const TensorId g = h.kernel(h.piece.forward, 2).writes[0];
  h.copy(h.piece.forward, Stream::data_communication, 5, {g});
  Clockwork w;
  const LineResult r = w.run(h.piece, 1);
  EXPECT_DOUBLE_EQ(r.seconds, 2);
  EXPECT_DOUBLE_EQ(r.stream_end[static_cast<std::size_t>(Stream::data_communication)], 7);
  const LineResult drained = w.run(h.piece, 1, kUsual, true);
  EXPECT_DOUBLE_EQ(drained.seconds, 7);
  EXPECT_DOUBLE_EQ(exposed(drained, Stream::data_communication), 5);
}

TEST(BlockClock, OtherCollectivesEndWithTheLine) {
  Handmade h;
  h.kernel(h.piece.forward, 2);
  h.copy(h.piece.forward, Stream::tensor_communication, 5);
  Clockwork w;
  EXPECT_DOUBLE_EQ(w.run(h.piece, 1).seconds, 7);
}

TEST(BlockClock, TheNextInstanceWaitsForTheOutput) {
  Handmade h;
  h.piece.input = h.tensor(1);
  h.kernel(h.piece.forward, 1);  // needs no input: overlaps with the collective of the instance before
  const TensorId x = h.kernel(h.piece.forward, 1, {h.piece.input}).writes[0];
  h.piece.output = h.copy(h.piece.forward, Stream::tensor_communication, 3, {x}).writes[0];
  Clockwork w;
  // 0-1, 1-2, output 2-5; 2-3, wait, 5-6, output 6-9.
  const LineResult r = w.run(h.piece, 2);
  EXPECT_DOUBLE_EQ(r.seconds, 9);
  EXPECT_DOUBLE_EQ(exposed(r, Stream::tensor_communication), 2 + 3);
}

TEST(BlockClock, KernelsAreSlowedBesideACollective) {
  Handmade h;
  Op op;
  op.kind = OpKind::all_gather;
  op.stream = Stream::parameter_communication;
  op.group = MeshGroup::of_digit(0);
  op.free_running = true;
  op.reads[0] = h.tensor(1 << 27);
  op.writes[0] = h.tensor(1 << 30);
  h.piece.forward.ops.push_back(op);
  h.kernel(h.piece.forward, 1);
  Clockwork w;
  w.mesh.add(MeshAxis::dp_shard, 8);
  w.set_mesh(w.mesh);
  const double gather = CollectiveModel(w.world.cluster, w.world.collectives)
                            .cost(OpKind::all_gather, 1 << 30, span_of(w.mesh, w.mesh.group(MeshAxis::dp_shard), 8))
                            .seconds;
  ASSERT_LT(gather, 1);
  w.overlap_slowdown = 0.5;
  // While the gather runs, the kernel does 1/1.5 of its work.
  const LineResult r = w.run(h.piece);
  EXPECT_NEAR(r.seconds, 1 + gather * 0.5 / 1.5, 1e-12);
  EXPECT_NEAR(total(r), r.seconds, 1e-12);
  EXPECT_NEAR(r.accounts[kMemoryBound], r.seconds, 1e-12);
}

TEST(BlockClock, RecomputationAndUpdatesAreBookedApart) {
  Handmade h;
  h.kernel(h.piece.backward, 1);
  h.kernel(h.piece.backward, 2).phase = Phase::recompute;
  h.kernel(h.piece.update, 4);
  Clockwork w;
  const LineResult backward = w.run({{&w.compile(h.piece, BlockKind::backward), 1}});
  EXPECT_DOUBLE_EQ(backward.accounts[kMemoryBound], 1);
  EXPECT_DOUBLE_EQ(backward.accounts[kRecompute], 2);
  EXPECT_DOUBLE_EQ(w.run({{&w.compile(h.piece, BlockKind::update), 1}}).accounts[kOptimizer], 4);
}

TEST(BlockClock, TheNormPrecedesTheUpdateAndIsExchangedOnce) {
  Handmade h;
  Op& norm = h.kernel(h.piece.update, 1);
  norm.kind = OpKind::gradient_norm;
  const TensorId local = norm.writes[0];
  Op reduce;
  reduce.kind = OpKind::all_reduce;
  reduce.stream = Stream::tensor_communication;
  reduce.group = MeshGroup::of_digit(0);
  reduce.reads[0] = local;
  reduce.writes[0] = h.tensor(1);
  h.piece.update.ops.push_back(reduce);
  h.kernel(h.piece.update, 10);
  Clockwork w;
  w.mesh.add(MeshAxis::tp, 2);
  w.set_mesh(w.mesh);
  const double exchange = CollectiveModel(w.world.cluster, w.world.collectives)
                              .cost(OpKind::all_reduce, 1, span_of(w.mesh, w.mesh.group(MeshAxis::tp), 8))
                              .seconds;
  EXPECT_DOUBLE_EQ(w.run({{&w.compile(h.piece, BlockKind::norm), 4}}).seconds, 4 + exchange);
  EXPECT_DOUBLE_EQ(w.run({{&w.compile(h.piece, BlockKind::update), 4}}).seconds, 40);
}

// Blocks of every mechanism at once, from a small generator.
Handmade scrambled(std::uint32_t seed) {
  std::uint32_t state = seed * 2654435761u + 1;
  const auto draw = [&](std::uint32_t below) {
    state = state * 1664525u + 1013904223u;
    return (state >> 10) % below;
  };
  Handmade h;
  Block& block = h.piece.forward;
  h.piece.input = h.tensor(1);
  std::vector<TensorId> known{h.piece.input};
  if (draw(2) == 0) {
    Op& gather = h.copy(block, Stream::parameter_communication, 1 + draw(9));
    gather.prefetch = static_cast<std::uint16_t>(1 + draw(3));
    known.push_back(gather.writes[0]);
  }
  const int ops = 4 + static_cast<int>(draw(10));
  for (int i = 0; i < ops; ++i) {
    const TensorId read = known[draw(static_cast<std::uint32_t>(known.size()))];
    switch (draw(6)) {
      case 0:
        known.push_back(h.copy(block, Stream::tensor_communication, 1 + draw(7), {read}).writes[0]);
        break;
      case 1: {
        Op& op = h.copy(block, Stream::context_communication, 1 + draw(7), {read});
        op.free_running = draw(2) == 0;
        known.push_back(op.writes[0]);
        break;
      }
      case 2: {
        Op& op = h.copy(block, Stream::data_communication, 1 + draw(12), {read});
        op.every = static_cast<std::uint16_t>(draw(3) == 0 ? 3 : 1);
        break;
      }
      default: {
        Op& op = h.kernel(block, 1 + draw(6), {read});
        if (draw(6) == 0) op.kind = OpKind::permute;
        known.push_back(op.writes[0]);
      }
    }
  }
  h.piece.output = known.back();
  return h;
}

TEST(BlockClock, ARunThatJumpsEqualsOneThatWalksEveryInstance) {
  std::int64_t instances_walked = 0;
  for (std::uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    const Handmade layer = scrambled(seed), other = scrambled(seed + 1000);
    Clockwork w;
    w.runtime.host_seconds_per_op = 0.37 * (seed % 17);  // from never to always late
    w.runtime.reads_row_counts = seed % 2 == 0;
    const std::vector<LineItem> line{
        {&w.compile(other.piece), 1}, {&w.compile(layer.piece), 126}, {&w.compile(other.piece), 2}};
    const LineResult walked = w.run(line, kUsual, false, false);
    const std::int64_t before = w.clock.walked();
    const LineResult jumped = w.run(line);
    instances_walked += w.clock.walked() - before;
    EXPECT_NEAR(jumped.seconds / walked.seconds, 1, 1e-12);
    EXPECT_NEAR(total(jumped) / jumped.seconds, 1, 1e-12);
    for (std::size_t a = 0; a < kAccounts; ++a)
      EXPECT_NEAR(jumped.accounts[a], walked.accounts[a], 1e-12 * walked.seconds) << a;
    for (std::size_t s = 0; s < kStreams; ++s) {
      EXPECT_NEAR(jumped.stream_end[s], walked.stream_end[s], 1e-12 * walked.seconds) << s;
      EXPECT_NEAR(jumped.stream_work[s], walked.stream_work[s], 1e-12 * walked.seconds) << s;
    }
    EXPECT_EQ(jumped.seconds, w.run(line).seconds) << "the same twice, bit for bit";
  }
  EXPECT_LT(instances_walked, 200 * 129 / 4);
}

TEST(BlockClock, ABacklogThatRunsOutInTheMiddleOfARunIsNotMissed) {
  // The first piece leaves ten seconds of work ahead of the host, which then loses half a second an instance.
  Handmade big, small;
  big.kernel(big.piece.forward, 50);
  small.kernel(small.piece.forward, 1);
  Clockwork w;
  w.runtime.host_seconds_per_op = 1.5;
  const std::vector<LineItem> line{{&w.compile(big.piece), 1}, {&w.compile(small.piece), 300}};
  const LineResult r = w.run(line);
  EXPECT_DOUBLE_EQ(r.seconds, 301 * 1.5 + 1);
  EXPECT_NEAR(r.seconds, w.run(line, kUsual, false, false).seconds, 1e-9);
}

TEST(BlockClock, EqualLayersAreNotWalked) {
  const Handmade h = gathering_piece(1);
  Clockwork w;
  const BlockCode& code = w.compile(h.piece);
  const auto walked = [&](std::int64_t layers) {
    const std::int64_t before = w.clock.walked();
    EXPECT_DOUBLE_EQ(w.run({{&code, layers}}).seconds, 3.0 + 4.0 * static_cast<double>(layers));
    return w.clock.walked() - before;
  };
  EXPECT_EQ(walked(100), walked(100000));
  EXPECT_LE(walked(100), 8);
}

}  // namespace
}  // namespace orrery
