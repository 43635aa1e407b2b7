// Muon: states, products, and who works on what.
#include "strategies/muon/muon.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "tests/strategies/support.h"

namespace orrery {
namespace {

Scenario with_muon(std::int64_t nodes) {
  Scenario s = scenario_of("llama-3-8b", "dgx-h100", nodes);
  s.workload = {8192, 0, 64};
  s.plan.batch.micro_batch_size = 1;
  s.plan.optimizer.rule = optimizer::Rule::muon;
  return s;
}

double product_flops(const Piece& piece) {
  double total = 0;
  for (const Op& op : piece.update.ops)
    if (op.kind == OpKind::batched_matmul) total += op.share * flops(op, piece.tensors);
  return total;
}

// FLOPs of a matrix [m, n], m <= n: five times X X', A A and B X (Liu et al. 2025, arXiv 2502.16982, equation 2).
double iteration_flops(double m, double n) { return 5 * (2 * m * m * n + 2 * m * m * m + 2 * m * m * n); }

const double kLayer = iteration_flops(4096, 6144) + iteration_flops(4096, 4096) + iteration_flops(4096, 28672) +
                      iteration_flops(4096, 14336);

TEST(Muon, MatricesHaveAMomentumAndAllElseAdamW) {
  const Program p = proven(with_muon(1));
  for (const char* name : {"embedding", "layer", "head"}) {
    const Piece& piece = piece_named(p, name);
    std::set<std::size_t> of_matrices;
    for (const ParameterGradient& parameter : piece.parameters)
      if (muon::matrices_of(piece, parameter.parameter).any) of_matrices.insert(parameter.set);
    EXPECT_EQ(of_matrices.size(), name == std::string_view("layer") ? 1u : 0u) << name;
    for (std::size_t s = 0; s < piece.sets.size(); ++s) {
      const auto update = std::ranges::find_if(piece.update.ops, [&](const Op& op) {
        return is_optimizer(op.kind) && op.writes[0] == piece.sets[s].own_parameters;
      });
      ASSERT_NE(update, piece.update.ops.end());
      EXPECT_EQ(update->kind, of_matrices.contains(s) ? OpKind::sgd : OpKind::adam) << name;
    }
    double states = 0, parameters = 0;
    for (const Tensor& t : piece.tensors) {
      if (t.category == Category::optimizer_state && t.alias_of == kNoTensor) states += static_cast<double>(t.bytes());
      if (t.category == Category::parameter && t.alias_of == kNoTensor) parameters += static_cast<double>(t.elements());
    }
    const double norms = name == std::string_view("layer") ? 2 * 4096 : parameters;
    EXPECT_DOUBLE_EQ(states, 8 * (parameters - norms) + 12 * norms) << name;
  }
}

TEST(Muon, EveryReplicaMultipliesAllMatricesUnlessTheyShareTheStates) {
  Scenario s = with_muon(1);
  const Program all = proven(s);
  EXPECT_DOUBLE_EQ(product_flops(piece_named(all, "layer")), kLayer);
  s.plan.data.zero_stage = 1;  // 32 layers over 8 ranks
  const Program shared = proven(s);
  EXPECT_DOUBLE_EQ(product_flops(piece_named(shared, "layer")), kLayer / 8);
  s.plan.pipeline.degree = 2;  // 16 layers over 4 ranks
  EXPECT_DOUBLE_EQ(product_flops(piece_named(proven(s), "layer")), kLayer / 4);
  s = with_muon(8);
  s.plan.data.zero_stage = 1;  // fewer layers than ranks
  EXPECT_DOUBLE_EQ(product_flops(piece_named(proven(s), "layer")), kLayer / 32);
  const auto executed = [](Program program) { return program.model.executed_flops_per_step; };
  s = with_muon(1);
  s.plan.optimizer.rule = optimizer::Rule::adamw;
  const double without = executed(proven(s));
  EXPECT_NEAR(executed(all) - without, 8 * 32 * kLayer, 1e-6 * without);
  EXPECT_NEAR(executed(shared) - without, 32 * kLayer, 1e-6 * without);
  // The peak of layers in fp32 is another one than that of these products.
  s.plan.precision.mix = precision::Mix::fp32;
  const double of_layers = executed(proven(s));
  s.plan.optimizer.rule = optimizer::Rule::muon;
  EXPECT_DOUBLE_EQ(executed(proven(s)), of_layers);
}

// Four ranks share eight layers, every second of which has experts: each rank has one layer of either kind.
TEST(Muon, LayersThatAlternateFallToAllRanks) {
  Scenario s = with_muon(1);
  s.model.layers = 8;
  s.model.experts = 4;
  s.model.experts_per_token = 2;
  s.model.expert_ffn = 1024;
  s.model.expert_period = 2;
  s.plan.tensor.degree = 2;
  s.plan.tensor.sequence_parallel = true;
  s.plan.data.zero_stage = 1;
  const Program p = proven(s);
  for (const char* name : {"layer", "expert_layer"})
    for (const Op& op : piece_named(p, name).update.ops)
      if (op.kind == OpKind::batched_matmul) {
        EXPECT_EQ(op.share, 0.25) << name;
      }
}

// Without a norm nothing sums gradients before they meet the momentum; over eight ranks of tensor parallelism there is
// one replica, and no collective either.
TEST(Muon, IsProvenWithoutClipping) {
  Scenario s = with_muon(1);
  s.plan.optimizer.clip_grad = 0;
  s.plan.tensor.degree = 8;
  proven(s);
  s.plan.tensor.degree = 2;
  for (const std::int64_t stage : {0, 1}) {
    s.plan.data.zero_stage = stage;
    proven(s);
  }
  Program wrong = proven(s);
  for (Piece& piece : wrong.pieces)
    for (Block* block : {&piece.backward, &piece.weight_gradient, &piece.update})
      std::erase_if(block->ops, [](const Op& op) { return op.name == std::string_view("gradients.reduce_scatter"); });
  EXPECT_FALSE(check(wrong).empty());
}

TEST(Muon, SendsMomentaOnceAndTheirUpdatesOnceWhereStatesAreShared) {
  Scenario s = with_muon(1);
  s.plan.data.zero_stage = 1;
  s.plan.tensor.degree = 2;
  const Program p = proven(s);
  const Piece& layer = piece_named(p, "layer");
  const double matrices = (6144.0 * 4096 + 4096.0 * 4096 + 3 * 14336.0 * 4096) / 2;
  double gathered = 0, scattered = 0, over_tensor_ranks = 0;
  for (const Op& op : layer.update.ops) {
    if (op.name == std::string_view("muon_update.reduce_scatter")) scattered += bytes(op, layer.tensors);
    if (op.name != std::string_view("muon_update.all_gather")) continue;
    (op.turns.empty() ? gathered : over_tensor_ranks) += bytes(op, layer.tensors);
  }
  EXPECT_DOUBLE_EQ(gathered, 2 * matrices);
  EXPECT_DOUBLE_EQ(scattered, 2 * matrices);
  EXPECT_DOUBLE_EQ(over_tensor_ranks, 2 * 2 * matrices / 4);  // whole matrices, of every fourth layer
}

TEST(Muon, RefusesWhatItCannotLayOut) {
  const auto refused = [](auto change) {
    Scenario s = with_muon(1);
    change(s.plan);
    return refusal_of(s);
  };
  EXPECT_THAT(refused([](Plan& plan) { plan.offload.optimizer = true; }),
              testing::HasSubstr("/plan/optimizer_offload: found true, expected false with optimizer \"muon\""));
  EXPECT_THAT(refused([](Plan& plan) { plan.optimizer.moments = optimizer::MomentDtype::int4; }),
              testing::HasSubstr("/plan/optimizer_dtype"));
  EXPECT_THAT(refused([](Plan& plan) {
                plan.data.zero_stage = 1;
                plan.precision.mix = precision::Mix::fp8;
                plan.data.fp8_param_gather = true;
              }),
              testing::HasSubstr("/plan/fp8_param_gather"));
  EXPECT_THAT(refused([](Plan& plan) {
                plan.data.zero_stage = 3;
                plan.zero_topo.weights = 2;
              }),
              testing::HasSubstr("/plan/zero_weights_degree"));
  Scenario s = with_muon(1);
  s.model.kv_heads = 4;
  s.plan.tensor.degree = 8;
  EXPECT_THAT(refusal_of(s), testing::HasSubstr("at most the model's 4 key/value heads with optimizer \"muon\""));
}

}  // namespace
}  // namespace orrery
