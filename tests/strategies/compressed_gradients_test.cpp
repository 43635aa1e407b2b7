// Compressed gradients: what workers send and keep, and which plans are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

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

Scenario zero_one(std::int64_t steps) {
  Scenario s = onebit();
  s.plan.compressed.method = compressed_gradients::Method::zero_one_adam;
  s.plan.local.steps = steps;
  return s;
}

// What 1-bit Adam sends in every step, 0/1 Adam sends once in an iteration.
TEST(ZeroOneAdam, SendsOnceAnIterationWhatOneBitAdamSends) {
  const auto sent = [](const Program& p, const Piece& piece, const Block& block) {
    std::vector<std::int64_t> bytes;
    for (const Op& op : block.ops)
      if (op.group.meets(p.mesh.group(MeshAxis::worker))) {
        EXPECT_EQ(p.mesh.size(op.group), 32);
        bytes.push_back(piece.tensors[op.reads[0]].bytes());
      }
    return bytes;
  };
  const Program every = proven(onebit()), some = proven(zero_one(16));
  ASSERT_EQ(some.tasks.size(), 2u);
  EXPECT_EQ(steps_of_iteration(some), 16);
  for (std::size_t i = 0; i < some.pieces.size(); ++i) {
    const Piece& piece = some.pieces[i];
    EXPECT_EQ(sent(some, piece, piece.tasks[0]), sent(every, every.pieces[i], every.pieces[i].update));
    EXPECT_THAT(sent(some, piece, piece.tasks[0]), testing::Not(testing::IsEmpty()));
    for (const Block* block : {&piece.forward, &piece.backward, &piece.update})
      EXPECT_THAT(sent(some, piece, *block), testing::IsEmpty());
  }
}

// An anchor and two errors beside Adam's states: DeepSpeed's momentum_accumulator, worker_error and server_error.
TEST(ZeroOneAdam, KeepsAnAnchorAndTwoErrors) {
  const auto states = [](const Scenario& s) {
    return piece_memory(piece_named(proven(s), "layer"), 1).resident.of(Place::device, Category::optimizer_state);
  };
  Scenario plain = onebit();
  plain.plan.compressed = {};
  const double adam = states(plain), numbers = adam / 12;
  EXPECT_NEAR((states(zero_one(4)) - adam) / (4 * numbers * (2 + 1.0 / 32)), 1, 1e-3);
}

TEST(ZeroOneAdam, WhatItDoesNotGoWithIsRefused) {
  const auto refused = [](auto change) {
    Scenario s = zero_one(4);
    change(s.plan);
    return refusal_of(s);
  };
  EXPECT_EQ(refused([](Plan&) {}), "nothing");
  EXPECT_THAT(refused([](Plan& plan) { plan.local.steps = 0; }),
              HasSubstr("/plan/local_steps: found 0, expected 1 or more with gradient_compression \"zero_one_adam\""));
  EXPECT_THAT(refused([](Plan& plan) { plan.local.optimizer = local_updates::OuterOptimizer::nesterov; }),
              HasSubstr("/plan/outer_optimizer: found \"nesterov\", expected \"average\" with gradient_compression"));
  EXPECT_THAT(refused([](Plan& plan) { plan.local.fragments = 2; }), HasSubstr("/plan/outer_fragments"));
  EXPECT_THAT(refused([](Plan& plan) { plan.data.zero_stage = 1; }), HasSubstr("above zero_stage 0"));
  EXPECT_THAT(refused([](Plan& plan) { plan.optimizer.rule = optimizer::Rule::sgd; }), HasSubstr("adam or adamw"));
  EXPECT_THAT(refused([](Plan& plan) { plan.compressed.method = compressed_gradients::Method::powersgd; }),
              HasSubstr("both say what workers agree on"));
}

Scenario of_rank(std::int64_t rank) {
  Scenario s = onebit();
  s.plan.compressed = {.method = compressed_gradients::Method::powersgd, .matrix_rank = rank};
  return s;
}

// Factors of the four matrices of a layer, and all vectors: r (n + m) in place of n m numbers.
TEST(PowerSgd, SendsFactorsOfMatricesAndVectorsAsTheyAre) {
  constexpr std::int64_t kHidden = 1024, kFfn = 4096;
  for (const std::int64_t rank : {1, 4, 512}) {
    const Program p = proven(of_rank(rank));
    const Piece& layer = piece_named(p, "layer");
    std::int64_t sent = 0, vectors = 0, matrices = 0;
    for (const ParameterGradient& g : layer.parameters) {
      const std::int64_t numbers = layer.tensors[g.parameter].elements();
      (numbers < kHidden * kHidden ? vectors : matrices) += numbers;
    }
    for (const Op& op : layer.update.ops)
      if (op.kind == OpKind::all_reduce && op.reduction == Reduction::mean) {
        sent += layer.tensors[op.reads[0]].elements();
        EXPECT_EQ(p.mesh.size(op.group), 32);
        EXPECT_EQ(layer.tensors[op.reads[0]].dtype, Dtype::fp32);
      }
    const std::int64_t sides = (kHidden + 3 * kHidden) + (kHidden + kHidden) + 2 * (kHidden + kFfn);
    // Factors of rank 512 save less than half of any of these matrices.
    EXPECT_EQ(sent, vectors + (rank == 512 ? matrices : rank * sides)) << rank;
  }
}

