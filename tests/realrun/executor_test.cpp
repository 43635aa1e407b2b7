// Programs that run: a layout computes what one rank computes, and one rank computes the derivative of its loss.
#include "realrun/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "realrun/agreement.h"
#include "realrun/backend.h"
#include "realrun/layout.h"
#include "realrun/measured_report.h"
#include "sim/analytical/engine.h"
#include "sim/base/error.h"
#include "sim/program/check.h"
#include "sim/program/liveness.h"
#include "sim/program/rewrite.h"
#include "sim/program/work.h"
#include "strategies/lower.h"
#include "strategies/read_scenario.h"
#include "strategies/schema.h"
#include "strategies/strategy.h"
#include "study/prediction/prediction.h"
#include "tests/strategies/two_sets.h"

namespace orrery {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// A GPT of four layers in fp32; 16 devices. `patch` is laid over it (RFC 7396).
Scenario tiny(const std::string& patch = "{}") {
  json document = json::parse(R"({
    "model": {"layers": 4, "hidden": 32, "heads": 4, "vocab": 512, "max_positions": 16, "dropout": 0},
    "cluster": {"node": "dgx-h100", "nodes": 2},
    "workload": {"sequence_length": 16, "global_batch_size": 8},
    "plan": {"precision": "fp32", "data_parallel": 1}})");
  document.merge_patch(json::parse(patch));
  return read_scenario(document, {});
}

constexpr const char* kLlama =
    R"({"model": {"activation": "swiglu", "ffn": 64, "kv_heads": 2, "positions": "rotary", "norm": "rmsnorm",
  "tied_embeddings": false, "linear_bias": false, "qk_norm": true}})";

// DeepSeek's latent attention: queries and keys of 8 elements of content and 4 that turn, values of 6.
constexpr const char* kLatent =
    R"({"model": {"attention": "latent", "query_lora_rank": 12, "kv_lora_rank": 16, "nope_head_dim": 8,
  "rope_head_dim": 4, "value_head_dim": 6, "activation": "swiglu", "ffn": 64, "norm": "rmsnorm",
  "tied_embeddings": false, "linear_bias": false}})";

// Nine patches of 4 x 4 and a class token.
constexpr const char* kVit =
    R"({"model": {"kind": "vit", "vocab": null, "max_positions": null, "image_size": 12, "patch_size": 4, "classes": 10}})";

// T5: relative positions by a table for each stack, two lengths, one table of tokens for both stacks and the head.
constexpr const char* kT5 =
    R"({"model": {"kind": "encoder_decoder", "layers": 2, "decoder_layers": 2, "positions": "relative",
  "relative_buckets": 8, "norm": "rmsnorm", "activation": "relu", "linear_bias": false},
  "workload": {"decoder_sequence_length": 8}})";
// T5 v1.1 with dropout: a gated MLP, a head of its own.
constexpr const char* kT5Gated =
    R"({"model": {"kind": "encoder_decoder", "layers": 2, "decoder_layers": 2, "positions": "relative",
  "relative_buckets": 8, "norm": "rmsnorm", "activation": "geglu", "ffn": 64, "linear_bias": false,
  "tied_embeddings": false, "dropout": 0.1}, "workload": {"decoder_sequence_length": 8}})";

// Mixtral: a token's weights are the softmax of its two best logits. One dense layer before.
constexpr const char* kMixtral =
    R"({"model": {"layers": 3, "activation": "swiglu", "ffn": 48, "kv_heads": 2, "positions": "rotary",
  "norm": "rmsnorm", "tied_embeddings": false, "linear_bias": false, "experts": 8, "experts_per_token": 2,
  "expert_ffn": 24, "router_score": "softmax_of_top", "dense_layers": 1}})";
// DeepSeek-V3's router: the best groups of experts by their sigmoids; a shared expert, gated as Qwen2's.
constexpr const char* kSharedExperts =
    R"({"model": {"layers": 2, "activation": "swiglu", "positions": "rotary", "norm": "rmsnorm",
  "tied_embeddings": false, "linear_bias": false, "experts": 8, "experts_per_token": 3, "expert_ffn": 16,
  "router_score": "sigmoid_of_top", "router_groups": 4, "router_best_groups": 2, "router_scale": 2.5,
  "shared_expert_ffn": 24, "shared_expert_gate": true}})";
// DeepSeek-V3's module that predicts the token behind the next one, with experts as the last layer has; and of a dense
// model with one table for everything.
constexpr const char* kNextTokens =
    R"({"model": {"layers": 2, "activation": "swiglu", "ffn": 48, "positions": "rotary", "norm": "rmsnorm",
  "tied_embeddings": false, "linear_bias": false, "experts": 8, "experts_per_token": 2, "expert_ffn": 16,
  "router_score": "sigmoid_of_top", "shared_expert_ffn": 24, "dense_layers": 1, "mtp_num_layers": 1}})";
constexpr const char* kNextTokensTied = R"({"model": {"layers": 4, "positions": "rotary", "mtp_num_layers": 1}})";
// Switch: every other layer has experts, a token goes to one; biases as gpt-oss has them.
constexpr const char* kSwitch =
    R"({"model": {"layers": 4, "experts": 4, "experts_per_token": 1, "expert_ffn": 40, "expert_period": 2,
  "expert_bias": true, "router_bias": true}})";
// One expert a token in the end, as the dense-to-sparse gate wants it; as wide as an MLP.
constexpr const char* kGated =
    R"({"model": {"layers": 4, "experts": 4, "experts_per_token": 1, "ffn": 40, "expert_ffn": 40, "expert_period": 2,
  "expert_bias": true}})";
// Llama 4: each expert's own sigmoid.
constexpr const char* kSigmoidExperts =
    R"({"model": {"layers": 2, "experts": 4, "experts_per_token": 2, "expert_ffn": 24, "router_score": "sigmoid",
  "activation": "swiglu", "ffn": 48, "shared_expert_ffn": 16, "dropout": 0.1}})";

// Experts that choose their tokens; an assignment of as many tokens to each (BASE); a token's id decides (hash layers).
constexpr const char* kChoosingExperts =
    R"({"model": {"layers": 2, "experts": 8, "experts_per_token": 2, "expert_ffn": 24, "router_type": "expert_choice",
  "activation": "swiglu", "ffn": 48, "moe_z_loss_coeff": 0.05}})";
constexpr const char* kAssignedExperts =
    R"({"model": {"layers": 2, "experts": 4, "experts_per_token": 1, "expert_ffn": 40, "router_type": "base",
  "router_score": "sigmoid", "ffn": 48}})";
constexpr const char* kHashedExperts =
    R"({"model": {"layers": 3, "experts": 8, "experts_per_token": 1, "expert_ffn": 24, "router_type": "hash",
  "dense_layers": 1, "activation": "swiglu", "ffn": 48}})";
// Loads of what all replicas have together: of one micro-batch, as one rank has it.
constexpr const char* kGloballyBalanced =
    R"({"model": {"layers": 2, "experts": 8, "experts_per_token": 2, "expert_ffn": 24, "activation": "swiglu", "ffn": 48,
  "moe_router_load_balancing_type": "global_aux_loss", "moe_aux_loss_coeff": 0.5},
  "workload": {"global_batch_size": 4}})";

// Noisy top-k with the losses of Switch and ST-MoE; DeepSeek-V3's loss of each sequence.
constexpr const char* kNoisyExperts =
    R"({"model": {"layers": 2, "experts": 8, "experts_per_token": 2, "expert_ffn": 24, "router_noise": true,
  "moe_aux_loss_coeff": 0.3, "moe_z_loss_coeff": 0.05, "activation": "swiglu", "ffn": 48}})";
constexpr const char* kBalancedSequences =
    R"({"model": {"layers": 3, "experts": 8, "experts_per_token": 2, "expert_ffn": 24, "dense_layers": 1,
  "router_score": "sigmoid_of_top", "moe_router_load_balancing_type": "seq_aux_loss", "moe_aux_loss_coeff": 0.5,
  "shared_expert_ffn": 16, "activation": "swiglu", "ffn": 48}})";

// Sequences of unequal documents, of a Llama with queries that share keys.
constexpr const char* kDocuments =
    R"({"model": {"activation": "swiglu", "ffn": 64, "kv_heads": 2, "positions": "rotary", "norm": "rmsnorm",
  "tied_embeddings": false, "linear_bias": false}, "workload": {"documents": "log-normal:1.5:0.9"}})";
constexpr const char* kDocumentsGpt =
    R"({"model": {"dropout": 0.1, "sliding_window": 6}, "workload": {"documents": "log-normal:1.5:0.9",
  "packing": "best_fit"}})";
// One batch of all ranks, of documents from a few tokens to half of it.
constexpr const char* kDocumentsOfABatch =
    R"({"model": {"activation": "swiglu", "ffn": 64, "kv_heads": 2, "positions": "rotary", "norm": "rmsnorm",
  "tied_embeddings": false, "linear_bias": false, "max_positions": 96},
  "workload": {"documents": "log-normal:2.2:1.1", "documents_seed": 3, "sequence_length": 96, "global_batch_size": 1}})";
// Of shorter ones, fused queries and keys.
constexpr const char* kDocumentsOfABatchGpt =
    R"({"model": {"max_positions": 96},
  "workload": {"documents": "log-normal:2:0.9", "documents_seed": 2, "sequence_length": 96, "global_batch_size": 1}})";
constexpr const char* kDocumentsExperts =
    R"({"model": {"layers": 3, "activation": "swiglu", "ffn": 48, "kv_heads": 2, "positions": "rotary",
  "norm": "rmsnorm", "tied_embeddings": false, "linear_bias": false, "experts": 8, "experts_per_token": 2,
  "expert_ffn": 24, "router_score": "softmax_of_top", "dense_layers": 1},
  "workload": {"documents": "log-normal:1.5:0.9"}})";

ExecutionOptions seeded(std::uint64_t seed, std::int64_t steps = 2) {
  ExecutionOptions options;
  options.seed = seed;
  options.steps = steps;
  // Above the rounding of gradients that are zero (of a key's bias): Adam would make steps of full length of it.
  options.epsilon = 1e-4;
  return options;
}

// Largest over the tensors of |a - b| / |a|, in the Euclidean norm.
double distance(const std::vector<WholeTensor>& a, const std::vector<WholeTensor>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (std::size_t t = 0; t < std::min(a.size(), b.size()); ++t) {
    EXPECT_EQ(a[t].sizes, b[t].sizes) << a[t].name;
    double norm = 0, difference = 0;
    for (std::size_t e = 0; e < std::min(a[t].values.size(), b[t].values.size()); ++e) {
      const double x = a[t].values[e], y = b[t].values[e];
      norm += x * x;
      difference += (x - y) * (x - y);
    }
    EXPECT_GT(norm, 0) << a[t].name;
    const double relative = std::sqrt(difference / norm);
    if (std::isnan(relative) || relative > worst) worst = relative;  // NaN stays
  }
  return worst;
}

void expect_same_numbers(const Scenario& scenario, const Program& program, const ExecutionOptions& options) {
  constexpr double kTolerance = 2e-5;
  for (const Violation& v : check(program)) ADD_FAILURE() << v.text;
  const Execution one = execute(on_one_rank(scenario), options), many = execute(scenario, program, options);
  for (std::size_t s = 0; s < one.losses.size(); ++s) {
    EXPECT_NEAR(many.losses[s], one.losses[s], kTolerance) << "step " << s;
    EXPECT_NEAR(many.gradient_norms[s], one.gradient_norms[s], kTolerance * one.gradient_norms[s]) << "step " << s;
  }
  EXPECT_LT(distance(one.gradients, many.gradients), kTolerance);
  EXPECT_LT(distance(one.parameters, many.parameters), kTolerance);
  EXPECT_LT(many.gradient_disagreement, kTolerance);
  EXPECT_LT(many.parameter_disagreement, kTolerance);
}

void expect_same_numbers(const Scenario& scenario, const ExecutionOptions& options) {
  Program program;
  lower(scenario, program);
  expect_same_numbers(scenario, program, options);
}

// ---- one rank ---------------------------------------------------------------------------------------------------

// Central differences of the loss at the element of each parameter that matters most.
void expect_derivative(const Scenario& scenario, std::uint64_t seed = 3) {
  ExecutionOptions options = seeded(seed, 1);
  const Execution at = execute(scenario, options);
  constexpr double kStep = 4e-3;
  Program program;
  lower(scenario, program);
  std::size_t ordinal = 0;
  std::vector<std::size_t> ordinals;  // of the tensors of the result: all but a tied head's table
  for (const Run& run : program.line)
    for (std::int64_t i = 0; i < run.count; ++i)
      for (const ParameterGradient& p : program.pieces[run.piece].parameters) {
        if (!program.pieces[run.piece].tensors[p.parameter].shared) ordinals.push_back(ordinal);
        ++ordinal;
      }
  ASSERT_EQ(ordinals.size(), at.gradients.size());
  for (std::size_t t = 0; t < at.gradients.size(); ++t) {
    const WholeTensor& g = at.gradients[t];
    const auto most =
        std::max_element(g.values.begin(), g.values.end(), [](float a, float b) { return std::abs(a) < std::abs(b); });
    const double slope = *most;
    options.nudged_parameter = static_cast<std::int64_t>(ordinals[t]);
    options.nudged_element = most - g.values.begin();
    options.nudge = kStep;
    const double above = execute(scenario, options).losses[0];
    options.nudge = -kStep;
    const double below = execute(scenario, options).losses[0];
    EXPECT_NEAR((above - below) / (2 * kStep), slope, 0.005 * std::abs(slope) + 1e-4) << g.name;
  }
}

TEST(OneRank, GradientsAreTheDerivativeOfTheLoss) {
  expect_derivative(tiny(R"({"model": {"layers": 2, "vocab": 64, "max_positions": 8},
                             "workload": {"sequence_length": 8, "global_batch_size": 2}, "plan": {"framework": "fsdp"}})"));
}

TEST(OneRank, GradientsAreTheDerivativeOfTheLossWithDropoutAndStoredScores) {
  expect_derivative(tiny(R"({"model": {"layers": 2, "vocab": 64, "max_positions": 8, "dropout": 0.2},
                             "workload": {"sequence_length": 8, "global_batch_size": 2}, "plan": {"flash_attention": false}})"));
}

TEST(OneRank, GradientsAreTheDerivativeOfTheLossOfALlama) {
  json patch = json::parse(kLlama);
  patch.merge_patch(json::parse(
      R"({"model": {"layers": 2, "vocab": 64}, "workload": {"sequence_length": 8, "global_batch_size": 2}})"));
  expect_derivative(tiny(patch.dump()));
}

TEST(OneRank, GradientsAreTheDerivativeOfTheLossOfLatentAttention) {
  json patch = json::parse(kLatent);
  patch.merge_patch(json::parse(
      R"({"model": {"layers": 2, "vocab": 64}, "workload": {"sequence_length": 8, "global_batch_size": 2}})"));
  expect_derivative(tiny(patch.dump()));
  patch["model"]["query_lora_rank"] = 0;
  expect_derivative(tiny(patch.dump()));
}

TEST(OneRank, GradientsAreTheDerivativeOfTheLossOfAVisionTransformer) {
  for (const char* plan : {R"({"flash_attention": true})", R"({"flash_attention": false})"}) {
    json patch = json::parse(kVit);
    patch["plan"] = json::parse(plan);
    patch.merge_patch(json::parse(R"({"model": {"layers": 2}, "workload": {"global_batch_size": 2}})"));
    expect_derivative(tiny(patch.dump()));
  }
}

TEST(OneRank, GradientsAreTheDerivativeOfTheLossOfAnEncoderDecoder) {
  for (const char* model : {kT5, kT5Gated}) {
    json patch = json::parse(model);
    patch.merge_patch(json::parse(R"({"model": {"vocab": 64}, "workload": {"global_batch_size": 2}})"));
    if (patch["model"]["activation"] == "relu") patch["model"]["activation"] = "gelu";  // no kinks for differences
    patch["plan"]["flash_attention"] = model == kT5;
    expect_derivative(tiny(patch.dump()));
  }
}

TEST(OneRank, GradientsAreTheDerivativeOfTheLossOfExperts) {
  for (const char* model :
       {kMixtral, kSharedExperts, kSwitch, kSigmoidExperts, kNextTokens, kNextTokensTied, kHashedExperts}) {
    json patch = json::parse(model);
    patch.merge_patch(json::parse(
        R"({"model": {"layers": 2, "vocab": 64}, "workload": {"sequence_length": 8, "global_batch_size": 2}})"));
    expect_derivative(runnable(tiny(patch.dump())));
  }
}

// Loads have no slope, and leap where a token's choice changes: of seeds by which none does so near by.
TEST(OneRank, GradientsAreTheDerivativeOfTheLossOfRouters) {
  for (const char* model : {kNoisyExperts, kBalancedSequences, kGloballyBalanced, kChoosingExperts, kAssignedExperts}) {
    json patch = json::parse(model);
    patch.merge_patch(json::parse(
        R"({"model": {"layers": 2, "vocab": 64}, "workload": {"sequence_length": 8, "global_batch_size": 2}})"));
    constexpr std::uint64_t kSeed = 5;
    expect_derivative(runnable(tiny(patch.dump())), kSeed);
  }
}

// The second product is linear but for its bias, which these have not: rows may be weighed before it, as Megatron-Core
// does, or where they are put together.
TEST(OneRank, ExpertsAreWeighedBeforeOrBehindTheirSecondProduct) {
  for (const char* model : {kMixtral, kSharedExperts, kSigmoidExperts}) {
    const auto run = [&](const char* framework) {
      json patch = json::parse(model);
      patch["plan"]["framework"] = framework;
      return execute(runnable(tiny(patch.dump())), seeded(1));
    };
    const Execution before = run("megatron-core"), behind = run("megatron-deepspeed");
    for (std::size_t s = 0; s < before.losses.size(); ++s) EXPECT_NEAR(before.losses[s], behind.losses[s], 1e-5);
    EXPECT_LT(distance(before.gradients, behind.gradients), 2e-5);
  }
}

// A decoder alone may have the table, too.
TEST(OneRank, GradientsAreTheDerivativeOfTheLossWithRelativePositions) {
  expect_derivative(tiny(R"({"model": {"layers": 2, "vocab": 64, "positions": "relative", "relative_buckets": 8},
                             "workload": {"sequence_length": 16, "global_batch_size": 2}})"));
}

// DeepSeek-V2, arXiv 2405.04434, eq. 16 to 18: scores over content and the turned key, which all heads share.
TEST(OneRank, LatentAttentionReadsKeysWithTheirTurnedPart) {
  Program program;
  lower(tiny(kLatent), program);
  const auto layer = std::find_if(program.pieces.begin(), program.pieces.end(),
                                  [](const Piece& p) { return std::string_view(p.name) == "layer"; });
  ASSERT_NE(layer, program.pieces.end());
  const auto& ops = layer->forward.ops;
  const auto attention = std::find_if(ops.begin(), ops.end(), [](const Op& op) { return is_attention(op.kind); });
  ASSERT_NE(attention, ops.end());
  const Tensor &q = layer->tensors[attention->reads[0]], &kv = layer->tensors[attention->reads[1]];
  EXPECT_EQ(q.sizes[4], 8 + 4);
  EXPECT_EQ(kv.sizes[4], 8 + 4 + 6);
  EXPECT_EQ(kv.sizes[2], 4) << "heads";
  const auto put_in =
      std::find_if(ops.begin(), ops.end(), [&](const Op& op) { return op.writes[0] == attention->reads[1]; });
  ASSERT_NE(put_in, ops.end());
  const Tensor& key = layer->tensors[put_in->reads[1]];
  EXPECT_EQ(key.elements(), 16 * 4) << "one for all heads";
  EXPECT_EQ(key.alias_begin, 16) << "behind the latent";
  // Half of 16 x 16 pairs of 4 heads, products over 12 and over 6 elements.
  EXPECT_EQ(flops(*attention, layer->tensors), 2.0 * 16 * 8 * 4 * (12 + 6));
}

// Uniform logits would cost log(vocab); random ones cost more, and a step down the gradient less than before.
TEST(OneRank, TrainingLowersTheLoss) {
  const Execution run = execute(tiny(), seeded(1, 4));
  for (std::size_t s = 1; s < run.losses.size(); ++s) EXPECT_LT(run.losses[s], run.losses[s - 1]);
}

TEST(OneRank, GradientsAreTheDerivativeOfTheLossWithinDocuments) {
  for (const char* model : {kDocuments, kDocumentsGpt}) {
    json patch = json::parse(model);
    patch.merge_patch(json::parse(
        R"({"model": {"layers": 2, "vocab": 64}, "workload": {"sequence_length": 8, "global_batch_size": 2}})"));
    expect_derivative(tiny(patch.dump()));
  }
}

TEST(OneRank, DocumentsHideWhatStandsBeforeThem) {
  json patch = json::parse(kDocuments);
  const double within = execute(tiny(patch.dump()), seeded(1, 1)).losses[0];
  patch["workload"].erase("documents");
  const double whole = execute(tiny(patch.dump()), seeded(1, 1)).losses[0];
  EXPECT_GT(std::abs(within - whole), 1e-4) << "the mask is felt";
}

// Steps of a run have other documents; one rank takes the same ones.
TEST(Layouts, ComputeTheNumbersOfOneRankWithinTheDocumentsOfEachStep) {
  json patch = json::parse(kDocuments);
  patch["plan"] = {{"data_parallel", 2}, {"zero_stage", 1}, {"context_parallel", 2}};
  const Scenario scenario = tiny(patch.dump());
  EXPECT_EQ(parts_of(scenario, 3).size(), 3u);
  const Execution one = execute(on_one_rank(scenario), seeded(1, 3)), many = execute(scenario, seeded(1, 3));
  ASSERT_EQ(one.losses.size(), many.losses.size());
  for (std::size_t s = 0; s < one.losses.size(); ++s) EXPECT_NEAR(many.losses[s], one.losses[s], 2e-5);
  EXPECT_LT(distance(one.parameters, many.parameters), 2e-5);
}

