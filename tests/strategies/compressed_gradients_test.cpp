// Compressed gradients: what workers send and keep, and which plans are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/strategies/support.h"

namespace orrery {
namespace {

using testing::HasSubstr;

// Four nodes of eight, fp16 parameters with fp32 copies.
Scenario onebit() {
  Scenario s = scenario_of("bert-large", "dgx-a100", 4);
  s.workload = {128, 0, 512};
  s.plan.precision.mix = precision::Mix::fp16;
  s.plan.compressed.method = compressed_gradients::Method::onebit_adam;
  return s;
}

TEST(OneBitAdam, SendsASixteenthOfWhatASumDoes) {
  const Program p = proven(onebit());
  const Piece& layer = piece_named(p, "layer");
  double exchanged = 0, gathered = 0, numbers = 0, summed = 0;
  for (const Op& op : layer.update.ops) {
    if (op.kind == OpKind::all_to_all) exchanged += static_cast<double>(layer.tensors[op.reads[0]].bytes());
    if (op.kind == OpKind::all_gather) gathered += static_cast<double>(layer.tensors[op.writes[0]].bytes());
    if (op.kind == OpKind::all_to_all || op.kind == OpKind::all_gather) {
      EXPECT_EQ(p.mesh.size(op.group), 32);
    }
  }
  for (const ParameterGradient& g : layer.parameters)
    numbers += static_cast<double>(layer.tensors[g.parameter].elements());
  for (const Block* block : {&layer.backward, &layer.update})
    for (const Op& op : block->ops) summed += op.kind == OpKind::all_reduce ? 1 : 0;
  EXPECT_EQ(summed, 1) << "the norm of stages";
  constexpr double kGroup = compressed_gradients::Options::kGroup;
  EXPECT_NEAR(exchanged / (numbers * (1.0 / 8 + 4 / kGroup)), 1, 2e-3);
  EXPECT_EQ(gathered, exchanged);
}

// Two errors beside Adam's states: DeepSpeed's worker_error and server_error.
TEST(OneBitAdam, KeepsTwoErrors) {
  const auto states = [](const Scenario& s) {
    return piece_memory(piece_named(proven(s), "layer"), 1).resident.of(Place::device, Category::optimizer_state);
  };
  Scenario plain = onebit();
  plain.plan.compressed = {};
  const double adam = states(plain), numbers = adam / 12;
  EXPECT_NEAR((states(onebit()) - adam) / (4 * numbers * (1 + 1.0 / 32)), 1, 1e-3);
}

// DeepSpeed's fp32 copies of 16-bit gradients are made for any optimizer.
TEST(OneBitAdam, CopiesGradientsAsAdamDoes) {
  Scenario s = onebit();
  s.plan.framework.stack = framework::Stack::deepspeed;
  const auto copies = [](const Scenario& of) {
    const Program p = proven(of);
    return stage_buffers(p, p.stages.front()).update;
  };
  const double with = copies(s);
  s.plan.compressed = {};
  EXPECT_GT(with, 0);
  EXPECT_EQ(with, copies(s));
}

TEST(OneBitAdam, NumbersOfWorkersCanBeSearched) {
  for (const Strategy& strategy : all_strategies())
    for (const SearchAxis& axis : strategy.search_axes)
      if (axis.field == std::string_view("local_workers")) {
        EXPECT_TRUE(axis.acts(onebit()));
        return;
      }
  ADD_FAILURE() << "no such axis";
}

TEST(OneBitAdam, WhatItDoesNotGoWithIsRefused) {
  const auto refused = [](auto change) {
    Scenario s = onebit();
    change(s);
    return refusal_of(s);
  };
  EXPECT_EQ(refused([](Scenario&) {}), "nothing");
  EXPECT_THAT(refused([](Scenario& s) { s.plan.data.zero_stage = 1; }), HasSubstr("above zero_stage 0"));
  EXPECT_THAT(refused([](Scenario& s) { s.plan.optimizer.rule = optimizer::Rule::sgd; }), HasSubstr("adam or adamw"));
  EXPECT_THAT(refused([](Scenario& s) { s.plan.local.steps = 4; }), HasSubstr("both say what workers agree on"));
  EXPECT_THAT(refused([](Scenario& s) { s.plan.optimizer.moments = optimizer::MomentDtype::bf16; }),
              HasSubstr("unless optimizer_dtype is \"fp32\""));
  EXPECT_THAT(refused([](Scenario& s) { s.plan.offload.optimizer = true; }), HasSubstr("with optimizer_offload"));
  EXPECT_THAT(refused([](Scenario& s) {
                s.plan.precision.mix = precision::Mix::bf16;
                s.plan.optimizer.parameter_remainders = true;
              }),
              HasSubstr("with store_param_remainders"));
  EXPECT_THAT(refused([](Scenario& s) { s.model = scenario_of("mixtral-8x7b", "dgx-a100", 4).model; }),
              HasSubstr("for a model with experts"));
  EXPECT_THAT(refused([](Scenario& s) { s.plan.compressed = {.group = 64}; }),
              HasSubstr("without gradient_compression"));
  EXPECT_THAT(refused([](Scenario& s) { s.plan.local.workers = 3; }),
              HasSubstr("a divisor of the data-parallel degree"));
  EXPECT_THAT(refused([](Scenario& s) { s.plan.local.workers = 1; }), HasSubstr("there is one worker"));
  EXPECT_THAT(refused([](Scenario& s) {
                s.plan.compressed = {};
                s.plan.local.workers = 2;
              }),
              HasSubstr("without local_steps or gradient_compression"));
}

}  // namespace
}  // namespace orrery