// The error of all gradients, and the right factors, on every rank.
TEST(PowerSgd, KeepsErrorsAndRightFactors) {
  const auto states = [](const Scenario& s) {
    return piece_memory(piece_named(proven(s), "layer"), 1).resident.of(Place::device, Category::optimizer_state);
  };
  Scenario plain = onebit();
  plain.plan.compressed = {};
  const Piece layer = piece_named(proven(plain), "layer");
  double numbers = 0;
  for (const ParameterGradient& g : layer.parameters)
    numbers += static_cast<double>(layer.tensors[g.parameter].elements());
  constexpr double kColumns = 3 * 1024 + 1024 + 4096 + 1024;
  EXPECT_NEAR(states(of_rank(2)) - states(plain), 4 * (numbers + 2 * kColumns), 4 * 64);
}

// PowerSGD adds 6 n m r FLOPs for each matrix to those that devices execute.
TEST(PowerSgd, ItsProductsAreExecuted) {
  const auto executed = [](const Scenario& s) { return proven(s).model.executed_flops_per_step; };
  Scenario plain = onebit();
  plain.plan.compressed = {};
  constexpr double kHidden = 1024, kLayers = 24, kRanks = 32, kRank = 8;
  const double layers = 12 * kHidden * kHidden * kLayers, more = executed(of_rank(8)) - executed(plain);
  EXPECT_GT(more, 6 * layers * kRank * kRanks);
  EXPECT_LT(more, 1.15 * 6 * layers * kRank * kRanks) << "and those of the embedding and the heads";
}

// Each worker's largest numbers and their places: 8 bytes for each that is kept.
TEST(TopK, SendsTheLargestOfEachGroup) {
  Scenario s = onebit();
  s.plan.compressed = {.method = compressed_gradients::Method::topk, .group = 1000, .kept = 10};
  const Program p = proven(s);
  const Piece& layer = piece_named(p, "layer");
  double numbers = 0, gathered = 0;
  for (const ParameterGradient& g : layer.parameters)
    numbers += static_cast<double>(layer.tensors[g.parameter].elements());
  for (const Op& op : layer.update.ops)
    if (op.kind == OpKind::all_gather) gathered += static_cast<double>(layer.tensors[op.writes[0]].bytes());
  EXPECT_NEAR(gathered / (32 * 8 * numbers / 100), 1, 1e-3);
}

// In a program with any precision, framework and layout, all workers end with equal parameters (rule 26).
TEST(PowerSgd, AllWorkersHaveTheSameParameters) {
  using enum compressed_gradients::Method;
  for (const auto stack : {framework::Stack::orrery, framework::Stack::deepspeed, framework::Stack::megatron_core})
    for (const auto mix : {precision::Mix::fp32, precision::Mix::bf16})
      for (const auto& [method, stages] : {std::pair(powersgd, 1), std::pair(powersgd, 2), std::pair(topk, 2)}) {
        Scenario s = onebit();
        s.plan.compressed.method = method;
        s.plan.framework.stack = stack;
        s.plan.precision.mix = mix;
        s.plan.pipeline.degree = stages;
        s.plan.tensor.degree = 2;
        EXPECT_EQ(refusal_of(s), "nothing");
        proven(s);
      }
}

// 1 / 49 x 49 is not 1 in floating point.
TEST(OneBitAdam, AnyNumberOfWorkersTakesTheirMean) {
  Scenario s = onebit();
  s.cluster.nodes = 49;
  s.workload.global_batch_size = 49 * 8;
  s.plan.local.workers = 49;
  proven(s);
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
  EXPECT_THAT(refused([](Scenario& s) { s.plan.compressed.kept = 8; }),
              HasSubstr("without gradient_compression \"topk\""));
  EXPECT_THAT(refused([](Scenario& s) { s.plan.compressed.matrix_rank = 2; }),
              HasSubstr("without gradient_compression \"powersgd\""));
  EXPECT_EQ(refusal_of([] {
              Scenario s = of_rank(3);
              s.plan.optimizer.rule = optimizer::Rule::sgd;
              s.plan.optimizer.moments = optimizer::MomentDtype::fp32;
              return s;
            }()),
            "nothing");
  EXPECT_THAT(refused([](Scenario& s) {
                s.model.kv_heads = 1;
                s.plan.tensor.degree = 2;
              }),
              HasSubstr("at most the model's 1 key/value heads with gradient_compression"));
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
