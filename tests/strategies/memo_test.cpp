// Does MEMO swap and recompute what its paper says (arXiv 2407.12117, sections 3 and 4.1)?
#include <gmock/gmock.h>

#include <functional>
#include <string>

#include "sim/program/check.h"
#include "strategies/context_parallel/context_parallel.h"
#include "tests/strategies/support.h"

namespace orrery {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kTokens = 65536;

// The 7B model of the paper's table: MHA, a GELU MLP of 4 h, here in bf16.
Scenario gpt_7b(double alpha, std::int64_t tensor = 8) {
  Scenario s = scenario_of("gpt3-6.7b", "hgx-a800", 1);
  s.model.max_positions = kTokens;
  s.model.positions = Positions::rotary;
  s.model.dropout = 0;
  s.workload = {kTokens, 0, 8 / tensor};
  s.plan.batch.micro_batch_size = 1;
  s.plan.data.degree = 8 / tensor;
  s.plan.tensor.degree = tensor;
  s.plan.tensor.sequence_parallel = tensor > 1;
  s.plan.memo = {.swap = true, .alpha = alpha};
  return s;
}
// x of the paper: bytes of one tensor of b s h elements on a rank.
double x_of(const Scenario& s) {
  return 2.0 * kTokens * static_cast<double>(s.model.hidden) / static_cast<double>(s.plan.tensor.degree);
}

// `of`: which ops count.
double bytes_copied(const Piece& piece, const Block& block, const std::function<bool(const Tensor&)>& of) {
  double sum = 0;
  for (const Op& op : block.ops)
    if (is_copy(op.kind) && of(piece.tensors[op.reads[0]])) sum += bytes(op, piece.tensors);
  return sum;
}
bool of_bf16(const Tensor& t) { return t.dtype == Dtype::bf16; }
bool of_fp32(const Tensor& t) { return t.dtype == Dtype::fp32; }

double flops_again(const Piece& piece) {
  double sum = 0;
  for (const Op& op : piece.backward.ops)
    if (op.phase == Phase::recompute) sum += flops(op, piece.tensors);
  return sum;
}

// Layer input, norm, q, k, v, context, residual, norm: 8; h to 4h, GELU: 8. What the paper leaves out are a float a
// token and head of attention, and two a token and norm.
TEST(Memo, SkeletalActivationsAreSixteenTensors) {
  for (const std::int64_t tensor : {1, 8}) {
    Scenario s = gpt_7b(1, tensor);
    s.plan.memo = {};
    Program p;
    lower(s, p);
    const double ranks = static_cast<double>(tensor), heads = static_cast<double>(s.model.heads),
                 floats = kTokens * (heads + 2 * 2) / ranks;
    EXPECT_DOUBLE_EQ(saved_bytes(running_layer(p)), 16 * x_of(s) + 4 * floats);
  }
}

// (2 + 14 alpha) x, down and up; of attention's statistics all, of the norms' a part.
TEST(Memo, SwapsTwoTensorsAndAPartOfFourteen) {
  for (const std::int64_t tensor : {1, 8})
    for (const double alpha : {0.0, 0.25, 0.5, 1.0}) {
      SCOPED_TRACE(std::to_string(tensor) + " " + std::to_string(alpha));
      const Scenario s = gpt_7b(alpha, tensor);
      Program p;
      lower(s, p);
      EXPECT_TRUE(check(p).empty());
      const Piece& layer = running_layer(p);
      const double ranks = static_cast<double>(tensor);
      for (const Block* block : {&layer.forward, &layer.backward}) {
        EXPECT_DOUBLE_EQ(bytes_copied(layer, *block, of_bf16), (2 + 14 * alpha) * x_of(s));
        EXPECT_DOUBLE_EQ(bytes_copied(layer, *block, of_fp32),
                         4.0 * kTokens * (static_cast<double>(s.model.heads) + 2 * 2 * alpha) / ranks);
      }
      for (const Op& op : layer.forward.ops)
        if (is_copy(op.kind)) {
          EXPECT_EQ(op.stream, Stream::device_to_host);
          EXPECT_EQ(op.buffers, 2);
        }
      for (const Op& op : layer.backward.ops)
        if (is_copy(op.kind)) {
          EXPECT_EQ(op.stream, Stream::host_to_device);
          EXPECT_EQ(op.prefetch, 1) << "when the backward of the layer two ahead ends";
        }
      const PieceMemory m = piece_memory(layer, 1);
      EXPECT_EQ(device_bytes(m.saved), 0);
      EXPECT_DOUBLE_EQ(m.saved.in(Place::host), bytes_copied(layer, layer.forward, [](const Tensor&) { return true; }));
    }
}

// qkv 6, the projection 2, h to 4h 8: (1 - alpha) 16 b s h^2, neither attention nor 4h to h.
TEST(Memo, RecomputesSixteenOfTwentyFourAndNoAttention) {
  for (const std::int64_t tensor : {1, 8})
    for (const double alpha : {0.0, 0.25, 0.5, 1.0}) {
      const Scenario s = gpt_7b(alpha, tensor);
      Program p;
      lower(s, p);
      const double h = static_cast<double>(s.model.hidden);
      EXPECT_DOUBLE_EQ(flops_again(running_layer(p)), (1 - alpha) * 16 * kTokens * h * h / static_cast<double>(tensor));
      for (const Op& op : running_layer(p).backward.ops)
        EXPECT_FALSE(op.phase == Phase::recompute && is_attention(op.kind));
    }
}

// Fewer collectives carry the discarded tokens alone, as many as the forward's but the last.
TEST(Memo, RecomputationExchangesTheDiscardedTokens) {
  const Scenario s = gpt_7b(0.75);
  Program p;
  lower(s, p);
  const Piece& layer = running_layer(p);
  double gathered = 0, scattered = 0;
  for (const Op& op : layer.backward.ops) {
    if (op.phase != Phase::recompute) continue;
    if (op.kind == OpKind::all_gather) gathered += bytes(op, layer.tensors);
    if (op.kind == OpKind::reduce_scatter) scattered += bytes(op, layer.tensors);
  }
  EXPECT_DOUBLE_EQ(gathered, 2 * 0.25 * 8 * x_of(s)) << "both norms";
  EXPECT_DOUBLE_EQ(scattered, 0.25 * 8 * x_of(s)) << "attention's projection";
}

// Half a token is a whole one or none, and of gathered tensors those of all ranks.
TEST(Memo, TokensAreCountedOnTheRankWithTheFewest) {
  const Scenario s = gpt_7b(1.4 / (kTokens / 8.0));
  Program p;
  lower(s, p);
  const Piece& layer = running_layer(p);
  EXPECT_TRUE(check(p).empty());
  EXPECT_DOUBLE_EQ(bytes_copied(layer, layer.forward, of_bf16), 2 * x_of(s) + 14 * x_of(s) / (kTokens / 8.0));
}

TEST(Memo, TheLastTwoLayersOfAStageStay) {
  for (const std::int64_t stages : {1, 2, 4}) {
    Scenario s = gpt_7b(0.5, 1);
    s.plan.data.degree = 0;
    s.workload.global_batch_size = 8;
    s.plan.pipeline.degree = stages;
    Program p;
    lower(s, p);
    for (const auto& stage : p.stages) {
      std::string swapped;
      for (const Chunk& chunk : stage)
        for (const auto& run : chunk.runs) {
          const Piece& piece = p.pieces[run.piece];
          if (std::string_view(piece.name) != "layer") continue;
          const bool copies = std::ranges::any_of(piece.forward.ops, [](const Op& op) { return is_copy(op.kind); });
          swapped.append(static_cast<std::size_t>(run.count), copies ? 's' : '.');
        }
      EXPECT_EQ(swapped, std::string(static_cast<std::size_t>(32 / stages - 2), 's') + "..");
    }
  }
}

TEST(Memo, RefusesWhatItDoesNotSwap) {
  const auto refusal = [](const std::function<void(Scenario&)>& change) {
    Scenario s = gpt_7b(0.5);
    change(s);
    return refusal_of(s);
  };
  EXPECT_EQ(refusal([](Scenario&) {}), "nothing");
  EXPECT_THAT(refusal([](Scenario& s) { s.plan.recompute.mode = activation_recompute::Mode::full; }),
              HasSubstr("/plan/recompute: found \"full\", expected \"none\""));
  EXPECT_THAT(refusal([](Scenario& s) { s.plan.activation_offload.offload = true; }),
              HasSubstr("/plan/activation_offload"));
  EXPECT_THAT(refusal([](Scenario& s) { s.plan.framework.flash_attention = false; }),
              HasSubstr("/plan/flash_attention"));
  EXPECT_THAT(refusal([](Scenario& s) { s.plan.tensor.overlap = true; }), HasSubstr("/plan/tensor_parallel_overlap"));
  EXPECT_THAT(refusal([](Scenario& s) { s.plan.precision.mix = precision::Mix::fp8; }), HasSubstr("/plan/"));
  EXPECT_THAT(refusal([](Scenario& s) { s.plan.memo.swap = false; }), HasSubstr("/plan/memo_alpha"));
  EXPECT_THAT(refusal([](Scenario& s) {
                s.plan.tensor.degree = 1;
                s.plan.context.degree = 8;
                s.plan.context.type = context_parallel::type_named("ulysses");
              }),
              HasSubstr("/plan/context_parallel_type"));
  EXPECT_THAT(refusal([](Scenario& s) {
                s.plan.pipeline.degree = 4;
                s.plan.tensor.degree = 2;
                s.workload.global_batch_size = 8;
                s.plan.pipeline.schedule = pipeline_parallel::ScheduleKind::zb_h1;
              }),
              HasSubstr("/plan/pipeline_schedule"));
  for (const char* model : {"mixtral-8x7b", "t5-large", "vit-l-16"}) {
    Scenario s = scenario_of(model, "hgx-a800", 1);
    s.workload.global_batch_size = 8;
    s.plan.memo.swap = true;
    EXPECT_THAT(refusal_of(s), HasSubstr("/plan/memo: found true, expected false")) << model;
  }
}

}  // namespace
}  // namespace orrery
