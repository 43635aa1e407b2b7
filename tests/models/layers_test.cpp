// Is a layer made of the ops that its paper writes down?
#include "models/layers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
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

}  // namespace
}  // namespace orrery