TEST(OneRank, MicroBatchesAddUpToTheBatch) {
  const Execution one = execute(tiny(R"({"plan": {"micro_batch_size": 8}})"), seeded(1)),
                  many = execute(tiny(), seeded(1));
  EXPECT_NEAR(one.losses[1], many.losses[1], 1e-5);
  EXPECT_LT(distance(one.gradients, many.gradients), 1e-5);
}

// The batch is the same in every step: where nothing is learnt only what is dropped differs.
TEST(OneRank, EveryStepDrawsItsOwnDropout) {
  ExecutionOptions options = seeded(1, 3);
  options.learning_rate = 0;
  const auto losses = [&](const char* dropout) {
    return execute(tiny(R"({"model": {"dropout": )" + std::string(dropout) + R"(}, "plan": {"optimizer": "sgd"}})"),
                   options)
        .losses;
  };
  const std::vector<double> kept = losses("0"), dropped = losses("0.1");
  EXPECT_EQ(kept[0], kept[1]);
  EXPECT_EQ(kept[1], kept[2]);
  EXPECT_NE(dropped[0], dropped[1]);
  EXPECT_NE(dropped[1], dropped[2]);
  EXPECT_NE(dropped[0], dropped[2]);
  EXPECT_EQ(dropped, losses("0.1")) << "drawn from the seed";
}

TEST(OneRank, ClippingScalesTheGradientsToTheGivenNorm) {
  ExecutionOptions options = seeded(1, 1);
  for (const char* stack : {"megatron-core", "deepspeed", "jax"})
    for (const char* precision : {"fp32", "fp16"}) {
      Scenario sgd = tiny(R"({"plan": {"optimizer": "sgd", "framework": ")" + std::string(stack) +
                          R"(", "precision": ")" + std::string(precision) + R"(", "clip_grad": 1e9}})");
      options.learning_rate = 1;
      const Execution free = execute(sgd, options);
      sgd.plan.optimizer.clip_grad = free.gradient_norms[0] / 2;
      const Execution clipped = execute(sgd, options);
      EXPECT_EQ(clipped.gradient_norms, free.gradient_norms) << "before clipping";
      options.learning_rate = 0;
      const Execution start = execute(sgd, options);
      for (std::size_t t = 0; t < start.parameters.size(); ++t)
        for (std::size_t e = 0; e < start.parameters[t].values.size(); e += 7) {
          const double moved =
              static_cast<double>(free.parameters[t].values[e]) - static_cast<double>(start.parameters[t].values[e]);
          EXPECT_NEAR(
              static_cast<double>(clipped.parameters[t].values[e]) - static_cast<double>(start.parameters[t].values[e]),
              moved / 2, 1e-6)
              << stack << " " << precision;
        }
    }
}

// Whoever divides by it, and wherever: before the norm or with it, in a pass or in the optimizer, on device or host.
TEST(OneRank, TheLossScaleChangesNoNumber) {
  for (const char* plan :
       {R"("framework": "megatron-core")", R"("framework": "deepspeed")", R"("framework": "jax")",
        R"("framework": "megatron-core", "optimizer_offload": true)",
        R"("framework": "deepspeed", "optimizer_offload": true)", R"("framework": "jax", "optimizer_offload": true)"})
    for (const char* clip : {"0", "0.1"}) {
      Scenario scaled =
          tiny(R"({"plan": {"precision": "fp16", "clip_grad": )" + std::string(clip) + ", " + plan + "}}");
      const Execution large = execute(scaled, seeded(1));
      scaled.plan.precision.loss_scale = 1;
      const Execution none = execute(scaled, seeded(1));
      EXPECT_LT(distance(none.gradients, large.gradients), 1e-6) << plan << clip;
      EXPECT_LT(distance(none.parameters, large.parameters), 1e-6) << plan << clip;
      EXPECT_EQ(none.losses, large.losses) << plan << clip;
      for (std::size_t s = 0; s < none.gradient_norms.size(); ++s)
        EXPECT_NEAR(large.gradient_norms[s], none.gradient_norms[s], 1e-6 * none.gradient_norms[s]) << plan << clip;
    }
}

// In fp32 arithmetic the dtypes of the tensors change nothing.
TEST(OneRank, PrecisionIsAMatterOfStorage) {
  const Execution fp32 = execute(tiny(), seeded(1));
  for (const char* mix : {"bf16", "fp16", "fp8"})
    EXPECT_LT(distance(fp32.gradients,
                       execute(tiny(R"({"plan": {"precision": ")" + std::string(mix) + "\"}}"), seeded(1)).gradients),
              1e-6)
        << mix;
}

// ---- layouts ----------------------------------------------------------------------------------------------------

struct Layout {
  const char* name;
  const char* plan;
  const char* model = "{}";
  std::int64_t steps = 2;
};
void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.plan; }

Scenario scenario_of(const Layout& layout) {
  json patch = json::parse(layout.model);
  if (!patch.contains("model")) patch = {{"model", patch}};
  patch["plan"] = json::parse(layout.plan);
  return runnable(tiny(patch.dump()));
}

class Layouts : public testing::TestWithParam<Layout> {};
TEST_P(Layouts, ComputeTheNumbersOfOneRank) {
  expect_same_numbers(scenario_of(GetParam()), seeded(1, GetParam().steps));
}

constexpr const char* kEncoder = R"({"kind": "encoder", "token_types": 2, "pooler": false})";
constexpr const char* kPooler = R"({"kind": "encoder", "token_types": 2, "pooler": true, "head_bias": true})";
constexpr const char* kDropout = R"({"dropout": 0.1})";

