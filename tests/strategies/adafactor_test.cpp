// Adafactor: the states of its matrices, and what ranks that divide them send.
#include <gmock/gmock.h>

#include <algorithm>
#include <string>

#include "strategies/optimizer/optimizer.h"
#include "tests/strategies/support.h"

namespace orrery {
namespace {

Scenario with_adafactor(std::int64_t tensor_parallel = 1) {
  Scenario s = scenario_of("llama-3-8b", "dgx-h100", 1);
  s.workload = {8192, 0, 64};
  s.plan.batch.micro_batch_size = 1;
  s.plan.optimizer.rule = optimizer::Rule::adafactor;
  s.plan.tensor.degree = tensor_parallel;
  return s;
}

double states(const Piece& piece) {
  double total = 0;
  for (const Tensor& t : piece.tensors)
    if (t.category == Category::optimizer_state && t.alias_of == kNoTensor) total += static_cast<double>(t.bytes());
  return total;
}
double sent(const Piece& piece) {
  double total = 0;
  for (const Op& op : piece.update.ops)
    if (op.name == std::string_view("squares.all_reduce")) total += bytes(op, piece.tensors);
  return total;
}

constexpr double kLlamaHidden = 4096, kLlamaQkv = 6144, kLlamaFfn = 14336, kLlamaVocab = 128256;
constexpr double kLlamaLayer = kLlamaHidden * (kLlamaQkv + kLlamaHidden + 3 * kLlamaFfn) + 2 * kLlamaHidden;

TEST(Adafactor, AMatrixKeepsANumberForEachRowAndColumnAndAVectorAllItsOwn) {
  const Program p = proven(with_adafactor());
  const double factors =
      (kLlamaHidden + kLlamaQkv) + 2 * kLlamaHidden + (kLlamaHidden + 2 * kLlamaFfn) + (kLlamaFfn + kLlamaHidden);
  EXPECT_DOUBLE_EQ(states(piece_named(p, "layer")), 4 * kLlamaLayer + 4 * (factors + 2 * kLlamaHidden));
  EXPECT_DOUBLE_EQ(states(piece_named(p, "embedding")),
                   4 * kLlamaVocab * kLlamaHidden + 4 * (kLlamaVocab + kLlamaHidden));
  EXPECT_DOUBLE_EQ(states(piece_named(p, "head")),
                   4 * (kLlamaVocab * kLlamaHidden + kLlamaHidden) + 4 * (kLlamaVocab + kLlamaHidden + kLlamaHidden));
  EXPECT_EQ(sent(piece_named(p, "layer")), 0);

  // Without the factors: value and master copy.
  EXPECT_DOUBLE_EQ(optimizer::bytes_kept_per_parameter(with_adafactor().plan), 2 + 4);
}

// Rows of QKV, gate and up are divided by columns: their sums of rows are over all ranks. What comes behind is divided
// by rows. Each matrix sends two numbers besides, of its own size and of its update's.
TEST(Adafactor, RanksThatDivideAMatrixSendTheSumsOfTheOtherSide) {
  const Program p = proven(with_adafactor(4));
  EXPECT_DOUBLE_EQ(sent(piece_named(p, "layer")), 4 * (4 * kLlamaHidden + 4 * 2));
  EXPECT_DOUBLE_EQ(sent(piece_named(p, "embedding")), 4 * (kLlamaHidden + 2));
  EXPECT_DOUBLE_EQ(sent(piece_named(p, "head")), 4 * (kLlamaHidden + 2));
  const double factors = (kLlamaHidden + kLlamaQkv / 4) + (kLlamaHidden / 4 + kLlamaHidden) +
                         (kLlamaHidden + 2 * kLlamaFfn / 4) + (kLlamaFfn / 4 + kLlamaHidden);
  EXPECT_DOUBLE_EQ(states(piece_named(p, "layer")),
                   4 * ((kLlamaLayer - 2 * kLlamaHidden) / 4 + 2 * kLlamaHidden) + 4 * (factors + 2 * kLlamaHidden));
}

// Sums of squares that are not over all ranks, and gradients whose sum over replicas is not taken, are found.
TEST(Adafactor, IsProvenWithoutClipping) {
  Scenario s = with_adafactor(2);
  for (const double clip : {0.0, 1.0}) {
    s.plan.optimizer.clip_grad = clip;
    for (const char* name : {"squares.all_reduce", "gradients.all_reduce"}) {
      Program wrong = proven(s);
      std::size_t erased = 0;
      for (Piece& piece : wrong.pieces)
        for (Block* block : {&piece.backward, &piece.weight_gradient, &piece.update})
          erased += std::erase_if(block->ops, [&](const Op& op) { return op.name == std::string_view(name); });
      EXPECT_GT(erased, 0u) << name;
      EXPECT_FALSE(check(wrong).empty()) << name;
    }
  }
}

// Experts are matrices of their own: ranks that divide them send nothing.
TEST(Adafactor, EachExpertIsAMatrix) {
  Scenario s = with_adafactor();
  s.model.layers = 2;
  s.model.experts = 8;
  s.model.experts_per_token = 2;
  s.model.expert_ffn = 1024;
  const double whole = states(piece_named(proven(s), "expert_layer"));
  s.plan.expert.degree = 8;
  const Program p = proven(s);
  EXPECT_EQ(sent(piece_named(p, "expert_layer")), 0);
  const double experts = 8 * (4 * 3 * 1024 * kLlamaHidden + 4 * (kLlamaHidden + 2 * 1024 + 1024 + kLlamaHidden));
  EXPECT_DOUBLE_EQ(whole - states(piece_named(p, "expert_layer")), experts * 7 / 8);
}

// Fewer accesses of memory than torch.optim.Adafactor's loop has (17 of four bytes).
TEST(Adafactor, PassesOverAMatrixElevenTimes) {
  Scenario s = with_adafactor();
  s.plan.precision.mix = precision::Mix::fp32;
  s.plan.optimizer.clip_grad = 0;
  const Piece layer = piece_named(proven(s), "layer");
  double moved = 0;
  for (const Op& op : layer.update.ops)
    if (op.name != std::string_view("zero_gradients") && !is_communication(op.kind)) moved += bytes(op, layer.tensors);
  EXPECT_NEAR(moved, 4 * kLlamaLayer * 11, 0.001 * moved);
}

TEST(Adafactor, RefusesWhatItCannotLayOut) {
  const auto refused = [](auto change) {
    Scenario s = with_adafactor();
    change(s.plan);
    return refusal_of(s);
  };
  for (const std::int64_t stage : {1, 2, 3})
    EXPECT_THAT(refused([&](Plan& plan) { plan.data.zero_stage = stage; }),
                testing::HasSubstr("/plan/zero_stage: found " + std::to_string(stage) +
                                   ", expected 0 with optimizer \"adafactor\": a shard of a flat buffer"));
  EXPECT_THAT(refused([](Plan& plan) { plan.optimizer.moments = optimizer::MomentDtype::bf16; }),
              testing::HasSubstr("/plan/optimizer_dtype: found \"bf16\", expected \"fp32\" with optimizer"));
  EXPECT_THAT(refused([](Plan& plan) { plan.offload.optimizer = true; }),
              testing::HasSubstr("/plan/optimizer_offload"));
  EXPECT_THAT(refused([](Plan& plan) { plan.optimizer.parameter_remainders = true; }),
              testing::HasSubstr("/plan/store_param_remainders"));
  EXPECT_THAT(refused([](Plan& plan) { plan.compressed.method = compressed_gradients::Method::powersgd; }),
              testing::HasSubstr("/plan/gradient_compression"));
  EXPECT_THAT(refused([](Plan& plan) {
                plan.precision.mix = precision::Mix::fp8;
                plan.data.fp8_param_gather = true;
              }),
              testing::HasSubstr("/plan/fp8_param_gather"));
  Scenario s = with_adafactor(8);
  s.model.kv_heads = 4;
  EXPECT_THAT(refusal_of(s), testing::HasSubstr("at most the model's 4 key/value heads with optimizer \"adafactor\""));
}

}  // namespace
}  // namespace orrery
