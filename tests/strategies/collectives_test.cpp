// Do strategies insert the communication that their papers prescribe?
#include <gmock/gmock.h>

#include <algorithm>

#include "sim/program/borders.h"
#include "sim/program/rewrite.h"
#include "tests/strategies/support.h"

namespace orrery {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;

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

// As Megatron-LM's Pooler: gathered before the first token is taken; backward each rank cuts its own part.
TEST(SequenceParallel, APoolerGathersTheSequenceOnce) {
  Scenario s = scenario_of("bert-large", "dgx-a100", 1);
  s.workload = {512, 0, 8};
  s.plan.tensor.degree = 8;
  s.plan.tensor.sequence_parallel = true;
  Program with, without;
  lower(s, with);
  s.model.pooler = false;
  lower(s, without);
  const Piece &a = piece_named(with, "head"), &b = piece_named(without, "head");
  const double bsh = 1.0 * 512 * 1024 * 2;
  EXPECT_EQ(count_ops(a.forward, OpKind::all_gather), count_ops(b.forward, OpKind::all_gather) + 1);
  EXPECT_DOUBLE_EQ(communicated(a.forward, a, OpKind::all_gather),
                   communicated(b.forward, b, OpKind::all_gather) + bsh);
  for (const OpKind kind : {OpKind::all_gather, OpKind::reduce_scatter, OpKind::all_reduce})
    EXPECT_EQ(count_ops(a.backward, kind), count_ops(b.backward, kind)) << name_of(kind);
}

// A table of positions that two stacks share: its gradient is summed where it lies, in all rows that either reads.
TEST(SequenceParallel, SumsTheGradientOfASharedTableOnce) {
  Scenario s = scenario_of("t5-3b-nemo", "dgx-a100", 1);
  s.plan.tensor.degree = 2;
  s.plan.tensor.sequence_parallel = true;
  const auto summed = [&](std::int64_t length, std::int64_t decoder_length, const char* name) {
    s.workload = {length, decoder_length, 8};
    Program p;
    lower(s, p);
    const Piece& piece = piece_named(p, name);
    std::int64_t elements = 0;
    for (const PackedGradients& packed : piece.packed) elements += piece.tensors[packed.buffer].elements();
    return elements;
  };
  const std::int64_t rows = 256 * s.model.hidden;
  EXPECT_EQ(summed(512, 256, "embedding"), summed(256, 256, "embedding") + rows);
  EXPECT_EQ(summed(256, 512, "embedding"), summed(512, 512, "embedding"));
  EXPECT_EQ(summed(256, 512, "decoder_embedding"), summed(256, 256, "decoder_embedding"));
  EXPECT_EQ(summed(512, 512, "decoder_embedding"), summed(512, 256, "decoder_embedding"));
  s.plan.pipeline.degree = 2;  // each stack has a table of its own, which the stages sum
  EXPECT_EQ(summed(256, 512, "decoder_embedding"), summed(256, 256, "decoder_embedding") + rows);
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

// A gather in parts goes out as soon as the parts are there: a product waits for its own part, the gather for no
// kernel.
TEST(TensorParallel, OverlappedGathersWaitForNoKernel) {
  Scenario s = megatron_22b();
  s.plan.tensor.sequence_parallel = s.plan.tensor.overlap = true;
  Program p;
  lower(s, p);
  const Piece& layer = piece_named(p, "layer");
  for (const Block* block : {&layer.forward, &layer.backward}) {
    int in_parts = 0;
    for (const Op& op : block->ops) {
      if (op.stream != Stream::tensor_communication) continue;
      const bool part = op.kind == OpKind::all_gather && layer.tensors[op.writes[0]].alias_of != kNoTensor;
      EXPECT_EQ(op.free_running, part) << op.name;
      in_parts += part;
    }
    EXPECT_EQ(in_parts, 2 * 4);  // before the two column-parallel products, or their gradients
  }
}

TEST(TensorParallel, ParallelBlocksReduceOnce) {
  Scenario s = scenario_of("palm-540b", "dgx-h100", 8);
  s.workload = {2048, 0, 64};
  s.plan.tensor.degree = 8;
  Program p;
  lower(s, p);
  const auto tensor_reductions = [&](const Block& block) {
    return std::count_if(block.ops.begin(), block.ops.end(), [&](const Op& op) {
      return op.kind == OpKind::all_reduce && op.group == p.mesh.group(MeshAxis::tp);
    });
  };
  EXPECT_EQ(tensor_reductions(piece_named(p, "layer").forward), 1);
  EXPECT_EQ(tensor_reductions(piece_named(p, "layer").backward), 1);
}

// The ranks of a key/value group hold its key and value whole and compute their gradients from a part of its queries.
TEST(TensorParallel, RanksThatShareKeysSumTheirGradientsOnceAStep) {
  Scenario s = scenario_of("llama-3-8b", "dgx-h100", 2);
  s.workload = {8192, 0, 8};
  Program p;
  const auto reduction = [&](std::int64_t degree) -> const Op* {
    s.plan.tensor.degree = degree;
    lower(s, p);
    for (const Op& op : piece_named(p, "layer").update.ops)
      if (op.name == std::string_view("key_value_gradients.all_reduce")) return &op;
    return nullptr;
  };
  EXPECT_EQ(reduction(8), nullptr);  // a group each
  const Op* op = reduction(16);
  ASSERT_NE(op, nullptr);
  EXPECT_EQ(p.mesh.size(op->group), 2);
  EXPECT_TRUE(op->group.contains(0));  // neighbours
  EXPECT_EQ(p.mesh.size(MeshAxis::tp), 16);
  EXPECT_DOUBLE_EQ(bytes(*op, piece_named(p, "layer").tensors), 4096.0 * 2 * 128 * 4);  // fp32 gradients
  s.model.kv_heads = 1;
  op = reduction(16);
  ASSERT_NE(op, nullptr);
  EXPECT_EQ(op->group, p.mesh.group(MeshAxis::tp));  // one group: all ranks
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

// Megatron-LM's make-vocab-size-divisible-by is of each rank's part; elsewhere ranks need equal parts, no more.
// One gather of the 16-bit logits; everything behind it is as large as without tensor parallelism, the product is not.
TEST(TensorParallel, WholeLogitsAreGatheredOnceAndTheirGradientIsCut) {
  for (const bool sequence_parallel : {false, true}) {
    Scenario s = megatron_22b();
    s.plan.tensor.sequence_parallel = sequence_parallel;
    const Program divided = proven(s);
    s.plan.tensor.loss_parallel = false;
    const Program p = proven(s);
    const Piece &head = piece_named(p, "head"), &other = piece_named(divided, "head");
    const double logits = 4.0 * 2048 * 51200;
    const auto is_gather = [](const Op& op) { return op.name == std::string_view("logits.all_gather"); };
    EXPECT_EQ(std::ranges::count_if(head.forward.ops, is_gather), 1);
    EXPECT_DOUBLE_EQ(bytes(*std::ranges::find_if(head.forward.ops, is_gather), head.tensors), 2 * logits);
    EXPECT_EQ(count_ops(head.backward, OpKind::all_gather), count_ops(other.backward, OpKind::all_gather));
    for (const Block* block : {&head.forward, &head.backward})
      for (const Op& op : block->ops) {
        const bool of_loss = op.kind == OpKind::cross_entropy || op.kind == OpKind::cross_entropy_backward;
        if (of_loss || op.kind == OpKind::linear_weight_gradient) {
          EXPECT_EQ(head.tensors[op.reads[of_loss ? 0 : 1]].elements(), logits / (of_loss ? 1 : 8));
        }
        EXPECT_NE(op.name, std::string_view("cross_entropy.all_reduce"));
      }
    const auto product = [](const Piece& piece) {
      const auto is_product = [](const Op& op) { return op.kind == OpKind::linear; };
      return flops(*std::ranges::find_if(piece.forward.ops, is_product), piece.tensors);
    };
    EXPECT_DOUBLE_EQ(product(head), product(other));
  }
}

TEST(TensorParallel, AWholeEmbeddingIsLookedUpWithoutASum) {
  Scenario s = scenario_of("llama-3-8b", "dgx-h100", 1);
  s.workload = {4096, 0, 1};
  s.plan.framework.stack = framework::Stack::fsdp;
  s.plan.tensor.degree = 8;
  s.plan.tensor.sequence_parallel = true;
  s.plan.tensor.vocab_parallel_embedding = false;
  const Program p = proven(s);
  const Piece& embedding = piece_named(p, "embedding");
  EXPECT_EQ(embedding.tensors[embedding.parameters.at(0).parameter].elements(), 128256 * 4096);
  EXPECT_EQ(count_ops(embedding.forward, OpKind::reduce_scatter), 0);
  EXPECT_EQ(count_ops(embedding.backward, OpKind::all_gather), 1);  // each rank sums the gradient of all tokens
  s.model.tied_embeddings = true;
  EXPECT_THAT(refusal_of(s), testing::HasSubstr("/plan/vocab_parallel_embedding: found false, expected true where"));
}

TEST(TensorParallel, PadsTheVocabularyForEqualParts) {
  for (const framework::Stack stack : {framework::Stack::megatron_core, framework::Stack::fsdp}) {
    Scenario s = scenario_of("gpt2-1.5b", "dgx-a100", 1);  // 50,257 tokens
    s.workload = {1024, 0, 8};
    s.plan.tensor.degree = 4;
    s.plan.framework.stack = stack;
    s.model.heads = 24, s.model.kv_heads = 24;
    Program p;
    lower(s, p);
    std::int64_t rows = 0;
    const Piece& embedding = piece_named(p, "embedding");
    for (const ParameterGradient& parameter : embedding.parameters)
      if (const Tensor& t = embedding.tensors[parameter.parameter]; t.axes[0] == Axis::vocab) rows = t.sizes[0];
    EXPECT_EQ(rows, stack == framework::Stack::fsdp ? 50260 / 4 : 50688 / 4);
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

TEST(ContextParallel, ZigzagAndStripedShareCausalWorkEquallyContiguousDoesNot) {
  Scenario s = scenario_of("llama-3-8b", "dgx-h100", 1);
  s.workload = {8192, 0, 8};
  Program one, zigzag, contiguous, striped;
  lower(s, one);
  s.plan.context.degree = 8;
  s.workload.global_batch_size = 1;
  lower(s, zigzag);
  s.plan.context.balance = context_parallel::Balance::contiguous;
  lower(s, contiguous);
  s.plan.context.balance = context_parallel::Balance::striped;
  lower(s, striped);
  EXPECT_DOUBLE_EQ(attention_flops(one), 8 * attention_flops(zigzag));
  // The last rank attends to everything before it: (2c - 1)/c of the mean.
  EXPECT_DOUBLE_EQ(attention_flops(contiguous), attention_flops(zigzag) * 15 / 8);
  // Of 1,024 positions in each later step the diagonal, half of which the slowest rank sees more than its share.
  EXPECT_DOUBLE_EQ(attention_flops(striped), attention_flops(zigzag) * (1 + 7.0 / 8 / 1024));
}

// The gradients of the keys that a step's queries see: five products where the forward has two, on the same pairs.
TEST(ContextParallel, BackwardsLookAtTheKeysOfTheirForwards) {
  Scenario s = scenario_of("llama-3-8b", "dgx-h100", 1);
  s.workload = {8192, 0, 1};
  s.plan.context.degree = 8;
  Program p;
  for (const auto balance : {context_parallel::Balance::zigzag, context_parallel::Balance::contiguous}) {
    s.plan.context.balance = balance;
    lower(s, p);
    const Piece& layer = piece_named(p, "layer");
    std::vector<double> forward, backward;
    for (const Op& op : layer.forward.ops)
      if (op.kind == OpKind::attention) forward.push_back(flops(op, layer.tensors));
    for (const Op& op : layer.backward.ops)
      if (op.kind == OpKind::attention_backward) backward.push_back(flops(op, layer.tensors));
    ASSERT_EQ(forward.size(), 8u);
    ASSERT_EQ(backward.size(), forward.size());
    // 1,024 positions a rank, 32 heads of 128: the causal square, then all keys or half of them.
    constexpr double kSquare = 2.0 * 2 * 128 * 32 * 1024 * 1024;
    for (std::size_t step = 0; step < forward.size(); ++step) {
      const bool half = step == 0 || balance == context_parallel::Balance::zigzag;
      EXPECT_DOUBLE_EQ(forward[step], half ? kSquare / 2 : kSquare) << step;
      EXPECT_DOUBLE_EQ(backward[step], forward[step] * 5 / 2) << step;
    }
  }
}

// Mistral 7B: a window of 4,096 positions over a sequence of 32,768 on eight ranks.
Program windowed(context_parallel::Balance balance) {
  Scenario s = scenario_of("mistral-7b", "dgx-h100", 1);
  s.workload = {32768, 0, 1};
  s.plan.context.degree = 8;
  s.plan.context.balance = balance;
  Program p;
  lower(s, p);
  return p;
}
double attended_pairs(const Program& p) { return attention_flops(p) / (4.0 * 128 * 32); }

// Every query sees `window` keys, but for those at the start of the sequence; ring steps beyond the window fall away.
TEST(ContextParallel, SlidingWindowsKeepTheirWorkAndSkipFarSteps) {
  const Program p = windowed(context_parallel::Balance::contiguous);
  const Piece& layer = piece_named(p, "layer");
  EXPECT_EQ(count_ops(layer.forward, OpKind::attention), 2);  // 4,096 positions a rank
  EXPECT_EQ(count_ops(layer.forward, OpKind::ring_shift), 1);
  EXPECT_EQ(count_ops(layer.backward, OpKind::ring_shift), 1 + 2);  // keys; gradients, the last time to their owner
  EXPECT_NEAR(attended_pairs(p) / (4096.0 * 4096), 1, 1e-3);
}

// Keys of the rank j places before lie j, j + 8, .. positions back: a window of four sees those of three ranks.
TEST(ContextParallel, AStripedDealNeedsAsManyStepsAsTheWindowHasPositions) {
  Scenario s = scenario_of("mistral-7b", "dgx-h100", 1);
  s.workload = {32768, 0, 1};
  s.plan.context.degree = 8;
  s.plan.context.balance = context_parallel::Balance::striped;
  Program p;
  lower(s, p);
  EXPECT_EQ(count_ops(piece_named(p, "layer").forward, OpKind::attention), 8);
  // An eighth of all pairs: the short windows at the start of the sequence are shared, too.
  EXPECT_NEAR(attended_pairs(p) / (4096.0 * 4096), 15.0 / 16, 2e-4);
  s.model.sliding_window = 4;
  lower(s, p);
  EXPECT_EQ(count_ops(piece_named(p, "layer").forward, OpKind::attention), 4);
  EXPECT_EQ(count_ops(piece_named(p, "layer").forward, OpKind::ring_shift), 3);
}

// Chunks of 2,048 positions: a query sees its own chunk and the two before it. These lie one and two ranks back for a
// rank's first chunk, one and two ranks ahead for its second.
TEST(ContextParallel, AZigzagDealNeedsTheWholeRingForAnyWindow) {
  const Program p = windowed(context_parallel::Balance::zigzag);
  const Piece& layer = piece_named(p, "layer");
  EXPECT_EQ(count_ops(layer.forward, OpKind::attention), 5);  // steps 0, 1, 2, 6, 7
  EXPECT_EQ(count_ops(layer.forward, OpKind::ring_shift), 7);
  EXPECT_EQ(count_ops(layer.backward, OpKind::attention_backward), 5);
  EXPECT_EQ(count_ops(layer.backward, OpKind::ring_shift), 7 + 8);

  // The ring waits for the rank that sees the most in all steps together: pairs by counting them.
  constexpr std::int64_t kRanks = 8, kWindow = 4096, kChunk = 2048;
  double expected = 0;
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    double pairs = 0;
    for (std::int64_t step = 0; step < kRanks; ++step) {
      const std::int64_t owner = (rank - step + kRanks) % kRanks;
      for (const std::int64_t q : {rank, 2 * kRanks - 1 - rank})
        for (std::int64_t query = q * kChunk; query < (q + 1) * kChunk; ++query)
          for (const std::int64_t k : {owner, 2 * kRanks - 1 - owner}) {
            const std::int64_t first = std::max(query - kWindow + 1, k * kChunk),
                               last = std::min(query, (k + 1) * kChunk - 1);
            pairs += static_cast<double>(std::max<std::int64_t>(0, last - first + 1));
          }
    }
    expected = std::max(expected, pairs);
  }
  EXPECT_NEAR(attended_pairs(p) / expected, 1, 1e-3);
}

TEST(Precision, Fp8WeightsAreQuantisedWhenTheyAreGathered) {
  Scenario s = scenario_of("llama-3-8b", "dgx-h100", 1);
  s.workload = {8192, 0, 64};
  s.plan.precision.mix = precision::Mix::fp8;
  s.plan.data.zero_stage = 3;
  Program p;
  lower(s, p);
  const Piece& layer = piece_named(p, "layer");
  for (const Block* block : {&layer.forward, &layer.backward}) {
    int weights = 0;
    for (const Op& op : block->ops)
      if (std::string_view(op.name).starts_with("quantise_weight")) {
        ++weights;
        EXPECT_EQ(op.when, When::every_micro_batch);
        EXPECT_STREQ(layer.tensors[storage_of(layer, op.reads[0])].name, "gathered_parameters");
      }
    EXPECT_EQ(weights, 4);
  }
}

// Also under stage 3, where the groups that divide weights are of one rank.
TEST(Precision, Fp8WeightsThatStayAreQuantisedOnceAStep) {
  Scenario s = scenario_of("llama-3-8b", "dgx-h100", 1);
  s.workload = {8192, 0, 64};
  s.plan.precision.mix = precision::Mix::fp8;
  Scenario replicas = s, groups_of_one = s;
  replicas.plan.data.zero_stage = groups_of_one.plan.data.zero_stage = 3;
  replicas.plan.data.shard_degree = 1;
  groups_of_one.plan.mics.shard_size = 1;
  for (const Scenario& scenario : {s, replicas, groups_of_one}) {
    Program p;
    lower(scenario, p);
    int weights = 0;
    for (const Op& op : piece_named(p, "layer").forward.ops)
      if (op.name == std::string_view("quantise_weight")) {
        ++weights;
        EXPECT_EQ(op.when, When::first_micro_batch);
      }
    EXPECT_EQ(weights, 4);
  }
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
    for (const ParameterGradient& g : layer.parameters)
      parameter_bytes += static_cast<double>(layer.tensors[g.parameter].bytes());
    double moved = 0;
    for (const Block* block : {&layer.forward, &layer.backward, &layer.update})
      for (const Op& op : block->ops) {
        if (op.kind == OpKind::all_reduce && bytes(op, layer.tensors) > 1e5) moved += 2 * bytes(op, layer.tensors);
        if (op.kind == OpKind::all_gather || op.kind == OpKind::reduce_scatter) moved += bytes(op, layer.tensors);
      }
    EXPECT_DOUBLE_EQ(moved / parameter_bytes, stage == 3 ? 3 : 2) << stage;
  }
}

// README's second table: with m micro-batches, whole buffers of gradients and parameters that a rank moves in a step.
// What is gathered ahead waits for no kernel; what is not stands where its layer does.
TEST(DataParallel, GathersAheadWaitForNoKernel) {
  for (const std::int64_t prefetch : {0, 1, 3}) {
    Scenario s = zero3_of_deepspeed(4);
    s.plan.data.prefetch = prefetch;
    Program p;
    lower(s, p);
    const Piece& layer = piece_named(p, "layer");
    int gathers = 0;
    for (const Block* block : {&layer.forward, &layer.backward})
      for (const Op& op : block->ops) {
        if (op.kind != OpKind::all_gather) continue;
        EXPECT_EQ(op.prefetch, prefetch);
        EXPECT_EQ(op.free_running, prefetch > 0) << prefetch;
        ++gathers;
      }
    EXPECT_EQ(gathers, 2);
  }
}

TEST(DataParallel, MovesTheVolumesOfWhenGradientsAreReduced) {
  Scenario s = scenario_of("gpt2-1.5b", "dgx-a100", 1);
  const double m = 4;
  s.workload = {1024, 0, 32};
  s.plan.batch.micro_batch_size = 1;
  Program p;
  for (int stage = 0; stage <= 3; ++stage)
    for (const auto reduction : {data_parallel::Reduction::every_micro_batch, data_parallel::Reduction::once})
      for (const bool kept : {false, true}) {
        if (stage < 3 && kept) continue;
        SCOPED_TRACE(testing::Message() << "stage " << stage << (kept ? ", kept" : "") << " reduction "
                                        << static_cast<int>(reduction));
        s.plan.data.zero_stage = stage;
        s.plan.data.reduce_gradients = reduction;
        s.plan.data.reshard_after_forward = !kept;
        lower(s, p);
        ASSERT_EQ(p.schedule.micro_batches, static_cast<std::int64_t>(m));
        const Piece& layer = piece_named(p, "layer");
        double all = 0;
        for (const ParameterGradient& g : layer.parameters)
          all += static_cast<double>(layer.tensors[g.parameter].elements());
        double gradients = 0, parameters = 0;
        for (const Block* block : {&layer.forward, &layer.backward, &layer.update})
          for (const Op& op : block->ops) {
            const double times = block == &layer.update || op.when != When::every_micro_batch ? 1 : m;
            const Tensor& whole = layer.tensors[op.kind == OpKind::all_gather ? op.writes[0] : op.reads[0]];
            if (op.reads[0] == kNoTensor || static_cast<double>(whole.elements()) != all) continue;
            const double moved = static_cast<double>(whole.elements()) / all * times;
            if (op.kind == OpKind::all_reduce) gradients += 2 * moved;
            if (op.kind == OpKind::reduce_scatter) gradients += moved;
            if (op.kind == OpKind::all_gather) parameters += moved;
          }
        const double times = reduction == data_parallel::Reduction::once ? 1 : m;
        EXPECT_DOUBLE_EQ(gradients, stage == 0 ? 2 * times : times);
        EXPECT_DOUBLE_EQ(parameters, stage == 0 ? 0 : stage < 3 ? 1 : kept ? times : 2 * m);
      }
}

// What stacks do: sharded gradients in every micro-batch, but FSDP once under a pipeline; others once.
TEST(DataParallel, ReducesWhenTheStackDoes) {
  Scenario s = scenario_of("gpt2-1.5b", "dgx-a100", 2);
  s.workload = {1024, 0, 64};
  s.plan.batch.micro_batch_size = 1;
  const auto every = [&](framework::Stack stack, int stage, int pipeline) {
    s.plan.framework.stack = stack;
    s.plan.data.zero_stage = stage;
    s.plan.pipeline.degree = pipeline;
    Program p;
    lower(s, p);
    for (const Op& op : piece_named(p, "layer").backward.ops)
      if (op.kind == OpKind::reduce_scatter || op.kind == OpKind::all_reduce) return op.when == When::every_micro_batch;
    ADD_FAILURE() << "no reduction";
    return false;
  };
  for (const int pipeline : {1, 2})
    for (const int stage : {0, 1})
      for (const auto stack : {framework::Stack::megatron_core, framework::Stack::deepspeed, framework::Stack::fsdp})
        EXPECT_FALSE(every(stack, stage, pipeline)) << stage;
  for (const int stage : {2, 3}) {
    EXPECT_TRUE(every(framework::Stack::deepspeed, stage, 1));
    EXPECT_TRUE(every(framework::Stack::megatron_core, stage, 1));
    EXPECT_TRUE(every(framework::Stack::megatron_core, stage, 2));
    EXPECT_TRUE(every(framework::Stack::fsdp, stage, 1));
    EXPECT_FALSE(every(framework::Stack::fsdp, stage, 2));
    EXPECT_FALSE(every(framework::Stack::fsdp_compiled, stage, 2));
  }
}

// Sums over tensor-parallel ranks, once a step, of what the rank has: a shard where gradients are sharded.
TEST(DataParallel, ShardedGradientsArePackedAsShards) {
  Scenario s = scenario_of("gpt3-1.3B", "dgx-h100", 2);
  s.workload = {2048, 0, 8};
  s.plan.tensor.degree = 4;
  s.plan.tensor.sequence_parallel = true;
  const auto packed = [&](int stage) {
    s.plan.data.zero_stage = stage;
    Program p;
    lower(s, p);
    const Piece& layer = piece_named(p, "layer");
    for (const Op& op : layer.update.ops)
      if (op.name == std::string_view("replicated_gradients.all_reduce")) return layer.tensors[op.reads[0]].elements();
    return std::int64_t{0};
  };
  ASSERT_EQ(packed(0) % 4, 0);
  EXPECT_GT(packed(0), 0);
  EXPECT_EQ(packed(1), packed(0));
  EXPECT_EQ(packed(2), packed(0) / 4);
  EXPECT_EQ(packed(3), packed(0) / 4);
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
  s.plan.data.bucket_bytes = 3;
  EXPECT_THROW(lower(s, p), InputError) << "billions of collectives";
}

// As many equal buckets as come nearest to the wanted size; as many whole layers as fit into one.
TEST(DataParallel, BucketsAreOfTheNearestSizeAndNeverOverfull) {
  Scenario s = scenario_of("gpt2-124m", "dgx-a100", 1);
  s.workload = {1024, 0, 8};
  // A layer of GPT-2: 12 h^2 weights, 13 h biases and norms; gradients in fp32.
  constexpr double kHidden = 768, kLayer = 4 * (12 * kHidden * kHidden + 13 * kHidden);
  struct Buckets {
    double layers;  // wanted in a bucket
    int count, every;
  };
  for (const Buckets& b :
       {Buckets{1 / 2.4, 2, 1}, Buckets{1 / 2.6, 3, 1}, Buckets{1 / 1.4, 1, 1}, Buckets{1 / 1.6, 2, 1},
        Buckets{2.4, 1, 2}, Buckets{2.6, 1, 2}, Buckets{3.1, 1, 3}, Buckets{1.9, 1, 1}}) {
    s.plan.data.bucket_bytes = static_cast<std::int64_t>(b.layers * kLayer);
    Program p;
    lower(s, p);
    int met = 0;
    for (const Op& op : piece_named(p, "layer").backward.ops) {
      if (op.name != std::string_view("gradients.all_reduce")) continue;
      ++met;
      EXPECT_EQ(op.count, b.count) << b.layers;
      EXPECT_EQ(op.every, b.every) << b.layers;
    }
    EXPECT_EQ(met, 1);
  }
}

// With replicas of a shard group, what is reduced over the replicas has been scattered: the same buckets.
TEST(DataParallel, ReplicasReduceTheBucketsThatShardGroupsScatter) {
  Scenario s = scenario_of("gpt2-124m", "dgx-a100", 1);
  s.workload = {1024, 0, 8};
  s.plan.data.zero_stage = 1;
  s.plan.data.shard_degree = 2;
  Program p;
  lower(s, p);
  std::uint16_t scattered = 0, reduced = 0;
  for (const Op& op : piece_named(p, "layer").backward.ops) {
    if (op.name == std::string_view("gradients.reduce_scatter")) scattered = op.every;
    if (op.name == std::string_view("gradients.all_reduce")) reduced = op.every;
  }
  EXPECT_GT(scattered, 1);
  EXPECT_EQ(reduced, scattered);
}

// Where the copy stands, and whether anything that changes the gradients comes after it.
struct CopyDown {
  bool in_backward = false;
  std::uint16_t every = 1;
  int changes_after = 0;
};
CopyDown copy_down(const Piece& piece) {
  CopyDown copy;
  bool found = false;
  for (const Block* block : {&piece.backward, &piece.weight_gradient, &piece.update})
    for (const Op& op : block->ops) {
      if (is_optimizer(op.kind)) break;
      const std::string_view name = op.name;
      if (name == "gradients.to_host") {
        EXPECT_FALSE(found);
        found = true;
        copy.in_backward = block != &piece.update;
        copy.every = op.every;
      } else if (found && is_communication(op.kind) && name != "gradient_norm.all_reduce") {
        ++copy.changes_after;
      } else if (found && op.kind == OpKind::scale && op.stream != Stream::host) {
        ++copy.changes_after;
      }
    }
  EXPECT_TRUE(found) << piece.name;
  return copy;
}

// Ren et al. 2021, section 4.1: gradients are copied as the backward produces them, once they are reduced.
TEST(Offload, CopiesGradientsBehindTheirLastReduction) {
  Scenario s = scenario_of("gpt2-124m", "dgx-a100", 1);
  s.workload = {1024, 0, 8};
  s.plan.offload.optimizer = true;
  s.plan.precision.mix = precision::Mix::fp16;
  Program p;
  for (int stage = 0; stage <= 3; ++stage) {
    s.plan.data.zero_stage = stage;
    lower(s, p);
    const Piece& layer = piece_named(p, "layer");
    EXPECT_TRUE(copy_down(layer).in_backward) << stage;
    EXPECT_EQ(copy_down(layer).changes_after, 0) << stage;
    for (const Op& op : layer.backward.ops)
      if (op.stream == Stream::data_communication) {
        EXPECT_EQ(copy_down(layer).every, op.every) << stage;
      }
  }
}

// DeepSpeed's stages 2 and 3: what the host has comes up, is added to and goes down again; nothing comes up where a
// step is one micro-batch. The norm is taken on the device, of the sum.
TEST(Offload, AccumulatesOnTheDeviceWhatTheHostHolds) {
  Scenario s = scenario_of("gpt2-124m", "dgx-a100", 1);
  s.plan.offload.optimizer = true;
  s.plan.data.zero_stage = 2;
  Program p;
  for (const std::int64_t micro_batches : {1, 4}) {
    s.workload = {1024, 0, 8 * micro_batches};
    lower(s, p);
    const Piece& layer = piece_named(p, "layer");
    TensorId sent = kNoTensor, counted = kNoTensor;
    int up = 0, adds = 0;
    for (const Op& op : layer.backward.ops) {
      const std::string_view name = op.name;
      up += name == "gradients.to_device";
      if (name == "gradients.to_device") {
        EXPECT_TRUE(op.free_running) << "the host has it since the micro-batch before: it comes beside the kernels";
      }
      adds += name == "accumulate_gradients";
      if (name == "gradients.to_host") {
        EXPECT_EQ(op.when, When::every_micro_batch);
        sent = op.reads[0];
      }
      if (op.kind == OpKind::gradient_norm) {
        EXPECT_EQ(op.when, When::last_micro_batch);
        counted = op.reads[0];
      }
    }
    EXPECT_EQ(up, micro_batches > 1);
    EXPECT_EQ(adds, micro_batches > 1);
    ASSERT_NE(sent, kNoTensor);
    EXPECT_EQ(counted, sent);
    for (const Op& op : layer.update.ops) EXPECT_NE(op.kind, OpKind::zero_fill);
  }
}

// Norms' gradients of sequence-parallel ranks, keys' of ranks that share them, tables' of the pipeline's ends: summed
// after the backward, and copied then.
TEST(Offload, CopiesInTheUpdateWhatIsSummedThere) {
  Scenario s = scenario_of("gpt2-124m", "dgx-a100", 1);
  s.workload = {1024, 0, 8};
  s.plan.offload.optimizer = true;
  Program p;
  s.plan.pipeline.degree = 2;
  lower(s, p);
  EXPECT_TRUE(copy_down(piece_named(p, "layer")).in_backward);
  EXPECT_FALSE(copy_down(piece_named(p, "embedding")).in_backward);
  EXPECT_FALSE(copy_down(piece_named(p, "head")).in_backward);
  s.plan.tensor.degree = 2;
  s.plan.tensor.sequence_parallel = true;
  lower(s, p);
  EXPECT_FALSE(copy_down(piece_named(p, "layer")).in_backward);
  EXPECT_EQ(copy_down(piece_named(p, "layer")).changes_after, 0);
}

// The only sum over stages of a piece.
const Op* stage_sum(const Piece& piece) {
  const Op* found = nullptr;
  for (const Op& op : piece.update.ops)
    if (op.stages.has_value()) {
      EXPECT_EQ(found, nullptr);
      found = &op;
    }
  return found;
}

// What a forward sends from each position to the next; the backward sends as much back.
std::vector<double> bytes_sent(const Program& p) {
  Borders borders;
  borders.find(p);
  std::vector<double> sent;
  for (std::size_t q = 0; q + 1 < borders.size(); ++q) {
    sent.push_back(borders.forward(q).sent_bytes);
    EXPECT_DOUBLE_EQ(borders.backward(q).sent_bytes, sent.back());
  }
  return sent;
}

// Narayanan et al. 2021, 4.1: each of t ranks sends b s h / t elements, and b s h are gathered.
TEST(Pipeline, ScatteredTransfersCarryAPartEach) {
  Scenario s = megatron_22b();
  s.cluster = read_cluster({{"node", "dgx-a100"}, {"nodes", 4}}, {});
  s.plan.batch.micro_batch_size = 1;
  s.plan.pipeline.degree = 4;
  const double whole = 2.0 * static_cast<double>(s.workload.sequence_length * s.model.hidden);
  const auto crossing = [&](pipeline_parallel::ScatterGather scatter, bool sequence_parallel) {
    s.plan.pipeline.scatter_gather = scatter;
    s.plan.tensor.sequence_parallel = sequence_parallel;
    Program p;
    lower(s, p);
    Borders borders;
    borders.find(p);
    EXPECT_EQ(borders.forward(1).sent_bytes, borders.backward(1).sent_bytes);
    return std::pair(borders.forward(1).sent_bytes, borders.forward(1).gathered_bytes);
  };
  using pipeline_parallel::ScatterGather;
  EXPECT_EQ(crossing(ScatterGather::off, false), std::pair(whole, 0.0));
  EXPECT_EQ(crossing(ScatterGather::on, false), std::pair(whole / 8, whole));
  EXPECT_EQ(crossing(ScatterGather::on, true), std::pair(whole / 8, 0.0)) << "divided already";
  s.plan.framework.stack = framework::Stack::megatron_2021;
  EXPECT_EQ(crossing(ScatterGather::automatic, false), std::pair(whole / 8, whole));
  s.plan.framework.stack = framework::Stack::megatron_core;
  EXPECT_EQ(crossing(ScatterGather::automatic, false), std::pair(whole, 0.0));
}

TEST(Pipeline, TiedEmbeddingsAreSummedBetweenTheEnds) {
  Scenario s = megatron_22b();
  s.cluster = read_cluster({{"node", "dgx-a100"}, {"nodes", 4}}, {});
  s.plan.batch.micro_batch_size = 1;
  Program p;
  lower(s, p);
  EXPECT_THAT(p.stage_groups, IsEmpty()) << "one stage holds the table once";
  s.plan.pipeline.degree = 4;
  lower(s, p);
  EXPECT_THAT(p.stage_groups, ElementsAre(ElementsAre(0, 3)));
  for (const char* end : {"embedding", "head"}) {
    const Piece& piece = piece_named(p, end);
    const Op* sum = stage_sum(piece);
    ASSERT_NE(sum, nullptr) << end;
    EXPECT_DOUBLE_EQ(bytes(*sum, piece.tensors), 51200.0 / 8 * 6144 * 4);
  }
  EXPECT_EQ(stage_sum(piece_named(p, "layer")), nullptr);
  EXPECT_THAT(bytes_sent(p), Each(1.0 * 2048 * 6144 * 2));
  s.plan.tensor.sequence_parallel = true;
  lower(s, p);
  EXPECT_THAT(bytes_sent(p), Each(1.0 * 2048 * 6144 * 2 / 8));
}

// Divided, both ends have to divide the table alike: in buffers of its own.
TEST(Pipeline, ATiedTableThatIsShardedHasASetOfItsOwn) {
  Scenario s = megatron_22b();
  s.cluster = read_cluster({{"node", "dgx-a100"}, {"nodes", 8}}, {});
  s.plan.batch.micro_batch_size = 1;
  s.plan.pipeline.degree = 4;
  s.plan.data.degree = 2;
  Program p;
  for (const std::int64_t stage : {0, 1, 2, 3}) {
    s.plan.data.zero_stage = stage;
    s.plan.data.reduce_gradients =
        stage >= 2 ? data_parallel::Reduction::every_micro_batch : data_parallel::Reduction::once;
    lower(s, p);
    for (const char* end : {"embedding", "head"}) {
      const Piece& piece = piece_named(p, end);
      const Op* sum = stage_sum(piece);
      ASSERT_NE(sum, nullptr) << end;
      const double table = 51200.0 / 8 * 6144 * 4;
      EXPECT_DOUBLE_EQ(bytes(*sum, piece.tensors), stage < 2 ? table : table / 2) << stage;
      EXPECT_EQ(piece.sets.size(), stage == 0 ? 1u : 2u) << stage;
    }
  }
}

// An encoder's first stage, the decoder's, and the head's each have a copy of one table.
TEST(Pipeline, AllStagesThatHoldATableSumIt) {
  Scenario s = scenario_of("t5-large", "dgx-a100", 1);
  s.workload = {512, 128, 8};
  s.plan.pipeline.degree = 4;
  Program p;
  lower(s, p);
  EXPECT_THAT(p.stage_groups, ElementsAre(ElementsAre(0, 2, 3)));
  s.plan.pipeline.degree = 2;
  lower(s, p);
  EXPECT_THAT(p.stage_groups, ElementsAre(ElementsAre(0, 1))) << "the decoder's is the head's";
}

// Between decoder stages goes the encoder's output beside the residual stream: all layers read it.
TEST(Pipeline, StagesOfAnEncoderDecoderHandOnItsMemory) {
  Scenario s = scenario_of("t5-large", "dgx-a100", 1);
  s.workload = {512, 128, 8};  // tokens of the encoder, of the decoder
  s.plan.pipeline.degree = 4;
  Program p;
  lower(s, p);
  // Residual streams of 1,024 in bf16; a stack's table of 32 buckets for 16 heads goes along.
  const double encoder = 512.0 * 1024 * 2, decoder = 128.0 * 1024 * 2, table = 32.0 * 16 * 2;
  EXPECT_THAT(bytes_sent(p), ElementsAre(encoder + table, encoder, decoder + encoder + table));
  s.plan.pipeline.degree = 2;
  s.plan.pipeline.virtual_stages = 2;
  lower(s, p);
  EXPECT_THAT(bytes_sent(p), ElementsAre(encoder + table, encoder, decoder + encoder + table));
}

// Of two chunks a stage the second follows the last stage's first, as far away as the last stage is.
TEST(Pipeline, TheLastStageHandsOnToTheFirst) {
  Scenario s = megatron_22b();
  s.cluster = read_cluster({{"node", "dgx-a100"}, {"nodes", 4}}, {});
  s.plan.batch.micro_batch_size = 1;
  s.plan.pipeline.degree = 4;
  s.plan.pipeline.virtual_stages = 2;
  Program p;
  lower(s, p);
  Borders borders;
  borders.find(p);
  std::vector<std::int32_t> behind;
  for (std::size_t q = 0; q + 1 < borders.size(); ++q) behind.push_back(borders.behind_stage(q));
  EXPECT_THAT(behind, ElementsAre(0, 1, 2, 3, 0, 1, 2));
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
  // Of a sharded sequence, output gradients are gathered for both halves, in each; inputs for the weights alone.
  s.plan.tensor.sequence_parallel = true;
  lower(s, p);
  EXPECT_EQ(count_ops(piece_named(p, "layer").backward, OpKind::all_gather), 2);
  EXPECT_EQ(count_ops(piece_named(p, "layer").weight_gradient, OpKind::all_gather), 2 + 2);
}

}  // namespace
}  // namespace orrery
