// What happens to gradients between the loss and the update, and in how many passes each stack does it.
#include "strategies/optimizer/optimizer.h"

#include <gtest/gtest.h>

#include "tests/strategies/support.h"

namespace orrery {
namespace {

struct OnTheWay {
  double factor = 1;          // of all scales and the update: what gradients are multiplied by
  int passes = 0, clips = 0;  // over the gradients; what clips
};

OnTheWay to_the_update(const Piece& piece, double clip_grad) {
  OnTheWay way;
  for (const Op& op : piece.update.ops) {
    if (op.kind != OpKind::scale && !is_optimizer(op.kind)) continue;
    way.factor *= op.scale;
    way.passes += op.kind == OpKind::scale ? 1 : 0;
    if (op.reads[static_cast<std::size_t>(norm_operand(op.kind))] == kNoTensor) continue;
    ++way.clips;
    EXPECT_FLOAT_EQ(op.clip_limit, static_cast<float>(clip_grad));
  }
  return way;
}

// Of the mean over the step's 64 sequences of 1024 tokens.
double loss_factor(const Program& program) {
  for (const Op& op : piece_named(program, "head").backward.ops)
    if (op.kind == OpKind::cross_entropy_backward) return op.scale;
  return 0;
}

struct Case {
  framework::Stack stack;
  int bf16_passes, fp16_passes;  // with clipping
  int fp16_unclipped_passes;
};
constexpr Case kStacks[]{{framework::Stack::megatron_core, 1, 2, 1},
                         {framework::Stack::fsdp, 1, 2, 1},
                         {framework::Stack::deepspeed, 1, 1, 1},
                         {framework::Stack::jax, 0, 0, 0}};

TEST(Gradients, AreDividedByWhatTheLossWasMultipliedByAndClippedOnce) {
  for (const Case& c : kStacks)
    for (const bool fp16 : {false, true})
      for (const double clip_grad : {0.0, 0.5})
        for (const bool offload : {false, true}) {
          Scenario s = zero3_of_deepspeed(1);
          s.plan.framework.stack = c.stack;
          s.plan.precision.mix = fp16 ? precision::Mix::fp16 : precision::Mix::bf16;
          s.plan.precision.gradients = precision::GradientDtype::fp32;
          s.plan.precision.loss_scale = 1024;
          s.plan.optimizer.clip_grad = clip_grad;
          s.plan.offload.optimizer = offload;
          Program p;
          lower(s, p);
          const double scale = fp16 ? 1024 : 1;
          EXPECT_DOUBLE_EQ(loss_factor(p), scale / (64 * 1024));
          const OnTheWay way = to_the_update(piece_named(p, "layer"), clip_grad);
          EXPECT_DOUBLE_EQ(way.factor, 1 / scale);
          EXPECT_EQ(way.clips, clip_grad > 0 ? 1 : 0);
          if (offload) continue;  // where the CPU does it at once
          const int unclipped = fp16 ? c.fp16_unclipped_passes : 0;
          EXPECT_EQ(way.passes, clip_grad == 0 ? unclipped : fp16 ? c.fp16_passes : c.bf16_passes);
        }
}

// Loshchilov & Hutter 2019 (arXiv 1711.05101): Adam's decay is part of the gradient, AdamW's is not. Weights of fp32
// are their own master copies.
TEST(Optimizer, HasTheStatesAndTheDecayOfItsRule) {
  struct OfRule {
    optimizer::Rule rule;
    OpKind kind;
    bool decoupled;
    int moments;
  };
  for (const OfRule& c :
       {OfRule{optimizer::Rule::adam, OpKind::adam, false, 2}, OfRule{optimizer::Rule::adamw, OpKind::adam, true, 2},
        OfRule{optimizer::Rule::sgd_momentum, OpKind::sgd, true, 1},
        OfRule{optimizer::Rule::lion, OpKind::sgd, true, 1}, OfRule{optimizer::Rule::sgd, OpKind::sgd, true, 0}})
    for (const precision::Mix mix : {precision::Mix::bf16, precision::Mix::fp32})
      for (const bool master : {true, false}) {
        Scenario s = zero3_of_deepspeed(1);
        s.plan.data.zero_stage = 0;
        s.plan.precision.mix = mix;
        s.plan.optimizer.rule = c.rule;
        s.plan.optimizer.master_parameters = master;
        Program p;
        lower(s, p);
        const Piece& layer = piece_named(p, "layer");
        int updates = 0, states = 0;
        double kept = 0;  // bytes of a parameter that training goes on from
        for (const Op& op : layer.update.ops) {
          if (!is_optimizer(op.kind)) continue;
          ++updates;
          EXPECT_EQ(op.kind, c.kind);
          EXPECT_EQ(op.sign, c.rule == optimizer::Rule::lion);
          if (c.kind == OpKind::adam) {
            EXPECT_EQ(op.decoupled_weight_decay, c.decoupled);
          }
          for (const TensorId id : op.writes)
            if (id != kNoTensor) kept += static_cast<double>(bits_of(layer.tensors[id].dtype)) / 8;
          EXPECT_EQ(kept, optimizer::bytes_kept_per_parameter(s.plan));
          for (const TensorId id : op.writes)
            states += id != kNoTensor && layer.tensors[id].category == Category::optimizer_state;
        }
        EXPECT_EQ(updates, 1);
        EXPECT_EQ(states, c.moments + (master && mix == precision::Mix::bf16 ? 1 : 0));
      }
}

TEST(Optimizer, ACheckpointOfMixedPrecisionIsFourteenBytesAParameter) {
  Plan plan;
  EXPECT_EQ(optimizer::bytes_kept_per_parameter(plan), 14);  // bf16, fp32 copy, two moments
  plan.optimizer.parameter_remainders = true;
  EXPECT_EQ(optimizer::bytes_kept_per_parameter(plan), 12);
  plan.optimizer = {};
  plan.optimizer.moments = optimizer::MomentDtype::bf16;
  EXPECT_EQ(optimizer::bytes_kept_per_parameter(plan), 10);
  plan.optimizer = {};
  plan.data.zero_stage = 3;  // of FSDP: shards in fp32 are their own master copies
  plan.framework.stack = framework::Stack::fsdp;
  EXPECT_EQ(optimizer::bytes_kept_per_parameter(plan), 12);
  plan.optimizer.master_parameters = false;
  EXPECT_EQ(optimizer::bytes_kept_per_parameter(plan), 10);
}

}  // namespace
}  // namespace orrery