const Layout kLayouts[] = {
    {"Replicas", R"({"data_parallel": 2})"},
    {"ReplicasOneBucketAPiece", R"({"data_parallel": 2, "bucket_bytes": 20000})"},
    {"ReplicasSmallBuckets", R"({"data_parallel": 4, "bucket_bytes": 120000})"},
    {"ReplicasReducedAtTheEnd", R"({"data_parallel": 2, "overlap_grad_reduce": false})"},
    {"Zero1", R"({"data_parallel": 2, "zero_stage": 1})"},
    {"Zero1NoOverlap",
     R"({"data_parallel": 4, "zero_stage": 1, "overlap_grad_reduce": false, "overlap_param_gather": false})"},
    {"Zero2", R"({"data_parallel": 2, "zero_stage": 2})"},
    {"Zero2OddShards", R"({"data_parallel": 8, "zero_stage": 2, "overlap_param_gather": false})",
     R"({"hidden": 36, "ffn": 50})"},
    {"Zero3", R"({"data_parallel": 4, "zero_stage": 3})"},
    {"Zero3Kept", R"({"data_parallel": 4, "zero_stage": 3, "reshard_after_forward": false})"},
    {"Zero3Hybrid", R"({"data_parallel": 4, "zero_stage": 3, "zero_shard_degree": 2})"},
    {"Zero3FsdpLlama", R"({"data_parallel": 4, "zero_stage": 3, "framework": "fsdp"})", kLlama},
    {"ReplicasReducedInEveryMicroBatch", R"({"data_parallel": 4, "reduce_gradients": "every_micro_batch"})"},
    {"ReplicasEveryMicroBatchNoOverlap",
     R"({"data_parallel": 2, "reduce_gradients": "every_micro_batch", "overlap_grad_reduce": false, "bucket_bytes": 20000})"},
    {"Zero1EveryMicroBatch", R"({"data_parallel": 2, "zero_stage": 1, "reduce_gradients": "every_micro_batch"})"},
    {"Zero2Once", R"({"data_parallel": 2, "zero_stage": 2, "reduce_gradients": "once", "bucket_bytes": 120000})"},
    {"Zero2OnceNoOverlap",
     R"({"data_parallel": 2, "zero_stage": 2, "reduce_gradients": "once", "overlap_grad_reduce": false})"},
    {"Zero2OneMicroBatch", R"({"data_parallel": 8, "zero_stage": 2, "reduce_gradients": "once"})"},
    {"Zero3Once", R"({"data_parallel": 4, "zero_stage": 3, "reduce_gradients": "once", "bucket_bytes": 120000})"},
    {"Zero3KeptOnce",
     R"({"data_parallel": 2, "zero_stage": 3, "reduce_gradients": "once", "reshard_after_forward": false})"},
    {"Zero3KeptOnceFp8",
     R"({"data_parallel": 2, "zero_stage": 3, "reduce_gradients": "once", "reshard_after_forward": false,
         "precision": "fp8", "framework": "fsdp"})"},
    {"Zero3KeptOnceSequence",
     R"({"data_parallel": 2, "tensor_parallel": 2, "sequence_parallel": true, "zero_stage": 3,
         "reduce_gradients": "once", "reshard_after_forward": false, "recompute": "full"})"},
    {"Momentum", R"({"data_parallel": 2, "zero_stage": 3, "optimizer": "sgd_momentum"})"},

    // A layer has 12704 parameters: its matrices 3072, 1024, 4096 and 4096.
    {"Zero3InTurn",
     R"({"data_parallel": 4, "zero_stage": 3, "framework": "deepspeed", "stage3_max_live_parameters": 6000,
         "stage3_max_reuse_distance": 5000, "stage3_prefetch_bucket_size": 2000, "recompute": "full"})",
     R"({"dropout": 0.1, "vocab": 64})"},
    {"Zero3InTurnEachParameter",
     R"({"data_parallel": 4, "zero_stage": 3, "framework": "deepspeed", "stage3_max_live_parameters": 1,
         "stage3_max_reuse_distance": 1, "stage3_prefetch_bucket_size": 1, "recompute": "full"})",
     kLlama},
    {"Zero3InTurnOddShards",
     R"({"data_parallel": 8, "zero_stage": 3, "framework": "deepspeed", "stage3_max_live_parameters": 20000,
         "stage3_prefetch_bucket_size": 100, "reduce_gradients": "once", "bucket_bytes": 20000})",
     R"({"hidden": 36, "ffn": 50})"},
    {"Zero3InTurnKept",
     R"({"data_parallel": 4, "zero_stage": 3, "stage3_max_live_parameters": 6000, "reshard_after_forward": false})"},
    {"Zero3InTurnKeptOnce",
     R"({"data_parallel": 2, "zero_stage": 3, "stage3_max_live_parameters": 6000, "reduce_gradients": "once",
         "reshard_after_forward": false})"},
    {"Zero3InTurnZbH1",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "pipeline_parallel": 2, "pipeline_schedule": "zb-h1",
         "data_parallel": 4, "zero_stage": 3, "stage3_max_live_parameters": 5000, "stage3_prefetch_bucket_size": 500})"},
    {"Zero3InTurnFp8Shards",
     R"({"data_parallel": 4, "zero_stage": 3, "framework": "fsdp", "precision": "fp8",
         "stage3_max_live_parameters": 6000, "stage3_prefetch_bucket_size": 2000, "overlap_grad_reduce": false})"},
    {"Zero3InTurnOffload",
     R"({"data_parallel": 4, "zero_stage": 3, "framework": "deepspeed", "stage3_max_live_parameters": 6000,
         "stage3_prefetch_bucket_size": 2000, "optimizer_offload": true})"},
    {"Zero3InTurnHpz",
     R"({"data_parallel": 8, "zero_stage": 3, "zero_hpz_partition_size": 2, "framework": "deepspeed",
         "stage3_max_live_parameters": 6000, "stage3_prefetch_bucket_size": 2000, "recompute": "full"})"},
    {"Zero3InTurnMicsHierarchical",
     R"({"tensor_parallel": 4, "data_parallel": 4, "zero_stage": 3, "mics_shard_size": 4,
         "mics_hierarchical_params_gather": true, "stage3_max_live_parameters": 2000})"},
    {"Zero3InTurnHybrid",
     R"({"data_parallel": 4, "zero_stage": 3, "zero_shard_degree": 2, "framework": "deepspeed", "prefetch": 0,
         "stage3_max_live_parameters": 6000})"},
    {"Zero3InTurnLayers",
     R"({"data_parallel": 4, "zero_stage": 3, "framework": "deepspeed", "stage3_max_live_parameters": 6000,
         "stage3_prefetch_bucket_size": 2000, "layers": [
         {"to": 2, "reshard_after_forward": false}, {"from": 2, "to": 3, "prefetch": 0, "recompute": "full"}]})",
     kDropout},

    {"Hpz", R"({"data_parallel": 4, "zero_stage": 3, "zero_hpz_partition_size": 2})"},
    {"HpzOddShards",
     R"({"data_parallel": 8, "zero_stage": 3, "zero_hpz_partition_size": 4, "reduce_gradients": "once"})",
     R"({"hidden": 36, "ffn": 50})"},
    {"HpzHybrid",
     R"({"data_parallel": 8, "zero_stage": 3, "zero_shard_degree": 4, "zero_hpz_partition_size": 2, "prefetch": 0})"},
    {"HpzFp8", R"({"data_parallel": 4, "zero_stage": 3, "zero_hpz_partition_size": 4, "precision": "fp8"})", kLlama},
    {"HpzTensorPipeline",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "pipeline_parallel": 2, "data_parallel": 4, "zero_stage": 3,
         "zero_hpz_partition_size": 2, "recompute": "full"})",
     kDropout},
    {"HpzContextZbH1",
     R"({"context_parallel": 2, "pipeline_parallel": 2, "pipeline_schedule": "zb-h1", "data_parallel": 4,
         "zero_stage": 3, "zero_hpz_partition_size": 2})"},
    {"HpzOffload", R"({"data_parallel": 4, "zero_stage": 3, "zero_hpz_partition_size": 2, "optimizer_offload": true})"},

    {"Mics", R"({"data_parallel": 4, "zero_stage": 3, "mics_shard_size": 2})"},
    {"MicsOneGroup", R"({"data_parallel": 4, "zero_stage": 3, "mics_shard_size": 4, "reshard_after_forward": false})"},
    {"MicsOfOne", R"({"data_parallel": 4, "zero_stage": 3, "mics_shard_size": 1})"},
    {"MicsOffload", R"({"data_parallel": 4, "zero_stage": 3, "mics_shard_size": 2, "optimizer_offload": true})"},
    {"MicsTensorPipeline",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "pipeline_parallel": 2, "data_parallel": 4, "zero_stage": 3,
         "mics_shard_size": 2, "framework": "fsdp"})",
     kLlama},
    {"MicsHierarchical",
     R"({"tensor_parallel": 4, "data_parallel": 4, "zero_stage": 3, "mics_shard_size": 4,
         "mics_hierarchical_params_gather": true})"},
    {"MicsHierarchicalContext",
     R"({"context_parallel": 4, "data_parallel": 4, "zero_stage": 3, "mics_shard_size": 4,
         "mics_hierarchical_params_gather": true, "reshard_after_forward": false})",
     R"({"hidden": 36, "ffn": 50})"},

    {"Tensor2", R"({"tensor_parallel": 2})"},
    {"Tensor4", R"({"tensor_parallel": 4})"},
    {"Tensor4Sequence", R"({"tensor_parallel": 4, "sequence_parallel": true})"},
    {"Tensor2SequenceOverlap", R"({"tensor_parallel": 2, "sequence_parallel": true, "tensor_parallel_overlap": true})"},
    {"Tensor2StoredScores", R"({"tensor_parallel": 2, "flash_attention": false, "sequence_parallel": true})", kDropout},
    {"Tensor2Llama", R"({"tensor_parallel": 2, "sequence_parallel": true})", kLlama},
    {"Tensor2LlamaUnfused", R"({"tensor_parallel": 2, "framework": "deepspeed", "flash_attention": false})", kLlama},
    {"Tensor2ParallelBlock", R"({"tensor_parallel": 2, "sequence_parallel": true})", R"({"parallel_block": true})"},
    // Two row-parallel products meet in one sum, each with a bias of its own unless a fused kernel takes it.
    {"Tensor2ParallelBlockUnfused", R"({"tensor_parallel": 2, "framework": "deepspeed"})",
     R"({"parallel_block": true})"},
    {"Tensor4ParallelBlockUnfusedSequence",
     R"({"tensor_parallel": 4, "sequence_parallel": true, "framework": "fsdp", "data_parallel": 2, "zero_stage": 2})",
     R"({"parallel_block": true, "parallel_norms": true, "dropout": 0.1})"},
    {"Tensor2ParallelBlockUnfusedBiasOfAttention", R"({"tensor_parallel": 2, "framework": "deepspeed"})",
     R"({"parallel_block": true, "linear_bias": false, "output_bias": true})"},
    {"Tensor2ParallelBlockUnfusedBiasOfMlp", R"({"tensor_parallel": 2, "framework": "deepspeed"})",
     R"({"parallel_block": true, "output_bias": false})"},
    {"Tensor2ParallelBlockUnfusedNoBias", R"({"tensor_parallel": 2, "framework": "deepspeed"})",
     R"({"parallel_block": true, "linear_bias": false})"},
    {"Tensor2Encoder", R"({"tensor_parallel": 2, "sequence_parallel": true, "data_parallel": 2})", kEncoder},
    {"Tensor4Pooler", R"({"tensor_parallel": 4})", kPooler},
    {"Tensor2PoolerSequence", R"({"tensor_parallel": 2, "sequence_parallel": true})", kPooler},
    {"Tensor4PoolerSequenceZero3",
     R"({"tensor_parallel": 4, "sequence_parallel": true, "data_parallel": 2, "zero_stage": 3})", kPooler},
    {"Tensor2PoolerSequenceZbH1",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "pipeline_parallel": 2, "pipeline_schedule": "zb-h1"})",
     kPooler},
    {"Tensor2Dropout", R"({"tensor_parallel": 2, "sequence_parallel": true})", kDropout},
    {"Tensor2Fp8", R"({"tensor_parallel": 2, "data_parallel": 2, "zero_stage": 2, "precision": "fp8"})"},
    {"Zero3Fp8", R"({"tensor_parallel": 2, "data_parallel": 2, "zero_stage": 3, "precision": "fp8"})"},
    {"Zero3Fp8Kept", R"({"data_parallel": 2, "zero_stage": 3, "reshard_after_forward": false, "precision": "fp8"})"},

    {"Pipeline2", R"({"pipeline_parallel": 2, "pipeline_outputs": "freed", "gradient_dtype": "fp32"})"},
    {"Pipeline4Untied", R"({"pipeline_parallel": 4})", R"({"tied_embeddings": false})"},
    {"Pipeline4Gpipe", R"({"pipeline_parallel": 4, "pipeline_schedule": "gpipe"})"},
    {"PipelineInterleaved", R"({"pipeline_parallel": 2, "virtual_pipeline": 2})"},
    {"PipelineZbH1", R"({"pipeline_parallel": 4, "pipeline_schedule": "zb-h1"})"},
    {"PipelineZbV", R"({"pipeline_parallel": 2, "pipeline_schedule": "zb-v"})"},
    {"PipelineDualPipeV", R"({"pipeline_parallel": 2, "pipeline_schedule": "dualpipev"})"},
    {"ExpertsDualPipeV",
     R"({"pipeline_parallel": 2, "pipeline_schedule": "dualpipev", "data_parallel": 2, "expert_parallel": 2,
         "overlap_moe_expert_parallel_comm": true})",
     kSwitch},
    {"PipelineUneven", R"({"pipeline_parallel": 2, "pipeline_stage_layers": [1, 3], "pipeline_outputs": "kept"})"},
    {"PipelineTiedZero2", R"({"pipeline_parallel": 2, "data_parallel": 4, "zero_stage": 2})"},

    {"RecomputeFull", R"({"recompute": "full"})", kDropout},
    {"RecomputeEvery3", R"({"recompute": "full", "recompute_every": 3, "flash_attention": false})", kDropout},
    {"RecomputeEvery2SequenceOverlap",
     R"({"recompute": "full", "recompute_every": 2, "tensor_parallel": 2, "sequence_parallel": true,
         "tensor_parallel_overlap": true})",
     kDropout},
    {"RecomputeSomeLayers", R"({"recompute": "full", "recompute_layers": 1, "pipeline_parallel": 2})", kDropout},
    {"RecomputeSelective", R"({"recompute": "selective", "flash_attention": false})", kDropout},
    {"RecomputeOps", R"({"recompute": "selective_op"})", kLlama},
    {"RecomputeOpsScores", R"({"recompute": "selective_op", "flash_attention": false})", kDropout},
    {"RecomputeOpsSequenceOverlap",
     R"({"recompute": "selective_op", "tensor_parallel": 2, "sequence_parallel": true,
         "tensor_parallel_overlap": true})",
     kLlama},
    {"RecomputeOpsSharedHeadsFsdp",
     R"({"recompute": "selective_op", "tensor_parallel": 4, "sequence_parallel": true, "data_parallel": 2,
         "zero_stage": 3, "framework": "fsdp"})",
     kLlama},
    {"RecomputeOpsContextFp8",
     R"({"recompute": "selective_op", "context_parallel": 2, "data_parallel": 2, "zero_stage": 3, "precision": "fp8"})",
     kLlama},
    {"RecomputeOpsZbH1", R"({"recompute": "selective_op", "pipeline_parallel": 2, "pipeline_schedule": "zb-h1"})",
     kLlama},
    {"RecomputeOpsLatent", R"({"recompute": "selective_op", "tensor_parallel": 2})", kLatent},
    {"RecomputeOpsT5", R"({"recompute": "selective_op", "tensor_parallel": 2})", kT5Gated},
    {"RecomputeAllButAttention", R"({"recompute": "all_but_attention"})", kDropout},
    {"RecomputeAllButAttentionScores", R"({"recompute": "all_but_attention", "flash_attention": false})", kDropout},
    {"RecomputeAllButAttentionZbH1",
     R"({"recompute": "all_but_attention", "pipeline_parallel": 2, "pipeline_schedule": "zb-h1"})", kLatent},
    {"RecomputeAllButAttentionUsp",
     R"({"recompute": "all_but_attention", "context_parallel": 4, "context_parallel_type": "usp", "ulysses_degree": 2,
         "tensor_parallel": 2, "sequence_parallel": true, "zero_stage": 3})",
     R"({"kv_heads": 2})"},
    {"RecomputeModules",
     R"({"recompute": "selective", "recompute_modules": ["core_attn", "mlp", "layernorm"], "flash_attention": false})",
     kDropout},
    {"RecomputeMlpSequenceZero3",
     R"({"recompute": "selective", "recompute_modules": ["mlp"], "tensor_parallel": 2, "sequence_parallel": true,
         "data_parallel": 2, "zero_stage": 3})",
     kLlama},
    {"RecomputeNormsFsdp",
     R"({"recompute": "selective", "recompute_modules": ["layernorm"], "data_parallel": 2, "zero_stage": 3,
         "framework": "fsdp", "precision": "bf16"})",
     kLlama},
    {"LayersRecomputeModules",
     R"({"layers": [{"to": 2, "recompute": "selective", "recompute_modules": ["mlp"]},
                    {"from": 2, "to": 3, "recompute": "selective_op"}]})",
     kLlama},
    {"RecomputeNormsMlpOverlapZbV",
     R"({"recompute": "selective", "recompute_modules": ["layernorm", "mlp"], "tensor_parallel": 2,
         "sequence_parallel": true, "tensor_parallel_overlap": true, "pipeline_parallel": 2,
         "pipeline_schedule": "zb-v"})",
     kLlama},
    {"AccumulationSeparate", R"({"gradient_accumulation": "separate"})", kDropout},
    {"AccumulationSeparateMixed",
     R"({"gradient_accumulation": "separate", "precision": "bf16", "tensor_parallel": 2, "data_parallel": 2,
         "zero_stage": 1})",
     kLlama},
    {"AccumulationSeparateZbH1",
     R"({"gradient_accumulation": "separate", "pipeline_parallel": 2, "pipeline_schedule": "zb-h1",
         "recompute": "full"})",
     kLlama},
    {"AccumulationFusedUnscattered",
     R"({"gradient_accumulation": "fused", "scatter_gather_tensors_in_pipeline": "off", "framework": "megatron-2021",
         "tensor_parallel": 2, "pipeline_parallel": 2})",
     kDropout},
    {"AccumulationSeparateT5", R"({"gradient_accumulation": "separate", "tensor_parallel": 2, "pipeline_parallel": 2})",
     kT5},
    {"ScatteredTransfers",
     R"({"scatter_gather_tensors_in_pipeline": "on", "tensor_parallel": 2, "pipeline_parallel": 2,
         "overlap_p2p_communication": false})",
     kDropout},
    {"ScatteredTransfersZbV",
     R"({"scatter_gather_tensors_in_pipeline": "on", "tensor_parallel": 2, "pipeline_parallel": 2,
         "pipeline_schedule": "zb-v"})",
     kLlama},
    {"ScatteredTransfersT5",
     R"({"scatter_gather_tensors_in_pipeline": "on", "tensor_parallel": 4, "pipeline_parallel": 2})", kT5},
    {"ActivationOffload", R"({"activation_offload": true})", kDropout},
    {"ActivationOffloadSomeLayersPipeline",
     R"({"activation_offload": true, "activation_offload_layers": 1, "pipeline_parallel": 2, "data_parallel": 2})",
     kDropout},
    {"ActivationOffloadZbH1Sequence",
     R"({"activation_offload": true, "pipeline_parallel": 2, "pipeline_schedule": "zb-h1", "tensor_parallel": 2,
         "sequence_parallel": true, "tensor_parallel_overlap": true})",
     kLlama},
    {"ActivationOffloadRecomputeOps",
     R"({"activation_offload": true, "recompute": "selective_op", "data_parallel": 4, "zero_stage": 3})", kLlama},
    {"ActivationOffloadRecomputeEvery2", R"({"activation_offload": true, "recompute": "full", "recompute_every": 2})",
     kDropout},
    {"ActivationOffloadRange", R"({"layers": [{"to": 2, "activation_offload": true}], "context_parallel": 2})", kLlama},
    {"ActivationOffloadT5", R"({"activation_offload": true, "tensor_parallel": 2})", kT5},
    {"Memo", R"({"memo": true, "memo_alpha": 0.5})", kDropout},
    {"MemoSwapsAll", R"({"memo": true})", kLlama},
    {"MemoRecomputesAll", R"({"memo": true, "memo_alpha": 0})", kLlama},
    {"MemoOddTokens", R"({"memo": true, "memo_alpha": 0.3, "micro_batch_size": 2, "tensor_parallel": 2})", kLlama},
    {"MemoSequence",
     R"({"memo": true, "memo_alpha": 0.5, "tensor_parallel": 4, "sequence_parallel": true, "micro_batch_size": 2})",
     kDropout},
    {"MemoSequenceRecomputesAll",
     R"({"memo": true, "memo_alpha": 0, "tensor_parallel": 4, "sequence_parallel": true, "data_parallel": 2})", kLlama},
    {"MemoSequenceSwapsAll",
     R"({"memo": true, "memo_alpha": 1, "tensor_parallel": 2, "sequence_parallel": true, "data_parallel": 2,
         "zero_stage": 1})"},
    {"MemoSequenceKeptGathered",
     R"({"memo": true, "memo_alpha": 0.25, "tensor_parallel": 2, "sequence_parallel": true, "data_parallel": 2,
         "zero_stage": 3, "framework": "fsdp"})",
     kLlama},
    {"MemoContext", R"({"memo": true, "memo_alpha": 0.5, "context_parallel": 2})", kLlama},
    {"MemoDoubleRing", R"({"memo": true, "memo_alpha": 0.5, "context_parallel": 4, "inner_ring_degree": 2})", kLlama},
    {"MemoContextStripedDropout",
     R"({"memo": true, "memo_alpha": 0.25, "context_parallel": 4, "context_parallel_balance": "striped",
         "data_parallel": 2, "zero_stage": 2})",
     kDropout},
    {"MemoContextSequence",
     R"({"memo": true, "memo_alpha": 0.5, "context_parallel": 2, "tensor_parallel": 2, "sequence_parallel": true})",
     kLlama},
    {"MemoPipeline", R"({"memo": true, "memo_alpha": 0.5, "pipeline_parallel": 2, "data_parallel": 2})",
     R"({"layers": 7, "dropout": 0.1})"},
    {"MemoInterleaved",
     R"({"memo": true, "memo_alpha": 0.25, "pipeline_parallel": 2, "virtual_pipeline": 2, "tensor_parallel": 2,
         "sequence_parallel": true, "pipeline_schedule": "interleaved"})",
     R"({"layers": 12})"},
    {"MemoRange", R"({"layers": [{"to": 1, "memo": true, "memo_alpha": 0.25}, {"from": 1, "to": 2, "memo": true}]})",
     kLlama},
    {"MemoParallelBlock", R"({"memo": true, "memo_alpha": 0.5, "tensor_parallel": 2, "sequence_parallel": true})",
     R"({"parallel_block": true, "parallel_norms": true, "positions": "rotary"})"},
    {"MemoFreeze",
     R"({"memo": true, "memo_alpha": 0.5, "data_parallel": 2, "zero_stage": 3,
         "layers": [{"from": 1, "to": 2, "freeze": true}]})",
     R"({"kind": "encoder", "token_types": 2, "pooler": false, "post_norm": true, "embedding_norm": true,
         "dropout": 0.1})"},
    {"MemoEncoder", R"({"memo": true, "memo_alpha": 0.5, "data_parallel": 2})", kEncoder},
    {"LossUnfused", R"({"cross_entropy": "unfused", "tensor_parallel": 2, "precision": "bf16"})"},
    {"LossUnfusedPipeline",
     R"({"cross_entropy": "unfused", "pipeline_parallel": 2, "pipeline_schedule": "zb-h1", "precision": "bf16"})"},
    {"LossFp32", R"({"cross_entropy": "fp32", "framework": "fsdp", "precision": "bf16", "data_parallel": 2})"},
    {"LossFused",
     R"({"cross_entropy": "fused", "tensor_parallel": 2, "sequence_parallel": true, "data_parallel": 2,
         "precision": "bf16"})"},
    {"FsdpFp32Shards",
     R"({"framework": "fsdp", "precision": "bf16", "data_parallel": 4, "zero_stage": 3, "prefetch": 2})", kLlama},
    {"FsdpFp32ShardsTiedOnce",
     R"({"framework": "fsdp", "precision": "bf16", "data_parallel": 4, "zero_stage": 3, "reduce_gradients": "once",
         "reshard_after_forward": false, "optimizer": "sgd_momentum"})"},
    {"FsdpFp32ShardsHybridPipeline",
     R"({"framework": "fsdp-compiled", "precision": "bf16", "data_parallel": 4, "zero_stage": 3,
         "zero_shard_degree": 2, "pipeline_parallel": 2})"},
    {"FsdpFp32ShardsHpz",
     R"({"framework": "fsdp", "precision": "bf16", "data_parallel": 4, "zero_stage": 3, "zero_hpz_partition_size": 2})",
     kLlama},
    {"FsdpFp32ShardsMicsFp16",
     R"({"framework": "fsdp", "precision": "fp16", "tensor_parallel": 4, "data_parallel": 4, "zero_stage": 3,
         "mics_shard_size": 4, "mics_hierarchical_params_gather": true})"},
    {"FsdpFp32ShardsOffload",
     R"({"framework": "fsdp", "precision": "bf16", "data_parallel": 2, "zero_stage": 3, "optimizer_offload": true})"},
    {"FsdpFp32ShardsFrozenFp8",
     R"({"framework": "fsdp", "precision": "fp8", "data_parallel": 2, "zero_stage": 3,
         "freeze_embedding": true, "layers": [{"to": 2, "freeze": true}]})",
     kLlama},
    {"RecomputeSequence",
     R"({"recompute": "full", "tensor_parallel": 2, "sequence_parallel": true, "data_parallel": 2, "zero_stage": 3})"},

    {"LayersRecompute", R"({"layers": [{"from": 1, "to": 3, "recompute": "full"}]})", kDropout},
    {"LayersEverySecondBuckets",
     R"({"data_parallel": 4, "bucket_bytes": 120000, "layers": [{"step": 2, "recompute": "full"}]})", kDropout},
    {"LayersGroups",
     R"({"recompute": "full", "layers": [{"to": 3, "recompute_every": 2}, {"from": 3, "recompute": "none"}]})",
     kDropout},
    {"LayersPipeline",
     R"({"pipeline_parallel": 2, "data_parallel": 2, "zero_stage": 1, "layers": [{"from": 1, "to": 3, "recompute": "full"}]})"},
    {"LayersInterleaved",
     R"({"pipeline_parallel": 2, "virtual_pipeline": 2, "layers": [{"step": 3, "recompute": "full"}]})"},
    {"LayersZbH1",
     R"({"pipeline_parallel": 2, "pipeline_schedule": "zb-h1", "data_parallel": 2, "bucket_bytes": 120000,
         "layers": [{"from": 1, "recompute": "full"}]})"},
    {"LayersZbV",
     R"({"pipeline_parallel": 2, "pipeline_schedule": "zb-v", "layers": [{"from": 1, "to": 2, "recompute": "full"}]})"},
    {"LayersZero3",
     R"({"data_parallel": 4, "zero_stage": 3, "layers": [
         {"to": 2, "reshard_after_forward": false}, {"from": 2, "to": 3, "prefetch": 2, "recompute": "full"}]})",
     kDropout},
    {"LayersFp8",
     R"({"precision": "fp8", "data_parallel": 2, "zero_stage": 2, "tensor_parallel": 2, "layers": [
         {"to": 1, "precision": "bf16"}, {"from": 3, "precision": "bf16", "recompute": "full"}]})"},
    {"LayersOverlap",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "layers": [
         {"from": 1, "step": 2, "tensor_parallel_overlap": true, "recompute": "full"}]})"},

    {"LayersStoredScores",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "recompute": "selective",
         "layers": [{"from": 1, "to": 3, "flash_attention": false}]})",
     kDropout},
    {"LayersFlashAttention",
     R"({"flash_attention": false, "data_parallel": 2, "zero_stage": 3, "pipeline_parallel": 2, "precision": "fp8",
         "layers": [{"step": 2, "flash_attention": true}]})",
     kLlama},

    {"Context2", R"({"context_parallel": 2})"},
    {"Context2ByMegatronsName", R"({"context_parallel": 2, "context_parallel_type": "p2p"})"},
    {"Context4Contiguous", R"({"context_parallel": 4, "context_parallel_balance": "contiguous"})"},
    {"Context2Striped", R"({"context_parallel": 2, "context_parallel_balance": "striped"})"},
    {"Context3Striped",
     R"({"context_parallel": 3, "context_parallel_balance": "striped", "data_parallel": 2, "zero_stage": 2})",
     R"({"model": {"dropout": 0.1}, "workload": {"sequence_length": 12}})"},
    {"Context4StripedLlama",
     R"({"context_parallel": 4, "context_parallel_balance": "striped", "recompute": "full", "tensor_parallel": 2,
         "sequence_parallel": true})",
     kLlama},
    {"Context4StripedWindow", R"({"context_parallel": 4, "context_parallel_balance": "striped"})",
     R"({"sliding_window": 3})"},
    {"Context2StripedSequenceOverlap",
     R"({"context_parallel": 2, "context_parallel_balance": "striped", "tensor_parallel": 2, "sequence_parallel": true,
         "tensor_parallel_overlap": true})"},
    {"Usp2x2StripedLatent",
     R"({"context_parallel": 4, "context_parallel_type": "usp", "ulysses_degree": 2,
         "context_parallel_balance": "striped"})",
     kLatent},
    {"AllGather4Striped",
     R"({"context_parallel": 4, "context_parallel_type": "all_gather", "context_parallel_balance": "striped"})",
     kDropout},
    {"Context2Table",
     R"({"context_parallel": 2, "context_parallel_balance": "table", "context_parallel_blocks": [1, 0, 0, 0, 1, 1, 0, 1]})"},
    {"Context4TableWindow",
     R"({"context_parallel": 4, "context_parallel_balance": "table", "context_parallel_blocks": [3, 0, 2, 1, 1, 2, 3, 0],
         "recompute": "full"})",
     R"({"sliding_window": 5})"},
    {"Context3TableLayers",
     R"({"context_parallel": 3, "context_parallel_blocks": [2, 0, 0, 1, 2, 1], "tensor_parallel": 2,
         "sequence_parallel": true, "layers": [{"from": 1, "to": 3, "context_parallel_balance": "table"},
         {"from": 3, "context_parallel_balance": "table", "context_parallel_blocks": [1, 0, 2]}]})",
     R"({"model": {"dropout": 0.1}, "workload": {"sequence_length": 12}})"},
    {"Usp2x2Table",
     R"({"context_parallel": 4, "context_parallel_type": "usp", "ulysses_degree": 2,
         "context_parallel_balance": "table", "context_parallel_blocks": [0, 1, 1, 0]})"},
    {"AllGather4Table",
     R"({"context_parallel": 4, "context_parallel_type": "all_gather", "context_parallel_balance": "table",
         "context_parallel_blocks": [3, 0, 2, 1, 1, 2, 3, 0]})",
     kLlama},
    {"Context2LayersStriped",
     R"({"context_parallel": 2, "layers": [{"from": 1, "to": 3, "context_parallel_balance": "striped"}]})"},
    {"Context3LayersContiguousInside",
     R"({"context_parallel": 3, "context_parallel_balance": "striped",
         "layers": [{"from": 1, "to": 3, "context_parallel_balance": "contiguous"}]})",
     R"({"model": {"dropout": 0.1}, "workload": {"sequence_length": 12}})"},
    {"Context4LayersEverySecond",
     R"({"context_parallel": 4, "data_parallel": 2, "zero_stage": 3, "recompute": "full",
         "layers": [{"step": 2, "context_parallel_balance": "contiguous", "prefetch": 2}]})",
     kLlama},
    {"Context4LayersWindows",
     R"({"context_parallel": 4, "layers": [{"step": 2, "context_parallel_balance": "contiguous"},
                                           {"from": 1, "to": 2, "context_parallel_balance": "striped"}]})",
     R"({"sliding_window": 3, "full_attention_period": 2})"},
    {"Context2LayersTensorSequencePipeline",
     R"({"context_parallel": 2, "tensor_parallel": 2, "sequence_parallel": true, "pipeline_parallel": 2, "zero_stage": 1,
         "layers": [{"from": 1, "to": 2, "context_parallel_balance": "striped"},
                    {"from": 2, "context_parallel_balance": "contiguous", "recompute": "full"}]})"},
    {"Context2LayersZbVBuckets",
     R"({"context_parallel": 2, "pipeline_parallel": 2, "pipeline_schedule": "zb-v", "data_parallel": 2,
         "bucket_bytes": 120000, "layers": [{"from": 2, "context_parallel_balance": "striped"}]})",
     kDropout},
    {"Context2LayersGroups",
     R"({"context_parallel": 2, "recompute": "full", "recompute_every": 2, "precision": "bf16",
         "layers": [{"from": 1, "to": 4, "context_parallel_balance": "striped"}]})"},
    {"Usp2x2LayersStriped",
     R"({"context_parallel": 4, "context_parallel_type": "usp", "ulysses_degree": 2, "tensor_parallel": 2,
         "sequence_parallel": true, "layers": [{"from": 1, "to": 2, "context_parallel_balance": "striped"}]})"},
    {"AllGather4LayersContiguous",
     R"({"context_parallel": 4, "context_parallel_type": "all_gather", "micro_batch_size": 2,
         "layers": [{"from": 0, "to": 2, "context_parallel_balance": "contiguous"}]})"},
    {"Context4LayersUlysses",
     R"({"context_parallel": 4, "layers": [{"from": 1, "to": 3, "context_parallel_type": "ulysses"}]})", kDropout},
    {"Context2LayersUlyssesContiguous",
     R"({"context_parallel": 2, "context_parallel_balance": "contiguous", "tensor_parallel": 2, "pipeline_parallel": 2,
         "sequence_parallel": true, "layers": [{"step": 2, "context_parallel_type": "a2a", "recompute": "full"}]})",
     kLlama},
    {"Ulysses2LayersOfThreeTypes",
     R"({"context_parallel": 2, "context_parallel_type": "ulysses", "data_parallel": 2, "zero_stage": 3,
         "layers": [{"to": 1, "context_parallel_type": "ring", "context_parallel_balance": "striped"},
                    {"from": 2, "to": 3, "context_parallel_type": "all_gather"}]})",
     R"({"sliding_window": 3, "full_attention_period": 2})"},
    {"AllGather3LayersRing",
     R"({"context_parallel": 3, "context_parallel_type": "all_gather", "data_parallel": 2, "bucket_bytes": 120000,
         "layers": [{"from": 1, "to": 3, "context_parallel_type": "ring"}]})",
     R"({"model": {"dropout": 0.1}, "workload": {"sequence_length": 12}})"},
    {"Context4Zero3", R"({"context_parallel": 4, "data_parallel": 2, "zero_stage": 3})", kDropout},
    {"Context4Llama", R"({"context_parallel": 4, "recompute": "full"})", kLlama},
    {"Context2Encoder", R"({"context_parallel": 2})", kEncoder},
    {"Context4Window", R"({"context_parallel": 4, "context_parallel_balance": "contiguous"})",
     R"({"sliding_window": 3})"},
    {"Context2SequenceOverlap",
     R"({"context_parallel": 2, "tensor_parallel": 2, "sequence_parallel": true, "tensor_parallel_overlap": true})"},

    {"Hybrid", R"({"tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 2})"},
    {"HybridSequenceZero3",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "pipeline_parallel": 2, "data_parallel": 2, "zero_stage": 3})"},
    {"HybridZbH1Zero2",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "pipeline_parallel": 2, "data_parallel": 2, "zero_stage": 2,
         "pipeline_schedule": "zb-h1"})"},
    {"HybridZbVRecompute",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "pipeline_parallel": 2, "data_parallel": 2, "zero_stage": 3,
         "pipeline_schedule": "zb-v", "recompute": "full"})",
     kDropout},
    {"HybridContextInterleaved",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "pipeline_parallel": 2, "context_parallel": 2, "zero_stage": 2,
         "virtual_pipeline": 2})"},
    {"HybridFourAxes",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "pipeline_parallel": 2, "context_parallel": 2, "data_parallel": 2,
         "zero_stage": 3, "zero_shard_degree": 1, "precision": "bf16"})",
     kLlama},
    {"OffloadZero3", R"({"data_parallel": 2, "zero_stage": 3, "optimizer_offload": true})",
     R"({"tied_embeddings": false})"},
    {"OffloadOneRank", R"({"optimizer_offload": true})"},
    {"OffloadReplicasInBuckets", R"({"data_parallel": 2, "optimizer_offload": true, "bucket_bytes": 120000})"},
    {"OffloadReplicasReducedAtTheEnd",
     R"({"data_parallel": 2, "optimizer_offload": true, "overlap_grad_reduce": false})"},
    {"OffloadZero1", R"({"data_parallel": 2, "zero_stage": 1, "optimizer_offload": true, "bucket_bytes": 120000})"},
    {"OffloadZero1Hybrid",
     R"({"data_parallel": 4, "zero_stage": 1, "zero_shard_degree": 2, "optimizer_offload": true, "bucket_bytes": 120000})"},
    {"OffloadZero2", R"({"data_parallel": 2, "zero_stage": 2, "optimizer_offload": true})"},
    {"OffloadZero2OneRank", R"({"zero_stage": 2, "optimizer_offload": true})"},
    {"OffloadZero2OneMicroBatch", R"({"data_parallel": 8, "zero_stage": 2, "optimizer_offload": true})"},
    {"OffloadZero2Hybrid",
     R"({"data_parallel": 4, "zero_stage": 2, "zero_shard_degree": 2, "optimizer_offload": true})"},
    {"OffloadZero3NoOverlap",
     R"({"data_parallel": 2, "zero_stage": 3, "overlap_grad_reduce": false, "optimizer_offload": true})", kLlama},
    {"OffloadZero2ZbH1",
     R"({"pipeline_parallel": 2, "pipeline_schedule": "zb-h1", "data_parallel": 2, "zero_stage": 2,
         "optimizer_offload": true})"},
    {"OffloadUnclipped",
     R"({"data_parallel": 2, "tensor_parallel": 2, "sequence_parallel": true, "optimizer_offload": true,
         "clip_grad": 0})"},
    {"OffloadTensorSequence", R"({"tensor_parallel": 2, "sequence_parallel": true, "optimizer_offload": true})"},
    {"OffloadTensorSequenceZero2",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "data_parallel": 2, "zero_stage": 2, "optimizer_offload": true})"},
    {"OffloadTiedPipeline", R"({"pipeline_parallel": 2, "data_parallel": 2, "optimizer_offload": true})"},
    {"OffloadTiedPipelineUnclipped",
     R"({"pipeline_parallel": 2, "data_parallel": 2, "zero_stage": 2, "optimizer_offload": true, "clip_grad": 0})"},
    {"OffloadZbH1",
     R"({"pipeline_parallel": 2, "pipeline_schedule": "zb-h1", "data_parallel": 2, "optimizer_offload": true})"},
    {"OffloadScaledLoss", R"({"data_parallel": 2, "zero_stage": 2, "optimizer_offload": true, "precision": "fp16"})"},

    {"Tensor4SharedKeys", R"({"tensor_parallel": 4})", kLlama},
    {"Tensor4SharedKeysSequence", R"({"tensor_parallel": 4, "sequence_parallel": true})", kLlama},
    {"Tensor4OneKey", R"({"tensor_parallel": 4, "data_parallel": 2})", R"({"kv_heads": 1})"},
    {"Tensor4SharedKeysStoredScores", R"({"tensor_parallel": 4, "flash_attention": false})", R"({"kv_heads": 2})"},
    {"Tensor4SharedKeysNormedAcrossHeads", R"({"tensor_parallel": 4})",
     R"({"kv_heads": 2, "heads": 8, "qk_norm": true, "qk_norm_across_heads": true})"},
    {"Tensor4SharedKeysZero3",
     R"({"tensor_parallel": 4, "sequence_parallel": true, "data_parallel": 2, "zero_stage": 3, "recompute": "full"})",
     kLlama},
    {"Tensor4SharedKeysZbH1",
     R"({"tensor_parallel": 4, "pipeline_parallel": 2, "pipeline_schedule": "zb-h1", "data_parallel": 2, "zero_stage": 1})",
     kLlama},
    {"Tensor4SharedKeysContext", R"({"tensor_parallel": 4, "context_parallel": 2})", R"({"kv_heads": 2})"},
    {"Tensor4SharedKeysOffload", R"({"tensor_parallel": 4, "optimizer_offload": true})", kLlama},

    {"LatentReplicas", R"({"data_parallel": 2, "zero_stage": 2})", kLatent},
    {"LatentZero3Unfused", R"({"data_parallel": 2, "zero_stage": 3, "framework": "fsdp", "precision": "bf16"})",
     kLatent},
    {"LatentTensor2", R"({"tensor_parallel": 2})", kLatent},
    {"LatentTensor4Sequence", R"({"tensor_parallel": 4, "sequence_parallel": true, "data_parallel": 2})", kLatent},
    {"LatentTensor2Overlap", R"({"tensor_parallel": 2, "sequence_parallel": true, "tensor_parallel_overlap": true})",
     kLatent},
    {"LatentRecompute", R"({"tensor_parallel": 2, "sequence_parallel": true, "recompute": "full"})", kLatent},
    {"LatentRecomputeSelective", R"({"tensor_parallel": 2, "recompute": "selective"})", kLatent},
    {"LatentPipelineZbH1",
     R"({"tensor_parallel": 2, "pipeline_parallel": 2, "pipeline_schedule": "zb-h1", "data_parallel": 2})", kLatent},
    {"LatentContext",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "context_parallel": 2, "data_parallel": 2, "zero_stage": 1})",
     kLatent},

    {"VitReplicas", R"({"data_parallel": 2})", kVit},
    {"VitZero1", R"({"data_parallel": 2, "zero_stage": 1})", kVit},
    {"VitZero3", R"({"data_parallel": 4, "zero_stage": 3})", kVit},
    {"VitTensor2", R"({"tensor_parallel": 2})", kVit},
    {"VitTensor2StoredScores", R"({"tensor_parallel": 2, "flash_attention": false, "framework": "deepspeed"})", kVit},
    {"VitPipeline2", R"({"pipeline_parallel": 2})", kVit},
    {"VitPipelineZbV", R"({"pipeline_parallel": 2, "pipeline_schedule": "zb-v"})", kVit},
    {"VitRecompute", R"({"recompute": "full", "data_parallel": 2})", kVit},
    {"VitHybrid",
     R"({"tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 2, "zero_stage": 2, "recompute": "full",
         "precision": "bf16"})",
     kVit},

    {"T5Replicas", R"({"data_parallel": 2})", kT5},
    {"T5FrozenTablesRecomputeEvery2", R"({"freeze_embedding": true, "recompute": "full", "recompute_every": 2})", kT5},
    {"T5Zero1", R"({"data_parallel": 2, "zero_stage": 1})", kT5},
    {"T5Zero2Unfused", R"({"data_parallel": 2, "zero_stage": 2, "framework": "deepspeed", "precision": "bf16"})", kT5},
    {"T5Zero3", R"({"data_parallel": 4, "zero_stage": 3})", kT5},
    {"T5Tensor2", R"({"tensor_parallel": 2})", kT5},
    {"T5Tensor4Sequence", R"({"tensor_parallel": 4, "sequence_parallel": true})", kT5},
    {"T5Tensor2StoredScores", R"({"tensor_parallel": 2, "sequence_parallel": true, "flash_attention": false})",
     kT5Gated},
    {"T5Tensor2Overlap", R"({"tensor_parallel": 2, "sequence_parallel": true, "tensor_parallel_overlap": true})",
     R"({"kind": "encoder_decoder", "layers": 2, "positions": "rotary"})"},
    {"T5SharedKeys", R"({"tensor_parallel": 4, "data_parallel": 2})",
     R"({"kind": "encoder_decoder", "layers": 2, "positions": "relative", "relative_buckets": 8, "kv_heads": 2})"},
    {"T5Pipeline2", R"({"pipeline_parallel": 2})", kT5},
    {"T5Pipeline2Zero1", R"({"pipeline_parallel": 2, "data_parallel": 2, "zero_stage": 1})", kT5},
    {"T5Pipeline4Zero2", R"({"pipeline_parallel": 4, "data_parallel": 2, "zero_stage": 2})", kT5},
    {"T5Pipeline4Gated", R"({"pipeline_parallel": 4, "data_parallel": 2})", kT5Gated},
    {"T5Pipeline2Uneven", R"({"pipeline_parallel": 2, "pipeline_stage_layers": [1, 3]})", kT5},
    {"T5Pipeline2UnevenEncoder", R"({"pipeline_parallel": 2, "pipeline_stage_layers": [3, 1]})", kT5},
    {"T5PipelineInterleaved", R"({"pipeline_parallel": 2, "virtual_pipeline": 2})", kT5},
    {"T5PipelineZbH1", R"({"pipeline_parallel": 4, "pipeline_schedule": "zb-h1"})", kT5},
    {"T5PipelineZbV", R"({"pipeline_parallel": 2, "pipeline_schedule": "zb-v", "flash_attention": false})", kT5Gated},
    {"T5Recompute", R"({"recompute": "full"})", kT5Gated},
    {"T5RecomputeSelective", R"({"recompute": "selective", "flash_attention": false})", kT5Gated},
    {"T5RecomputeEvery2", R"({"recompute": "full", "recompute_every": 2, "tensor_parallel": 2})", kT5},
    {"T5Offload", R"({"pipeline_parallel": 4, "optimizer_offload": true, "data_parallel": 2, "zero_stage": 2})", kT5},
    {"T5Hybrid",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "pipeline_parallel": 2, "data_parallel": 2, "zero_stage": 3,
         "recompute": "full", "precision": "bf16"})",
     kT5Gated},

    {"Ulysses2", R"({"context_parallel": 2, "context_parallel_type": "ulysses"})"},
    {"Ulysses4Zero3", R"({"context_parallel": 4, "context_parallel_type": "a2a", "data_parallel": 2, "zero_stage": 3})",
     kDropout},
    {"Ulysses2Llama", R"({"context_parallel": 2, "context_parallel_type": "ulysses", "recompute": "full"})", kLlama},
    {"Ulysses4SharedKeys", R"({"context_parallel": 4, "context_parallel_type": "ulysses"})", kLlama},
    {"Ulysses4OneKey", R"({"context_parallel": 4, "context_parallel_type": "ulysses", "data_parallel": 2})",
     R"({"kv_heads": 1})"},
    {"Ulysses2Tensor2Sequence",
     R"({"context_parallel": 2, "context_parallel_type": "ulysses", "tensor_parallel": 2, "sequence_parallel": true})"},
    {"Ulysses2Tensor2SharedKeys",
     R"({"context_parallel": 2, "context_parallel_type": "ulysses", "tensor_parallel": 2, "sequence_parallel": true})",
     kLlama},
    {"Ulysses2Tensor2OneKey",
     R"({"context_parallel": 2, "context_parallel_type": "ulysses", "tensor_parallel": 2, "micro_batch_size": 2})",
     R"({"kv_heads": 1})"},
    {"Ulysses2Tensor2Overlap",
     R"({"context_parallel": 2, "context_parallel_type": "ulysses", "tensor_parallel": 2, "sequence_parallel": true,
         "tensor_parallel_overlap": true})"},
    {"Ulysses2Window", R"({"context_parallel": 2, "context_parallel_type": "ulysses"})", R"({"sliding_window": 3})"},
    {"Ulysses4Encoder", R"({"context_parallel": 4, "context_parallel_type": "ulysses"})", kEncoder},
    {"Ulysses2Latent",
     R"({"context_parallel": 2, "context_parallel_type": "ulysses", "tensor_parallel": 2, "data_parallel": 2,
         "zero_stage": 1})",
     kLatent},
    {"Ulysses4LatentShared", R"({"context_parallel": 4, "context_parallel_type": "ulysses"})", kLatent},
    {"Usp2x2", R"({"context_parallel": 4, "context_parallel_type": "usp", "ulysses_degree": 2})"},
    {"Usp1x2", R"({"context_parallel": 2, "context_parallel_type": "usp", "ulysses_degree": 1})"},
    {"Usp2x2Fp32Gradients",
     R"({"context_parallel": 4, "context_parallel_type": "usp", "ulysses_degree": 2, "precision": "bf16",
         "context_parallel_fp32_gradients": true})"},
    {"Usp2x2LayersFp32Gradients",
     R"({"context_parallel": 4, "context_parallel_type": "usp", "ulysses_degree": 2, "precision": "bf16",
         "layers": [{"to": 2, "context_parallel_fp32_gradients": true}]})"},
    {"RingFp32GradientsGrouped",
     R"({"context_parallel": 4, "data_parallel": 2, "precision": "bf16", "context_parallel_fp32_gradients": true})",
     kLlama},
    {"Usp2x2RingInner",
     R"({"context_parallel": 4, "context_parallel_type": "a2a+p2p", "ulysses_degree": 2, "ulysses_inner": false})"},
    {"Usp2x2Contiguous",
     R"({"context_parallel": 4, "context_parallel_type": "usp", "ulysses_degree": 2,
         "context_parallel_balance": "contiguous"})",
     kDropout},
    {"Usp4x2SharedKeys",
     R"({"context_parallel": 8, "context_parallel_type": "usp", "ulysses_degree": 4, "recompute": "full"})", kLlama},
    {"Usp4x2SharedKeysRingInner",
     R"({"context_parallel": 8, "context_parallel_type": "usp", "ulysses_degree": 4, "ulysses_inner": false,
         "micro_batch_size": 2})",
     kLlama},
    {"Usp2x4Default", R"({"context_parallel": 8, "context_parallel_type": "usp", "data_parallel": 2, "zero_stage": 2})",
     R"({"kv_heads": 2})"},
    {"Usp2x2Window", R"({"context_parallel": 4, "context_parallel_type": "usp", "ulysses_degree": 2})",
     R"({"sliding_window": 3})"},
    {"Usp2x2Encoder",
     R"({"context_parallel": 4, "context_parallel_type": "usp", "ulysses_degree": 2, "ulysses_inner": false})",
     kEncoder},
    {"Usp2x2TensorSequencePipeline",
     R"({"context_parallel": 4, "context_parallel_type": "usp", "ulysses_degree": 2, "tensor_parallel": 2,
         "sequence_parallel": true, "pipeline_parallel": 2, "zero_stage": 1})",
     R"({"kv_heads": 2})"},
    {"Usp2x2TensorSequenceZero3",
     R"({"context_parallel": 4, "context_parallel_type": "usp", "ulysses_degree": 2, "ulysses_inner": false,
         "tensor_parallel": 2, "sequence_parallel": true, "data_parallel": 2, "zero_stage": 3, "precision": "bf16"})"},
    {"Usp2x2ZbH1Offload",
     R"({"context_parallel": 4, "context_parallel_type": "usp", "ulysses_degree": 2, "pipeline_parallel": 2,
         "pipeline_schedule": "zb-h1", "optimizer_offload": true})"},
    {"DoubleRing2x2", R"({"context_parallel": 4, "inner_ring_degree": 2})"},
    {"DoubleRing2x4", R"({"context_parallel": 8, "inner_ring_degree": 2})", R"({"kv_heads": 2})"},
    {"DoubleRing4x2Striped",
     R"({"context_parallel": 8, "inner_ring_degree": 4, "context_parallel_balance": "striped"})", kDropout},
    {"DoubleRing2x2Contiguous",
     R"({"context_parallel": 4, "inner_ring_degree": 2, "context_parallel_balance": "contiguous", "data_parallel": 2})"},
    {"DoubleRing2x2Table",
     R"({"context_parallel": 4, "inner_ring_degree": 2, "context_parallel_balance": "table",
         "context_parallel_blocks": [0, 1, 2, 3, 3, 0, 1, 2]})"},
    {"DoubleRing2x2Fp32Gradients",
     R"({"context_parallel": 4, "inner_ring_degree": 2, "precision": "bf16", "context_parallel_fp32_gradients": true})"},
    {"DoubleRing2x2Window", R"({"context_parallel": 4, "inner_ring_degree": 2})", R"({"sliding_window": 3})"},
    {"DoubleRing2x4ContiguousWindow",
     R"({"context_parallel": 8, "inner_ring_degree": 2, "context_parallel_balance": "contiguous"})",
     R"({"sliding_window": 3})"},
    {"DoubleRing2x2Encoder", R"({"context_parallel": 4, "inner_ring_degree": 2})", kEncoder},
    {"DoubleRing2x2AllButAttention",
     R"({"context_parallel": 4, "inner_ring_degree": 2, "recompute": "all_but_attention", "tensor_parallel": 2,
         "sequence_parallel": true})",
     kLlama},
    {"LoongTrain2x2x2",
     R"({"context_parallel": 8, "context_parallel_type": "usp", "ulysses_degree": 2, "inner_ring_degree": 2,
         "zero_stage": 1, "recompute": "all_but_attention"})",
     R"({"kv_heads": 2})"},
    {"LoongTrain2x2x2ContextFirst",
     R"({"context_parallel": 8, "context_parallel_type": "usp", "ulysses_degree": 2, "ulysses_inner": false,
         "inner_ring_degree": 2, "micro_batch_size": 2})",
     kLlama},
    {"LoongTrain2x2x2TensorSequenceZero3",
     R"({"context_parallel": 8, "context_parallel_type": "usp", "ulysses_degree": 2, "inner_ring_degree": 2,
         "tensor_parallel": 2, "sequence_parallel": true, "zero_stage": 3, "precision": "bf16"})"},
    {"LoongTrain4x2x2SharedKeys",
     R"({"context_parallel": 16, "context_parallel_type": "usp", "ulysses_degree": 4, "inner_ring_degree": 2,
         "zero_stage": 2})",
     kLlama},
    {"Fpdt2OneChunk", R"({"context_parallel": 2, "context_parallel_type": "fpdt"})"},
    {"Fpdt2Two", R"({"context_parallel": 2, "context_parallel_type": "fpdt", "fpdt_chunk_tokens": 8})"},
    {"Fpdt2Four", R"({"context_parallel": 2, "context_parallel_type": "fpdt", "fpdt_chunk_tokens": 4})", kDropout},
    {"Fpdt2FourOnTheDevice",
     R"({"context_parallel": 2, "context_parallel_type": "fpdt", "fpdt_chunk_tokens": 4, "fpdt_offload": false})",
     kLlama},
    {"Fpdt2FourLlama",
     R"({"context_parallel": 2, "context_parallel_type": "fpdt", "fpdt_chunk_tokens": 4, "micro_batch_size": 2})",
     kLlama},
    {"Fpdt2FourSeparateKernels",
     R"({"context_parallel": 2, "context_parallel_type": "fpdt", "fpdt_chunk_tokens": 4, "data_parallel": 2,
         "framework": "fsdp", "zero_stage": 2, "precision": "bf16"})",
     kLlama},
    {"Fpdt2FourFp32Gradients",
     R"({"context_parallel": 2, "context_parallel_type": "fpdt", "fpdt_chunk_tokens": 4, "precision": "bf16",
         "context_parallel_fp32_gradients": true, "framework": "megatron-deepspeed"})",
     kLlama},
    {"Fpdt2FourRecomputedOnTheHostZero3",
     R"({"context_parallel": 2, "context_parallel_type": "fpdt", "fpdt_chunk_tokens": 4, "data_parallel": 2,
         "zero_stage": 3, "recompute": "full", "activation_offload": true, "framework": "deepspeed"})",
     kLlama},
    {"Fpdt2TwoRecomputedPairs",
     R"({"context_parallel": 2, "context_parallel_type": "fpdt", "fpdt_chunk_tokens": 8, "recompute": "full",
         "recompute_every": 2})",
     kDropout},
    {"Fpdt4TwoSharedKeys", R"({"context_parallel": 4, "context_parallel_type": "fpdt", "fpdt_chunk_tokens": 8})",
     kLlama},
    {"Fpdt4TwoOneKey",
     R"({"context_parallel": 4, "context_parallel_type": "fpdt", "fpdt_chunk_tokens": 8, "data_parallel": 2,
         "recompute": "full"})",
     R"({"kv_heads": 1})"},
    {"Fpdt2FourTensor2",
     R"({"context_parallel": 2, "context_parallel_type": "fpdt", "fpdt_chunk_tokens": 4, "tensor_parallel": 2})"},
    {"Fpdt2FourTensor2Sequence",
     R"({"context_parallel": 2, "context_parallel_type": "fpdt", "fpdt_chunk_tokens": 4, "tensor_parallel": 2,
         "sequence_parallel": true, "recompute": "full", "data_parallel": 2, "zero_stage": 3})",
     kDropout},
    {"Fpdt2FourTensor2SharedKeys",
     R"({"context_parallel": 2, "context_parallel_type": "fpdt", "fpdt_chunk_tokens": 4, "tensor_parallel": 2,
         "sequence_parallel": true})",
     kLlama},
    {"Fpdt2FourPipeline",
     R"({"context_parallel": 2, "context_parallel_type": "fpdt", "fpdt_chunk_tokens": 4, "pipeline_parallel": 2,
         "virtual_pipeline": 2, "zero_stage": 1, "data_parallel": 2, "activation_offload": true})",
     kLlama},
    {"Fpdt2FourZbH1",
     R"({"context_parallel": 2, "context_parallel_type": "fpdt", "fpdt_chunk_tokens": 4, "pipeline_parallel": 2,
         "pipeline_schedule": "zb-h1"})",
     kLlama},
    {"Fpdt2FourTensor2SequenceZbH1",
     R"({"context_parallel": 2, "context_parallel_type": "fpdt", "fpdt_chunk_tokens": 4, "tensor_parallel": 2,
         "sequence_parallel": true, "pipeline_parallel": 2, "pipeline_schedule": "zb-h1", "zero_stage": 1})",
     kLlama},
    {"Fpdt2FourLatent",
     R"({"context_parallel": 2, "context_parallel_type": "fpdt", "fpdt_chunk_tokens": 4, "recompute": "full"})",
     kLatent},
    {"Fpdt2FourLatentOnTheHost",
     R"({"context_parallel": 2, "context_parallel_type": "fpdt", "fpdt_chunk_tokens": 4, "micro_batch_size": 2})",
     kLatent},
    {"Fpdt2FourParallelBlock",
     R"({"context_parallel": 2, "context_parallel_type": "fpdt", "fpdt_chunk_tokens": 4, "tensor_parallel": 2})",
     R"({"parallel_block": true, "parallel_norms": true, "dropout": 0.1})"},
    {"Fpdt2FourExperts",
     R"({"context_parallel": 2, "context_parallel_type": "fpdt", "fpdt_chunk_tokens": 4, "data_parallel": 2,
         "expert_parallel": 2, "recompute": "full"})",
     kSharedExperts},
    {"Fpdt2FourNextTokens",
     R"({"context_parallel": 2, "context_parallel_type": "fpdt", "fpdt_chunk_tokens": 4, "data_parallel": 2,
         "tensor_parallel": 2, "sequence_parallel": true})",
     kNextTokensTied},
    {"Fpdt2FourFp8",
     R"({"context_parallel": 2, "context_parallel_type": "fpdt", "fpdt_chunk_tokens": 4, "precision": "fp8",
         "recompute": "full"})",
     kLlama},
    {"Fpdt2FourFrozen",
     R"({"context_parallel": 2, "context_parallel_type": "fpdt", "fpdt_chunk_tokens": 4, "freeze_embedding": true,
         "layers": [{"to": 2, "freeze": true}]})",
     kLlama},
    {"AllGather2", R"({"context_parallel": 2, "context_parallel_type": "all_gather"})"},
    {"AllGather4Contiguous",
     R"({"context_parallel": 4, "context_parallel_type": "allgather", "context_parallel_balance": "contiguous"})",
     kDropout},
    {"AllGather4LlamaRecompute",
     R"({"context_parallel": 4, "context_parallel_type": "all_gather", "recompute": "full", "micro_batch_size": 2})",
     kLlama},
    {"AllGather4Window", R"({"context_parallel": 4, "context_parallel_type": "all_gather"})",
     R"({"sliding_window": 3})"},
    {"AllGather4Encoder", R"({"context_parallel": 4, "context_parallel_type": "all_gather"})", kEncoder},
    {"AllGather2Tensor4SharedKeys",
     R"({"context_parallel": 2, "context_parallel_type": "all_gather", "tensor_parallel": 4, "sequence_parallel": true})",
     kLlama},
    {"AllGather2TensorOverlapPipelineZero2",
     R"({"context_parallel": 2, "context_parallel_type": "all_gather", "tensor_parallel": 2, "sequence_parallel": true,
         "tensor_parallel_overlap": true, "pipeline_parallel": 2, "data_parallel": 2, "zero_stage": 2})"},
    {"AllGather4Zero3", R"({"context_parallel": 4, "context_parallel_type": "all_gather", "data_parallel": 2,
         "zero_stage": 3, "precision": "bf16"})"},
    {"AllGather2Latent", R"({"context_parallel": 2, "context_parallel_type": "all_gather", "tensor_parallel": 2})",
     kLatent},

    {"Context4ZigzagWindow", R"({"context_parallel": 4})", R"({"sliding_window": 3})"},
    {"Context4ZigzagLongWindow", R"({"context_parallel": 4})", R"({"sliding_window": 6})"},
    {"Context8ZigzagShortWindow", R"({"context_parallel": 8})", R"({"sliding_window": 2})"},
    {"Context2ZigzagWindow", R"({"context_parallel": 2, "data_parallel": 2})", R"({"sliding_window": 5})"},
    {"Context4OwnKeyOnly", R"({"context_parallel": 4})", R"({"sliding_window": 1})"},
    {"Context4WindowEncoder", R"({"context_parallel": 4})",
     R"({"kind": "encoder", "token_types": 2, "pooler": false, "sliding_window": 4})"},
    {"Context4WindowsAndFullLayers", R"({"context_parallel": 4, "recompute": "full"})",
     R"({"sliding_window": 3, "full_attention_period": 2})"},

    {"MicroBatchesOfTwo", R"({"data_parallel": 2, "tensor_parallel": 2, "micro_batch_size": 2})"},
    {"Zero1Hybrid", R"({"data_parallel": 4, "zero_stage": 1, "zero_shard_degree": 2, "bucket_bytes": 120000})"},
    {"Zero2HybridNoOverlap",
     R"({"data_parallel": 4, "zero_stage": 2, "zero_shard_degree": 2, "overlap_grad_reduce": false})"},
    {"Zero3NoOverlap", R"({"data_parallel": 2, "zero_stage": 3, "overlap_grad_reduce": false, "prefetch": 0})"},
    {"Zero3FarPrefetch", R"({"data_parallel": 2, "zero_stage": 3, "prefetch": 3, "micro_batch_size": 2})"},
    {"Unclipped", R"({"data_parallel": 2, "tensor_parallel": 2, "sequence_parallel": true, "clip_grad": 0})"},
    {"Adam", R"({"data_parallel": 2, "zero_stage": 2, "optimizer": "adam"})"},
    {"Sgd", R"({"tensor_parallel": 2, "pipeline_parallel": 2, "optimizer": "sgd"})"},
    {"MomentsInFewerBits", R"({"data_parallel": 2, "zero_stage": 1, "precision": "bf16", "optimizer_dtype": "fp8"})"},
    {"NoMasterParameters",
     R"({"data_parallel": 2, "zero_stage": 3, "precision": "bf16", "master_parameters": false, "gradient_dtype": "bf16"})"},
    {"ScaledLoss", R"({"tensor_parallel": 2, "data_parallel": 2, "zero_stage": 1, "precision": "fp16",
         "gradient_dtype": "fp16", "optimizer_dtype": "fp16", "loss_scale": 1024})"},
    {"Fp8ZbH1",
     R"({"pipeline_parallel": 2, "pipeline_schedule": "zb-h1", "precision": "fp8", "optimizer_dtype": "bf16"})"},

    {"PipelineReplicas", R"({"pipeline_parallel": 2, "data_parallel": 2, "bucket_bytes": 120000})"},
    {"PipelineGpipeZero1",
     R"({"pipeline_parallel": 2, "pipeline_schedule": "gpipe", "data_parallel": 2, "zero_stage": 1})"},
    {"PipelineInterleavedByName",
     R"({"pipeline_parallel": 2, "pipeline_schedule": "interleaved", "virtual_pipeline": 2, "data_parallel": 2,
         "zero_stage": 3})"},
    {"PipelineZbH1Recompute",
     R"({"pipeline_parallel": 2, "pipeline_schedule": "zb-h1", "recompute": "full", "data_parallel": 2})", kDropout},
    {"PipelineZbVReplicas", R"({"pipeline_parallel": 2, "pipeline_schedule": "zb-v", "data_parallel": 2})"},
    {"PipelineZbVSequence",
     R"({"pipeline_parallel": 2, "pipeline_schedule": "zb-v", "tensor_parallel": 2, "sequence_parallel": true,
         "context_parallel": 2})"},
    {"PipelineEndsCount",
     R"({"pipeline_parallel": 2, "account_for_embedding": true, "account_for_loss": true, "pipeline_schedule": "1f1b",
         "overlap_p2p_communication": false})"},

    {"RecomputeSelectiveTensor", R"({"recompute": "selective", "flash_attention": false, "tensor_parallel": 2})",
     kDropout},
    {"RecomputeSelectiveFused", R"({"recompute": "selective", "data_parallel": 2})"},
    {"RecomputeEvery2Tensor",
     R"({"recompute": "full", "recompute_every": 2, "tensor_parallel": 2, "sequence_parallel": true, "data_parallel": 2,
         "zero_stage": 2})",
     kDropout},
    {"RecomputeEvery2SharedKeys", R"({"recompute": "full", "recompute_every": 2, "tensor_parallel": 4})", kLlama},
    {"RecomputeInterleaved",
     R"({"recompute": "full", "recompute_layers": 1, "pipeline_parallel": 2, "virtual_pipeline": 2})"},
    {"RecomputeOverlap",
     R"({"recompute": "full", "tensor_parallel": 2, "sequence_parallel": true, "tensor_parallel_overlap": true})"},
    {"RecomputeContextOverlap",
     R"({"recompute": "full", "context_parallel": 2, "tensor_parallel": 2, "sequence_parallel": true,
         "tensor_parallel_overlap": true})",
     kLlama},
    {"RecomputeSelectiveOverlap",
     R"({"recompute": "selective", "flash_attention": false, "tensor_parallel": 2, "sequence_parallel": true,
         "tensor_parallel_overlap": true})",
     kDropout},
    {"RecomputeFp8", R"({"recompute": "full", "precision": "fp8"})"},
    {"RecomputeFp8Zero3", R"({"recompute": "full", "data_parallel": 2, "zero_stage": 3, "precision": "fp8"})"},
    {"RecomputeEvery2SharedKeysZero3",
     R"({"recompute": "full", "recompute_every": 2, "tensor_parallel": 4, "sequence_parallel": true, "data_parallel": 2,
         "zero_stage": 3})",
     kLlama},

    {"ContextPipelineZero1", R"({"context_parallel": 2, "pipeline_parallel": 2, "data_parallel": 2, "zero_stage": 1})"},
    {"ContextContiguousTensor",
     R"({"context_parallel": 2, "context_parallel_balance": "contiguous", "tensor_parallel": 2, "sequence_parallel": true})",
     kLlama},
    {"ContextOffload",
     R"({"context_parallel": 2, "tensor_parallel": 2, "sequence_parallel": true, "optimizer_offload": true})"},

    {"StackMegatron2021", R"({"framework": "megatron-2021", "tensor_parallel": 2, "data_parallel": 2})", kDropout},
    {"StackMegatronCore", R"({"framework": "megatron-core", "tensor_parallel": 2, "precision": "bf16"})"},
    {"StackMegatronDeepSpeed",
     R"({"framework": "megatron-deepspeed", "tensor_parallel": 2, "pipeline_parallel": 2, "precision": "bf16"})"},
    {"StackNanotron", R"({"framework": "nanotron", "data_parallel": 2, "zero_stage": 1, "precision": "bf16"})", kLlama},
    {"StackJax", R"({"framework": "jax", "data_parallel": 2, "zero_stage": 3, "precision": "bf16"})", kLlama},
    {"StackDeepSpeed", R"({"framework": "deepspeed", "data_parallel": 2, "zero_stage": 2, "precision": "bf16"})",
     kDropout},
    {"StackFsdpCompiled", R"({"framework": "fsdp-compiled", "data_parallel": 2, "zero_stage": 3, "precision": "bf16"})",
     kLlama},
    {"StackOrrery", R"({"framework": "orrery", "tensor_parallel": 2, "data_parallel": 2, "bucket_bytes": 120000})"},
    // Of a tied model the head's table is frozen with the embedding's, its norm is not: two parameter sets.
    {"FreezeLowerHalf", R"({"data_parallel": 2, "freeze_embedding": true, "layers": [{"to": 2, "freeze": true}]})"},
    {"FreezeLowerHalfBuckets",
     R"({"data_parallel": 2, "bucket_bytes": 120000, "freeze_embedding": true, "layers": [{"to": 1, "freeze": true}]})",
     kDropout},
    {"FreezeUpperHalfZero1",
     R"({"data_parallel": 2, "zero_stage": 1, "layers": [{"from": 2, "freeze": true}], "recompute": "full"})"},
    {"FreezeZero2Once",
     R"({"data_parallel": 2, "zero_stage": 2, "reduce_gradients": "once", "freeze": true, "bucket_bytes": 20000})",
     kLlama},
    {"FreezeZero3", R"({"data_parallel": 4, "zero_stage": 3, "freeze_embedding": true, "recompute": "full",
         "layers": [{"to": 3, "freeze": true}]})"},
    {"FreezeZero3OddShards",
     R"({"data_parallel": 8, "zero_stage": 3, "freeze_embedding": true, "layers": [{"step": 2, "freeze": true}]})",
     R"({"hidden": 36, "ffn": 50, "tied_embeddings": false})"},
    {"FreezeZero3KeptOnce", R"({"data_parallel": 2, "zero_stage": 3, "reduce_gradients": "once",
         "reshard_after_forward": false, "layers": [{"from": 1, "to": 3, "freeze": true}]})",
     kLlama},
    {"FreezeZero3Head", R"({"data_parallel": 4, "zero_stage": 3, "zero_shard_degree": 2, "framework": "fsdp",
         "freeze_head": true, "layers": [{"from": 2, "freeze": true}]})",
     kLlama},
    {"FreezeHpz", R"({"data_parallel": 4, "zero_stage": 3, "zero_hpz_partition_size": 2, "freeze_embedding": true,
         "layers": [{"from": 0, "to": 4, "step": 3, "freeze": true}]})",
     kLlama},
    {"FreezeTensor4SharedKeys",
     R"({"tensor_parallel": 4, "sequence_parallel": true, "data_parallel": 2, "zero_stage": 2, "freeze_embedding": true,
         "layers": [{"to": 4, "step": 2, "freeze": true}], "recompute": "full"})",
     kLlama},
    {"FreezeTensor2Overlap", R"({"tensor_parallel": 2, "sequence_parallel": true, "tensor_parallel_overlap": true,
         "freeze_embedding": true, "layers": [{"to": 2, "freeze": true}]})",
     kDropout},
    {"FreezeContext2", R"({"context_parallel": 2, "data_parallel": 2, "zero_stage": 1, "freeze_embedding": true,
         "layers": [{"to": 1, "freeze": true}, {"from": 2, "to": 3, "freeze": true}]})",
     kLlama},
    {"FreezeUlyssesZero3", R"({"context_parallel": 2, "context_parallel_type": "ulysses", "data_parallel": 2,
         "zero_stage": 3, "freeze_embedding": true, "layers": [{"to": 2, "freeze": true}]})"},
    {"FreezeLayersDealtOtherwise", R"({"context_parallel": 2, "data_parallel": 2, "zero_stage": 3,
        "freeze_embedding": true, "recompute": "full", "layers": [
        {"to": 2, "freeze": true, "context_parallel_balance": "striped"},
        {"from": 3, "freeze": true, "context_parallel_balance": "contiguous"}]})"},
    {"FreezePipeline", R"({"pipeline_parallel": 2, "data_parallel": 2, "zero_stage": 1, "freeze_embedding": true,
         "layers": [{"to": 1, "freeze": true}, {"from": 3, "freeze": true}], "recompute": "full"})"},
    {"FreezePipelineZero3", R"({"pipeline_parallel": 2, "data_parallel": 2, "zero_stage": 3, "freeze_head": true,
         "layers": [{"from": 3, "freeze": true}]})",
     kLlama},
    {"FreezePipelineWholeStage", R"({"pipeline_parallel": 4, "data_parallel": 2, "zero_stage": 1, "clip_grad": 0,
         "freeze_head": true, "layers": [{"from": 2, "freeze": true}]})",
     kLlama},
    {"FreezePipelineZbH1Tensor", R"({"pipeline_parallel": 2, "pipeline_schedule": "zb-h1", "tensor_parallel": 2,
         "sequence_parallel": true, "layers": [{"from": 1, "to": 3, "freeze": true}]})"},
    {"FreezeInterleaved", R"({"pipeline_parallel": 2, "virtual_pipeline": 2, "data_parallel": 2,
         "layers": [{"from": 1, "step": 2, "freeze": true}]})"},
    {"FreezeRecomputeEvery2", R"({"recompute": "full", "recompute_every": 2, "data_parallel": 2, "zero_stage": 1,
         "freeze_embedding": true, "layers": [{"to": 1, "freeze": true}]})",
     kDropout},
    {"FreezeRecomputeEvery2Upper",
     R"({"recompute": "full", "recompute_every": 2, "layers": [{"from": 2, "freeze": true}]})"},
    {"FreezeOffload", R"({"data_parallel": 2, "zero_stage": 2, "optimizer_offload": true, "freeze_embedding": true,
         "layers": [{"to": 2, "freeze": true}]})"},
    {"FreezeScaledLoss", R"({"data_parallel": 2, "precision": "fp16", "gradient_dtype": "fp16", "loss_scale": 1024,
         "freeze_embedding": true, "layers": [{"to": 2, "freeze": true}]})"},
    {"FreezeFp8Zero3", R"({"data_parallel": 2, "zero_stage": 3, "precision": "fp8", "freeze_embedding": true,
         "layers": [{"to": 2, "freeze": true}]})",
     kLlama},
    {"FreezeLatent",
     R"({"data_parallel": 2, "zero_stage": 3, "freeze_embedding": true, "layers": [{"to": 2, "freeze": true}]})",
     kLatent},
    {"FreezeStoredScores", R"({"tensor_parallel": 2, "flash_attention": false, "recompute": "selective",
         "freeze_embedding": true, "layers": [{"to": 1, "freeze": true}, {"from": 3, "freeze": true}]})",
     kDropout},
    {"FreezeAllButTheHead", R"({"data_parallel": 2, "zero_stage": 3, "freeze": true, "freeze_embedding": true})", kVit},
    {"FreezeEncoder", R"({"data_parallel": 2, "zero_stage": 3, "freeze_embedding": true,
         "layers": [{"to": 2, "freeze": true}]})",
     kT5},
    {"FreezeDecoder",
     R"({"tensor_parallel": 2, "data_parallel": 2, "freeze_head": true, "layers": [{"from": 2, "freeze": true}]})",
     kT5Gated},
    {"FreezeDecoderPipeline",
     R"({"pipeline_parallel": 2, "freeze_head": true, "layers": [{"from": 2, "freeze": true}]})", kT5Gated},
    {"HowCollectivesAndKernelsAreLaunched",
     R"({"data_parallel": 2, "cuda_graphs": true, "attention_kernel": "flash_attention_1", )"
     R"("collective_algorithm": "tree", "collective_protocol": "ll128"})"},
    {"PipelineInnermost", R"({"tensor_parallel": 2, "context_parallel": 2, "pipeline_parallel": 2, "data_parallel": 2,
         "zero_stage": 1, "sequence_parallel": true, "mesh_order": "pp-dp-cp-tp"})"},

    {"Experts", R"({"data_parallel": 2, "expert_parallel": 2})", kMixtral},
    {"ExpertsOneARank", R"({"data_parallel": 4, "expert_parallel": 4})", kSwitch},
    {"ExpertsReplicas", R"({"data_parallel": 8, "expert_parallel": 2})", kSharedExperts},
    {"ExpertsZero1", R"({"data_parallel": 4, "expert_parallel": 2, "zero_stage": 1})", kMixtral},
    {"ExpertsZero2", R"({"data_parallel": 4, "expert_parallel": 2, "zero_stage": 2})", kSharedExperts},
    {"ExpertsZero3", R"({"data_parallel": 4, "expert_parallel": 2, "zero_stage": 3})", kMixtral},
    {"ExpertsZero3Fsdp",
     R"({"data_parallel": 8, "expert_parallel": 4, "zero_stage": 3, "framework": "fsdp", "recompute": "full"})",
     kSigmoidExperts},
    {"ExpertsReducedAtTheEnd",
     R"({"data_parallel": 4, "expert_parallel": 2, "overlap_grad_reduce": false, "micro_batch_size": 2})", kSwitch},
    {"ExpertMatrices", R"({"tensor_parallel": 2, "sequence_parallel": true})", kMixtral},
    {"ExpertMatricesAlone", R"({"data_parallel": 2, "expert_tensor_parallel": 2})", kSharedExperts},
    {"ExpertsAndTheirMatrices", R"({"data_parallel": 4, "expert_parallel": 2, "expert_tensor_parallel": 2})", kMixtral},
    {"ExpertsOverTensorRanks",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "data_parallel": 2, "expert_parallel": 4,
         "expert_tensor_parallel": 1})",
     kSharedExperts},
    {"ExpertsOverPartOfTensorRanks",
     R"({"tensor_parallel": 4, "sequence_parallel": true, "data_parallel": 2, "expert_parallel": 2,
         "expert_tensor_parallel": 2, "zero_stage": 1})",
     kSigmoidExperts},
    {"ExpertsPipeline", R"({"pipeline_parallel": 2, "data_parallel": 2, "expert_parallel": 2, "zero_stage": 1})",
     kSwitch},
    {"ExpertsPipelineZbH1",
     R"({"pipeline_parallel": 2, "pipeline_schedule": "zb-h1", "data_parallel": 2, "expert_parallel": 2})",
     kSharedExperts},
    {"ExpertsOverContextRanks", R"({"context_parallel": 2, "data_parallel": 2, "expert_parallel": 4})", kMixtral},
    {"ExpertsContextZero2", R"({"context_parallel": 2, "data_parallel": 4, "expert_parallel": 2, "zero_stage": 2})",
     kSharedExperts},
    {"ExpertsRecomputed", R"({"data_parallel": 2, "expert_parallel": 2, "recompute": "full"})", kSigmoidExperts},
    {"ExpertsDropTokens", R"({"data_parallel": 4, "expert_parallel": 4, "moe_expert_capacity_factor": 1})", kMixtral},
    {"ExpertsDropTokensPipeline",
     R"({"pipeline_parallel": 2, "data_parallel": 2, "expert_parallel": 2, "moe_expert_capacity_factor": 0.75})",
     kSwitch},
    {"ExpertsBf16", R"({"data_parallel": 4, "expert_parallel": 2, "precision": "bf16", "zero_stage": 1})", kMixtral},
    {"ExpertsFp8", R"({"data_parallel": 4, "expert_parallel": 2, "precision": "fp8", "zero_stage": 3})", kMixtral},
    {"ExpertsFourAxes",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "context_parallel": 2, "pipeline_parallel": 2,
         "data_parallel": 2, "expert_parallel": 4, "expert_tensor_parallel": 2, "zero_stage": 1})",
     kSharedExperts},
    {"ExpertsHybridShards", R"({"data_parallel": 8, "expert_parallel": 2, "zero_stage": 3, "zero_shard_degree": 4})",
     kMixtral},
    {"ExpertsZero3InTurn",
     R"({"data_parallel": 4, "expert_parallel": 2, "zero_stage": 3, "framework": "deepspeed",
         "stage3_max_live_parameters": 6000, "stage3_prefetch_bucket_size": 2000, "recompute": "full"})",
     kMixtral},
    {"ExpertsInterleaved",
     R"({"pipeline_parallel": 2, "virtual_pipeline": 2, "data_parallel": 2, "expert_parallel": 2})", kSwitch},
    {"ExpertsZbV",
     R"({"pipeline_parallel": 2, "pipeline_schedule": "zb-v", "data_parallel": 4, "expert_parallel": 2,
         "zero_stage": 2})",
     kSwitch},
    {"NextTokensTensor",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "data_parallel": 2, "expert_parallel": 2,
         "expert_tensor_parallel": 1, "zero_stage": 1})",
     kNextTokens},
    {"NextTokensPipeline", R"({"pipeline_parallel": 2, "data_parallel": 2, "expert_parallel": 2, "zero_stage": 1})",
     kNextTokens},
    {"NextTokensDualPipeV",
     R"({"pipeline_parallel": 2, "pipeline_schedule": "dualpipev", "data_parallel": 2, "expert_parallel": 2})",
     R"({"model": {"layers": 4, "activation": "swiglu", "positions": "rotary", "norm": "rmsnorm",
         "tied_embeddings": false, "linear_bias": false, "experts": 4, "experts_per_token": 2, "expert_ffn": 24,
         "mtp_num_layers": 1}})"},
    {"NextTokensZero3Recomputed", R"({"data_parallel": 4, "expert_parallel": 2, "zero_stage": 3, "recompute": "full"})",
     kNextTokens},
    {"NextTokensContext", R"({"context_parallel": 2, "data_parallel": 2, "expert_parallel": 4, "precision": "bf16"})",
     kNextTokens},
    {"NextTokensTiedInterleaved",
     R"({"tensor_parallel": 2, "pipeline_parallel": 2, "virtual_pipeline": 2, "data_parallel": 2, "zero_stage": 1})",
     kNextTokensTied},
    {"NextTokensTiedZbH1", R"({"pipeline_parallel": 4, "pipeline_schedule": "zb-h1", "data_parallel": 2})",
     kNextTokensTied},
    {"ExpertsOffload", R"({"data_parallel": 4, "expert_parallel": 2, "zero_stage": 1, "optimizer_offload": true})",
     kSharedExperts},
    {"ExpertsActivationOffload", R"({"data_parallel": 2, "expert_parallel": 2, "activation_offload": true})", kMixtral},
    {"ExpertsFreeze",
     R"({"data_parallel": 2, "expert_parallel": 2, "freeze_embedding": true, "layers": [{"to": 2, "freeze": true}]})",
     kMixtral},
    {"ExpertsTensorOverlap",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "tensor_parallel_overlap": true, "expert_parallel": 2,
         "expert_tensor_parallel": 1})",
     kMixtral},
    {"ExpertsUlysses",
     R"({"context_parallel": 2, "context_parallel_type": "usp", "ulysses_degree": 2, "data_parallel": 2,
         "expert_parallel": 4, "zero_stage": 2})",
     kSharedExperts},
    {"ExpertsGatheredKeysStriped",
     R"({"context_parallel": 2, "context_parallel_type": "all_gather", "context_parallel_balance": "striped",
         "expert_parallel": 2})",
     kMixtral},
    {"ExpertsEveryMicroBatch",
     R"({"data_parallel": 4, "expert_parallel": 2, "zero_stage": 1, "reduce_gradients": "every_micro_batch",
         "optimizer": "sgd_momentum"})",
     kSharedExperts},
    {"ExpertsRecomputedByOps", R"({"data_parallel": 2, "expert_parallel": 2, "recompute": "selective_op"})",
     kSharedExperts},
    {"ExpertsRecomputedModules",
     R"({"data_parallel": 2, "expert_parallel": 2, "recompute": "selective", "recompute_modules": ["layernorm", "mlp"]})",
     kSharedExperts},
    {"ExpertsLatentAttention",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "data_parallel": 2, "expert_parallel": 4,
         "expert_tensor_parallel": 1, "zero_stage": 1})",
     R"({"model": {"layers": 2, "attention": "latent", "query_lora_rank": 12, "kv_lora_rank": 16, "nope_head_dim": 8,
         "rope_head_dim": 4, "value_head_dim": 6, "activation": "swiglu", "ffn": 64, "norm": "rmsnorm",
         "tied_embeddings": false, "linear_bias": false, "experts": 8, "experts_per_token": 2, "expert_ffn": 16,
         "shared_expert_ffn": 16, "router_score": "sigmoid_of_top", "router_groups": 2, "router_best_groups": 1}})"},
    {"ExpertsUnfused", R"({"data_parallel": 2, "expert_parallel": 2, "framework": "fsdp"})", kSigmoidExperts},
    // Weighed where they are put together, not with their activation function.
    {"ExpertsDeepSpeed", R"({"data_parallel": 4, "expert_parallel": 2, "framework": "megatron-deepspeed"})", kMixtral},
    {"ExpertsHierarchical", R"({"data_parallel": 4, "expert_parallel": 4, "moe_token_dispatcher": "hierarchical"})",
     kMixtral},
    {"ExpertsFlex",
     R"({"data_parallel": 4, "expert_parallel": 2, "expert_tensor_parallel": 2, "moe_token_dispatcher": "flex"})",
     kSharedExperts},
    {"ExpertsFlexDropTokens",
     R"({"data_parallel": 4, "expert_parallel": 2, "moe_token_dispatcher": "flex", "moe_expert_capacity_factor": 0.75})",
     kMixtral},
    {"ExpertsShared", R"({"data_parallel": 2, "expert_parallel": 2, "moe_shared_expert_overlap": true})",
     kSharedExperts},
    {"ExpertsSharedSequence",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "data_parallel": 2, "expert_parallel": 4,
         "expert_tensor_parallel": 1, "moe_shared_expert_overlap": true, "zero_stage": 1})",
     kSigmoidExperts},
    {"ExpertsSharedRecomputed",
     R"({"data_parallel": 4, "expert_parallel": 2, "moe_shared_expert_overlap": true, "recompute": "full"})",
     kSharedExperts},
    {"ExpertsPairs",
     R"({"data_parallel": 2, "expert_parallel": 2, "overlap_moe_expert_parallel_comm": true, "zero_stage": 2})",
     kMixtral},
    {"ExpertsPairsPipeline",
     R"({"pipeline_parallel": 2, "virtual_pipeline": 2, "data_parallel": 2, "expert_parallel": 2,
         "overlap_moe_expert_parallel_comm": true})",
     kSwitch},
    {"ExpertsInChunks",
     R"({"data_parallel": 4, "expert_parallel": 2, "expert_tensor_parallel": 2, "framework": "deepspeed",
         "moe_schedule": "fsmoe", "moe_pipeline_degree_forward": 2, "moe_pipeline_degree_backward": 4})",
     kMixtral},
    {"ExpertsInChunksBesideGradientsInPieces",
     R"({"data_parallel": 4, "expert_parallel": 2, "expert_tensor_parallel": 2, "framework": "deepspeed",
         "moe_schedule": "fsmoe", "moe_pipeline_degree_forward": 2, "moe_pipeline_degree_backward": 2,
         "moe_gradient_share_experts": 0.5, "moe_gradient_share_dense": 0.25})",
     kMixtral},
    {"ExpertsInChunksOfPaddedSlots",
     R"({"data_parallel": 4, "expert_parallel": 4, "framework": "deepspeed", "moe_schedule": "tutel",
         "moe_pipeline_degree_forward": 3, "moe_pipeline_degree_backward": 3})",
     kSwitch},
    {"ExpertsInChunksRecomputed",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "data_parallel": 2, "expert_parallel": 2, "zero_stage": 1,
         "moe_schedule": "fsmoe_no_iio", "moe_pipeline_degree_forward": 4, "moe_pipeline_degree_backward": 2,
         "recompute": "full", "framework": "fsdp"})",
     kSigmoidExperts},
    {"ExpertsOfASoftGate",
     R"({"data_parallel": 4, "expert_parallel": 4, "moe_gate": "dense_to_sparse", "moe_gate_hard_step": 9,
         "moe_gate_first_temperature": 0.5, "moe_gate_last_temperature": 0.5, "moe_gate_threshold": 0.05,
         "moe_gate_decay": "linear", "moe_gate_decay_steps": 4, "moe_gate_first_logit_deviation": 1,
         "moe_gate_last_logit_deviation": 2})",
     kGated},
    {"ExpertsOfAPaddedGate",
     R"({"data_parallel": 4, "expert_parallel": 2, "zero_stage": 2, "moe_gate": "dense_to_sparse",
         "moe_gate_hard_step": 9, "moe_gate_first_temperature": 0.5, "moe_gate_threshold": 0.05,
         "moe_gate_padded": true, "recompute": "selective_op"})",
     kGated},
    {"ExpertsOfASeed",
     R"({"data_parallel": 4, "expert_parallel": 2, "zero_stage": 1, "moe_gate": "dense_to_sparse",
         "moe_gate_seed_steps": 9, "moe_gate_hard_step": 9})",
     kGated},
    {"ExpertsOfAHardGate",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "data_parallel": 2, "expert_parallel": 2,
         "expert_tensor_parallel": 1, "moe_gate": "dense_to_sparse", "moe_gate_first_temperature": 0.5})",
     kGated},
    {"ExpertsInCopies",
     R"({"data_parallel": 4, "expert_parallel": 2, "zero_stage": 1, "moe_balancer": "given", "moe_slots_per_rank": 5,
         "moe_balance_interval": 3, "moe_expert_placement": [0, 1, 2, 3, 4, 5, 6, 7, 0, 2]})",
     kMixtral},
    {"ExpertsGathered", R"({"data_parallel": 4, "expert_parallel": 2, "moe_token_dispatcher": "allgather"})", kMixtral},
    {"ExpertsGatheredMatrices",
     R"({"data_parallel": 4, "expert_parallel": 2, "expert_tensor_parallel": 2, "moe_token_dispatcher": "allgather"})",
     kSharedExperts},
    {"ExpertsGatheredMatricesAlone",
     R"({"data_parallel": 2, "expert_tensor_parallel": 2, "moe_token_dispatcher": "allgather"})", kSigmoidExperts},
    // Weighed behind their second product: gradients of weights are sums over the experts of all ranks.
    {"ExpertsGatheredWeighedLast",
     R"({"data_parallel": 4, "expert_parallel": 2, "expert_tensor_parallel": 2, "moe_token_dispatcher": "allgather",
         "framework": "megatron-deepspeed"})",
     kMixtral},
    {"ExpertsGatheredBiases", R"({"data_parallel": 4, "expert_parallel": 4, "moe_token_dispatcher": "allgather"})",
     kSwitch},
    // Tokens are gathered along two dimensions.
    {"ExpertsGatheredOverTensorRanks",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "data_parallel": 2, "expert_parallel": 4,
         "expert_tensor_parallel": 1, "moe_token_dispatcher": "allgather", "zero_stage": 1})",
     kSharedExperts},
    {"ExpertsGatheredFourAxes",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "context_parallel": 2, "pipeline_parallel": 2,
         "data_parallel": 2, "expert_parallel": 4, "expert_tensor_parallel": 2, "zero_stage": 1,
         "moe_token_dispatcher": "allgather"})",
     kSharedExperts},
    {"ExpertsGatheredRecomputedModules",
     R"({"data_parallel": 2, "expert_parallel": 2, "moe_token_dispatcher": "allgather", "recompute": "selective",
         "recompute_modules": ["layernorm", "moe"]})",
     kSharedExperts},
    {"ExpertsGatheredZbH1",
     R"({"pipeline_parallel": 2, "pipeline_schedule": "zb-h1", "data_parallel": 2, "expert_parallel": 2,
         "moe_token_dispatcher": "allgather", "zero_stage": 2})",
     kSwitch},
    {"ExpertsByMasks",
     R"({"data_parallel": 4, "expert_parallel": 2, "moe_permute": "einsum", "moe_expert_capacity_factor": 4})",
     kMixtral},
    {"ExpertsByMasksDropTokens",
     R"({"data_parallel": 4, "expert_parallel": 4, "moe_permute": "einsum", "moe_expert_capacity_factor": 0.75,
         "framework": "deepspeed", "zero_stage": 2})",
     kMixtral},
    {"ExpertsByMasksOverTensorRanks",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "data_parallel": 2, "expert_parallel": 4,
         "expert_tensor_parallel": 1, "moe_permute": "einsum", "moe_expert_capacity_factor": 3, "recompute": "full"})",
     kSharedExperts},
    {"ExpertsByMasksGathered",
     R"({"data_parallel": 4, "expert_parallel": 2, "expert_tensor_parallel": 2, "moe_permute": "einsum",
         "moe_expert_capacity_factor": 4, "moe_token_dispatcher": "allgather", "framework": "megatron-deepspeed"})",
     kMixtral},
    {"ExpertsNoisy", R"({"data_parallel": 4, "expert_parallel": 2, "zero_stage": 1})", kNoisyExperts},
    {"ExpertsNoisyPipeline",
     R"({"pipeline_parallel": 2, "data_parallel": 2, "expert_parallel": 2, "recompute": "full"})", kNoisyExperts},
    {"ExpertsNoisyOverSequences",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "context_parallel": 2, "data_parallel": 2,
         "expert_parallel": 4, "expert_tensor_parallel": 1, "zero_stage": 2})",
     kNoisyExperts},
    {"ExpertsBalanced", R"({"data_parallel": 4, "expert_parallel": 4, "zero_stage": 3})", kBalancedSequences},
    {"ExpertsBalancedOverSequences",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "context_parallel": 2, "data_parallel": 2,
         "expert_parallel": 4, "expert_tensor_parallel": 1, "moe_token_dispatcher": "allgather"})",
     kBalancedSequences},
    {"ExpertsBalancedRecomputed",
     R"({"pipeline_parallel": 2, "tensor_parallel": 2, "sequence_parallel": true, "expert_parallel": 2,
         "expert_tensor_parallel": 1, "recompute": "full"})",
     kBalancedSequences},
    {"ExpertsBalancedGlobally", R"({"data_parallel": 4, "expert_parallel": 2, "zero_stage": 1, "micro_batch_size": 1})",
     kGloballyBalanced},
    {"ExpertsBalancedGloballyOverSequences",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "context_parallel": 2, "data_parallel": 2,
         "expert_parallel": 4, "expert_tensor_parallel": 1, "micro_batch_size": 2})",
     kGloballyBalanced},
    {"ExpertsChooseTokens", R"({"data_parallel": 4, "expert_parallel": 2, "zero_stage": 1})", kChoosingExperts},
    {"ExpertsChooseTokensPipeline",
     R"({"pipeline_parallel": 2, "data_parallel": 2, "expert_parallel": 2, "recompute": "full"})", kChoosingExperts},
    {"ExpertsChooseTokensGathered",
     R"({"data_parallel": 4, "expert_parallel": 4, "moe_token_dispatcher": "allgather", "framework": "fsdp"})",
     kChoosingExperts},
    {"ExpertsChooseTokensByMasks",
     R"({"data_parallel": 4, "expert_parallel": 2, "moe_permute": "einsum", "moe_expert_capacity_factor": 1})",
     kChoosingExperts},
    {"ExpertsAssigned", R"({"data_parallel": 4, "expert_parallel": 4, "zero_stage": 3})", kAssignedExperts},
    {"ExpertsAssignedInChunks",
     R"({"data_parallel": 4, "expert_parallel": 2, "expert_tensor_parallel": 2, "framework": "deepspeed",
         "moe_schedule": "tutel", "moe_pipeline_degree_forward": 2, "moe_pipeline_degree_backward": 2})",
     kAssignedExperts},
    {"ExpertsHashed", R"({"data_parallel": 4, "expert_parallel": 2, "zero_stage": 2})", kHashedExperts},
    {"ExpertsCutARing", R"({"context_parallel": 4, "expert_parallel": 2})", kMixtral},
    {"ExpertsCutADoubleRing",
     R"({"context_parallel": 8, "inner_ring_degree": 4, "expert_parallel": 2, "zero_stage": 1})", kMixtral},
    {"ExpertsHashedOverSequences",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "context_parallel": 2, "data_parallel": 2,
         "expert_parallel": 4, "expert_tensor_parallel": 1, "zero_stage": 1})",
     kHashedExperts},
    {"ExpertsHashedPipeline",
     R"({"pipeline_parallel": 3, "data_parallel": 2, "expert_parallel": 2, "recompute": "full"})", kHashedExperts},

    // Documents are other ones in each step: one step.
    {"DocumentsReplicas", R"({"data_parallel": 4, "micro_batch_size": 2})", kDocuments, 1},
    {"DocumentsZero3", R"({"data_parallel": 4, "zero_stage": 3, "recompute": "full"})", kDocumentsGpt, 1},
    {"DocumentsTensor", R"({"tensor_parallel": 2, "sequence_parallel": true, "data_parallel": 2})", kDocuments, 1},
    {"DocumentsPipeline", R"({"pipeline_parallel": 2, "data_parallel": 2, "recompute": "selective"})", kDocuments, 1},
    {"DocumentsPipelineOfChunks",
     R"({"pipeline_parallel": 2, "virtual_pipeline": 2, "pipeline_schedule": "interleaved", "data_parallel": 2})",
     kDocumentsGpt, 1},
    {"DocumentsGatheredKeys", R"({"context_parallel": 4, "context_parallel_type": "all_gather", "data_parallel": 2})",
     kDocuments, 1},
    {"DocumentsGatheredKeysStriped",
     R"({"context_parallel": 2, "context_parallel_type": "all_gather", "context_parallel_balance": "striped",
         "micro_batch_size": 2})",
     kDocumentsGpt, 1},
    {"DocumentsRing", R"({"context_parallel": 4, "data_parallel": 2, "micro_batch_size": 2})", kDocuments, 1},
    {"DocumentsRingStriped", R"({"context_parallel": 4, "context_parallel_balance": "striped"})", kDocumentsGpt, 1},
    {"DocumentsUlysses", R"({"context_parallel": 2, "context_parallel_type": "ulysses", "data_parallel": 2})",
     kDocuments, 1},
    {"DocumentsUsp",
     R"({"context_parallel": 4, "context_parallel_type": "usp", "ulysses_degree": 2, "data_parallel": 2})", kDocuments,
     1},
    {"DocumentsDoubleRing", R"({"context_parallel": 4, "inner_ring_degree": 2, "data_parallel": 2})", kDocuments, 1},
    {"ZeppelinZones", R"({"context_parallel": 8, "context_parallel_type": "zeppelin"})", kDocumentsOfABatch, 1},
    {"ZeppelinZonesOverNodes",
     R"({"context_parallel": 4, "context_parallel_type": "zeppelin", "tensor_parallel": 4, "sequence_parallel": true,
     "zeppelin_capacity": 1.1})",
     kDocumentsOfABatch, 1},
    {"ZeppelinZonesRecomputed",
     R"({"context_parallel": 8, "context_parallel_type": "zeppelin", "recompute": "full", "zero_stage": 3,
     "context_parallel_fp32_gradients": true, "zeppelin_capacity": 2})",
     kDocumentsOfABatch, 1},
    {"ZeppelinHybrid",
     R"({"context_parallel": 8, "context_parallel_type": "zeppelin", "zeppelin_partition": "hybrid", "zero_stage": 1})",
     kDocumentsOfABatch, 1},
    {"ZeppelinEven",
     R"({"context_parallel": 4, "context_parallel_type": "zeppelin", "zeppelin_partition": "even",
     "tensor_parallel": 2})",
     kDocumentsOfABatch, 1},
    {"ZeppelinEvenAsItIs",
     R"({"context_parallel": 8, "context_parallel_type": "zeppelin", "zeppelin_partition": "even",
     "zeppelin_routing": false, "zeppelin_remapping": false})",
     kDocumentsOfABatch, 1},
    {"ZeppelinFlexsp",
     R"({"context_parallel": 8, "context_parallel_type": "zeppelin", "zeppelin_partition": "flexsp"})",
     kDocumentsOfABatchGpt, 1},
    {"ZeppelinFlexspZero3",
     R"({"context_parallel": 8, "context_parallel_type": "zeppelin", "zeppelin_partition": "flexsp", "zero_stage": 3,
     "recompute": "full", "zeppelin_capacity": 4})",
     kDocumentsOfABatch, 1},
    {"ZeppelinFlexspTensor",
     R"({"context_parallel": 4, "context_parallel_type": "zeppelin", "zeppelin_partition": "flexsp",
     "tensor_parallel": 2, "sequence_parallel": true})",
     kDocumentsOfABatchGpt, 1},
    {"DocumentsMemo", R"({"memo": true, "memo_alpha": 0.5, "data_parallel": 2})", kDocuments, 1},
    {"DocumentsExperts", R"({"data_parallel": 4, "expert_parallel": 2, "zero_stage": 1})", kDocumentsExperts, 1},
};
INSTANTIATE_TEST_SUITE_P(All, Layouts, testing::ValuesIn(kLayouts),
                         [](const auto& test) { return std::string(test.param.name); });

