// Is a layer made of the ops that its paper writes down?
#include "models/layers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/read_model.h"
#include "sim/program/work.h"

namespace orrery {
namespace {

std::vector<std::string> names_of(const Block& block) {
  std::vector<std::string> names;
  for (const Op& op : block.ops) names.emplace_back(op.name);
  return names;
}

// Liu et al. 2021 (arXiv 2103.14030), section 3.2: windows are cut out before attention and put back behind it.
TEST(SwinLayer, AttendsWithinWindowsThatAreCutOutAndPutBack) {
  const Model model = read_model("swin-t", {});
  std::vector<Piece> pieces;
  ModelPieces built{&pieces, {}};
  build_pieces(model, {}, 2, {}, built);
  const auto layer = std::find_if(pieces.begin(), pieces.end(),
                                  [](const Piece& piece) { return std::string_view(piece.name) == "layer"; });
  ASSERT_NE(layer, pieces.end());
  const std::vector<std::string> ops{"input_norm",
                                     "window_partition",
                                     "qkv",
                                     "attention",
                                     "attention_output",
                                     "window_reverse",
                                     "attention_residual",
                                     "mlp_norm",
                                     "fc1",
                                     "activation",
                                     "fc2",
                                     "mlp_residual"};
  EXPECT_EQ(names_of(layer->forward), ops);
  // Either way every element of the residual stream is read and written: 2 images of 56 x 56 patches, 96 wide.
  constexpr double kStream = 2.0 * 56 * 56 * 96 * 2;
  for (const Op& op : layer->forward.ops)
    if (std::string_view(op.name).starts_with("window_")) {
      EXPECT_EQ(bytes(op, layer->tensors), 2 * kStream) << op.name;
    }
  EXPECT_EQ(std::count_if(layer->backward.ops.begin(), layer->backward.ops.end(),
                          [](const Op& op) { return std::string_view(op.name).starts_with("window_"); }),
            2);
}

// At twice the side the last stage has 14 x 14 patches, four windows an image: pooled they are one vector all the same.
TEST(SwinHead, PoolsAllWindowsOfAnImage) {
  Model model = read_model("swin-t", {});
  model.image_size = 448;
  std::vector<Piece> pieces;
  ModelPieces built{&pieces, {}};
  build_pieces(model, {}, 3, {}, built);
  const Piece& head = pieces.back();
  const auto product = std::find_if(head.forward.ops.begin(), head.forward.ops.end(),
                                    [](const Op& op) { return op.kind == OpKind::linear; });
  ASSERT_NE(product, head.forward.ops.end());
  const GemmShape shape = gemm_shape(*product, head.tensors);
  EXPECT_EQ(shape.m, 3);
  EXPECT_EQ(shape.n, 1000);
  EXPECT_EQ(shape.k, 768);
}

// Raffel et al. 2020 (arXiv 1910.10683), section 2.1: a decoder attends to what it has written, and to all of the
// input.
TEST(DecoderLayer, AttendsToThePastAndToAllOfTheInput) {
  const Model model = read_model("t5-large", {});
  Workload workload;
  workload.sequence_length = 512;
  workload.decoder_sequence_length = 128;
  for (const bool flash : {true, false}) {
    KernelChoices kernels;
    kernels.flash_attention = flash;
    std::vector<Piece> pieces;
    ModelPieces built{&pieces, {}};
    build_pieces(model, workload, 1, kernels, built);
    const auto layer = std::find_if(pieces.begin(), pieces.end(),
                                    [](const Piece& piece) { return std::string_view(piece.name) == "decoder_layer"; });
    ASSERT_NE(layer, pieces.end());
    double masked = 0;
    for (const Op& op : layer->forward.ops) masked += product_flops(op, layer->tensors).attention_masked;
    // Two products of 16 heads of 64: of half of 128 x 128 pairs, and of 128 x 512.
    EXPECT_DOUBLE_EQ(masked, 4.0 * 16 * 64 * (128.0 * 128 / 2 + 128.0 * 512)) << flash;
  }
}

struct Built {
  std::vector<Piece> pieces;
  std::vector<PieceRun> runs;
};
Built built_of(const Model& model, const Workload& workload, const KernelChoices& kernels = {}) {
  Built built;
  ModelPieces into{&built.pieces, {}};
  build_pieces(model, workload, 1, kernels, into);
  built.runs = into.runs;
  return built;
}

const Piece& piece_named(const Built& built, std::string_view name) {
  return *std::find_if(built.pieces.begin(), built.pieces.end(),
                       [&](const Piece& piece) { return piece.name == name; });
}

Model with(const char* preset, const nlohmann::json& changes) {
  nlohmann::json json{{"preset", preset}};
  json.update(changes);
  return read_model(json, {});
}

// Jiang et al. 2024 (arXiv 2401.04088), section 2.1: experts stand where the MLP would.
TEST(ExpertLayer, RoutesPermutesAndComesBack) {
  const Built built = built_of(read_model("mixtral-8x7b", {}), {4096, 0, 1});
  const Piece& layer = piece_named(built, "expert_layer");
  const std::vector<std::string> ops{
      "input_norm", "qkv",       "rotary",      "attention", "attention_output", "attention_residual",
      "mlp_norm",   "router",    "router",      "permute",   "expert_fc1",       "expert_activation",
      "expert_fc2", "unpermute", "mlp_residual"};
  EXPECT_EQ(names_of(layer.forward), ops);
  for (const Op& op : layer.forward.ops) {
    if (op.kind == OpKind::route) {
      EXPECT_EQ(op.router.score, RouterScore::softmax_of_top);
      for (const TensorId id : {op.reads[0], op.writes[0]}) EXPECT_EQ(layer.tensors[id].dtype, Dtype::fp32);
      EXPECT_EQ(layer.tensors[op.writes[0]].elements(), 4096 * 2);
    } else if (std::string_view(op.name) == "expert_fc1") {  // 4096 tokens, two experts each, eight experts
      const GemmShape shape = gemm_shape(op, layer.tensors);
      EXPECT_EQ(shape.batch, 8);
      EXPECT_EQ(shape.m, 4096 * 2 / 8);
      EXPECT_EQ(shape.n, 2 * 14336);
      EXPECT_EQ(shape.k, 4096);
    }
  }
}

// Shazeer et al. 2017 (arXiv 1701.06538), eq. 3 to 5: what is chosen, weighed and balanced are the noisy logits.
TEST(ExpertLayer, ChoosesAndBalancesByNoisyLogits) {
  Model model = read_model("mixtral-8x7b", {});
  model.router_noise = true;
  model.aux_loss = 0.01;
  model.load_balancing = LoadBalancing::seq_aux_loss;
  const Built built = built_of(model, {512, 0, 1});
  const Piece& layer = piece_named(built, "expert_layer");
  const auto op_of = [&](OpKind kind) { return *std::ranges::find(layer.forward.ops, kind, &Op::kind); };
  const Op noise = op_of(OpKind::add_noise), loss = op_of(OpKind::router_loss);
  EXPECT_EQ(op_of(OpKind::route).reads[0], noise.writes[0]);
  EXPECT_EQ(loss.reads[0], noise.writes[0]);
  EXPECT_EQ(loss.reads[1], op_of(OpKind::expert_counts).writes[0]);
  EXPECT_EQ(op_of(OpKind::expert_counts).reads[0], op_of(OpKind::route).writes[1]);
  EXPECT_TRUE(loss.router.by_sequence);
  EXPECT_EQ(layer.tensors[noise.reads[1]].elements(), 512 * 8);
}

// Where experts choose there is a place for each of them; where ids decide, no logits and no weights.
TEST(ExpertLayer, OfRoutersThatNoTokenDecidesAlone) {
  Model model = read_model("mixtral-8x7b", {});
  model.router_type = RouterType::expert_choice;
  model.router_score = RouterScore::softmax;
  const Piece choosing = piece_named(built_of(model, {512, 0, 1}), "expert_layer");
  const auto op_of = [](const Piece& piece, OpKind kind) {
    return *std::ranges::find(piece.forward.ops, kind, &Op::kind);
  };
  const Op route = op_of(choosing, OpKind::route);
  EXPECT_EQ(route.router.choices, 2);
  for (const TensorId id : {route.writes[0], route.writes[1]}) EXPECT_EQ(choosing.tensors[id].elements(), 512 * 8);
  EXPECT_EQ(choosing.tensors[op_of(choosing, OpKind::permute).writes[0]].elements(), 512 * 2 * 4096);

  const std::int64_t learned = parameters(model);
  model.router_type = RouterType::hash;
  model.experts_per_token = 1;
  EXPECT_EQ(learned - parameters(model), 32 * 4096 * 8) << "a router a layer";
  const Piece hashed = piece_named(built_of(model, {512, 0, 1}), "expert_layer");
  EXPECT_EQ(std::ranges::count(names_of(hashed.forward), "router"), 1);
  EXPECT_EQ(hashed.tensors[op_of(hashed, OpKind::hash_route).reads[0]].input, Input::tokens);
  EXPECT_EQ(op_of(hashed, OpKind::unpermute).reads[2], kNoTensor);
}

// Dai et al. 2024 (arXiv 2401.06066), section 3.2; the gate is Qwen2-MoE's.
TEST(ExpertLayer, AddsSharedExpertsThatAllTokensGoTo) {
  const auto behind_norm = [](const char* name) {
    const Built built = built_of(read_model(name, {}), {512, 0, 1});
    const std::vector<std::string> ops = names_of(piece_named(built, "expert_layer").forward);
    return std::vector<std::string>(std::find(ops.begin(), ops.end(), "mlp_norm") + 1, ops.end());
  };
  const std::vector<std::string> shared{"fc1", "activation", "fc2"};
  const std::vector<std::string> gate{"shared_expert_gate", "shared_expert_gate", "shared_expert_gate"};
  const std::vector<std::string> routed{"router",     "router",    "permute",        "expert_fc1",  "expert_activation",
                                        "expert_fc2", "unpermute", "shared_experts", "mlp_residual"};
  std::vector<std::string> ops = shared;
  ops.insert(ops.end(), routed.begin(), routed.end());
  EXPECT_EQ(behind_norm("deepseek-v3"), ops);
  ops.insert(ops.begin() + 3, gate.begin(), gate.end());
  EXPECT_EQ(behind_norm("qwen2-57b-a14b"), ops);
}

TEST(ExpertLayer, StandsWhereTheFamilyHasIt) {
  const auto line = [](const char* name) {
    const Built built = built_of(read_model(name, {}), {512, 0, 1});
    std::vector<std::pair<std::string, std::int64_t>> runs;
    for (const auto& run : built.runs) runs.emplace_back(built.pieces[run.piece].name, run.count);
    return runs;
  };
  using Runs = std::vector<std::pair<std::string, std::int64_t>>;
  EXPECT_EQ(line("mixtral-8x7b"), (Runs{{"embedding", 1}, {"expert_layer", 32}, {"head", 1}}));
  EXPECT_EQ(line("deepseek-v3"), (Runs{{"embedding", 1}, {"layer", 3}, {"expert_layer", 58}, {"head", 1}}));
  // A layer of 24 each by turns, of which every second with experts attends to all.
  const Built maverick = built_of(read_model("llama4-maverick", {}), {16384, 0, 1});
  ASSERT_EQ(maverick.runs.size(), 50u);
  for (std::size_t layer = 0; layer < 48; ++layer) {
    const Piece& piece = maverick.pieces[maverick.runs[1 + layer].piece];
    EXPECT_EQ(std::string_view(piece.name), layer % 2 == 1 ? "expert_layer" : "layer");
    for (const Op& op : piece.forward.ops)
      if (op.kind == OpKind::attention) {
        EXPECT_EQ(op.window, layer % 4 == 3 ? 0 : 8192) << layer;
      }
  }
}

// DeepSeek-V3 (arXiv 2412.19437, section 2.2): two norms, a projection of both states, a layer as the last one, a norm
// and a second use of the head; the loss of the next token is taken of the last layer's state.
TEST(MultiTokenPrediction, IsAProjectionALayerAndASecondUseOfTheHead) {
  Workload workload;
  workload.sequence_length = 128;
  const Model model = with("deepseek-v3", {{"mtp_num_layers", 1}}),
              plain = with("deepseek-v3", nlohmann::json::object());
  const Built built = built_of(model, workload);
  std::vector<std::pair<std::string, std::int64_t>> runs;
  for (const auto& run : built.runs) runs.emplace_back(built.pieces[run.piece].name, run.count);
  const decltype(runs) expected{{"embedding", 1},     {"layer", 3},     {"expert_layer", 58},
                                {"mtp_embedding", 1}, {"mtp_layer", 1}, {"head", 1}};
  EXPECT_EQ(runs, expected);
  const Piece& head = piece_named(built, "head");
  const auto loss_of = [&](const char* logits) {
    const auto product =
        std::ranges::find_if(head.forward.ops, [&](const Op& op) { return op.name == std::string(logits); });
    return product->reads[0];
  };
  EXPECT_EQ(loss_of("logits"), head.sides[kLastState].input);
  EXPECT_EQ(std::ranges::count(head.forward.ops, OpKind::cross_entropy, &Op::kind), 2);
  const ModelWork work = model_work(model, workload, 1, built.pieces, built.runs);
  const Built before = built_of(plain, workload);
  const ModelWork without = model_work(plain, workload, 1, before.pieces, before.runs);
  const double h = static_cast<double>(model.hidden), tokens = 128;
  double layer = 0;
  for (const Op& op : piece_named(before, "expert_layer").forward.ops) {
    const ProductFlops flops =
        product_flops(op, piece_named(before, "expert_layer").tensors, expert_rows(plain, workload, 1));
    layer += flops.linear + flops.attention_masked;
  }
  EXPECT_NEAR(work.flops_per_step - without.flops_per_step,
              3 * (2 * tokens * 2 * h * h + layer + 2 * tokens * h * static_cast<double>(model.vocab)),
              1e-9 * work.flops_per_step);
}

// What Megatron-Core's kernels for gpt-oss move beside fused ones, in bytes a token: of rotations 44 for an element of
// queries and keys, of clamps 46 for one of an expert's inner width, of the second bias 24 for one of the hidden width
// (its own gradient is another op).
TEST(ExpertLayer, HasCopiesInPlaceOfKernelsThatAreNotFused) {
  const Model model = read_model("gpt-oss-20b", {});
  const Workload workload{4096, 0, 1};
  const auto moved = [&](const KernelChoices& kernels) {
    std::vector<Piece> pieces;
    ModelPieces built{&pieces, {}};
    build_pieces(model, workload, 1, kernels, built);
    const auto layer =
        std::ranges::find_if(pieces, [](const Piece& piece) { return std::string_view(piece.name) == "expert_layer"; });
    double sum = 0;
    for (const Block* block : {&layer->forward, &layer->backward, &layer->weight_gradient})
      for (const Op& op : block->ops) sum += bytes(op, layer->tensors);
    return sum / 4096;
  };
  const double fused = moved({});
  const double heads = 64 + 8, rows = 4;
  EXPECT_NEAR(moved({.fused_scaled_rotary = false}) - fused, 44 * heads * 64, 0.02 * 44 * heads * 64);
  EXPECT_NEAR(moved({.fused_clamps = false}) - fused, 46 * rows * 2880, 0.05 * 46 * rows * 2880);
  EXPECT_NEAR(moved({.fused_expert_biases = false}) - fused, 24 * rows * 2880, 1e-9 * fused);
}

// 6 FLOPs for each parameter of a matrix that a token meets (Narayanan et al. 2021, appendix), and attention's.
TEST(ExpertLayer, CountsTheExpertsThatATokenGoesTo) {
  struct Case {
    Model model;
    std::int64_t sequence;
    double latent_norms;
  };
  for (const auto& [m, sequence, latent_norms] :
       {Case{read_model("mixtral-8x7b", {}), 4096, 0}, Case{read_model("deepseek-moe-16b", {}), 4096, 0},
        Case{read_model("deepseek-v2-lite", {}), 1024, 512}, Case{read_model("llama3-8x70b", {}), 2048, 0},
        // Slots are rounded up: 1001 tokens and 6 of 64 experts each, 17 and 8 of 128.
        Case{read_model("deepseek-moe-16b", {}), 1001, 0}, Case{with("qwen3-30b-a3b", {{"qk_norm", false}}), 17, 0}}) {
    const Workload workload{sequence, 0, 12};
    const Built built = built_of(m, workload);
    const ModelWork work = model_work(m, workload, 1, built.pieces, built.runs);
    const auto tokens = static_cast<double>(12 * sequence), h = static_cast<double>(m.hidden);
    const double norms = static_cast<double>(m.layers) * (2 * h + latent_norms) + h;
    const double matrices =
        static_cast<double>(active_parameters(m)) - norms - static_cast<double>(m.vocab) * h;  // rows are looked up
    const bool latent = m.attention == AttentionKind::latent;
    const double heads = static_cast<double>(m.heads * (m.head_dim + (latent ? m.value_head_dim : m.head_dim)));
    const double pairs = static_cast<double>(sequence) / 2;  // of a token
    const double attention = 6 * static_cast<double>(m.layers) * heads * pairs * tokens;
    EXPECT_NEAR(work.flops_per_step / (6 * matrices * tokens + attention), 1, 1e-12) << m.name << " " << sequence;
    EXPECT_EQ(work.parameters, static_cast<double>(parameters(m)));
    EXPECT_EQ(work.active_parameters, static_cast<double>(active_parameters(m)));

    // What is left over of the slots is executed, too.
    const std::int64_t rows = sequence * m.experts_per_token, slots = (rows + m.experts - 1) / m.experts * m.experts;
    const double a_row = 6 * 3 * h * static_cast<double>(m.expert_ffn * (m.layers - m.dense_layers));
    const double left_over = 12 * static_cast<double>(slots - rows) * a_row;
    EXPECT_NEAR(work.executed_flops_per_step / (work.flops_per_step + left_over), 1, 1e-12) << m.name;
  }
}

}  // namespace
}  // namespace orrery
