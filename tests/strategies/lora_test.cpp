// Low-rank adapters: what they train, cost and send, in closed forms; how parallelism divides them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/program/rewrite.h"
#include "tests/strategies/support.h"

namespace orrery {
namespace {

using lora::Target;
using testing::HasSubstr;

constexpr std::int64_t kAdapterRank = 16;
// Llama 2 7B: the width, that of queries, keys and values together, the MLP's.
constexpr double kLlamaWidth = 4096, kLlamaQkv = 3 * kLlamaWidth, kLlamaInner = 11008;
constexpr double kLlamaMatrices =
    kLlamaWidth * kLlamaQkv + kLlamaWidth * kLlamaWidth + 3 * kLlamaWidth * kLlamaInner;  // of a layer
// r (k + n) of the four matrices, gate and up projection as one.
constexpr double kOfQkv = kAdapterRank * (kLlamaWidth + kLlamaQkv),
                 kOfOutput = kAdapterRank * (kLlamaWidth + kLlamaWidth),
                 kOfMlpIn = kAdapterRank * (kLlamaWidth + 2 * kLlamaInner),
                 kOfMlpOut = kAdapterRank * (kLlamaInner + kLlamaWidth);
constexpr double kOfAll = kOfQkv + kOfOutput + kOfMlpIn + kOfMlpOut;

std::vector<std::int64_t> numbers_of(std::initializer_list<Target> targets) {
  std::vector<std::int64_t> numbers;
  for (const Target t : targets) numbers.push_back(static_cast<std::int64_t>(t));
  return numbers;
}
const auto kFourMatrices = {Target::qkv, Target::attention_output, Target::mlp_in, Target::mlp_out};

Scenario llama_with_adapters(std::initializer_list<Target> targets = {}) {
  Scenario s = scenario_of("llama-2-7b", "dgx-h100", 1);
  s.workload = {2048, 0, 8};
  s.plan.data.degree = 1;
  s.plan.lora.rank = kAdapterRank;
  s.plan.lora.targets = numbers_of(targets);
  return s;
}

// A layer in the middle of the model: the first one hands no gradient on.
const Piece& middle_layer(const Program& p) { return p.pieces[p.line[p.line.size() - 2].piece]; }

double trained_elements(const Piece& piece) {
  double n = 0;
  for (const ParameterGradient& p : piece.parameters)
    if (p.gradient != kNoTensor) n += static_cast<double>(piece.tensors[p.parameter].elements());
  return n;
}

double product_flops_in(const Block& block, const Piece& piece) {
  double all = 0;
  for (const Op& op : block.ops)
    if (op.kind != OpKind::attention && op.kind != OpKind::attention_backward && is_matmul(op.kind))
      all += flops(op, piece.tensors);
  return all;
}

TEST(Lora, TrainsTheRankTimesBothWidthsOfEachMatrix) {
  const auto trained = [](std::initializer_list<Target> targets) {
    const Program p = proven(llama_with_adapters(targets));
    EXPECT_EQ(trained_elements(piece_named(p, "embedding")), 0);
    EXPECT_EQ(trained_elements(piece_named(p, "head")), 0);
    return trained_elements(middle_layer(p));
  };
  EXPECT_EQ(trained({}), kOfQkv + kOfOutput);
  EXPECT_EQ(trained({Target::qkv}), kOfQkv);
  EXPECT_EQ(trained({Target::attention_output}), kOfOutput);
  EXPECT_EQ(trained({Target::o_proj}), kOfOutput);
  EXPECT_EQ(trained({Target::mlp_in}), kOfMlpIn);
  EXPECT_EQ(trained({Target::mlp_out, Target::down_proj}), kOfMlpOut) << "one matrix by two names";
  EXPECT_EQ(trained(kFourMatrices), kOfAll);
}

// 2 bytes of each frozen parameter, 18 of a trained one: bf16, gradients and Adam's states in fp32.
TEST(Lora, KeepsGradientsAndStatesOfAdaptersAlone) {
  const Program p = proven(llama_with_adapters(kFourMatrices));
  const Piece& layer = middle_layer(p);
  ASSERT_EQ(layer.sets.size(), 2u);
  EXPECT_FALSE(layer.sets[0].frozen());
  EXPECT_TRUE(layer.sets[1].frozen());
  const PieceMemory m = piece_memory(layer, 1);
  const double norms = 2 * kLlamaWidth;
  EXPECT_EQ(m.resident.of(Place::device, Category::parameter), 2 * (kLlamaMatrices + norms + kOfAll));
  EXPECT_EQ(m.resident.of(Place::device, Category::gradient), 4 * kOfAll);
  EXPECT_EQ(m.resident.of(Place::device, Category::optimizer_state), 12 * kOfAll);
}

// A token costs 4 FLOPs of a frozen matrix's parameter, 6 of an adapter's. In the first layer the products that read
// the layer's input have no input gradient.
TEST(Lora, CostsAForwardAnInputGradientAndTheAdapters) {
  for (const bool stored : {false, true}) {
    Scenario s = llama_with_adapters(kFourMatrices);
    s.plan.framework.flash_attention = !stored;
    const Program p = proven(s);
    const double tokens = 2048;
    const auto linear_only = [](const Block& block, const Piece& piece) {
      double all = 0;
      for (const Op& op : block.ops) all += op.kind == OpKind::batched_matmul ? 0 : flops(op, piece.tensors);
      return all;
    };
    const auto in = [&](const Block& block, const Piece& piece) {
      return stored ? linear_only(block, piece) : product_flops_in(block, piece);
    };
    const Piece& middle = middle_layer(p);
    EXPECT_DOUBLE_EQ(in(middle.forward, middle), 2 * tokens * (kLlamaMatrices + kOfAll));
    EXPECT_DOUBLE_EQ(in(middle.backward, middle), tokens * (2 * kLlamaMatrices + 4 * kOfAll));
    const Piece& first = p.pieces[p.line[1].piece];
    ASSERT_EQ(p.line[1].count, 1);
    EXPECT_DOUBLE_EQ(in(middle.backward, middle) - in(first.backward, first),
                     tokens * 2 * (kLlamaWidth * kLlamaQkv + kLlamaWidth * kAdapterRank));

    // The step's model FLOPs, with the head's product and input gradient; attention three times the forward.
    const double layers = 32, batch = 8, head = 32000 * kLlamaWidth, attention = 3 * 4 * kLlamaWidth * tokens / 2;
    const double step = batch * tokens *
                        (layers * (4 * kLlamaMatrices + 6 * kOfAll + attention) + 4 * head -
                         2 * (kLlamaWidth * kLlamaQkv + kLlamaWidth * kAdapterRank));
    EXPECT_NEAR(p.model.flops_per_step / step, 1, 1e-3) << "the mask's diagonal";
  }
}

TEST(Lora, ReducesTheGradientsOfAdaptersAlone) {
  for (const int stage : {0, 1, 2, 3}) {
    Scenario s = llama_with_adapters();
    s.plan.data.degree = 0;
    s.plan.data.zero_stage = stage;
    const Program p = proven(s);
    const Piece& layer = middle_layer(p);
    double reduced = 0, gathered = 0;
    for (const Block* block : {&layer.forward, &layer.backward, &layer.update})
      for (const Op& op : block->ops) {
        if (op.kind == OpKind::reduce_scatter ||
            (op.kind == OpKind::all_reduce && layer.tensors[op.reads[0]].category == Category::gradient))
          reduced += bytes(op, layer.tensors);
        if (op.kind == OpKind::all_gather) gathered += bytes(op, layer.tensors);
      }
    const double adapters = kOfQkv + kOfOutput, frozen = kLlamaMatrices + 2 * kLlamaWidth;
    EXPECT_NEAR(reduced / (4 * adapters), 1, 1e-3) << stage;
    // Stages 1 and 2 gather what was updated; stage 3 both sets for the forward and for the backward.
    const double expected = stage == 0 ? 0 : stage < 3 ? 2 * adapters : 2 * 2 * (adapters + frozen);
    EXPECT_NEAR(gathered, expected, 1e-3 * expected) << stage;
    for (const ParameterSet& set : layer.sets)
      EXPECT_EQ(p.mesh.size(set.over.weights), stage == 3 ? 8 : 1) << "both sets are divided alike";
  }
}

// Beside a matrix divided by columns A is whole, beside one divided by rows B is. With sequence parallelism what
// crosses ranks has the width of the rank.
TEST(Lora, DividesAdaptersAsTheirMatrices) {
  Scenario s = llama_with_adapters(kFourMatrices);
  s.plan.tensor.degree = 4;
  s.plan.tensor.sequence_parallel = true;
  const Program p = proven(s);
  const Piece& layer = middle_layer(p);
  EXPECT_EQ(trained_elements(layer),
            kAdapterRank * (kLlamaWidth + kLlamaQkv / 4) + kAdapterRank * (kLlamaWidth / 4 + kLlamaWidth) +
                kAdapterRank * (kLlamaWidth + 2 * kLlamaInner / 4) + kAdapterRank * (kLlamaInner / 4 + kLlamaWidth));
  s.plan.lora = {};
  const Program without = proven(s);
  const auto crosses = [](const Block& block, const Piece& piece) {
    double all = 0;
    for (const Op& op : block.ops)
      if (op.stream == Stream::tensor_communication) all += bytes(op, piece.tensors);
    return all;
  };
  const Piece& dense = piece_named(without, "layer");
  // Four gathers or scatters in bf16 each way. In the backward x A of the two matrices divided by columns is gathered
  // again, for the gradient of B.
  const double of_rank = 2.0 * 2048 * kAdapterRank;
  EXPECT_DOUBLE_EQ(crosses(layer.forward, layer) - crosses(dense.forward, dense), 4 * of_rank);
  // The frozen matrices divided by columns need no gathered input for a weight gradient.
  EXPECT_DOUBLE_EQ(crosses(layer.backward, layer) - crosses(dense.backward, dense),
                   (4 + 2) * of_rank - 2 * 2.0 * 2048 * kLlamaWidth);
  // A parameter that every rank holds has gradients of the rank's own part of the sequence. They are summed once a
  // step.
  EXPECT_DOUBLE_EQ(crosses(layer.update, layer), 4.0 * kAdapterRank * 4 * kLlamaWidth + 4);
}

// Mixtral 8x7B: the width, an expert's; experts of a layer and of a token.
constexpr double kMixtralWidth = 4096, kMixtralInner = 14336, kMixtralExperts = 8, kMixtralChoices = 2;

Scenario mixtral_with_adapters(std::int64_t expert_ranks = 1, std::int64_t expert_tensor_ranks = 1) {
  Scenario s = llama_with_adapters({Target::mlp_in, Target::mlp_out});
  s.model = read_model("mixtral-8x7b", {});
  s.plan.data.degree = 0;
  s.plan.expert.degree = expert_ranks;
  s.plan.expert.tensor_degree = expert_tensor_ranks;
  return s;
}
// The adapters of fc1, with a gate, and of fc2, on one of `ranks` that divide the inner width.
double of_one_expert(double ranks) {
  return kAdapterRank * (kMixtralWidth + 2 * kMixtralInner / ranks) +
         kAdapterRank * (kMixtralInner / ranks + kMixtralWidth);
}

// A and B of each expert. What lacks the inner width is whole on the ranks that divide it; they sum its gradient once a
// step.
TEST(Lora, EachExpertHasAdaptersThatAreDividedAsItsMatrices) {
  for (const std::int64_t experts : {1, 2, 4})
    for (const std::int64_t parts : {1, 2}) {
      const Program p = proven(mixtral_with_adapters(experts, parts));
      const Piece& layer = middle_layer(p);
      const double here = kMixtralExperts / static_cast<double>(experts);
      EXPECT_EQ(trained_elements(layer), here * of_one_expert(static_cast<double>(parts)));
      EXPECT_FALSE(layer.sets[0].frozen());
      EXPECT_EQ(piece_memory(layer, 1).resident.of(Place::device, Category::gradient), 4 * trained_elements(layer));
      double summed = 0, reduced = 0;
      for (const Block* block : {&layer.backward, &layer.update})
        for (const Op& op : block->ops) {
          if (op.kind != OpKind::all_reduce || is_gradient_norm(layer, op.reads[0])) continue;
          const bool whole = op.group == p.mesh.group(MeshAxis::etp) && parts > 1;
          (whole ? summed : reduced) += bytes(op, layer.tensors);
          EXPECT_EQ(p.mesh.size(op.group), whole ? parts : 8 / (experts * parts)) << "an expert's replicas";
        }
      EXPECT_EQ(summed, parts == 1 ? 0 : 4 * here * 2 * kAdapterRank * kMixtralWidth);
      EXPECT_EQ(reduced, experts * parts == 8 ? 0 : 4 * trained_elements(layer));
    }
}

// Rows cost what tokens do at other matrices, and travel as without adapters.
TEST(Lora, AdaptersOfExpertsMultiplyTheRowsOfTheirExperts) {
  for (const std::int64_t parts : {1, 2}) {
    Scenario s = mixtral_with_adapters(4, parts);
    s.plan.lora.targets = numbers_of({Target::attention_output, Target::mlp_in, Target::mlp_out});
    const Program p = proven(s);
    const Piece& layer = middle_layer(p);
    const auto grouped = [](const Block& block, const Piece& piece) {
      double all = 0;
      for (const Op& op : block.ops) all += op.group_dims > 0 && is_matmul(op.kind) ? flops(op, piece.tensors) : 0;
      return all;
    };
    const auto travels = [&](const Piece& piece) {
      double all = 0;
      for (const Block* block : {&piece.forward, &piece.backward})
        for (const Op& op : block->ops)
          all += op.account == Stream::expert_communication ? bytes(op, piece.tensors) : 0;
      return all;
    };
    const double rows = 2048 * kMixtralChoices * static_cast<double>(parts);  // gathered by ranks that divide experts
    const double matrices = 3 * kMixtralWidth * kMixtralInner / static_cast<double>(parts);
    const double adapters = of_one_expert(static_cast<double>(parts));
    EXPECT_DOUBLE_EQ(grouped(layer.forward, layer), 2 * rows * (matrices + adapters));
    EXPECT_DOUBLE_EQ(grouped(layer.backward, layer), rows * (2 * matrices + 4 * adapters));
    s.plan.lora.targets = numbers_of({Target::attention_output});
    const Program attention = proven(s);
    EXPECT_EQ(travels(layer), travels(middle_layer(attention)));
    EXPECT_EQ(grouped(middle_layer(attention).backward, middle_layer(attention)), rows * 2 * matrices);
    // Model FLOPs count the rows that tokens take.
    const double of_experts = p.model.flops_per_step - attention.model.flops_per_step, layers = 32;
    EXPECT_NEAR(of_experts / (8 * 2048 * layers * 6 * kMixtralChoices * of_one_expert(1)), 1, 1e-9);
  }
}

// DeepSeek-V3: a dense MLP in the first layers, shared experts in the others; both are linear_fc1 and linear_fc2, too.
TEST(Lora, AdaptersAreThoseOfSharedExpertsAndOfDenseLayersToo) {
  Scenario s = llama_with_adapters({Target::mlp_in, Target::mlp_out});
  s.model = read_model("deepseek-v3", {});
  const Program p = proven(s);
  const double width = 7168, dense = 18432, inner = 2048, experts = 256;
  const auto of = [&](double ffn) { return kAdapterRank * (2 * width + 3 * ffn); };
  EXPECT_EQ(trained_elements(p.pieces[p.line[1].piece]), of(dense));
  EXPECT_EQ(trained_elements(middle_layer(p)), (experts + 1) * of(inner));
}

// Multi-head latent attention: from the residual width to the latents, and from these to the heads.
TEST(Lora, LatentAttentionHasAdaptersOfItsFourMatrices) {
  const auto trained = [](const char* model, std::initializer_list<Target> targets) {
    Scenario s = llama_with_adapters(targets);
    s.model = read_model(model, {});
    return trained_elements(middle_layer(proven(s)));
  };
  const double width = 7168, queries = 1536, keys = 512, turning = 64, heads = 128;
  const double query_down = width + queries, query_up = queries + heads * (128 + 64), down = width + keys + turning,
               up = keys + heads * (128 + 128);
  EXPECT_EQ(trained("deepseek-v3", {Target::query_down}), kAdapterRank * query_down);
  EXPECT_EQ(trained("deepseek-v3", {Target::query_up}), kAdapterRank * query_up);
  EXPECT_EQ(trained("deepseek-v3", {Target::key_value_down}), kAdapterRank * down);
  EXPECT_EQ(trained("deepseek-v3", {Target::key_value_up, Target::query_up}), kAdapterRank * (up + query_up));
  EXPECT_EQ(trained("deepseek-v2-lite", {Target::query}), kAdapterRank * (2048.0 + 16 * (128 + 64)));
}

TEST(Lora, ProductsOfAdaptersStayIn16Bits) {
  Scenario s = llama_with_adapters(kFourMatrices);
  s.plan.precision.mix = precision::Mix::fp8;
  s.plan.data.degree = 0;
  for (const bool weights : {false, true}) {
    s.plan.data.zero_stage = weights ? 1 : 0;
    s.plan.data.fp8_param_gather = weights;
    const Program p = proven(s);
    const Piece& layer = middle_layer(p);
    int narrow = 0;
    for (const Block* block : {&layer.forward, &layer.backward})
      for (const Op& op : block->ops) {
        if (!is_matmul(op.kind)) continue;
        const bool adapter = op.plain;
        EXPECT_EQ(op.compute_dtype, adapter ? Dtype::bf16 : Dtype::fp8);
        EXPECT_EQ(layer.tensors[op.reads[1]].dtype, adapter ? Dtype::bf16 : Dtype::fp8);
        narrow += adapter ? 1 : 0;
      }
    EXPECT_EQ(narrow, 4 * 2 * 3);
    // Adapters; frozen matrices in fp8; frozen norms.
    ASSERT_EQ(layer.sets.size(), weights ? 3u : 2u);
    EXPECT_FALSE(layer.sets[0].frozen());
    EXPECT_EQ(layer.tensors[layer.sets[0].parameters].dtype, Dtype::bf16);
    EXPECT_TRUE(layer.sets[1].frozen());
    if (weights) {
      EXPECT_EQ(layer.tensors[layer.sets[1].parameters].dtype, Dtype::fp8);
      EXPECT_EQ(layer.tensors[layer.sets[1].parameters].elements(), kLlamaMatrices);
      EXPECT_TRUE(layer.sets[2].frozen());
    }
  }
}

// Frozen matrices take 4.127 bits a parameter; norms and adapters are as before, and so is what the backward keeps.
TEST(Lora, AQuantisedBaseIsKeptInFourBits) {
  Scenario s = llama_with_adapters(kFourMatrices);
  const Program wide = proven(s);
  s.plan.qlora.quantise_base = true;
  const Program p = proven(s);
  const Piece& layer = middle_layer(p);
  ASSERT_EQ(layer.sets.size(), 3u);  // adapters, matrices, norms
  EXPECT_FALSE(layer.sets[0].frozen());
  EXPECT_EQ(layer.tensors[layer.sets[0].parameters].dtype, Dtype::bf16);
  EXPECT_EQ(layer.tensors[layer.sets[1].parameters].dtype, Dtype::nf4);
  EXPECT_EQ(layer.tensors[layer.sets[1].parameters].elements(), kLlamaMatrices);
  EXPECT_EQ(layer.tensors[layer.sets[2].parameters].dtype, Dtype::bf16);
  const PieceMemory m = piece_memory(layer, 1), before = piece_memory(middle_layer(wide), 1);
  EXPECT_NEAR(m.resident.of(Place::device, Category::parameter) / kLlamaMatrices,
              4.127 / 8 + 2 * (2 * kLlamaWidth + kOfAll) / kLlamaMatrices, 1e-4);
  EXPECT_EQ(m.resident.of(Place::device, Category::optimizer_state),
            before.resident.of(Place::device, Category::optimizer_state));
  EXPECT_EQ(device_bytes(m.saved), device_bytes(before.saved)) << "no wide copy waits for the backward";
  EXPECT_EQ(p.model.flops_per_step, wide.model.flops_per_step);
  for (const char* outside : {"embedding", "head"})
    for (const Tensor& t : piece_named(p, outside).tensors) EXPECT_NE(t.dtype, Dtype::nf4) << outside;
}

// Four matrices, each made wide before its product and before its input gradient.
TEST(Lora, EachProductReadsACopyOfItsQuantisedMatrix) {
  Scenario s = llama_with_adapters();
  s.plan.qlora.quantise_base = true;
  s.plan.recompute.mode = activation_recompute::Mode::none;
  const Program p = proven(s);
  const Piece& layer = middle_layer(p);
  for (const Block* block : {&layer.forward, &layer.backward}) {
    double narrow = 0;
    int casts = 0;
    for (std::size_t i = 0; i < block->ops.size(); ++i) {
      const Op& op = block->ops[i];
      if (op.kind != OpKind::cast) continue;
      const Tensor &from = layer.tensors[op.reads[0]], &to = layer.tensors[op.writes[0]];
      ASSERT_EQ(from.dtype, Dtype::nf4);
      EXPECT_EQ(to.dtype, Dtype::bf16);
      EXPECT_EQ(to.category, Category::workspace);
      EXPECT_FALSE(to.resident);
      EXPECT_EQ(block->ops[i + 1].reads[1], op.writes[0]);
      EXPECT_EQ(op.when, When::every_micro_batch);
      narrow += static_cast<double>(from.elements());
      ++casts;
    }
    EXPECT_EQ(casts, 4);
    EXPECT_EQ(narrow, kLlamaMatrices);
  }
}

// Under ZeRO-3 what is kept and gathered of a matrix has 4.127 bits, also where a stack keeps shards in fp32 and where
// ZeRO++ gathers other weights in 8 bits.
TEST(Lora, AQuantisedBaseIsGatheredInFourBits) {
  using framework::Stack;
  for (const auto& [stack, coded] :
       {std::pair(Stack::megatron_core, false), std::pair(Stack::fsdp, false), std::pair(Stack::deepspeed, true)}) {
    Scenario s = llama_with_adapters();
    s.plan.framework.stack = stack;
    s.plan.data.degree = 0;
    s.plan.data.zero_stage = 3;
    s.plan.qlora.quantise_base = true;
    s.plan.zeropp.quantised_weights = s.plan.zeropp.quantised_secondary = coded;
    s.plan.zeropp.secondary = coded ? 4 : 0;
    const Program p = proven(s);
    const Piece& layer = middle_layer(p);
    double matrices = 0, others = 0;
    for (const Op& op : layer.forward.ops) {
      EXPECT_FALSE(is_quantiser(op.kind) && layer.tensors[op.reads[0]].dtype == Dtype::nf4);
      if (op.kind != OpKind::all_gather) continue;
      (layer.tensors[op.reads[0]].dtype == Dtype::nf4 ? matrices : others) += bytes(op, layer.tensors);
    }
    EXPECT_NEAR(matrices / (4.127 / 8 * kLlamaMatrices), 1, 1e-3);
    const double in_bf16 = 2 * (2 * kLlamaWidth + kOfQkv + kOfOutput);
    EXPECT_TRUE(coded ? others < 0.6 * in_bf16 : std::abs(others / in_bf16 - 1) < 1e-3) << others / in_bf16;
    const auto nf4 = std::ranges::find_if(
        layer.sets, [&](const ParameterSet& set) { return layer.tensors[set.parameters].dtype == Dtype::nf4; });
    ASSERT_NE(nf4, layer.sets.end());
    EXPECT_EQ(layer.tensors[nf4->parameters].elements(), kLlamaMatrices / 8);
    ASSERT_EQ(nf4->secondary != kNoTensor, coded);
    EXPECT_EQ(layer.tensors[coded ? nf4->secondary : nf4->parameters].dtype, Dtype::nf4);
  }
}

TEST(Lora, RoutersOfAQuantisedBaseStayAsTheyAre) {
  Scenario s = llama_with_adapters();
  s.model = read_model("mixtral-8x7b", {});
  s.plan.qlora.quantise_base = true;
  const Program p = proven(s);
  const Piece& layer = middle_layer(p);
  int routers = 0, experts = 0;
  for (const Block* block : {&layer.forward, &layer.backward})
    for (const Op& op : block->ops) {
      if (op.kind != OpKind::linear && op.kind != OpKind::linear_input_gradient) continue;
      if (std::string_view(op.name) == "router") {
        EXPECT_EQ(layer.tensors[op.reads[1]].category, Category::parameter);
        EXPECT_EQ(layer.tensors[op.reads[1]].dtype, Dtype::bf16);
        ++routers;
      } else if (op.group_dims > 0) {
        EXPECT_EQ(std::string_view(layer.tensors[op.reads[1]].name), "dequantised");
        ++experts;
      }
    }
  EXPECT_EQ(routers, 2);
  EXPECT_EQ(experts, 4);
}

// A repeated product reads a copy that is made again. Nothing waits for the backward that would not wait in 16 bits.
TEST(Lora, WideCopiesAreMadeAgainForRepeatedProducts) {
  Scenario experts = llama_with_adapters();
  experts.model = read_model("mixtral-8x7b", {});
  experts.plan.recompute.mode = activation_recompute::Mode::selective;
  experts.plan.recompute.modules = {static_cast<std::int64_t>(activation_recompute::Module::experts)};
  Scenario chunks = llama_with_adapters();
  chunks.plan.context.degree = 2;
  chunks.plan.context.type = context_parallel::type_named("fpdt");
  chunks.plan.fpdt.chunk_tokens = 512;
  Scenario whole = llama_with_adapters(kFourMatrices);
  whole.plan.recompute.mode = activation_recompute::Mode::full;
  for (Scenario s : {experts, chunks, whole}) {
    const auto saved = [&](bool quantised) {
      s.plan.qlora.quantise_base = quantised;
      const Program p = proven(s);
      return device_bytes(piece_memory(middle_layer(p), 1).saved);
    };
    EXPECT_EQ(saved(true), saved(false));
  }
}

TEST(Lora, RefusesWhatCannotBeQuantised) {
  const auto refusal = [](auto change) {
    Scenario s = llama_with_adapters();
    s.plan.qlora.quantise_base = true;
    change(s);
    return refusal_of(s);
  };
  EXPECT_EQ(refusal([](Scenario&) {}), "nothing");
  for (const precision::Mix mix : {precision::Mix::fp16, precision::Mix::fp32})
    EXPECT_EQ(refusal([&](Scenario& s) { s.plan.precision.mix = mix; }), "nothing");
  EXPECT_THAT(refusal([](Scenario& s) { s.plan.precision.mix = precision::Mix::fp8; }),
              HasSubstr("/plan/lora_quantize_base: found true, expected false with layers in fp8 or nvfp4"));
  EXPECT_THAT(refusal([](Scenario& s) { s.plan.lora.rank = 0; }),
              HasSubstr("/plan/lora_quantize_base: found true, expected false without lora_rank"));
}

TEST(Lora, RefusesChunksThatWouldTakeOtherTokens) {
  const auto refusal = [](Target target, double dropout) {
    Scenario s = llama_with_adapters({target});
    s.plan.context.degree = 2;
    s.plan.context.type = context_parallel::type_named("fpdt");
    s.plan.fpdt.chunk_tokens = 512;
    s.plan.tensor.degree = 2;
    s.plan.tensor.sequence_parallel = dropout == 0;
    s.plan.lora.dropout = dropout;
    return refusal_of(s);
  };
  EXPECT_THAT(refusal(Target::qkv, 0), HasSubstr("/plan/sequence_parallel: found true, expected false for an adapter"));
  EXPECT_EQ(refusal(Target::qkv, 0.1), "nothing");
  EXPECT_EQ(refusal(Target::mlp_out, 0), "nothing");
  EXPECT_THAT(refusal(Target::mlp_out, 0.1), HasSubstr("/plan/lora_dropout: found 0.1, expected 0 for an adapter"));
}

TEST(Lora, RefusesWhatHasNoAdapter) {
  const auto refusal = [](auto change) {
    Scenario s = llama_with_adapters();
    change(s);
    return refusal_of(s);
  };
  const auto named = [&](Target target) {
    return refusal([&](Scenario& s) { s.plan.lora.targets = numbers_of({target}); });
  };
  EXPECT_EQ(refusal([](Scenario&) {}), "nothing");
  for (const Target part : {Target::q_proj, Target::k_proj, Target::v_proj})
    EXPECT_THAT(named(part), HasSubstr("/plan/lora_targets: found an array of 1, expected linear_qkv: queries"));
  for (const Target part : {Target::gate_proj, Target::up_proj})
    EXPECT_THAT(named(part), HasSubstr("expected linear_fc1: gate and up projection are one matrix"));
  EXPECT_THAT(refusal([](Scenario& s) { s.model = read_model("deepseek-v3", {}); }),
              HasSubstr("expected no linear_qkv: latent attention"));
  const auto latent = [&](const char* model, Target target) {
    return refusal([&](Scenario& s) {
      s.model = read_model(model, {});
      s.plan.lora.targets = numbers_of({target});
    });
  };
  EXPECT_THAT(latent("llama-2-7b", Target::key_value_up),
              HasSubstr("expected no linear_kv_up_proj, which latent attention has"));
  EXPECT_THAT(latent("deepseek-v3", Target::query),
              HasSubstr("expected no linear_q_proj: this model computes queries"));
  EXPECT_THAT(latent("deepseek-v2-lite", Target::query_down),
              HasSubstr("expected no linear_q_down_proj: this model computes queries without latents (linear_q_proj)"));
  EXPECT_THAT(
      refusal([](Scenario& s) {
        s.model = read_model("deepseek-v3", {});
        s.plan.recompute.mode = activation_recompute::Mode::selective;
        s.plan.recompute.modules = {static_cast<std::int64_t>(activation_recompute::Module::latent_projections)};
        s.plan.lora.targets = numbers_of({Target::key_value_up});
      }),
      HasSubstr("with recompute_modules \"mla_up_proj\", which repeats no adapters"));
  EXPECT_EQ(refusal([](Scenario& s) { s.model = read_model("mixtral-8x7b", {}); }), "nothing");
  EXPECT_THAT(refusal([](Scenario& s) {
                s.plan.recompute.mode = activation_recompute::Mode::selective;
                s.plan.recompute.modules = {static_cast<std::int64_t>(activation_recompute::Module::mlp)};
                s.plan.lora.targets = numbers_of({Target::mlp_out});
              }),
              HasSubstr("with recompute_modules \"mlp\", which repeats no adapters"));
  EXPECT_THAT(
      refusal([](Scenario& s) { s.plan.freeze.head = true; }),
      HasSubstr("/plan/freeze_head: found true, expected false with lora_rank: all but the adapters is frozen"));
  EXPECT_THAT(refusal([](Scenario& s) {
                s.plan.lora.rank = 0;
                s.plan.lora.dropout = 0.1;
              }),
              HasSubstr("/plan/lora_dropout: found 0.1, expected 0 without lora_rank"));

  const auto without = [&](std::int64_t from, std::int64_t to, std::int64_t stages) {
    return refusal([&](Scenario& s) {
      LayerRange range;
      range.from = from;
      range.to = to;
      range.plan = s.plan;
      range.plan.lora.rank = 0;
      s.plan.layers = {range};
      s.plan.pipeline.degree = stages;
    });
  };
  EXPECT_EQ(without(0, 15, 2), "nothing");
  EXPECT_THAT(without(0, 16, 2), HasSubstr("/plan/lora_rank: found 16, expected adapters in a layer of the first model "
                                           "chunk (layers 0 to 15): every stage needs a backward"));
  EXPECT_THAT(without(16, 32, 2), HasSubstr("expected stages that each train something, or clip_grad 0: stage 1"));
  EXPECT_THAT(without(0, 32, 1), HasSubstr("/plan/lora_rank: found 16, expected adapters in some layer"));
}

}  // namespace
}  // namespace orrery