// Each case in another order than the default.
TEST(Layouts, ComputeTheNumbersOfOneRankInEveryMeshOrder) {
  constexpr std::array kOrders{"tp-cp-ep-pp-dp", "pp-dp-cp-tp", "dp-tp-pp-cp-ep", "cp-pp-ep-tp-dp", "dp-pp-cp-tp"};
  std::size_t next = 0, reordered = 0, refused = 0;
  for (const Layout& layout : kLayouts) {
    Scenario scenario = scenario_of(layout);
    Program in_order, program;
    lower(scenario, in_order);
    scenario.plan.framework.mesh_order = kOrders[next++ % kOrders.size()];
    try {
      lower(scenario, program);
    } catch (
        const InputError& error) {  // nodes hold other ranks together; tokens that are gathered do not lie in order
      EXPECT_TRUE(scenario.plan.mics.hierarchical ||
                  scenario.plan.expert.dispatcher == expert_parallel::Dispatcher::allgather)
          << error.what();
      ++refused;
      continue;
    }
    const auto digits = program.mesh.digits(), before = in_order.mesh.digits();
    if (std::equal(digits.begin(), digits.end(), before.begin(), before.end(),
                   [](const Digit& a, const Digit& b) { return a.axis == b.axis && a.stride == b.stride; }))
      continue;  // one axis
    SCOPED_TRACE(std::string(layout.name) + " " + scenario.plan.framework.mesh_order);
    expect_same_numbers(scenario, program, seeded(1, 1));
    ++reordered;
  }
  EXPECT_GT(reordered, 50u);
  EXPECT_LE(refused, 5u);
}

