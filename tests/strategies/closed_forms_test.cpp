// Does each layer count right? The Program's FLOPs, activations and states against the closed forms of the papers,
// written down here independently of the code.
#include <algorithm>

#include "sim/hardware/presets.h"
#include "sim/memory/memory.h"
#include "sim/program/rewrite.h"
#include "strategies/framework/framework.h"
#include "tests/strategies/support.h"

namespace orrery {
namespace {

struct Dims {
  double s, b, h, a, L, V, t;
};
Dims dims_of(const Scenario& sc) {
  return {static_cast<double>(sc.workload.sequence_length),
          static_cast<double>(sc.plan.batch.micro_batch_size),
          static_cast<double>(sc.model.hidden),
          static_cast<double>(sc.model.heads),
          static_cast<double>(sc.model.layers),
          static_cast<double>(sc.model.vocab),
          static_cast<double>(sc.plan.tensor.degree)};
}

double executed_flops(const Block& block, const Piece& piece) {
  double total = 0;
  for (const Op& op : block.ops) total += flops(op, piece.tensors);
  return total;
}

// Narayanan et al. 2021, section 5.1 and appendix: a layer's forward is 24 b s h^2 + 4 b s^2 h, its backward twice
// that; the logits 2 b s h V.
TEST(ModelFlops, EqualNarayanan2021) {
  Scenario s = megatron_22b();
  s.plan.tensor.degree = 1;
  s.plan.framework.stack = framework::Stack::deepspeed;  // no vocabulary padding
  Program p;
  lower(s, p);
  const auto [seq, b, h, a, L, V, t] = dims_of(s);
  const double layer = 24 * b * seq * h * h + 4 * b * seq * seq * h;
  const Piece& piece = piece_named(p, "layer");
  EXPECT_DOUBLE_EQ(executed_flops(piece.forward, piece), layer);
  EXPECT_DOUBLE_EQ(executed_flops(piece.backward, piece), 2 * layer);
  const Piece& head = piece_named(p, "head");
  EXPECT_DOUBLE_EQ(executed_flops(head.forward, head), 2 * b * seq * h * V);
  const double B = static_cast<double>(s.workload.global_batch_size);
  // 72 B s L h^2 (1 + s/(6h) + V/(12 L h)): Korthikanti et al. 2022, eq. 7.
  EXPECT_NEAR(
      p.model.flops_per_step_full_attention / (72 * B * seq * L * h * h * (1 + seq / (6 * h) + V / (12 * L * h))), 1,
      1e-12);
}

TEST(ModelFlops, TensorParallelRanksShareThemEqually) {
  Scenario s = megatron_22b();
  s.plan.framework.stack = framework::Stack::deepspeed;
  Program whole, part;
  lower(s, part);
  s.plan.tensor.degree = 1;
  lower(s, whole);
  for (const char* name : {"layer", "head"}) {
    const Piece &a = piece_named(whole, name), &b = piece_named(part, name);
    EXPECT_DOUBLE_EQ(executed_flops(a.forward, a), 8 * executed_flops(b.forward, b)) << name;
    EXPECT_DOUBLE_EQ(executed_flops(a.backward, a), 8 * executed_flops(b.backward, b)) << name;
  }
}

// Bytes that the papers leave out: norm statistics (two fp32 per token and norm).
double statistics_bytes(const Dims& d, double share) { return 2 * 2 * 4 * d.s * d.b / share; }

// PyTorch's loss in tensors of 4 bytes as large as the logits: the log-probabilities, which the forward saves, zeros
// and the sum of both gradients; over a divided vocabulary the exponentials, too (loss.py of its tensor parallelism).
TEST(LossMemory, OfDividedVocabulariesIsATensorMore) {
  for (const std::int64_t degree : {1, 2, 8}) {
    Scenario s = scenario_of("llama-3-8b", "dgx-h100", 1);
    s.workload = {2048, 0, 8};
    s.plan.batch.micro_batch_size = 1;
    s.plan.tensor.degree = degree;
    s.plan.framework.stack = framework::Stack::fsdp;
    Program p;
    lower(s, p);
    const double logits = 4.0 * 2048 * 128256 / static_cast<double>(degree);
    const PieceMemory head = piece_memory(piece_named(p, "head"), 1);
    const double held = head.backward_transient.of(Place::device, Category::activation);
    EXPECT_NEAR(held / logits, degree == 1 ? 2 : 3, 0.001) << degree;
  }
}

// A layer's backward gathers what its forward gathered once more, but where the stack keeps it.
TEST(SequenceParallel, GathersInputsAgainWhereTheStackKeepsShards) {
  for (const auto& [stack, gathers] :
       {std::pair{framework::Stack::megatron_core, 4}, {framework::Stack::fsdp, 2}, {framework::Stack::nanotron, 4}}) {
    Scenario s = scenario_of("llama-3-8b", "dgx-h100", 1);
    s.workload = {2048, 0, 8};
    s.plan.batch.micro_batch_size = 1;
    s.plan.tensor.degree = 4;
    s.plan.tensor.sequence_parallel = true;
    s.plan.framework.stack = stack;
    Program p;
    lower(s, p);
    const Piece& layer = running_layer(p);
    EXPECT_EQ(count_ops(layer.forward, OpKind::all_gather), 2);
    EXPECT_EQ(count_ops(layer.backward, OpKind::all_gather), gathers);
  }
}

// Korthikanti et al. 2022, table 2.
TEST(ActivationMemory, EqualsKorthikanti2022Table2) {
  Scenario s = megatron_22b();
  Program p;
  const auto saved = [&](bool sequence_parallel, std::int64_t t, activation_recompute::Mode mode) {
    s.plan.tensor.degree = t;
    s.plan.tensor.sequence_parallel = sequence_parallel;
    s.plan.recompute.mode = mode;
    lower(s, p);
    return saved_bytes(running_layer(p));
  };
  const Dims d = dims_of(s);
  const double sbh = d.s * d.b * d.h, scores = 5 * d.a * d.s / d.h;
  using activation_recompute::Mode;
  EXPECT_DOUBLE_EQ(saved(false, 1, Mode::none), sbh * (34 + scores) + statistics_bytes(d, 1));
  EXPECT_DOUBLE_EQ(saved(false, 8, Mode::none), sbh * (10 + 24.0 / 8 + scores / 8) + statistics_bytes(d, 1));
  EXPECT_DOUBLE_EQ(saved(true, 8, Mode::none), sbh / 8 * (34 + scores) + statistics_bytes(d, 8));
  EXPECT_DOUBLE_EQ(saved(false, 8, Mode::selective), sbh * (10 + 24.0 / 8) + statistics_bytes(d, 1));
  EXPECT_DOUBLE_EQ(saved(true, 8, Mode::selective), sbh / 8 * 34 + statistics_bytes(d, 8));
  EXPECT_DOUBLE_EQ(saved(false, 8, Mode::full), 2 * sbh);
}

// Attention to projected relative positions has no fused kernel: it stores its scores with flash_attention, too.
TEST(ActivationMemory, SelectiveRecomputeRepeatsWhatStoresScoresWhateverThePlanAsksFor) {
  Scenario s = scenario_of("gopher-280b", "dgx-a100", 64);
  s.workload = {2048, 0, 512};
  s.plan.tensor.degree = 8;
  s.plan.recompute.mode = activation_recompute::Mode::selective;
  std::size_t repeated = 0;
  for (const bool flash : {true, false}) {
    s.plan.framework.flash_attention = flash;
    Program p;
    lower(s, p);
    const auto& ops = piece_named(p, "layer").backward.ops;
    const auto n = static_cast<std::size_t>(
        std::count_if(ops.begin(), ops.end(), [](const Op& op) { return op.phase == Phase::recompute; }));
    EXPECT_GT(n, 2u);
    EXPECT_TRUE(flash || n == repeated);
    repeated = n;
  }
}

// With T5's relative positions the core has one more op, the bias' addition: selective recomputation repeats it, and
// keeps the bias (one for all sequences) instead of the scores.
TEST(ActivationMemory, SelectiveRecomputeRepeatsTheAdditionOfRelativePositions) {
  Scenario s = scenario_of("t5-large", "dgx-a100", 1);
  s.workload = {512, 0, 8};
  s.plan.batch.micro_batch_size = 2;
  s.plan.data.degree = 4;
  s.plan.tensor.degree = 2;
  s.plan.framework.flash_attention = false;
  const auto layer_of = [&](activation_recompute::Mode mode) {
    s.plan.recompute.mode = mode;
    Program p;
    lower(s, p);
    return running_layer(p);
  };
  using activation_recompute::Mode;
  const Piece whole = layer_of(Mode::none), selective = layer_of(Mode::selective);
  // Softmax's output, dropout's output and mask: 5 a s^2 b (Korthikanti et al. 2022, section 3); 16 heads, 512 tokens.
  const double scores = 16.0 / 2 * 512 * 512;
  EXPECT_DOUBLE_EQ(saved_bytes(whole) - saved_bytes(selective), 5 * scores * 2 - 2 * scores);
  std::vector<std::string_view> repeated;
  for (const Op& op : selective.backward.ops)
    if (op.phase == Phase::recompute) repeated.emplace_back(op.name);
  const std::vector<std::string_view> core{"attention_scores", "attention_bias", "attention_softmax",
                                           "attention_dropout", "attention_context"};
  EXPECT_EQ(repeated, core);
}

// Elements of products that are repeated: 2 m n k FLOPs each.
double repeated_product_flops(const Piece& piece) {
  double total = 0;
  for (const Op& op : piece.backward.ops)
    if (op.phase == Phase::recompute && op.kind == OpKind::linear) total += flops(op, piece.tensors);
  return total;
}

// Megatron-Core's modules: an MLP keeps its input, 2 of the 34 s b h, and neither of its products' results of 8 each;
// the norms keep neither results (2 each) nor statistics.
TEST(ActivationMemory, ModulesAreKeptByTheirInputs) {
  Scenario s = megatron_22b();
  s.plan.tensor.sequence_parallel = true;
  Program p;
  const auto layer_of = [&](std::vector<std::int64_t> modules) -> const Piece& {
    s.plan.recompute.modules = std::move(modules);
    lower(s, p);
    return running_layer(p);
  };
  using activation_recompute::Mode;
  s.plan.recompute.mode = Mode::selective;
  const double core = saved_bytes(layer_of({}));
  EXPECT_DOUBLE_EQ(saved_bytes(layer_of({0})), core);
  const Dims d = dims_of(s);
  const double sbh = d.s * d.b * d.h / d.t;
  const double scores = 5 * d.b * d.a / d.t * d.s * d.s;
  EXPECT_DOUBLE_EQ(saved_bytes(layer_of({1})), core + scores - 16 * sbh);
  EXPECT_DOUBLE_EQ(repeated_product_flops(layer_of({1})), 16 * d.s * d.b * d.h * d.h / d.t);
  EXPECT_DOUBLE_EQ(saved_bytes(layer_of({2})), core + scores - 4 * sbh - statistics_bytes(d, d.t));
  EXPECT_EQ(repeated_product_flops(layer_of({2})), 0);
  EXPECT_DOUBLE_EQ(saved_bytes(layer_of({0, 1, 2})), core - 20 * sbh - statistics_bytes(d, d.t));
}

// Kernels that clamp before an activation function are repeated with it, and latent attention's projections are those
// from the latents to the stored scores.
TEST(ActivationMemory, ModulesHoldTheKernelsThatAreNotFused) {
  using activation_recompute::Module;
  using Names = std::vector<std::string_view>;
  const auto repeated = [](Scenario s, const char* piece_name, Module module) {
    s.workload = {4096, 0, 8};
    s.plan.recompute.mode = activation_recompute::Mode::selective;
    s.plan.recompute.modules = {static_cast<std::int64_t>(module)};
    Program p;
    lower(s, p);
    const auto named = [&](const Piece& piece) { return std::string_view(piece.name) == piece_name; };
    Names names;
    for (const Op& op : std::ranges::find_if(p.pieces, named)->backward.ops)
      if (op.phase == Phase::recompute) names.emplace_back(op.name);
    return names;
  };
  EXPECT_EQ(repeated(scenario_of("gpt-oss-20b", "dgx-h100", 1), "expert_layer", Module::expert_activations),
            (Names{"expert_clamp", "expert_clamp", "expert_clamp", "expert_activation"}));
  // Rows' weights, which the function reads as well, are put in order by a copy that is no clamp.
  Scenario weighted = scenario_of("qwen3-30b-a3b", "dgx-h100", 1);
  weighted.plan.expert.degree = 4;
  EXPECT_EQ(repeated(weighted, "expert_layer", Module::expert_activations), (Names{"expert_activation"}));
  Scenario dense = scenario_of("llama-3-8b", "dgx-h100", 1);
  dense.model.clamped_activation = true;
  EXPECT_EQ(repeated(dense, "layer", Module::mlp), (Names{"fc1", "clamp", "clamp", "clamp", "activation", "fc2"}));
  Scenario latent = scenario_of("deepseek-v2-lite", "dgx-h100", 1);
  latent.plan.framework.flash_attention = false;
  EXPECT_EQ(repeated(latent, "expert_layer", Module::latent_projections),
            (Names{"query", "kv", "rotary", "rotary_key"}));
}

// A repeated activation function needs its input, so that nothing is saved by an fp8 copy of it for the backward.
TEST(ActivationMemory, RepeatedActivationsKeepNoNarrowCopyOfTheirInput) {
  Scenario s = scenario_of("mixtral-8x7b", "dgx-h100", 1);
  s.workload = {4096, 0, 8};
  s.plan.precision.mix = precision::Mix::fp8;
  s.plan.recompute.mode = activation_recompute::Mode::selective;
  const auto saved = [&](bool narrow, bool repeated) {
    s.plan.precision.fp8_activation_inputs = narrow;
    s.plan.recompute.modules.clear();
    if (repeated)
      s.plan.recompute.modules = {static_cast<std::int64_t>(activation_recompute::Module::expert_activations)};
    Program p;
    lower(s, p);
    return saved_bytes(*std::ranges::find_if(
        p.pieces, [](const Piece& piece) { return std::string_view(piece.name) == "expert_layer"; }));
  };
  EXPECT_EQ(saved(true, true), saved(false, true));
  EXPECT_LT(saved(true, false), saved(true, true));
}

TEST(ActivationMemory, RepeatedMlpsKeepNoNarrowCopyOfTheirActivationsInput) {
  Scenario s = scenario_of("llama-3-8b", "dgx-h100", 1);
  s.workload = {4096, 0, 8};
  s.plan.precision.mix = precision::Mix::fp8;
  s.plan.recompute.mode = activation_recompute::Mode::selective;
  s.plan.recompute.modules = {static_cast<std::int64_t>(activation_recompute::Module::mlp)};
  const auto saved = [&](bool narrow) {
    s.plan.precision.fp8_activation_inputs = narrow;
    Program p;
    lower(s, p);
    return saved_bytes(running_layer(p));
  };
  EXPECT_EQ(saved(true), saved(false));
}

// Copies stand for kernels that a stack does not fuse (stacks.json); graphs hold experts only as one fused op.
TEST(Framework, CopiesStandForKernelsThatAreNotFused) {
  struct Copies {
    std::int64_t rotary = 0, clamps = 0, biases = 0;
    bool operator==(const Copies&) const = default;
  };
  Scenario s = scenario_of("gpt-oss-20b", "dgx-h100", 1);
  s.workload = {4096, 0, 8};
  const auto copies = [&](framework::Stack stack) {
    s.plan.framework.stack = stack;
    Program p;
    lower(s, p);
    const Piece& layer = *std::ranges::find_if(
        p.pieces, [](const Piece& piece) { return std::string_view(piece.name) == "expert_layer"; });
    const auto of = [&](std::string_view name) {
      return std::ranges::count_if(layer.forward.ops, [&](const Op& op) {
        return op.kind == OpKind::cast && op.name == name &&
               layer.tensors[op.reads[0]].dtype == layer.tensors[op.writes[0]].dtype;
      });
    };
    return Copies{of("rotary"), of("expert_clamp"), of("expert_bias")};
  };
  using framework::Stack;
  EXPECT_EQ(copies(Stack::megatron_core), (Copies{5, 3, 3}));
  EXPECT_EQ(copies(Stack::fsdp), (Copies{0, 3, 0}));
  EXPECT_EQ(copies(Stack::fsdp_compiled), Copies{});
  s.plan.framework.cuda_graphs = s.plan.framework.graphs_hold_experts = true;
  EXPECT_EQ(copies(Stack::megatron_core), (Copies{5, 0, 0}));
  s = scenario_of("deepseek-v2-lite", "dgx-h100", 1);
  s.workload = {4096, 0, 8};
  s.model.scaled_rotary = true;
  EXPECT_EQ(copies(Stack::megatron_core), Copies{});
}

// torchtitan's selective checkpointing per op, of Llama's separate matrices: of q, k, v, o, w1, w3, w2 the odd ones are
// kept, but the last, which no derivative reads; and the input, attention's context and its row statistics.
TEST(ActivationMemory, CheckpointingPerOpKeepsEverySecondProduct) {
  Scenario s = scenario_of("llama-3-8b", "dgx-h100", 1);
  s.workload = {8192, 0, 8};
  s.plan.recompute.mode = activation_recompute::Mode::selective_op;
  const double tokens = 8192, h = 4096, kv = 1024, ffn = 14336, heads = 32;
  Program p;
  for (const auto stack : {framework::Stack::fsdp, framework::Stack::fsdp_compiled}) {
    s.plan.framework.stack = stack;
    lower(s, p);
    const Piece& layer = running_layer(p);
    EXPECT_DOUBLE_EQ(saved_bytes(layer), tokens * (2 * (h + h + kv + h + ffn) + 4 * heads));
    EXPECT_DOUBLE_EQ(repeated_product_flops(layer), 2 * tokens * h * (kv + h + ffn));
    for (const Op& op : layer.backward.ops) EXPECT_FALSE(op.phase == Phase::recompute && is_attention(op.kind));
    // Where what is repeated begins in its fused product: the key behind four query heads, o, w3 behind w1.
    std::vector<std::int64_t> begins;
    for (const Op& op : layer.backward.ops)
      if (op.phase == Phase::recompute && op.kind == OpKind::linear)
        begins.push_back(layer.tensors[op.writes[0]].alias_begin);
    EXPECT_EQ(begins, (std::vector<std::int64_t>{4, 0, 1}));
  }
  s.plan.tensor.degree = 8;
  s.plan.tensor.sequence_parallel = true;
  lower(s, p);
  for (const Op& op : running_layer(p).backward.ops)
    EXPECT_FALSE(op.phase == Phase::recompute && op.kind == OpKind::reduce_scatter);
}

// LoongTrain's Selective Checkpoint++ keeps the input and attention's context with its row statistics (Gu et al. 2024,
// section 5); all products but the last are repeated, in a ring none of its steps.
TEST(ActivationMemory, AllButAttentionKeepsTheContext) {
  Scenario s = scenario_of("llama-3-8b", "dgx-h100", 2);
  s.workload = {16384, 0, 16};
  s.plan.recompute.mode = activation_recompute::Mode::all_but_attention;
  const double h = 4096, kv = 1024, ffn = 14336, heads = 32;
  Program p;
  for (const std::int64_t ranks : {1, 4, 16}) {
    s.plan.context.degree = ranks;
    lower(s, p);
    const Piece& layer = running_layer(p);
    const double tokens = 16384 / static_cast<double>(ranks);
    EXPECT_DOUBLE_EQ(saved_bytes(layer), tokens * (2 * (h + h) + 4 * heads)) << ranks;
    EXPECT_DOUBLE_EQ(repeated_product_flops(layer), 2 * tokens * h * (h + 2 * kv + h + 2 * ffn)) << ranks;
    for (const Op& op : layer.backward.ops) {
      const bool in_ring = op.kind == OpKind::merge_attention || op.kind == OpKind::ring_shift;
      EXPECT_FALSE(op.phase == Phase::recompute && (in_ring || is_attention(op.kind)));
    }
  }
}

// Bytes that adding a micro-batch's gradients of a layer takes, beyond the products.
double added_bytes(const Piece& layer) {
  double sum = 0;
  for (const Op& op : layer.backward.ops) {
    if (std::string_view(op.name) != "accumulate_gradient") continue;
    EXPECT_EQ(op.phase, Phase::weight_gradient);
    sum += bytes(op, layer.tensors);
  }
  return sum;
}

TEST(GradientAccumulation, APartIsReadAndAddedToTheSum) {
  using gradient_accumulation::Accumulation;
  Scenario s = megatron_22b();
  s.plan.framework.stack = framework::Stack::megatron_core;
  s.plan.batch.micro_batch_size = 1;
  const auto [seq, b, h, a, L, V, t] = dims_of(s);
  // A rank's part of the four matrices, of the biases of those divided by columns, and whole biases and norms.
  const double parameters = 12 * h * h / t + 7 * h / t + 6 * h;
  Program p;
  const auto added = [&](Accumulation accumulation, precision::GradientDtype sums) {
    s.plan.gradient_accumulation.accumulation = accumulation;
    s.plan.precision.gradients = sums;
    lower(s, p);
    return added_bytes(running_layer(p));
  };
  using enum precision::GradientDtype;
  EXPECT_DOUBLE_EQ(added(Accumulation::separate, fp32), (2 + 4 + 4) * parameters);
  EXPECT_DOUBLE_EQ(added(Accumulation::separate, fp16), (2 + 2 + 2) * parameters);
  EXPECT_EQ(added(Accumulation::fused, fp32), 0);
  EXPECT_EQ(added(Accumulation::automatic, fp32), 0) << "Megatron-Core's products add";
  s.plan.framework.stack = framework::Stack::megatron_2021;
  EXPECT_DOUBLE_EQ(added(Accumulation::automatic, fp32), (2 + 4 + 4) * parameters);

  s.workload.global_batch_size = 1;
  EXPECT_EQ(added(Accumulation::separate, fp16), 0) << "the only part is the sum";
  EXPECT_DOUBLE_EQ(added(Accumulation::separate, fp32), (2 + 4 + 4) * parameters) << "of another dtype";
}

TEST(GradientAccumulation, PartsThatAreReducedAreAddedShardToShard) {
  Scenario s = scenario_of("gpt3-1.3B", "dgx-a100", 1);
  s.workload = {2048, 0, 32};
  s.plan.data.zero_stage = 3;
  Program fused, separate;
  s.plan.gradient_accumulation.accumulation = gradient_accumulation::Accumulation::fused;
  lower(s, fused);
  s.plan.gradient_accumulation.accumulation = gradient_accumulation::Accumulation::separate;
  lower(s, separate);
  EXPECT_EQ(added_bytes(running_layer(separate)), 0);
  EXPECT_EQ(running_layer(separate).backward.ops.size(), running_layer(fused).backward.ops.size());
}

// PyTorch's embedding has a dense gradient: zeros, to which rows are added, and all of it to the sum.
TEST(GradientAccumulation, AnEmbeddingsGradientIsWhole) {
  Scenario s = megatron_22b();
  s.plan.batch.micro_batch_size = 1;
  s.plan.gradient_accumulation.accumulation = gradient_accumulation::Accumulation::separate;
  Program p;
  lower(s, p);
  const Piece& embedding = piece_named(p, "embedding");
  double cleared = 0;
  for (const Op& op : embedding.backward.ops)
    if (op.kind == OpKind::zero_fill) cleared += bytes(op, embedding.tensors);  // words and positions
  const auto [seq, b, h, a, L, V, t] = dims_of(s);
  EXPECT_DOUBLE_EQ(cleared, 2 * (V / t + static_cast<double>(s.model.max_positions)) * h);
}

// What is kept goes to the host, all of it, and comes back once.
TEST(ActivationMemory, OffloadedActivationsWaitOnTheHost) {
  Scenario s = megatron_22b();
  s.plan.tensor.sequence_parallel = true;
  Program p;
  for (const auto& [flash, mode] : {std::pair{true, activation_recompute::Mode::none},
                                    {true, activation_recompute::Mode::full},
                                    {false, activation_recompute::Mode::selective}}) {
    s.plan.framework.flash_attention = flash;
    s.plan.recompute.mode = mode;
    s.plan.activation_offload = {};
    lower(s, p);
    const double kept = saved_bytes(running_layer(p));
    s.plan.activation_offload.offload = true;
    lower(s, p);
    const Piece& layer = running_layer(p);
    const PieceMemory m = piece_memory(layer, 1);
    EXPECT_EQ(device_bytes(m.saved), 0);
    EXPECT_DOUBLE_EQ(m.saved.in(Place::host), kept);
    for (const Block* block : {&layer.forward, &layer.backward}) {
      double copied = 0;
      for (const Op& op : block->ops)
        if (is_copy(op.kind)) {
          copied += bytes(op, layer.tensors);
          EXPECT_EQ(op.prefetch, block == &layer.backward ? 1 : 0) << "comes back a layer ahead";
        }
      EXPECT_DOUBLE_EQ(copied, kept);
    }
  }
}

TEST(ActivationMemory, LayersThatAreOffloadedAreTheFirstOfEachChunk) {
  Scenario s = scenario_of("gpt3-1.3B", "dgx-a100", 1);
  s.workload = {2048, 0, 16};
  s.plan.pipeline.degree = 2;
  s.plan.activation_offload = {.offload = true, .layers = 5};
  Program p;
  lower(s, p);
  for (const auto& stage : p.stages) {
    std::vector<std::int64_t> offloaded;  // or not, layer by layer
    for (const Chunk& chunk : stage)
      for (const auto& run : chunk.runs) {
        const Piece& piece = p.pieces[run.piece];
        if (!is_layer(piece)) continue;
        const bool copies = std::ranges::any_of(piece.forward.ops, [](const Op& op) { return is_copy(op.kind); });
        offloaded.insert(offloaded.end(), static_cast<std::size_t>(run.count), copies ? 1 : 0);
      }
    std::vector<std::int64_t> expected(12, 0);
    std::fill_n(expected.begin(), 5, 1);
    EXPECT_EQ(offloaded, expected);
  }
}

// What FSDP casts to gather it is a buffer; its root unit, embedding and head, is whole as long as it lives.
TEST(StateMemory, OfFsdpHasCastShardsAndARootUnit) {
  Scenario s = scenario_of("llama-3-8b", "dgx-h100", 1);
  s.workload = {8192, 0, 8};
  s.plan.data.zero_stage = 3;
  s.plan.framework.stack = framework::Stack::fsdp;
  Program p;
  lower(s, p);
  std::size_t casts = 0, whole = 0;
  for (const char* name : {"layer", "head"}) {
    const Piece& piece = piece_named(p, name);
    for (const Tensor& t : piece.tensors) {
      if (t.name == std::string_view("cast_shard")) {
        ++casts;
        EXPECT_EQ(t.category, Category::communication_buffer) << name;
        EXPECT_EQ(t.dtype, Dtype::bf16) << name;
      }
      if (t.name != std::string_view("gathered_parameters")) continue;
      ++whole;
      EXPECT_EQ(t.resident, !is_layer(piece)) << name;
    }
  }
  EXPECT_GE(casts, 2u);
  EXPECT_GE(whole, 2u);
}

// A V puts embedding and head into two chunks of a stage. Micro-batches between the two share one gathered table.
TEST(StateMemory, OfATableThatTwoChunksGatherIsOneCopy) {
  Scenario s = scenario_of("llama-3.2-1b", "dgx-h100", 1);
  s.workload = {1024, 0, 64};
  s.plan.data.zero_stage = 3;
  s.plan.pipeline.degree = 2;
  s.plan.pipeline.schedule = pipeline_parallel::ScheduleKind::zb_v;
  Program p;
  lower(s, p);
  const Piece& embedding = piece_named(p, "embedding");
  EXPECT_EQ(piece_memory(embedding, 1).saved.of(Place::device, Category::parameter), 0);
  const double table = 2.0 * static_cast<double>(s.model.hidden * s.model.vocab);
  EXPECT_GE(piece_memory(embedding, 1).resident.of(Place::device, Category::parameter), table);
}

// Bytes a logit at the fullest instant of the loss: the logits of 16 bits, their log-softmax and both gradients in
// fp32; logits and gradient in fp32; both as they are.
TEST(ActivationMemory, OfLosses) {
  Scenario s = scenario_of("llama-3-8b", "dgx-h100", 1);
  s.workload = {8192, 0, 16};
  s.plan.batch.micro_batch_size = 2;
  Program p;
  const auto bytes_per_logit = [&](framework::CrossEntropy loss) {
    s.plan.framework.cross_entropy = loss;
    lower(s, p);
    const PieceMemory m = piece_memory(piece_named(p, "head"), 1);
    PlacedBytes all = m.resident;
    all += m.saved;
    all += m.backward_transient;
    return all.of(Place::device, Category::activation) / (2.0 * 8192 * 128256);
  };
  using framework::CrossEntropy;
  const double streams = 3 * 2 * 4096 / 128256.0;  // of the residual stream what is kept, and statistics
  EXPECT_NEAR(bytes_per_logit(CrossEntropy::unfused), 14, streams);
  EXPECT_NEAR(bytes_per_logit(CrossEntropy::fp32), 8, streams);
  EXPECT_NEAR(bytes_per_logit(CrossEntropy::fused), 4, streams);
}

// FlashAttention keeps one fp32 per row of scores instead of the scores (Dao 2023, arXiv 2307.08691, section 3.1).
TEST(ActivationMemory, FlashAttentionKeepsRowStatisticsOnly) {
  Scenario s = megatron_22b();
  s.plan.framework.flash_attention = true;
  s.plan.tensor.sequence_parallel = true;
  Program p;
  lower(s, p);
  const Dims d = dims_of(s);
  EXPECT_DOUBLE_EQ(saved_bytes(running_layer(p)),
                   d.s * d.b * d.h / 8 * 34 + statistics_bytes(d, 8) + 4 * d.b * d.a / 8 * d.s);
}

// Eager stacks compose RMSNorm, rotary positions and SwiGLU of several kernels; what the model computes stays the same.
TEST(EagerKernels, AreMoreButComputeTheSameProducts) {
  Scenario s = scenario_of("llama-3-8b", "dgx-h100", 1);
  s.workload = {8192, 0, 8};
  Program eager, compiled;
  s.plan.framework.stack = framework::Stack::fsdp;
  lower(s, eager);
  s.plan.framework.stack = framework::Stack::fsdp_compiled;
  lower(s, compiled);
  const Piece &a = piece_named(eager, "layer"), &b = piece_named(compiled, "layer");
  EXPECT_DOUBLE_EQ(executed_flops(a.forward, a), executed_flops(b.forward, b));
  EXPECT_DOUBLE_EQ(executed_flops(a.backward, a), executed_flops(b.backward, b));
  EXPECT_EQ(count_ops(a.forward, OpKind::multiply), 1);
  EXPECT_EQ(count_ops(a.backward, OpKind::multiply), 2);
  EXPECT_EQ(count_ops(a.forward, OpKind::cast), 6);  // around two norms and the rotation
  EXPECT_EQ(count_ops(b.forward, OpKind::cast), 0);
}

TEST(ActivationMemory, FullRecomputeOfGroupsKeepsOneInputEach) {
  Scenario s = megatron_22b();
  s.plan.recompute.mode = activation_recompute::Mode::full;
  s.plan.recompute.every = 4;
  Program p;
  lower(s, p);
  const Dims d = dims_of(s);
  EXPECT_DOUBLE_EQ(saved_bytes(running_layer(p)), 2 * d.s * d.b * d.h);
  std::int64_t instances = 0;
  for (const auto& run : p.stages[0][0].runs)
    if (std::string_view(p.pieces[run.piece].name) == "layer") instances += run.count;
  EXPECT_EQ(instances, 48 / 4);
}

// PyTorch's sequence parallelism keeps what qkv and fc1 gather as activations, Megatron's gathers it again.
TEST(ActivationMemory, GatheredInputsAreKeptAsPyTorchDoes) {
  Scenario s = megatron_22b();
  s.plan.tensor.sequence_parallel = true;
  const auto gathers = [&](framework::Stack stack, Category category) {
    s.plan.framework.stack = stack;
    Program p;
    lower(s, p);
    const Piece& layer = piece_named(p, "layer");
    for (const Op& op : layer.forward.ops) {
      if (op.kind != OpKind::all_gather) continue;
      EXPECT_EQ(layer.tensors[op.writes[0]].category, category);
    }
    return std::pair(count_ops(layer.forward, OpKind::all_gather), count_ops(layer.backward, OpKind::all_gather));
  };
  EXPECT_EQ(gathers(framework::Stack::fsdp, Category::activation), std::pair(2, 2));  // gradients of the outputs
  EXPECT_EQ(gathers(framework::Stack::megatron_core, Category::communication_buffer), std::pair(2, 4));
}

// Products cut into parts that overlap with their collectives save what whole products save, and work on no more than
// the shard of their input, which lives until its last part has been gathered.
TEST(ActivationMemory, OverlappedProductsSaveWhatWholeOnesDo) {
  using activation_recompute::Mode;
  for (const bool flash : {false, true})
    for (const std::int64_t context : {1, 2}) {
      if (context > 1 && !flash) continue;  // rings attend in one kernel a step
      for (const auto& [mode, every] :
           {std::pair{Mode::none, 1}, {Mode::selective, 1}, {Mode::full, 1}, {Mode::full, 3}})
        for (const bool fp8 : {false, true}) {
          Scenario s = scenario_of("megatron-22B", "dgx-h100", 2);
          s.workload = {2048, 0, 4};
          s.plan.batch.micro_batch_size = 4;
          s.plan.data.degree = 1;
          s.plan.context.degree = context;
          s.plan.tensor.degree = 8;
          s.plan.tensor.sequence_parallel = true;
          s.plan.pipeline.degree = 2 / context;
          s.plan.framework.flash_attention = flash;
          s.plan.recompute.mode = mode;
          s.plan.recompute.every = every;
          if (fp8) s.plan.precision.mix = precision::Mix::fp8;
          Program whole, parts;
          lower(s, whole);
          s.plan.tensor.overlap = true;
          lower(s, parts);
          const PieceMemory a = piece_memory(running_layer(whole), 1), b = piece_memory(running_layer(parts), 1);
          EXPECT_DOUBLE_EQ(device_bytes(a.saved), device_bytes(b.saved))
              << static_cast<int>(mode) << every << fp8 << context;
          const Dims d = dims_of(s);
          const double shard = 2 * d.s * d.b * d.h / static_cast<double>(s.plan.tensor.degree * context);
          EXPECT_LE(device_bytes(b.forward_transient), device_bytes(a.forward_transient) + shard);
          EXPECT_LE(device_bytes(b.backward_transient), device_bytes(a.backward_transient) + shard);
        }
    }
}

double resident(const Program& p, Category category, Place place = Place::device) {
  double total = 0;
  for (const Chunk& chunk : p.stages[0])
    for (const auto& run : chunk.runs)
      total += static_cast<double>(run.count) * piece_memory(p.pieces[run.piece], 1).resident.of(place, category);
  return total;
}

// ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054, figure 1): with P parameters, K = 12 and N ranks, 2P + 2P + KP;
// stage 1: 2P + 2P + KP/N; stage 2: 2P + (2P + KP)/N; stage 3: (2P + 2P + KP)/N. Gradients here in bf16.
TEST(StateMemory, EqualsTheZeroPaper) {
  Scenario s = scenario_of("gpt2-1.5b", "dgx-a100", 1);
  s.workload = {1024, 0, 8};
  s.plan.precision.gradients = precision::GradientDtype::bf16;
  s.plan.framework.stack = framework::Stack::deepspeed;
  const double P = static_cast<double>(parameters(s.model)), N = 8;
  Program p;
  const double expected[4][3] = {{2 * P, 2 * P, 12 * P},
                                 {2 * P, 2 * P, 12 * P / N},
                                 {2 * P, 2 * P / N, 12 * P / N},
                                 {2 * P / N, 2 * P / N, 12 * P / N}};
  for (int stage = 0; stage <= 3; ++stage) {
    s.plan.data.zero_stage = stage;
    lower(s, p);
    EXPECT_NEAR(resident(p, Category::parameter) / expected[stage][0], 1, 1e-6) << stage;
    EXPECT_NEAR(resident(p, Category::gradient) / expected[stage][1], 1, 1e-6) << stage;
    EXPECT_NEAR(resident(p, Category::optimizer_state) / expected[stage][2], 1, 1e-6) << stage;
  }
}

// Two bytes of an fp32 copy are in the bf16 parameter already.
TEST(StateMemory, OfParameterRemaindersIsTwoBytesLess) {
  Scenario s = scenario_of("gpt2-1.5b", "dgx-a100", 1);
  s.workload = {1024, 0, 8};
  s.plan.data.zero_stage = 1;
  Program whole, remainders;
  lower(s, whole);
  s.plan.optimizer.parameter_remainders = true;
  lower(s, remainders);
  const double P = static_cast<double>(parameters(s.model)), N = 8;
  EXPECT_NEAR(resident(whole, Category::optimizer_state) / (12 * P / N), 1, 1e-4);  // its vocabulary is padded
  EXPECT_NEAR(resident(remainders, Category::optimizer_state) / (10 * P / N), 1, 1e-4);
  EXPECT_EQ(resident(remainders, Category::parameter), resident(whole, Category::parameter));
}

// FSDP: 16 bytes a parameter, of which the fp32 shard is what the optimizer updates; a layer's is gathered in 16 bits.
TEST(StateMemory, OfFsdpIsSixteenBytesAParameter) {
  Scenario s = scenario_of("llama-3-8b", "dgx-h100", 1);
  s.workload = {8192, 0, 8};
  s.plan.framework.stack = framework::Stack::fsdp;
  s.plan.data.zero_stage = 3;
  Program p;
  lower(s, p);
  const Piece& layer = running_layer(p);
  double P = 0;
  const double N = 8;
  for (const ParameterGradient& g : layer.parameters) P += static_cast<double>(layer.tensors[g.parameter].elements());
  const PieceMemory m = piece_memory(layer, 1);
  EXPECT_DOUBLE_EQ(m.resident.of(Place::device, Category::parameter), 4 * P / N);
  EXPECT_DOUBLE_EQ(m.resident.of(Place::device, Category::gradient), 4 * P / N);
  EXPECT_DOUBLE_EQ(m.resident.of(Place::device, Category::optimizer_state), 8 * P / N);
  for (const Block* block : {&layer.forward, &layer.backward}) {
    double gathered = 0, cast = 0;
    for (const Op& op : block->ops) {
      if (op.kind == OpKind::all_gather) gathered += static_cast<double>(layer.tensors[op.writes[0]].bytes());
      if (op.stream == Stream::parameter_communication && op.kind == OpKind::cast) cast += bytes(op, layer.tensors);
    }
    EXPECT_DOUBLE_EQ(gathered, 2 * P);
    EXPECT_DOUBLE_EQ(cast, (4 + 2) * P / N);
  }
  // The ends of the model stay gathered.
  const Piece& head = piece_named(p, "head");
  const double table = static_cast<double>(s.model.hidden * s.model.vocab + s.model.hidden);
  EXPECT_DOUBLE_EQ(piece_memory(head, 1).resident.of(Place::device, Category::parameter), 2 * table + 4 * table / N);
  EXPECT_EQ(count_ops(head.forward, OpKind::all_gather), 1);
  EXPECT_EQ(count_ops(head.backward, OpKind::all_gather), 0);
  // Of whole weights a master copy is kept, and of 16-bit training nothing in fp32 but gradients and moments.
  s.plan.optimizer.master_parameters = false;
  lower(s, p);
  EXPECT_DOUBLE_EQ(piece_memory(running_layer(p), 1).resident.of(Place::device, Category::parameter), 2 * P / N);
  s.plan.optimizer.master_parameters = true;
  s.plan.data.zero_stage = 2;
  lower(s, p);
  EXPECT_DOUBLE_EQ(piece_memory(running_layer(p), 1).resident.of(Place::device, Category::optimizer_state), 12 * P / N);
}

// fp8 adds a byte a parameter of the layers for each of two quantised copies, once: repeated forwards read the same
// copies. Where weights are gathered for each block, copies come and go with them.
TEST(StateMemory, QuantisedWeightsLastAsLongAsTheWeights) {
  Scenario s = scenario_of("llama-3-8b", "dgx-h100", 1);
  s.workload = {8192, 0, 16};
  s.plan.precision.mix = precision::Mix::fp8;
  Program p;
  double weights = 0;
  for (int stage = 0; stage <= 3; ++stage)
    for (const auto mode : {activation_recompute::Mode::none, activation_recompute::Mode::full})
      for (const bool reshard : {true, false}) {
        if (stage < 3 && !reshard) continue;
        s.plan.data.zero_stage = stage;
        s.plan.data.reshard_after_forward = reshard;
        s.plan.recompute.mode = mode;
        lower(s, p);
        const Piece& layer = running_layer(p);
        weights = 0;
        for (const ParameterGradient& g : layer.parameters)
          if (layer.tensors[g.parameter].rank > 1)
            weights += static_cast<double>(layer.tensors[g.parameter].elements());
        const PieceMemory m = piece_memory(layer, 1);
        const double norms = 2 * sizeof(float);  // the gradient norm's scalars
        EXPECT_NEAR(m.resident.of(Place::device, Category::workspace), stage == 3 ? 0 : 2 * weights, norms) << stage;
        EXPECT_EQ(m.saved.of(Place::device, Category::workspace), 0) << stage;
        EXPECT_EQ(count_ops(layer.forward, OpKind::all_gather) > 0, stage > 0);
      }
  // One rank gathers nothing.
  s.cluster = read_cluster({{"node", "dgx-h100"}, {"devices_per_node", 1}}, {});
  s.plan.data.zero_stage = 3;
  s.plan.recompute.mode = activation_recompute::Mode::none;
  lower(s, p);
  EXPECT_GE(piece_memory(running_layer(p), 1).resident.of(Place::device, Category::workspace), 2 * weights);
}

// Ren et al. 2021 (arXiv 2101.06840), section 4.1: of gradients the device holds those of the layer that runs, the host
// all. Below ZeRO-2 nothing frees them before the update.
TEST(StateMemory, OffloadedGradientsLeaveTheDeviceAsTheyAreReduced) {
  Scenario s = scenario_of("gpt2-1.5b", "dgx-a100", 1);
  s.workload = {1024, 0, 32};
  s.plan.precision.mix = precision::Mix::fp16;
  s.plan.precision.gradients = precision::GradientDtype::fp16;
  s.plan.framework.stack = framework::Stack::deepspeed;
  s.plan.offload.optimizer = true;
  const double P = static_cast<double>(parameters(s.model));
  Program p;
  for (const std::int64_t ranks : {1, 8})
    for (const std::int64_t sequences : {32, 4})  // several micro-batches, or one
      for (int stage = 0; stage <= 3; ++stage) {
        s.cluster = read_cluster({{"node", "dgx-a100"}, {"devices_per_node", ranks}}, {});
        s.plan.batch.micro_batch_size = sequences == 32 ? 1 : 32 / ranks;
        s.plan.data.zero_stage = stage;
        lower(s, p);
        const double N = static_cast<double>(ranks);
        EXPECT_NEAR(resident(p, Category::gradient) / (2 * P), stage >= 2 ? 0 : 1, 1e-6) << stage << ranks;
        const double held = stage >= 1 ? P / N : P;  // states, parameters and gradients
        EXPECT_NEAR(resident(p, Category::optimizer_state, Place::host) / (12 * held), 1, 1e-6) << stage << ranks;
        EXPECT_NEAR(resident(p, Category::gradient, Place::host) / (2 * held), 1, 1e-6) << stage << ranks;
        EXPECT_NEAR(resident(p, Category::parameter, Place::host) / (2 * held), 1, 1e-6) << stage << ranks;
        EXPECT_EQ(resident(p, Category::optimizer_state), 0) << stage << ranks;
      }
}

// Once a step: gradients are whole until then at every stage, and so are parameters that the backward does not free.
TEST(StateMemory, OfGradientsThatWaitForTheEndOfTheStep) {
  Scenario s = scenario_of("gpt2-1.5b", "dgx-a100", 1);
  s.workload = {1024, 0, 32};
  s.plan.batch.micro_batch_size = 1;
  s.plan.precision.gradients = precision::GradientDtype::bf16;
  const double P = static_cast<double>(parameters(s.model)), N = 8;
  Program p;
  for (int stage = 0; stage <= 3; ++stage)
    for (const bool kept : {false, true}) {
      if (stage < 3 && kept) continue;
      s.plan.data.zero_stage = stage;
      s.plan.data.reshard_after_forward = !kept;
      s.plan.data.reduce_gradients = data_parallel::Reduction::once;
      lower(s, p);
      EXPECT_NEAR(resident(p, Category::gradient) / (2 * P), 1, 1e-3) << stage;  // but the vocabulary's padding
      const double parameters = stage < 3 ? 2 * P : kept ? 2 * P + 2 * P / N : 2 * P / N;
      EXPECT_NEAR(resident(p, Category::parameter) / parameters, 1, 1e-3) << stage << kept;
      s.plan.data.reduce_gradients = data_parallel::Reduction::every_micro_batch;
      lower(s, p);
      EXPECT_NEAR(resident(p, Category::gradient) / (2 * P / (stage == 0 ? 1 : N)), 1, 1e-3) << stage;
      // What the backward reads is kept for it: all but the embedding's table.
      if (stage < 3 || !kept) {
        EXPECT_NEAR(resident(p, Category::parameter) / parameters, 1, 1e-3) << stage;
      }
    }
  // A single micro-batch has nothing to wait for.
  s.workload.global_batch_size = 8;
  s.plan.data.zero_stage = 2;
  s.plan.data.reshard_after_forward = true;
  s.plan.data.reduce_gradients = data_parallel::Reduction::once;
  lower(s, p);
  EXPECT_NEAR(resident(p, Category::gradient) / (2 * P / N), 1, 1e-3);
}

TEST(StateMemory, HybridShardingDividesByTheShardGroupOnly) {
  Scenario s = scenario_of("gpt2-1.5b", "dgx-a100", 4);
  s.workload = {1024, 0, 32};
  s.plan.data.zero_stage = 3;
  Program p;
  lower(s, p);
  const double all = resident(p, Category::optimizer_state);
  s.plan.data.shard_degree = 8;
  lower(s, p);
  EXPECT_NEAR(resident(p, Category::optimizer_state) / all, 4, 1e-5);
  EXPECT_EQ(p.mesh.size(MeshAxis::dp_shard), 8);
  EXPECT_EQ(p.mesh.size(MeshAxis::dp_replicate), 4);
}

// Every parameter of the model is in exactly one piece: the Program's count is the model's.
TEST(Parameters, OfTheProgramAreTheModels) {
  std::vector<std::string> names{"gpt2-1.5b", "llama-3-8b", "llama-3-70b", "mistral-7b",   "qwen2.5-7b", "qwen3-8b",
                                 "mpt-7b",    "bert-large", "palm-540b",   "gpt-neox-20b", "opt-6.7b",   "gemma3-12b",
                                 "olmo2-32b", "vit-l-16",   "t5-3b",       "t5-v1.1-xl",   "t5-3b-nemo"};
  const std::size_t dense = names.size();
  for (const std::string& name : model_names())
    if (read_model(name, {}).has_experts()) names.push_back(name);
  EXPECT_GE(names.size(), dense + 25);
  for (const std::string& name : names) {
    Scenario s = scenario_of(name.c_str(), "dgx-h100", 1);
    s.workload = {512, 0, 8};
    s.plan.framework.stack = framework::Stack::fsdp;  // no vocabulary padding
    Program p;
    lower(s, p);
    EXPECT_DOUBLE_EQ(resident(p, Category::parameter) / 2, static_cast<double>(parameters(s.model))) << name;
  }
}

// What a capacity leaves empty, or drops, changes nothing of what the model computes.
TEST(ModelFlops, OfExpertsAreThoseOfTheirTokensWhateverTheSlots) {
  Scenario s = scenario_of("mixtral-8x7b", "dgx-h100", 1);
  s.workload = {4096, 0, 8};
  Program dropless, padded;
  lower(s, dropless);
  s.plan.expert.capacity_factor = 2;
  lower(s, padded);
  const auto rows = [](const Program& p) {
    for (const Op& op : piece_named(p, "expert_layer").forward.ops)
      if (op.kind == OpKind::permute) return piece_named(p, "expert_layer").tensors[op.writes[0]].sizes[1];
    return std::int64_t{0};
  };
  EXPECT_EQ(rows(padded), 2 * rows(dropless));
  EXPECT_EQ(padded.model.flops_per_step, dropless.model.flops_per_step);
  EXPECT_EQ(padded.model.flops_per_step_full_attention, dropless.model.flops_per_step_full_attention);
}

// DeepSpeed's flat buffers are of the bucket's size, in the parameters' dtype; its update reads an fp32 copy of a flat
// one.
// torchtitan puts cuDNN first on Blackwell. The flash-attn package has its second generation there, too.
TEST(AttentionKernels, AreThoseThatTheStacksCodeChooses) {
  using framework::Stack;
  Plan plan;
  const auto kernel = [&](Stack stack, const char* device) {
    plan.framework.stack = stack;
    return framework::attention_kernel(plan, find_device(device));
  };
  EXPECT_EQ(kernel(Stack::fsdp_compiled, "H100-SXM5-80GB"), "flash_attention_2");
  EXPECT_EQ(kernel(Stack::fsdp_compiled, "B200-SXM-180GB"), "cudnn");
  EXPECT_EQ(kernel(Stack::fsdp_compiled, "GB300"), "cudnn");
  EXPECT_EQ(kernel(Stack::fsdp, "B200-SXM-180GB"), "flash_attention_2");
  EXPECT_EQ(kernel(Stack::deepspeed, "GB300"), "flash_attention_2");
  EXPECT_EQ(kernel(Stack::megatron_core, "B200-SXM-180GB"), "");
  plan.framework.attention_kernel = framework::AttentionKernel::flash_attention_3;
  EXPECT_EQ(kernel(Stack::fsdp_compiled, "B200-SXM-180GB"), "flash_attention_3");
}

TEST(StackBuffers, AreThoseOfZero) {
  Scenario s = zero3_of_deepspeed(1);
  s.plan.precision.gradients = precision::GradientDtype::automatic;
  Program p;
  const auto buffers = [&] {
    lower(s, p);
    return stage_buffers(p, p.stages.front());
  };
  const auto kept = [](const StageBuffers& b) { return b.resident.of(Place::device, Category::communication_buffer); };
  double elements = 0;  // of a rank
  StageBuffers b = buffers();
  for (const auto& run : p.stages[0][0].runs)
    for (const ParameterSet& set : p.pieces[run.piece].sets)
      elements += static_cast<double>(run.count * p.pieces[run.piece].tensors[set.own_gradients].elements());
  EXPECT_NEAR(elements, 1.56e9 / 8, 1e7);
  EXPECT_EQ(kept(b), 1e9);
  EXPECT_EQ(b.backward, 0);
  EXPECT_EQ(b.update, 6 * elements);
  EXPECT_EQ(b.resident.of(Place::host, Category::gradient), 0);
  s.plan.data.degree = 1;
  s.cluster.node.devices = s.cluster.nodes = 1;
  EXPECT_EQ(kept(buffers()), 0) << "nothing is reduced";
  EXPECT_EQ(buffers().update, 6e9) << "by groups of 1e9 elements";
  s = zero3_of_deepspeed(1);
  s.plan.offload.optimizer = true;
  b = buffers();
  EXPECT_EQ(b.update, 0);
  EXPECT_EQ(b.resident.of(Place::host, Category::gradient), 4 * elements);
  s.plan.precision.gradients = precision::GradientDtype::fp32;
  EXPECT_EQ(buffers().resident.of(Place::host, Category::gradient), 0) << "no cast";

  s = zero3_of_deepspeed(1);
  s.plan.data.zero_stage = 2;
  b = buffers();
  EXPECT_EQ(b.backward, 2e9);
  EXPECT_EQ(kept(b), 0);
  s.plan.data.overlap_gradients = false;
  EXPECT_EQ(buffers().backward, 1e9);
  s.plan.data.bucket_bytes = 1 << 20;
  EXPECT_EQ(buffers().backward, 1 << 20);
  s.plan.data.zero_stage = 1;
  EXPECT_EQ(buffers().backward, 0);
  s = scenario_of("mixtral-8x7b", "dgx-h100", 1);
  s.workload = {1024, 0, 64};
  s.plan.framework.stack = framework::Stack::deepspeed;
  s.plan.data.zero_stage = 1;
  EXPECT_EQ(buffers().backward, 1e9) << "with experts";
  s.plan.framework.stack = framework::Stack::megatron_2021;
  EXPECT_EQ(buffers().backward, 0);
  EXPECT_EQ(buffers().update, 0);
}

}  // namespace
}  // namespace orrery
