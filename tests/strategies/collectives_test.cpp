// Do strategies insert the communication that their papers prescribe?
#include <algorithm>

#include "tests/strategies/support.h"

namespace orrery {
namespace {

double communicated(const Block& block, const Piece& piece, OpKind kind) {
  double total = 0;
  for (const Op& op : block.ops)
    if (op.kind == kind) total += bytes(op, piece.tensors);
  return total;
}

// Shoeybi et al. 2019, figure 4: two all-reduces forward and two backward, of b s h each.
TEST(TensorParallel, AllReducesTwicePerPass) {
  Scenario s = megatron_22b();
  Program p;
  lower(s, p);
  const Piece& layer = piece_named(p, "layer");
  const double bsh = 4.0 * 2048 * 6144 * 2;
  EXPECT_EQ(count_ops(layer.forward, OpKind::all_reduce), 2);
  EXPECT_EQ(count_ops(layer.backward, OpKind::all_reduce), 2);
  EXPECT_DOUBLE_EQ(communicated(layer.forward, layer, OpKind::all_reduce), 2 * bsh);
  EXPECT_DOUBLE_EQ(communicated(layer.backward, layer, OpKind::all_reduce), 2 * bsh);
}

// Korthikanti et al. 2022, section 4.2: two gathers and two scatters forward; backward the same, and the input of each
// column-parallel product gathered once more for its weight gradient.
TEST(SequenceParallel, GathersAndScatters) {
  Scenario s = megatron_22b();
  s.plan.tensor.sequence_parallel = true;
  Program p;
  lower(s, p);
  const Piece& layer = piece_named(p, "layer");
  EXPECT_EQ(count_ops(layer.forward, OpKind::all_gather), 2);
  EXPECT_EQ(count_ops(layer.forward, OpKind::reduce_scatter), 2);
  EXPECT_EQ(count_ops(layer.backward, OpKind::all_gather), 4);
  EXPECT_EQ(count_ops(layer.backward, OpKind::reduce_scatter), 2);
  EXPECT_EQ(count_ops(layer.forward, OpKind::all_reduce), 0);
  // Norm weights and row-parallel biases are summed over the ranks once a step.
  EXPECT_EQ(count_ops(layer.update, OpKind::all_reduce), 2);  // with the gradient norm's
}

TEST(SequenceParallel, MovesAsMuchAsTensorParallelDoes) {
  Scenario s = megatron_22b();
  Program plain, sharded;
  lower(s, plain);
  s.plan.tensor.sequence_parallel = true;
  lower(s, sharded);
  const Piece &a = piece_named(plain, "layer"), &b = piece_named(sharded, "layer");
  // A ring all-reduce of x moves what a reduce-scatter and an all-gather of x move together.
  EXPECT_DOUBLE_EQ(2 * communicated(a.forward, a, OpKind::all_reduce),
                   communicated(b.forward, b, OpKind::all_gather) + communicated(b.forward, b, OpKind::reduce_scatter));
}

TEST(TensorParallel, OverlapSplitsProductsAndTheirCollectivesAndMovesNoMore) {
  Scenario s = megatron_22b();
  s.plan.tensor.sequence_parallel = true;
  Program plain, split;
  lower(s, plain);
  s.plan.tensor.overlap = true;
  lower(s, split);
  const Piece &a = piece_named(plain, "layer"), &b = piece_named(split, "layer");
  EXPECT_EQ(count_ops(b.forward, OpKind::all_gather), 4 * count_ops(a.forward, OpKind::all_gather));
  for (const auto block : {&Piece::forward, &Piece::backward}) {
    for (const OpKind kind : {OpKind::all_gather, OpKind::reduce_scatter})
      EXPECT_DOUBLE_EQ(communicated(a.*block, a, kind), communicated(b.*block, b, kind));
    double whole = 0, parts = 0;
    for (const Op& op : (a.*block).ops) whole += flops(op, a.tensors);
    for (const Op& op : (b.*block).ops) parts += flops(op, b.tensors);
    EXPECT_DOUBLE_EQ(whole, parts);
  }
}

TEST(TensorParallel, ParallelBlocksReduceOnce) {
  Scenario s = scenario_of("palm-540b", "dgx-h100", 8);
  s.workload = {2048, 0, 64};
  s.plan.tensor.degree = 8;
  Program p;
  lower(s, p);
  const auto tensor_reductions = [&](const Block& block) {
    return std::count_if(block.ops.begin(), block.ops.end(),
                         [](const Op& op) { return op.kind == OpKind::all_reduce && op.axes == MeshAxes(MeshAxis::tp); });
  };
  EXPECT_EQ(tensor_reductions(piece_named(p, "layer").forward), 1);
  EXPECT_EQ(tensor_reductions(piece_named(p, "layer").backward), 1);
}

TEST(TensorParallel, SplitsTheVocabularyOfEmbeddingAndLoss) {
  Scenario s = megatron_22b();
  Program p;
  lower(s, p);
  EXPECT_EQ(count_ops(piece_named(p, "embedding").forward, OpKind::all_reduce), 1);
  const Piece& head = piece_named(p, "head");
  EXPECT_EQ(count_ops(head.forward, OpKind::all_reduce), 1);   // the loss's statistics
  EXPECT_EQ(count_ops(head.backward, OpKind::all_reduce), 1);  // the hidden states' gradient
  for (const Op& op : head.forward.ops)
    if (op.kind == OpKind::all_reduce) {
      EXPECT_EQ(op.count, 3);
    }
}

TEST(ContextParallel, RingPassesKeysOnceForwardAndKeysAndGradientsBackward) {
  Scenario s = scenario_of("llama-3-8b", "dgx-h100", 1);
  s.workload = {8192, 0, 1};
  s.plan.context.degree = 8;
  Program p;
  lower(s, p);
  const Piece& layer = piece_named(p, "layer");
  EXPECT_EQ(count_ops(layer.forward, OpKind::ring_shift), 7);
  EXPECT_EQ(count_ops(layer.backward, OpKind::ring_shift), 7 + 8);
  const double kv = 8192.0 / 8 * 2 * 8 * 128 * 2;  // bytes of a rank's keys and values
  EXPECT_DOUBLE_EQ(communicated(layer.forward, layer, OpKind::ring_shift), 7 * kv);
  EXPECT_EQ(count_ops(layer.forward, OpKind::attention), 8);
}

double attention_flops(const Program& p) {
  const Piece& layer = piece_named(p, "layer");
  double total = 0;
  for (const Op& op : layer.forward.ops)
    if (op.kind == OpKind::attention) total += flops(op, layer.tensors);
  return total;
}

TEST(ContextParallel, ZigzagSharesCausalWorkEquallyContiguousDoesNot) {
  Scenario s = scenario_of("llama-3-8b", "dgx-h100", 1);
  s.workload = {8192, 0, 8};
  Program one, zigzag, contiguous;
  lower(s, one);
  s.plan.context.degree = 8;
  s.workload.global_batch_size = 1;
  lower(s, zigzag);
  s.plan.context.balance = context_parallel::Balance::contiguous;
  lower(s, contiguous);
  EXPECT_DOUBLE_EQ(attention_flops(one), 8 * attention_flops(zigzag));
  // The last rank attends to everything before it: (2c - 1)/c of the mean.
  EXPECT_DOUBLE_EQ(attention_flops(contiguous), attention_flops(zigzag) * 15 / 8);
}

// Every query sees `window` keys, but for those at the start of the sequence; ring steps beyond the window fall away.
TEST(ContextParallel, SlidingWindowsKeepTheirWorkAndSkipFarSteps) {
  Scenario s = scenario_of("mistral-7b", "dgx-h100", 1);
  s.workload = {32768, 0, 1};
  s.plan.context.degree = 8;
  Program p;
  lower(s, p);
  const Piece& layer = piece_named(p, "layer");
  EXPECT_EQ(count_ops(layer.forward, OpKind::attention), 2);  // 4,096 positions a rank, a window of 4,096
  EXPECT_EQ(count_ops(layer.forward, OpKind::ring_shift), 1);
  double pairs = 0;
  for (const Op& op : layer.forward.ops)
    if (op.kind == OpKind::attention) pairs += flops(op, layer.tensors) / (4.0 * 128 * 32);
  EXPECT_NEAR(pairs / (4096.0 * 4096), 1, 1e-3);
}

TEST(Precision, Fp8WeightsAreQuantisedOnceAStep) {
  Scenario s = scenario_of("llama-3-8b", "dgx-h100", 1);
  s.workload = {8192, 0, 64};
  s.plan.precision.mix = precision::Mix::fp8;
  Program p;
  lower(s, p);
  int weights = 0;
  for (const Op& op : piece_named(p, "layer").forward.ops)
    if (op.name == std::string_view("quantise_weight")) {
      ++weights;
      EXPECT_EQ(op.when, When::first_micro_batch);
    }
  EXPECT_EQ(weights, 4);
}

// ZeRO paper, section 7: stages 0-2 move 2P per step, stage 3 moves 3P.
TEST(DataParallel, MovesTheVolumesOfTheZeroPaper) {
  Scenario s = scenario_of("gpt2-1.5b", "dgx-a100", 1);
  s.workload = {1024, 0, 8};
  s.plan.precision.gradients = precision::GradientDtype::bf16;
  Program p;
  for (int stage = 0; stage <= 3; ++stage) {
    s.plan.data.zero_stage = stage;
    lower(s, p);
    const Piece& layer = piece_named(p, "layer");
    double parameter_bytes = 0;
    for (const ParameterGradient& g : layer.parameters) parameter_bytes += static_cast<double>(layer.tensors[g.parameter].bytes());
    double moved = 0;
    for (const Block* block : {&layer.forward, &layer.backward, &layer.update})
      for (const Op& op : block->ops) {
        if (op.kind == OpKind::all_reduce && bytes(op, layer.tensors) > 1e5) moved += 2 * bytes(op, layer.tensors);
        if (op.kind == OpKind::all_gather || op.kind == OpKind::reduce_scatter) moved += bytes(op, layer.tensors);
      }
    EXPECT_DOUBLE_EQ(moved / parameter_bytes, stage == 3 ? 3 : 2) << stage;
  }
}

TEST(DataParallel, BucketsHoldSeveralSmallLayersOrPartsOfALargeOne) {
  Scenario s = scenario_of("gpt2-124m", "dgx-a100", 1);
  s.workload = {1024, 0, 8};
  Program p;
  lower(s, p);
  for (const Op& op : piece_named(p, "layer").backward.ops)
    if (op.name == std::string_view("gradients.all_reduce")) {
      EXPECT_GT(op.every, 1);  // 7 million parameters of 40
    }
  s = scenario_of("gpt3-175b", "dgx-a100", 8);
  s.workload = {2048, 0, 64};
  s.plan.data.bucket_bytes = 100'000'000;
  lower(s, p);
  for (const Op& op : piece_named(p, "layer").backward.ops)
    if (op.name == std::string_view("gradients.all_reduce")) {
      EXPECT_EQ(op.count, 72);  // 1.812e9 parameters x 4 bytes
    }
}

TEST(Pipeline, TiedEmbeddingsAreSummedBetweenTheEnds) {
  Scenario s = megatron_22b();
  s.cluster = read_cluster({{"node", "dgx-a100"}, {"nodes", 4}}, {});
  s.plan.batch.micro_batch_size = 1;
  Program p;
  lower(s, p);
  EXPECT_EQ(p.tied_embedding_bytes, 0);  // one stage holds the table once
  s.plan.pipeline.degree = 4;
  lower(s, p);
  EXPECT_DOUBLE_EQ(p.tied_embedding_bytes, 51200.0 / 8 * 6144 * 4);
  EXPECT_DOUBLE_EQ(p.boundary_bytes, 1.0 * 2048 * 6144 * 2);
  s.plan.tensor.sequence_parallel = true;
  lower(s, p);
  EXPECT_DOUBLE_EQ(p.boundary_bytes, 1.0 * 2048 * 6144 * 2 / 8);
}

TEST(Pipeline, ZeroBubbleRunsWeightGradientsApart) {
  Scenario s = megatron_22b();
  s.cluster = read_cluster({{"node", "dgx-a100"}, {"nodes", 4}}, {});
  s.plan.batch.micro_batch_size = 1;
  s.workload.global_batch_size = 16;
  s.plan.pipeline.degree = 4;
  s.plan.pipeline.schedule = pipeline_parallel::ScheduleKind::zb_h1;
  Program p;
  lower(s, p);
  const Piece& layer = piece_named(p, "layer");
  EXPECT_EQ(count_ops(layer.backward, OpKind::linear_weight_gradient), 0);
  EXPECT_EQ(count_ops(layer.weight_gradient, OpKind::linear_weight_gradient), 4);
  EXPECT_EQ(count_ops(layer.backward, OpKind::linear_input_gradient), 4);
}

}  // namespace
}  // namespace orrery