// Values that are named and refused: no kernels of NVFP4, none of 4-bit moments.
bool is_refused(const std::string& field, const nlohmann::ordered_json& value) {
  try {
    const Scenario scenario = tiny(json{{"plan", {{field, json::parse(value.dump())}}}}.dump());
    check(scenario);
    check_runnable(scenario);
  } catch (const InputError& error) {
    return error.where().pointer == "/plan/" + field && (value == "nvfp4" || value == "int4");
  }
  return false;
}

// A flag that may be set in one of these plans and that no run takes; what needs NVFP4 is refused with it.
bool is_not_run(const std::string& flag) {
  std::vector<json> documents;
  for (const auto& [stage, precision] : {std::pair{3, "fp8"}, std::pair{1, "fp8"}, std::pair{1, "nvfp4"}})
    documents.push_back({{"plan", {{"data_parallel", 8}, {"zero_stage", stage}, {"precision", precision}}}});
  documents.push_back(json::parse(kMixtral));
  documents.back()["plan"] = {{"data_parallel", 8}, {"expert_parallel", 2}};
  for (json& document : documents) {
    document["cluster"] = {{"node", "dgx-b200"}};
    document["plan"][flag] = true;
    const Scenario scenario = tiny(document.dump());
    try {
      check(scenario);
    } catch (const InputError&) {
      continue;
    }
    try {
      check_runnable(scenario);
    } catch (const InputError& error) {
      const std::string& at = error.where().pointer;
      return at == "/plan/" + flag || (at == "/plan/precision" && scenario.plan.precision.mix == precision::Mix::nvfp4);
    }
  }
  json experts = json::parse(kMixtral);
  experts["plan"] = {{"data_parallel", 4}, {"expert_parallel", 4}, {flag, true}};
  try {
    const Scenario scenario = tiny(experts.dump());
    check(scenario);
    check_runnable(runnable(scenario));
  } catch (const InputError& error) {
    return error.where().pointer == "/plan/" + flag && error.expected().find("in a run") != std::string::npos;
  }
  return false;
}

// Balancers that choose placements between steps, which no run takes, and what is theirs alone.
bool is_of_balancers(const std::string& field) {
  if (field != "moe_balancer" && field != "moe_balance_threshold" && field != "moe_balance_busiest_rank") return false;
  int refused = 0;
  for (const char* value : {"flexmoe", "eplb", "symi", "fastermoe", "swipe"}) {
    json patch = json::parse(kMixtral);
    patch["plan"] = {{"data_parallel", 4}, {"expert_parallel", 4}, {"moe_balancer", value}};
    const Scenario scenario = tiny(patch.dump());
    check(scenario);
    try {
      check_runnable(runnable(scenario));
    } catch (const InputError& error) {
      refused += error.where().pointer == "/plan/moe_balancer" ? 1 : 0;
    }
  }
  return refused == 5;
}

// When gradients are reduced, at every stage, with and without a pipeline and replicas of shard groups.
class Reductions : public testing::TestWithParam<std::tuple<int, const char*, const char*, bool>> {};
TEST_P(Reductions, ComputeTheNumbersOfOneRank) {
  const auto& [stage, reduce, schedule, hybrid] = GetParam();
  json plan{{"zero_stage", stage}, {"reduce_gradients", reduce}, {"data_parallel", hybrid ? 4 : 2}};
  if (hybrid && stage > 0) plan["zero_shard_degree"] = 2;
  if (stage == 3) plan["reshard_after_forward"] = std::string_view(schedule) == "zb-h1";
  if (std::string_view(schedule) != "none") plan["pipeline_parallel"] = 2, plan["pipeline_schedule"] = schedule;
  expect_same_numbers(tiny(json{{"plan", plan}}.dump()), seeded(1));
}
std::string reduction_name(const testing::TestParamInfo<Reductions::ParamType>& test) {
  const auto& [stage, reduce, schedule, hybrid] = test.param;
  std::string name = "Zero" + std::to_string(stage) + "_" + reduce + "_" + schedule;
  std::replace(name.begin(), name.end(), '-', '_');
  return name + (hybrid ? "_hybrid" : "");
}
INSTANTIATE_TEST_SUITE_P(All, Reductions,
                         testing::Combine(testing::Range(0, 4), testing::Values("every_micro_batch", "once"),
                                          testing::Values("none", "1f1b", "zb-h1"), testing::Bool()),
                         reduction_name);

// Pieces of two parameter sets, alike and divided over different groups.
TEST(Layouts, OfTwoParameterSetsComputeTheNumbersOfOneRank) {
  const auto expect_same = [](const std::string& plan, const std::vector<Strategy>& strategies, const char* model) {
    SCOPED_TRACE(plan);
    json patch = json::parse(model);
    patch["plan"] = json::parse(plan);
    const Scenario scenario = tiny(patch.dump());
    Program program;
    lower(scenario, strategies, program);
    bool two = false;
    for (const Piece& piece : program.pieces) two = two || piece.sets.size() == 2;
    EXPECT_TRUE(two);
    expect_same_numbers(scenario, program, seeded(1));
  };
  for (const char* rest :
       {R"("zero_stage": 0)", R"("zero_stage": 1, "overlap_param_gather": false)", R"("zero_stage": 2)",
        R"("zero_stage": 3, "reshard_after_forward": false)", R"("zero_stage": 1, "zero_shard_degree": 2)",
        R"("zero_stage": 2, "optimizer_offload": true)", R"("zero_stage": 1, "optimizer_offload": true)",
        R"("zero_stage": 2, "precision": "fp16", "overlap_grad_reduce": false)"})
    expect_same(R"({"data_parallel": 4, )" + std::string(rest) + "}", with_two_sets<alike>(), "{}");
  constexpr const char* kHybrid =
      R"({"tensor_parallel": 2, "sequence_parallel": true, "pipeline_parallel": 2, "data_parallel": 2, "zero_stage": 3})";
  expect_same(kHybrid, with_two_sets<alike>(), kLlama);
  expect_same(kHybrid, with_two_sets<rest_stays_whole>(), kLlama);
  expect_same(kHybrid, with_two_sets<rest_is_replicated>(), "{}");
  for (const char* reduced : {"every_micro_batch", "once"})
    for (const int stage : {1, 2, 3}) {
      const std::string plan = R"({"data_parallel": 4, "zero_stage": )" + std::to_string(stage) +
                               R"(, "reduce_gradients": ")" + reduced + R"("})";
      expect_same(plan, with_two_sets<rest_stays_whole>(), R"({"model": {"hidden": 36, "ffn": 50}})");
      expect_same(plan, with_two_sets<rest_is_replicated>(), "{}");
    }
}

// Weights, gradients and states each over other ranks, and sums that go from one group to the next.
TEST(Layouts, OfThreeShardGroupsComputeTheNumbersOfOneRank) {
  std::vector<Strategy> strategies = with_two_sets<three_levels>();
  for (Strategy& strategy : strategies)
    if (strategy.name == std::string_view("data_parallel"))
      strategy.add_digits = [](const Scenario&, Mesh& mesh) {
        mesh.add(MeshAxis::dp_shard, 2, "dp_shard.pair");
        mesh.add(MeshAxis::dp_shard, 2);
        mesh.add(MeshAxis::dp_replicate, 2);
      };
  for (const char* plan : {R"({"data_parallel": 8, "zero_stage": 3})",
                           R"({"data_parallel": 8, "zero_stage": 3, "overlap_param_gather": false, "prefetch": 0})",
                           R"({"data_parallel": 8, "pipeline_parallel": 2, "zero_stage": 3})"})
    for (const char* model : {R"({"workload": {"global_batch_size": 16}})",
                              R"({"workload": {"global_batch_size": 16}, "model": {"hidden": 36, "ffn": 50}})"}) {
      SCOPED_TRACE(std::string(plan) + model);
      json patch = json::parse(model);
      patch["plan"] = json::parse(plan);
      const Scenario scenario = tiny(patch.dump());
      Program program;
      lower(scenario, strategies, program);
      expect_same_numbers(scenario, program, seeded(1));
    }
}

// A Program's parts are equal, but for the last of a flat buffer: what a plan cannot divide evenly it refuses, and what
// it takes it computes rightly.
TEST(Layouts, OfSizesThatDoNotDivideAreRefusedOrComputeTheNumbersOfOneRank) {
  int refused = 0, computed = 0;
  for (const char* model :
       {R"({"model": {"heads": 3, "hidden": 36}})", R"({"model": {"heads": 6, "hidden": 36, "kv_heads": 3}})",
        R"({"model": {"ffn": 50}})", R"({"model": {"vocab": 510}})", R"({"model": {"layers": 3}})",
        R"({"workload": {"sequence_length": 14}})", R"({"workload": {"sequence_length": 15}})",
        R"({"workload": {"global_batch_size": 6}})"})
    for (const char* plan :
         {R"({"tensor_parallel": 2})", R"({"tensor_parallel": 3})", R"({"tensor_parallel": 4})",
          R"({"tensor_parallel": 2, "sequence_parallel": true})", R"({"data_parallel": 3, "zero_stage": 3})",
          R"({"data_parallel": 4, "zero_stage": 1})", R"({"pipeline_parallel": 2})",
          R"({"tensor_parallel": 2, "sequence_parallel": true, "tensor_parallel_overlap": true})",
          R"({"context_parallel": 2})", R"({"context_parallel": 4, "context_parallel_balance": "contiguous"})",
          R"({"context_parallel": 3, "context_parallel_balance": "striped"})",
          R"({"context_parallel": 2, "context_parallel_type": "ulysses"})",
          R"({"context_parallel": 4, "context_parallel_type": "all_gather"})"}) {
      SCOPED_TRACE(std::string(model) + " " + plan);
      json patch = json::parse(model);
      patch["plan"] = json::parse(plan);
      Program program;
      try {
        const Scenario scenario = tiny(patch.dump());
        lower(scenario, program);
        execute(scenario, program, seeded(1, 1));
      } catch (const InputError&) {
        ++refused;
        continue;
      }
      expect_same_numbers(tiny(patch.dump()), program, seeded(1, 1));
      ++computed;
    }
  EXPECT_GT(refused, 20);
  EXPECT_GT(computed, 20);
}

// Every field of the plan has a case that sets it, and every value of the fields that name one. Of algorithms and
// protocols of collectives, which change no number, one will do.
TEST(Layouts, TheCasesCoverThePlan) {
  std::map<std::string, std::set<std::string>> met{{"precision", {"\"fp32\""}}};  // tiny()'s
  for (const Layout& layout : kLayouts) {
    const json plan = json::parse(layout.plan);
    for (const auto& [field, value] : plan.items()) met[field].insert(value.dump());
  }
  const nlohmann::ordered_json schema = scenario_schema();
  nlohmann::ordered_json plan;
  for (const auto& form : schema.at("$defs").at("plan").at("anyOf"))  // a file's name, or the plan itself
    if (form.contains("properties")) plan = form.at("properties");
  std::size_t fields = 0;
  for (const auto& [field, rule] : plan.items()) {
    if (!rule.contains("default")) continue;  // comments
    ++fields;
    if (is_of_balancers(field)) continue;
    EXPECT_TRUE(met.contains(field) || (rule.at("default") == false && is_not_run(field))) << field;
    // Which measured curve times an op, or which algorithm NCCL takes, changes nothing in the Program.
    if (!rule.contains("enum") || field.starts_with("collective_") || field == "attention_kernel") continue;
    for (const auto& value : rule.at("enum"))
      EXPECT_TRUE(value == rule.at("default") || met[field].contains(value.dump()) || is_refused(field, value))
          << field << " " << value;
  }
  EXPECT_GT(fields, 30u);
  // What may differ by ranges of layers does so in a case.
  std::set<std::string> met_in_ranges;
  for (const Layout& layout : kLayouts)
    for (const json& range : json::parse(layout.plan).value("layers", json::array()))
      for (const auto& [field, value] : range.items()) met_in_ranges.insert(field);
  for (const auto& [field, rule] : schema.at("$defs").at("layers").at("properties").items())
    if (rule.contains("type") || rule.contains("enum")) {
      EXPECT_TRUE(met_in_ranges.contains(field)) << field;
    }
  for (const int stage : {1, 2, 3}) EXPECT_TRUE(met["zero_stage"].contains(std::to_string(stage)));
}

// ---- experts ----------------------------------------------------------------------------------------------------

TEST(Experts, ARunHasASlotForEveryTokenOfAnExpert) {
  Scenario scenario = tiny(kMixtral);
  EXPECT_THROW(check_runnable(scenario), InputError) << "slots for balanced loads";
  const auto slots = [](const Scenario& s) {
    Program program;
    lower(s, program);
    for (const Piece& piece : program.pieces)
      for (const Op& op : piece.forward.ops)
        if (op.kind == OpKind::permute) return piece.tensors[op.writes[0]].sizes[1];
    return std::int64_t{0};
  };
  const std::int64_t tokens = 16;
  EXPECT_EQ(slots(scenario), tokens * 2 / 8);
  EXPECT_EQ(slots(runnable(scenario)), tokens);
  EXPECT_NO_THROW(check_runnable(runnable(scenario)));
  scenario.plan.expert.capacity_factor = 1.5;
  EXPECT_EQ(slots(runnable(scenario)), tokens * 2 / 8 * 3 / 2) << "the plan's own";
  scenario.plan.expert.capacity_factor = 1000;
  EXPECT_EQ(slots(scenario), tokens) << "no expert gets a token twice";
}

// Rows that each rank's experts computed are those that the ranks' tokens were routed to, and no others; of a plan with
// a factor all slots are.
TEST(Experts, OnlyRowsThatAreThereAreSentAndComputed) {
  constexpr double kTokens = 8 * 16, kChoices = 2, kLayers = 2, kExperts = 8;
  for (const char* plan : {R"({"plan": {"data_parallel": 4, "expert_parallel": 4}})",
                           R"({"plan": {"data_parallel": 4, "expert_parallel": 2, "expert_tensor_parallel": 2}})",
                           R"({"plan": {"data_parallel": 1}})"}) {
    json document = json::parse(kMixtral);
    document.merge_patch(json::parse(plan));
    const Scenario scenario = runnable(tiny(document.dump()));
    Program program;
    lower(scenario, program);
    const auto ranks = static_cast<double>(program.mesh.ranks()),
               divided = static_cast<double>(program.mesh.size(MeshAxis::etp));
    double computed = 0, slots = 0, sent = 0;
    for (const RankResult& rank :
         execute_ranks(scenario, program, seeded(1, 1), [](std::size_t) { return make_cpu_backend(); })) {
      EXPECT_EQ(rank.rows.layers, kLayers * 8 / ranks);
      EXPECT_GE(rank.rows.busiest_rank, 1);
      computed += rank.rows.computed, slots += rank.rows.slots, sent += rank.rows.sent;
    }
    // Each of an expert's ranks has a part of every row.
    EXPECT_EQ(computed, kTokens * kChoices * kLayers * divided) << plan;
    EXPECT_EQ(slots, kTokens * kExperts * kLayers * divided) << plan;
    EXPECT_EQ(sent > 0, ranks > 1) << plan;
    EXPECT_LT(sent, kTokens * kChoices * kLayers) << plan;
  }
  Scenario padded = runnable(tiny(kMixtral));
  padded.plan.expert.capacity_factor = 4;
  Program program;
  lower(padded, program);
  EXPECT_EQ(execute_ranks(padded, program, seeded(1, 1), [](std::size_t) { return make_cpu_backend(); })[0].rows.layers,
            0);
}

// FLOPs of experts are those of the rows that a rank had; ops on nothing else are as they are.
TEST(Experts, AMeasuredReportIsOfTheRowsThatWereThere) {
  json document = json::parse(kMixtral);
  document.merge_patch(json::parse(R"({"plan": {"data_parallel": 2, "expert_parallel": 2}})"));
  const Scenario scenario = runnable(tiny(document.dump()));
  Program program;
  lower(scenario, program);
  ExecutionOptions options = seeded(1);
  options.measure = true;
  options.find_undefined = options.keep_tensors = false;
  const auto factory = [](std::size_t) { return make_cpu_backend(); };
  const std::vector<RankResult> ranks = execute_ranks(scenario, program, options, factory);
  const Report report = measured_report(scenario, program, ranks, factory(0)->facts());
  double exposed = 0;
  for (const double seconds : report.stages.front().time.exposed) exposed += seconds;
  EXPECT_GT(exposed, 0);
  EXPECT_NEAR(report.stages.front().time.total(), report.step_seconds, 1e-9 * report.step_seconds);
  ASSERT_TRUE(report.routing);
  EXPECT_EQ(report.routing->busiest_rank, std::max(ranks[0].rows.busiest_rank, ranks[1].rows.busiest_rank));
  EXPECT_GE(report.routing->busiest_rank, report.routing->mean_busiest_rank);
  EXPECT_GT(report.routing->busiest_expert, 1);
  EXPECT_THAT(report.notes, testing::Contains(HasSubstr("25.0 % of what they have slots for")));
  std::map<std::string, double> found;
  for (const OpReport& row : report.ops) found.emplace(row.name, row.flops);
  int met = 0;
  for (std::size_t p = 0; p < program.pieces.size(); ++p)
    for (const Op& op : program.pieces[p].forward.ops) {
      const std::string name = op.name;
      if (op.group_dims == 0 && name != "qkv") continue;
      const double whole = flops(op, program.pieces[p].tensors);
      const double measured = found.at(piece_title(program, p) + ".forward." + name);
      met += op.group_dims > 0 ? 1 : 0;
      EXPECT_TRUE(std::ranges::any_of(ranks, [&](const RankResult& rank) {
        const double share = op.group_dims > 0 ? rank.rows.computed / rank.rows.slots : 1;
        return std::abs(measured - whole * share) < 1e-6 * whole;
      })) << name;
    }
  EXPECT_EQ(met, 2) << "both products of experts";
}

TEST(Experts, WhatIsDroppedChangesTheNumbers) {
  const auto loss = [](double factor) {
    Scenario scenario = runnable(tiny(kMixtral));
    scenario.plan.expert.capacity_factor = factor;
    return execute(scenario, seeded(1, 1)).losses[0];
  };
  const double all = loss(4);
  EXPECT_NEAR(execute(tiny(kMixtral), seeded(1, 1)).losses[0], all, 1e-6) << "rows that are counted";
  EXPECT_EQ(loss(8), all) << "free slots change nothing";
  EXPECT_NE(loss(1), all);
  EXPECT_NE(loss(1), loss(0.5));
}

// The same ops on the same numbers: not a bit may differ.
TEST(Layouts, RangesOfEqualValuesAreThePlanWithoutThem) {
  for (const char* layout : {R"("data_parallel": 4, "bucket_bytes": 120000)",
                             R"("pipeline_parallel": 2, "data_parallel": 2, "zero_stage": 3)",
                             R"("pipeline_parallel": 2, "virtual_pipeline": 2, "tensor_parallel": 2)"}) {
    const auto with = [&](const std::string& recompute) {
      return execute(tiny(R"({"model": {"dropout": 0.1}, "plan": {)" + std::string(layout) + ", " + recompute + "}}"),
                     seeded(1));
    };
    const Execution whole = with(R"("recompute": "full")");
    for (const char* parts :
         {R"("layers": [{"to": 1, "recompute": "full"}, {"from": 1, "recompute": "full"}])",
          R"("layers": [{"step": 2, "recompute": "full"}, {"from": 1, "step": 2, "recompute": "full"}])"}) {
      const Execution cut = with(parts);
      for (std::size_t t = 0; t < whole.parameters.size(); ++t)
        EXPECT_EQ(cut.parameters[t].values, whole.parameters[t].values) << layout << parts;
    }
    // Selective repeats nothing under flash attention: seams, but nothing behind them.
    const Execution none = with(R"("recompute": "none")"),
                    seams = with(R"("layers": [{"from": 1, "to": 4, "step": 2, "recompute": "selective"}])");
    for (std::size_t t = 0; t < none.parameters.size(); ++t)
      EXPECT_EQ(seams.parameters[t].values, none.parameters[t].values) << layout;
  }
}

// A bucket goes on over the seam between layers of two plans: collectives are issued when they are without it.
TEST(Layouts, BucketsAreFilledAcrossLayersOfSeveralPlans) {
  const auto issued = [](const std::string& layers) {
    const Scenario scenario = tiny(R"({"plan": {"data_parallel": 2, "bucket_bytes": 120000, )" + layers + "}}");
    Program program;
    lower(scenario, program);
    EXPECT_TRUE(std::any_of(program.pieces.begin(), program.pieces.end(), [](const Piece& piece) {
      const auto& ops = piece.backward.ops;
      return std::any_of(ops.begin(), ops.end(), [](const Op& op) { return op.every == 2; });
    }));
    ExecutionOptions options = seeded(1);
    options.measure = true;
    const auto ranks = execute_ranks(scenario, program, options, [](std::size_t) { return make_cpu_backend(); });
    std::vector<std::string> names;
    for (const Interval& interval : ranks.front().intervals)
      if (interval.kind == static_cast<std::uint8_t>(SlotKind::backward)) names.emplace_back(interval.name);
    return names;
  };
  const auto whole = issued(R"("recompute": "none")");
  EXPECT_GT(std::count(whole.begin(), whole.end(), "gradients.all_reduce"), 0);
  for (const char* layers :
       {R"("layers": [{"to": 1, "recompute": "selective"}])", R"("layers": [{"step": 2, "recompute": "selective"}])"})
    EXPECT_EQ(issued(layers), whole) << layers;
}

// The memory model and the executor read the same lives: at the peak a stage holds what is predicted, and, where
// kernels take no parts of tensors, a gathered operand. (Where experts' matrices are divided, the peak is in their
// gather, which packs what it sends: 1 to 2 % more. Of a table that the two ends of a V share, the gradient lives from
// one chunk's backward to the other's, which the prediction does not know.)
TEST(Layouts, HoldWhatIsPredicted) {
  const std::set<std::string_view> names{
      "Replicas", "ReplicasSmallBuckets", "Zero1", "Zero1NoOverlap", "Zero2Once", "Zero3KeptOnce", "Tensor2",
      "Tensor4Sequence", "Tensor2SequenceOverlap", "Pipeline2", "Pipeline4Gpipe", "PipelineInterleaved", "PipelineZbV",
      "RecomputeFull", "RecomputeEvery3", "RecomputeSelective", "LayersRecompute", "Context2", "Context4Llama",
      "LayersZbH1", "OffloadOneRank", "OffloadZero1", "OffloadZbH1", "Tensor4SharedKeys", "LatentRecompute", "VitZero1",
      "T5Pipeline2", "T5Recompute", "ScaledLoss", "Fp8ZbH1", "FreezeLowerHalf", "FreezeUpperHalfZero1",
      "FreezeZero2Once", "FreezeZero3KeptOnce", "FreezePipeline", "FreezeRecomputeEvery2", "FreezeOffload",
      // A table that embedding and head of a stage share comes and goes.
      "Zero2", "Zero2OnceNoOverlap", "Zero2OneMicroBatch", "Zero3", "Zero3Kept", "Zero3Hybrid", "Zero3Once",
      "Zero3InTurn", "Zero3InTurnEachParameter", "Zero3InTurnKeptOnce", "Zero3InTurnOffload", "Zero3InTurnHpz",
      "Zero3InTurnHybrid", "Zero3NoOverlap", "Zero3FarPrefetch", "Hpz", "HpzHybrid", "HpzOffload", "Mics",
      "MicsOffload", "OffloadZero2", "OffloadZero2OneMicroBatch", "OffloadZero2Hybrid", "Context4Zero3",
      "Ulysses4Zero3", "T5Zero3", "Experts", "ExpertsOneARank", "ExpertsZero1", "Memo", "MemoContext", "MemoPipeline"};
  std::size_t met = 0;
  for (const Layout& layout : kLayouts) {
    if (!names.contains(layout.name)) continue;
    ++met;
    Calibrator calibrator;
    const Prepared prepared = calibrator.prepare(scenario_of(layout));
    Program program = *prepared.program;
    program.runtime.granularity = 0.0;
    program.runtime.placeholder_gradients = false;
    program.runtime.reduction_buffer_bytes = 0;  // a stack's own buffers, which no run allocates
    program.runtime.copies_gradients_for_update = false;
    AnalyticalEngine engine(prepared.scenario.cluster, *prepared.kernels, *prepared.collectives);
    Report report;
    engine.evaluate(program, Dtype::fp32, {}, report);
    ExecutionOptions options = seeded(1);
    options.measure = true;
    options.warmup_steps = 1;
    options.find_undefined = options.keep_tensors = false;
    std::vector<double> most(report.stages.size(), 0);
    for (const RankResult& rank :
         execute_ranks(prepared.scenario, program, options, [](std::size_t) { return make_cpu_backend(); })) {
      double& bytes = most[static_cast<std::size_t>(engine.stage_classes()[static_cast<std::size_t>(rank.stage)])];
      bytes = std::max(bytes, rank.peak_bytes);
    }
    for (std::size_t c = 0; c < most.size(); ++c) {
      const double held = most[c] / device_bytes(report.stages[c].memory.bytes);
      EXPECT_GT(held, 0.998) << layout.name << " stage " << report.stages[c].stage;
      EXPECT_LT(held, 1.005) << layout.name << " stage " << report.stages[c].stage;
    }
  }
  EXPECT_EQ(met, names.size());
}

// Of what is trained the gradients are those without freezing; what is frozen keeps every bit, and the rest moves.
TEST(Layouts, FreezingChangesNoGradientAndNoFrozenWeight) {
  std::size_t met = 0;
  for (const Layout& layout : kLayouts) {
    if (!std::string_view(layout.name).starts_with("Freeze")) continue;
    ++met;
    SCOPED_TRACE(layout.name);
    const Scenario scenario = scenario_of(layout);
    Scenario all = on_one_rank(scenario);
    all.plan.freeze = {};
    for (LayerRange& range : all.plan.layers) range.plan.freeze = {};
    ExecutionOptions options = seeded(1, 1);
    const Execution trained = execute(all, options);
    options.learning_rate = 0;
    const Execution start = execute(all, options);
    options.learning_rate = 1e-3;
    const Execution one = execute(on_one_rank(scenario), options);
    EXPECT_EQ(one.losses, trained.losses);
    options.steps = 3;
    const Execution many = execute(scenario, options);
    // Pieces are frozen as a whole, but for a table of its own name: the gradients are parameters with others left out.
    std::size_t next = 0;
    for (std::size_t t = 0; t < start.parameters.size(); ++t) {
      const WholeTensor& before = start.parameters[t];
      if (next < one.gradients.size() && one.gradients[next].name == before.name) {
        EXPECT_EQ(one.gradients[next++].values, trained.gradients[t].values) << before.name;
        EXPECT_NE(many.parameters[t].values, before.values) << before.name;
      } else {
        EXPECT_EQ(many.parameters[t].values, before.values) << before.name;
        EXPECT_NE(trained.parameters[t].values, before.values) << before.name;
      }
    }
    EXPECT_EQ(next, one.gradients.size());
    EXPECT_LT(next, start.parameters.size());
  }
  EXPECT_GT(met, 20u);
}

// As the engines time it: those of the first layers before any kernel, then one more with each layer that begins.
TEST(Layouts, GatherParametersAsManyLayersAheadAsThePlanSays) {
  for (const int layers : {1, 3}) {
    const Scenario scenario = tiny(R"({"model": {"tied_embeddings": false}, "plan": {"data_parallel": 2,
        "zero_stage": 3, "prefetch": )" +
                                   std::to_string(layers) + "}}");
    Program program;
    lower(scenario, program);
    ExecutionOptions options = seeded(1);
    options.measure = true;
    const auto ranks = execute_ranks(scenario, program, options, [](std::size_t) { return make_cpu_backend(); });
    int gathers = 0, kernels = 0;
    for (const Interval& interval : ranks.front().intervals) {
      kernels += interval.stream == Stream::compute;
      if (kernels == 2) break;
      gathers += interval.stream == Stream::parameter_communication;
    }
    EXPECT_EQ(gathers, layers + 1);
  }
}

// Two executions agree as well as what they differ in most; what is no number agrees with nothing.
TEST(AgreementOfExecutions, IsTheWorstOfItsNumbers) {
  Execution a, b;
  a.losses = b.losses = {2, 4, 8};
  a.gradient_norms = b.gradient_norms = {1, 1, 1};
  a.gradients = a.parameters = b.gradients = b.parameters = {{"first", {2}, {3, 4}}, {"second", {1}, {10}}};
  EXPECT_EQ(agreement(a, b).loss, 0);
  b.losses = {2.5, 4, 9};
  b.gradients[1].values = {11};
  b.gradients[0].values = {3, 4.2f};
  EXPECT_DOUBLE_EQ(agreement(a, b).loss, 0.25);
  EXPECT_DOUBLE_EQ(agreement(a, b).gradients, 0.1);
  EXPECT_EQ(agreement(a, b).worst_gradient, "second");
  b.losses[1] = std::nan("");
  b.gradients[0].values[0] = std::nanf("");
  EXPECT_TRUE(std::isnan(agreement(a, b).loss));
  EXPECT_TRUE(std::isnan(agreement(a, b).gradients));
}

// What is repeated for the backward is no work of the model's.
TEST(OneRank, MeasuredRecomputationIsAccountedApart) {
  const Scenario scenario = tiny(R"({"plan": {"recompute": "full"}})");
  Program program;
  lower(scenario, program);
  ExecutionOptions options = seeded(1);
  options.measure = true;
  const RankResult rank =
      execute_ranks(scenario, program, options, [](std::size_t) { return make_cpu_backend(); }).front();
  double repeated = 0;
  for (const MeasuredOp& op : rank.ops)
    if ((program.pieces[op.piece].*kBlocks[op.block]).ops[op.op].phase == Phase::recompute)
      repeated += op.seconds.front() * op.times_per_step;
  EXPECT_GT(repeated, 0);
  EXPECT_NEAR(rank.time.recompute, repeated, 1e-9);
}

TEST(OneRank, AMeasuredUpdateIsTheOptimizers) {
  const Scenario scenario = tiny("{}");
  Program program;
  lower(scenario, program);
  ExecutionOptions options = seeded(1);
  options.measure = true;
  const RankResult rank =
      execute_ranks(scenario, program, options, [](std::size_t) { return make_cpu_backend(); }).front();
  double updates = 0;
  for (const MeasuredOp& op : rank.ops)
    if ((program.pieces[op.piece].*kBlocks[op.block]).ops[op.op].phase == Phase::update)
      updates += op.seconds.front() * op.times_per_step;
  EXPECT_GT(updates, 0);
  EXPECT_GT(rank.time.optimizer, 0.5 * updates);
}

TEST(Layouts, DecayWeightsAsOneRankDoes) {
  for (const char* rule : {"adamw", "adam", "sgd_momentum"}) {
    ExecutionOptions options = seeded(1);
    options.weight_decay = 0.1;
    const std::string plan = R"("optimizer": ")" + std::string(rule) + "\"";
    expect_same_numbers(tiny(R"({"plan": {"tensor_parallel": 2, "data_parallel": 2, "zero_stage": 3, )" + plan + "}}"),
                        options);
    const Execution decayed = execute(tiny("{\"plan\": {" + plan + "}}"), options);
    options.weight_decay = 0;
    EXPECT_GT(distance(decayed.parameters, execute(tiny("{\"plan\": {" + plan + "}}"), options).parameters), 1e-5)
        << rule;
  }
}

TEST(Layouts, ComputeTheNumbersOfOneRankForOtherSeeds) {
  for (const std::uint64_t seed : {2, 3, 5})
    expect_same_numbers(
        tiny(R"({"plan": {"tensor_parallel": 2, "sequence_parallel": true, "pipeline_parallel": 2, "data_parallel": 2,
                                          "zero_stage": 2}})"),
        seeded(seed));
}

TEST(Layouts, ClipAtTheSameNorm) {
  for (const char* plan :
       {R"("tensor_parallel": 2, "sequence_parallel": true, "pipeline_parallel": 2, "data_parallel": 2)",
        R"("context_parallel": 2, "data_parallel": 2)", R"("data_parallel": 2, "optimizer_offload": true)",
        R"("pipeline_parallel": 2, "data_parallel": 2, "optimizer_offload": true)"})
    for (const char* zero : {"0", "1", "2", "3"})
      for (const char* how :
           {R"("framework": "megatron-core", "precision": "fp32")", R"("framework": "deepspeed", "precision": "fp16")",
            R"("framework": "jax", "precision": "fp16")"}) {
        SCOPED_TRACE(std::string(plan) + " zero " + zero + " " + how);
        expect_same_numbers(
            tiny(R"({"plan": {"clip_grad": 0.1, "zero_stage": )" + std::string(zero) + ", " + plan + ", " + how + "}}"),
            seeded(1));
      }
}

// Threads meet in any order, sums run in the order of the ranks.
TEST(Layouts, GiveTheSameBitsEveryTime) {
  const Scenario scenario =
      tiny(R"({"plan": {"tensor_parallel": 2, "context_parallel": 2, "data_parallel": 2, "zero_stage": 2}})");
  const Execution a = execute(scenario, seeded(1)), b = execute(scenario, seeded(1));
  for (std::size_t t = 0; t < a.parameters.size(); ++t) EXPECT_EQ(a.parameters[t].values, b.parameters[t].values);
}

// ---- wrong Programs are found -----------------------------------------------------------------------------------

Program lowered(const Scenario& scenario) {
  Program program;
  lower(scenario, program);
  return program;
}

void remove(Program& program, std::string_view name) {
  for (Piece& piece : program.pieces)
    for (Block* block : {&piece.forward, &piece.backward, &piece.weight_gradient, &piece.update})
      std::erase_if(block->ops, [&](const Op& op) { return name == op.name; });
}

// ---- mutants ----------------------------------------------------------------------------------------------------

bool same(const std::vector<WholeTensor>& a, const std::vector<WholeTensor>& b) {
  constexpr double kTolerance = 2e-5;
  if (a.size() != b.size()) return false;
  for (std::size_t t = 0; t < a.size(); ++t) {
    double norm = 0, difference = 0;
    for (std::size_t e = 0; e < a[t].values.size(); ++e) {
      const double x = a[t].values[e], y = b[t].values[e];
      norm += x * x;
      difference += (x - y) * (x - y);
    }
    if (!(difference <= kTolerance * kTolerance * norm)) return false;
  }
  return true;
}

bool computes_the_numbers_of(const Execution& one, const Scenario& scenario, const Program& program) {
  constexpr double kTolerance = 2e-5;
  ExecutionOptions options = seeded(1, 2);
  options.watchdog_seconds = 2;
  try {
    const Execution many = execute(scenario, program, options);
    for (std::size_t s = 0; s < one.losses.size(); ++s)
      if (!(std::abs(many.losses[s] - one.losses[s]) < kTolerance) ||
          !(std::abs(many.gradient_norms[s] - one.gradient_norms[s]) < kTolerance * one.gradient_norms[s]))
        return false;
    return many.gradient_disagreement < kTolerance && many.parameter_disagreement < kTolerance &&
           same(one.gradients, many.gradients) && same(one.parameters, many.parameters);
  } catch (const std::exception&) {
    return false;
  }
}

// FSDP gathers an embedding's table for a backward that does not look into it.
bool is_read(const Piece& piece, TensorId id) {
  const TensorId root = storage_of(piece, id);
  for (const TensorId end : {piece.output, piece.input_gradient})
    if (end != kNoTensor && storage_of(piece, end) == root) return true;
  for (const Block* block : {&piece.forward, &piece.backward, &piece.weight_gradient, &piece.update})
    for (const Op& op : block->ops)
      for (const TensorId read : op.reads)
        if (read != kNoTensor && storage_of(piece, read) == root) return true;
  return false;
}

// Each collective of each layout's Program dropped, issued twice, and over every other group.
TEST(Mutants, AreCaughtByTheCheckOrByTheNumbers) {
  int mutants = 0, by_check = 0, by_numbers = 0;
  for (const Layout& layout : kLayouts) {
    const Scenario scenario = scenario_of(layout);
    const Program right = lowered(scenario);
    Execution one;
    const auto judge = [&](const Program& mutant, const Piece& piece, const Op& op, const char* how) {
      ++mutants;
      if (!check(mutant).empty()) {
        ++by_check;
        return;
      }
      if (one.losses.empty()) one = execute(on_one_rank(scenario), seeded(1, 2));
      if (computes_the_numbers_of(one, scenario, mutant))
        ADD_FAILURE() << layout.name << ": \"" << op.name << "\" of \"" << piece.name << "\" " << how
                      << ": nobody notices";
      ++by_numbers;
    };
    for (std::size_t p = 0; p < right.pieces.size(); ++p)
      for (Block Piece::*block : {&Piece::forward, &Piece::backward, &Piece::weight_gradient, &Piece::update})
        for (std::size_t i = 0; i < (right.pieces[p].*block).ops.size(); ++i) {
          const Piece& piece = right.pieces[p];
          const Op& op = (piece.*block).ops[i];
          if (!is_communication(op.kind) || op.is_alone() || !is_read(piece, op.writes[0])) continue;
          const auto at = static_cast<std::ptrdiff_t>(i);
          Program mutant = right;
          std::vector<Op>& ops = (mutant.pieces[p].*block).ops;
          ops.erase(ops.begin() + at);
          judge(mutant, piece, op, "dropped");
          ops.insert(ops.begin() + at, 2, op);
          judge(mutant, piece, op, "issued twice");
          ops.erase(ops.begin() + at);
          for (unsigned bits = 1; bits < 1u << right.mesh.digits().size(); ++bits) {
            if (bits == op.group.bits()) continue;
            ops[i].group = MeshGroup::from_bits(static_cast<std::uint16_t>(bits));
            judge(mutant, piece, op, "over another group");
          }
        }
  }
  std::printf("%d mutants: %d caught by check() alone (%.1f %%), %d by the numbers\n", mutants, by_check,
              100.0 * by_check / mutants, by_numbers);
  EXPECT_GT(mutants, 1000);
  EXPECT_GE(by_check, mutants * 99 / 100);
}

// ---- and what a wrong Program looks like when it runs

TEST(WrongPrograms, AMissingGradientReductionShowsAsDisagreeingReplicas) {
  const Scenario scenario = tiny(R"({"plan": {"data_parallel": 2}})");
  Program program = lowered(scenario);
  remove(program, "gradients.all_reduce");
  EXPECT_GT(execute(scenario, program, seeded(1, 1)).gradient_disagreement, 0.1);
}

TEST(WrongPrograms, AMissingReductionOfReplicatedGradientsShowsAsDisagreeingRanks) {
  const Scenario scenario = tiny(R"({"plan": {"tensor_parallel": 2, "sequence_parallel": true}})");
  Program program = lowered(scenario);
  remove(program, "replicated_gradients.all_reduce");
  EXPECT_GT(execute(scenario, program, seeded(1, 1)).gradient_disagreement, 0.1);
}

// Whichever replica is the larger one: the gap between them, over the first one's largest value.
TEST(WrongPrograms, ReplicasDisagreeWhicheverIsTheLarger) {
  const Scenario scenario = tiny(R"({"plan": {"data_parallel": 2}})");
  const std::vector<realrun::WholeParameter> parameters =
      realrun::whole_parameters(lowered(on_one_rank(scenario)), scenario.model.tied_embeddings);
  // Both hold all of the model, each parameter full of one number.
  const auto disagreement = [&](float first, float second) {
    std::vector<RankResult> ranks(2);
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      ranks[r].rank = r;
      ranks[r].losses = ranks[r].gradient_norms = {1};
      for (std::size_t p = 0; p < parameters.size(); ++p) {
        HeldPart part;
        part.parameter = p;
        for (std::int64_t e = 0; e < parameters[p].tensor.elements(); ++e) part.element.push_back(e);
        part.gradient.assign(part.element.size(), r == 0 ? first : second);
        part.value.assign(part.element.size(), 1);
        ranks[r].parts.push_back(part);
      }
    }
    const Execution whole = assemble(scenario, ranks);
    EXPECT_EQ(whole.parameter_disagreement, 0);
    return whole.gradient_disagreement;
  };
  EXPECT_EQ(disagreement(1, 1), 0);
  EXPECT_DOUBLE_EQ(disagreement(1, 1.25), 0.25);
  EXPECT_DOUBLE_EQ(disagreement(1.25, 1), 0.2);
  EXPECT_DOUBLE_EQ(disagreement(-1, -1.25), 0.25);
}

std::string failure(const Scenario& scenario, const Program& program, const ExecutionOptions& options = {}) {
  try {
    execute(scenario, program, options);
  } catch (const ExecutionError& error) {
    return error.what();
  }
  return "";
}

TEST(WrongPrograms, AMissingCollectiveLeavesItsResultUnwritten) {
  const Scenario scenario = tiny(R"({"plan": {"tensor_parallel": 2}})");
  Program program = lowered(scenario);
  remove(program, "tensor.all_reduce");
  EXPECT_THAT(failure(scenario, program), HasSubstr("is read before it is written"));
}

// Kernels add where the Program says so, and nowhere else: else a step's gradients are its last micro-batch's.
TEST(WrongPrograms, GradientsThatNoOpAddsUpAreThoseOfTheLastMicroBatch) {
  for (const char* model : {"{}", kVit, kT5}) {
    json patch = json::parse(model);
    patch["workload"]["global_batch_size"] = 2;
    const Scenario scenario = tiny(patch.dump());
    const Execution right = execute(scenario, seeded(1, 1));
    const Program program = lowered(scenario);
    std::set<OpKind> kinds;
    for (std::size_t p = 0; p < program.pieces.size(); ++p)
      for (std::size_t i = 0; i < program.pieces[p].backward.ops.size(); ++i) {
        if (!program.pieces[p].backward.ops[i].accumulate) continue;
        Program wrong = program;
        Op& op = wrong.pieces[p].backward.ops[i];
        if (!kinds.insert(op.kind).second) continue;
        op.accumulate = false;
        EXPECT_GT(distance(right.gradients, execute(scenario, wrong, seeded(1, 1)).gradients), 0.01)
            << name_of(op.kind) << " of " << wrong.pieces[p].name;
      }
    EXPECT_GE(kinds.size(), 4u);
  }
}

// Half of a buffer that nobody wrote is no number.
TEST(WrongPrograms, APartlyWrittenBufferIsFound) {
  const Scenario scenario = tiny(R"({"plan": {"flash_attention": false}})");
  Program program = lowered(scenario);
  for (Piece& piece : program.pieces)  // the gradients of the values are a view of those of the fused projection
    std::erase_if(piece.backward.ops, [&](const Op& op) {
      return op.kind == OpKind::batched_matmul && op.writes[0] != kNoTensor &&
             std::string_view(piece.tensors[op.writes[0]].name) == "value";
    });
  EXPECT_THAT(failure(scenario, program), HasSubstr("NaN"));
}

TEST(WrongPrograms, ADeadlockSaysWhoWaitsForWhat) {
  const Scenario scenario = tiny(R"({"plan": {"pipeline_parallel": 2}})");
  Program program = lowered(scenario);
  const auto& first = program.schedule.stages[0];
  for (std::size_t s = first.begin; s < first.end;
       ++s)  // the first stage waits for gradients before it has sent anything
    for (Slot& slot : program.schedule.segments[s].slots) slot.kind = SlotKind::backward;
  ExecutionOptions options;
  options.watchdog_seconds = 0.2;
  const std::string message = failure(scenario, program, options);
  EXPECT_THAT(message, HasSubstr("waits for the"));
  EXPECT_THAT(message, HasSubstr("of position"));
}

TEST(WrongPrograms, ADeadRankEndsTheRunWithItsOwnError) {
  const Scenario scenario = tiny(R"({"plan": {"pipeline_parallel": 2, "tensor_parallel": 2}})");
  Program program = lowered(scenario);
  for (Piece& piece : program.pieces)
    if (piece.output == kNoTensor)
      std::erase_if(piece.forward.ops, [](const Op& op) { return op.kind == OpKind::norm; });
  EXPECT_THAT(failure(scenario, program), HasSubstr("is read before it is written"));
}

TEST(WrongPrograms, WhatIsNotRunYetIsRefused) {
  for (const char* patch :
       {R"({"model": {"kind": "encoder_decoder", "positions": "learned"}})",
        R"({"model": {"kind": "encoder_decoder", "positions": "rotary", "embedding_norm": true}})",
        R"({"model": {"kind": "encoder_decoder", "positions": "rotary"}, "plan": {"context_parallel": 2}})",
        R"({"model": {"kind": "encoder_decoder", "positions": "rotary"}, "workload": {"decoder_sequence_length": 8},
            "plan": {"tensor_parallel": 2, "sequence_parallel": true, "tensor_parallel_overlap": true}})",
        R"({"model": {"positions": "relative", "relative_buckets": 8}, "plan": {"context_parallel": 2}})",
        R"({"model": {"positions": "relative", "relative_projection": true}})",
        R"({"model": {"kind": "swin", "layers": null, "heads": null, "vocab": null, "max_positions": null,
            "image_size": 24, "patch_size": 4, "window": 3, "stage_layers": [1, 1], "stage_heads": [2, 4],
            "classes": 10}})",
        R"({"model": {"experts": 4, "experts_per_token": 2}, "plan": {"context_parallel": 2,
            "moe_expert_capacity_factor": 1}})"})
    EXPECT_THROW(execute(tiny(patch)), InputError) << patch;
  EXPECT_THROW(execute(tiny(R"({"model": {"vocab": 100}, "plan": {"tensor_parallel": 2}})")),
               InputError);  // padded to 128, 256
}

}  // namespace
}  // namespace orrery
