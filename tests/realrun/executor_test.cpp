// Programs that run: a layout computes what one rank computes, and one rank computes the derivative of its loss.
#include "realrun/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "realrun/agreement.h"
#include "realrun/backend.h"
#include "realrun/layout.h"
#include "realrun/measured_report.h"
#include "sim/analytical/engine.h"
#include "sim/base/error.h"
#include "sim/base/json_reader.h"
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

// A GPT of four layers in fp32; 16 devices.
json tiny_document() {
  return json::parse(R"({
    "model": {"layers": 4, "hidden": 32, "heads": 4, "vocab": 512, "max_positions": 16, "dropout": 0},
    "cluster": {"node": "dgx-h100", "nodes": 2},
    "workload": {"sequence_length": 16, "global_batch_size": 8},
    "plan": {"precision": "fp32", "data_parallel": 1}})");
}

// `patch` is laid over it (RFC 7396).
Scenario tiny(const std::string& patch = "{}") {
  json document = tiny_document();
  document.merge_patch(json::parse(patch));
  return read_scenario(document, {});
}

// A patch of bases.json: another small model, or what it reads.
json base(const std::string& name) {
  static const json all = parse_json_file(ORRERY_SOURCE_DIR "/tests/realrun/bases.json");
  return all.at(name);
}

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
  for (const PieceRun& run : program.line)
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
  json patch = base("llama");
  patch.merge_patch(json::parse(
      R"({"model": {"layers": 2, "vocab": 64}, "workload": {"sequence_length": 8, "global_batch_size": 2}})"));
  expect_derivative(tiny(patch.dump()));
}

TEST(OneRank, GradientsAreTheDerivativeOfTheLossOfLatentAttention) {
  json patch = base("latent");
  patch.merge_patch(json::parse(
      R"({"model": {"layers": 2, "vocab": 64}, "workload": {"sequence_length": 8, "global_batch_size": 2}})"));
  expect_derivative(tiny(patch.dump()));
  patch["model"]["query_lora_rank"] = 0;
  expect_derivative(tiny(patch.dump()));
}

TEST(OneRank, GradientsAreTheDerivativeOfTheLossOfAVisionTransformer) {
  for (const char* plan : {R"({"flash_attention": true})", R"({"flash_attention": false})"}) {
    json patch = base("vit");
    patch["plan"] = json::parse(plan);
    patch.merge_patch(json::parse(R"({"model": {"layers": 2}, "workload": {"global_batch_size": 2}})"));
    expect_derivative(tiny(patch.dump()));
  }
}

TEST(OneRank, GradientsAreTheDerivativeOfTheLossOfAnEncoderDecoder) {
  for (const char* model : {"t5", "t5_gated"}) {
    json patch = base(model);
    patch.merge_patch(json::parse(R"({"model": {"vocab": 64}, "workload": {"global_batch_size": 2}})"));
    if (patch["model"]["activation"] == "relu") patch["model"]["activation"] = "gelu";  // no kinks for differences
    patch["plan"]["flash_attention"] = std::string_view(model) == "t5";
    expect_derivative(tiny(patch.dump()));
  }
}

TEST(OneRank, GradientsAreTheDerivativeOfTheLossOfExperts) {
  for (const char* model : {"mixtral", "shared_experts", "switch", "sigmoid_experts", "next_tokens", "next_tokens_tied",
                            "hashed_experts"}) {
    json patch = base(model);
    patch.merge_patch(json::parse(
        R"({"model": {"layers": 2, "vocab": 64}, "workload": {"sequence_length": 8, "global_batch_size": 2}})"));
    expect_derivative(runnable(tiny(patch.dump())));
  }
}

// Loads have no slope, and leap where a token's choice changes: of seeds by which none does so near by.
TEST(OneRank, GradientsAreTheDerivativeOfTheLossOfRouters) {
  for (const char* model :
       {"noisy_experts", "balanced_sequences", "globally_balanced", "choosing_experts", "assigned_experts"}) {
    json patch = base(model);
    patch.merge_patch(json::parse(
        R"({"model": {"layers": 2, "vocab": 64}, "workload": {"sequence_length": 8, "global_batch_size": 2}})"));
    constexpr std::uint64_t kSeed = 5;
    expect_derivative(runnable(tiny(patch.dump())), kSeed);
  }
}

// The second product is linear but for its bias, which these have not: rows may be weighed before it, as Megatron-Core
// does, or where they are put together.
TEST(OneRank, ExpertsAreWeighedBeforeOrBehindTheirSecondProduct) {
  for (const char* model : {"mixtral", "shared_experts", "sigmoid_experts"}) {
    const auto run = [&](const char* framework) {
      json patch = base(model);
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
  lower(tiny(base("latent").dump()), program);
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
  for (const char* model : {"documents", "documents_gpt"}) {
    json patch = base(model);
    patch.merge_patch(json::parse(
        R"({"model": {"layers": 2, "vocab": 64}, "workload": {"sequence_length": 8, "global_batch_size": 2}})"));
    expect_derivative(tiny(patch.dump()));
  }
}

TEST(OneRank, DocumentsHideWhatStandsBeforeThem) {
  json patch = base("documents");
  const double within = execute(tiny(patch.dump()), seeded(1, 1)).losses[0];
  patch["workload"].erase("documents");
  const double whole = execute(tiny(patch.dump()), seeded(1, 1)).losses[0];
  EXPECT_GT(std::abs(within - whole), 1e-4) << "the mask is felt";
}

// Steps of a run have other documents; one rank takes the same ones.
TEST(Layouts, ComputeTheNumbersOfOneRankWithinTheDocumentsOfEachStep) {
  json patch = base("documents");
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

// A case of strategies/*/cases.json: a patch with a name, a base of bases.json that it is laid over, for how many steps
// it runs, and whether it holds the memory that is predicted.
struct Layout {
  std::string name;
  json base = json::object();
  json patch;
  std::int64_t steps = 2;
  bool peak_is_predicted = false;
};
void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.patch; }

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = [] {
    std::set<std::filesystem::path> files;
    for (const auto& folder : std::filesystem::directory_iterator(ORRERY_SOURCE_DIR "/strategies"))
      if (exists(folder.path() / "cases.json")) files.insert(folder.path() / "cases.json");
    std::vector<Layout> layouts;
    for (const auto& file : files)
      for (json& patch : parse_json_file(file.string())) {
        Layout layout;
        layout.name = patch.at("name");
        if (patch.contains("base")) layout.base = base(patch["base"]);
        layout.steps = patch.value("steps", layout.steps);
        layout.peak_is_predicted = patch.value("peak_is_predicted", false);
        for (const char* key : {"name", "base", "steps", "peak_is_predicted"}) patch.erase(key);
        layout.patch = std::move(patch);  // whose other members a scenario has, or is refused for
        layouts.push_back(std::move(layout));
      }
    return layouts;
  }();
  return all;
}

Scenario scenario_of(const Layout& layout) {
  json document = tiny_document();
  document.merge_patch(layout.base);
  document.merge_patch(layout.patch);
  return runnable(read_scenario(document, {}));
}

class Layouts : public testing::TestWithParam<Layout> {};
TEST_P(Layouts, ComputeTheNumbersOfOneRank) {
  expect_same_numbers(scenario_of(GetParam()), seeded(1, GetParam().steps));
}

INSTANTIATE_TEST_SUITE_P(All, Layouts, testing::ValuesIn(layouts()), [](const auto& test) { return test.param.name; });

// Each case in another order than the default.
TEST(Layouts, ComputeTheNumbersOfOneRankInEveryMeshOrder) {
  constexpr std::array kOrders{"tp-cp-ep-pp-dp", "pp-dp-cp-tp", "dp-tp-pp-cp-ep", "cp-pp-ep-tp-dp", "dp-pp-cp-tp"};
  std::size_t next = 0, reordered = 0, refused = 0;
  for (const Layout& layout : layouts()) {
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
    SCOPED_TRACE(layout.name + " " + scenario.plan.framework.mesh_order);
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
    return error.where().pointer == "/plan/" + field &&
           (value == "nvfp4" || value == "int4" || value == "blockwise" || value == "mxfp8");
  }
  return false;
}

// A flag that may be set in one of these plans and that no run takes; what needs NVFP4 is refused with it.
bool is_not_run(const std::string& flag) {
  std::vector<json> documents;
  for (const auto& [stage, precision] : {std::pair{3, "fp8"}, std::pair{1, "fp8"}, std::pair{1, "nvfp4"}})
    documents.push_back({{"plan", {{"data_parallel", 8}, {"zero_stage", stage}, {"precision", precision}}}});
  documents.push_back(base("mixtral"));
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
  json experts = base("mixtral");
  experts["plan"] = {{"data_parallel", 4}, {"expert_parallel", 4}, {flag, true}};
  try {
    const Scenario scenario = tiny(experts.dump());
    check(scenario);
    check_runnable(runnable(scenario));
  } catch (const InputError& error) {
    return error.where().pointer == "/plan/" + flag && error.expected().find("in a real run") != std::string::npos;
  }
  return false;
}

// Balancers that choose placements between steps, which no run takes, and what is theirs alone.
bool is_of_balancers(const std::string& field) {
  if (field != "moe_balancer" && field != "moe_balance_threshold" && field != "moe_balance_busiest_rank") return false;
  int refused = 0;
  for (const char* value : {"flexmoe", "eplb", "symi", "fastermoe", "swipe"}) {
    json patch = base("mixtral");
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
  const auto expect_same = [](const std::string& plan, const std::vector<Strategy>& strategies, json patch) {
    SCOPED_TRACE(plan);
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
    expect_same(R"({"data_parallel": 4, )" + std::string(rest) + "}", with_two_sets<alike>(), json::object());
  constexpr const char* kHybrid =
      R"({"tensor_parallel": 2, "sequence_parallel": true, "pipeline_parallel": 2, "data_parallel": 2, "zero_stage": 3})";
  expect_same(kHybrid, with_two_sets<alike>(), base("llama"));
  expect_same(kHybrid, with_two_sets<rest_stays_whole>(), base("llama"));
  expect_same(kHybrid, with_two_sets<rest_is_replicated>(), json::object());
  for (const char* reduced : {"every_micro_batch", "once"})
    for (const int stage : {1, 2, 3}) {
      const std::string plan = R"({"data_parallel": 4, "zero_stage": )" + std::to_string(stage) +
                               R"(, "reduce_gradients": ")" + reduced + R"("})";
      expect_same(plan, with_two_sets<rest_stays_whole>(), {{"model", {{"hidden", 36}, {"ffn", 50}}}});
      expect_same(plan, with_two_sets<rest_is_replicated>(), json::object());
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
  for (const Layout& layout : layouts()) {
    for (const auto& [field, value] : layout.patch.at("plan").items()) met[field].insert(value.dump());
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
    // Workers that train copies of their own do not compute what one rank computes: local_updates_test.cpp.
    if (field.starts_with("local_") || field.starts_with("outer_")) continue;
    if (field == "gradient_compression" || field.starts_with("compression_")) continue;
    EXPECT_TRUE(met.contains(field) || (rule.at("default") == false && is_not_run(field)))
        << field << " is in no case of strategies/*/cases.json";
    // Which measured curve times an op, or which algorithm NCCL takes, changes nothing in the Program.
    if (!rule.contains("enum") || field.starts_with("collective_") || field == "attention_kernel") continue;
    for (const auto& value : rule.at("enum"))
      EXPECT_TRUE(value == rule.at("default") || met[field].contains(value.dump()) || is_refused(field, value))
          << field << " " << value << " is in no case of strategies/*/cases.json";
  }
  EXPECT_GT(fields, 30u);
  // What may differ by ranges of layers does so in a case.
  std::set<std::string> met_in_ranges;
  for (const Layout& layout : layouts())
    for (const json& range : layout.patch.at("plan").value("layers", json::array()))
      for (const auto& [field, value] : range.items()) met_in_ranges.insert(field);
  for (const auto& [field, rule] : schema.at("$defs").at("layers").at("properties").items())
    if (rule.contains("type") || rule.contains("enum")) {
      EXPECT_TRUE(met_in_ranges.contains(field)) << field << " is in no case's range of layers";
    }
  for (const int stage : {1, 2, 3}) EXPECT_TRUE(met["zero_stage"].contains(std::to_string(stage)));
}

// ---- experts ----------------------------------------------------------------------------------------------------

TEST(Experts, ARunHasASlotForEveryTokenOfAnExpert) {
  Scenario scenario = tiny(base("mixtral").dump());
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
    json document = base("mixtral");
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
  Scenario padded = runnable(tiny(base("mixtral").dump()));
  padded.plan.expert.capacity_factor = 4;
  Program program;
  lower(padded, program);
  EXPECT_EQ(execute_ranks(padded, program, seeded(1, 1), [](std::size_t) { return make_cpu_backend(); })[0].rows.layers,
            0);
}

// FLOPs of experts are those of the rows that a rank had; ops on nothing else are as they are.
TEST(Experts, AMeasuredReportIsOfTheRowsThatWereThere) {
  json document = base("mixtral");
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
  ASSERT_NE(report.figure("routing"), nullptr);
  const double busiest = report.figure("routing", "busiest_rank_over_mean")->value;
  EXPECT_EQ(busiest, std::max(ranks[0].rows.busiest_rank, ranks[1].rows.busiest_rank));
  EXPECT_GE(busiest, report.figure("routing", "mean_busiest_rank_over_mean")->value);
  EXPECT_GT(report.figure("routing", "busiest_expert_over_mean")->value, 1);
  EXPECT_THAT(report.notes, testing::Contains(HasSubstr("25.0 % of their slots")));
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
    Scenario scenario = runnable(tiny(base("mixtral").dump()));
    scenario.plan.expert.capacity_factor = factor;
    return execute(scenario, seeded(1, 1)).losses[0];
  };
  const double all = loss(4);
  EXPECT_NEAR(execute(tiny(base("mixtral").dump()), seeded(1, 1)).losses[0], all, 1e-6) << "rows that are counted";
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
    for (const TimelineSpan& interval : ranks.front().intervals)
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
  std::size_t met = 0;
  for (const Layout& layout : layouts()) {
    if (!layout.peak_is_predicted) continue;
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
  EXPECT_GT(met, 60u);
}

// Of what is trained the gradients are those without freezing; what is frozen keeps every bit, and the rest moves.
TEST(Layouts, FreezingChangesNoGradientAndNoFrozenWeight) {
  std::size_t met = 0;
  for (const Layout& layout : layouts()) {
    if (!layout.name.starts_with("Freeze")) continue;
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

// Adapters move, what lies beside them keeps every bit.
TEST(Layouts, TrainingAdaptersChangesNoOtherWeight) {
  std::size_t met = 0;
  for (const Layout& layout : layouts()) {
    if (!layout.name.starts_with("Lora")) continue;
    ++met;
    SCOPED_TRACE(layout.name);
    const Scenario scenario = scenario_of(layout);
    ExecutionOptions options = seeded(1, 3);
    const Execution trained = execute(scenario, options);
    options.learning_rate = 0;
    options.steps = 1;
    const Execution start = execute(scenario, options);
    std::size_t adapters = 0;
    for (std::size_t t = 0; t < start.parameters.size(); ++t) {
      const bool adapter = start.parameters[t].name.find("_lora_") != std::string::npos;
      adapters += adapter ? 1 : 0;
      EXPECT_EQ(trained.parameters[t].values != start.parameters[t].values, adapter) << start.parameters[t].name;
    }
    EXPECT_EQ(trained.gradients.size(), adapters);
  }
  EXPECT_GT(met, 20u);
}

// Hu et al. 2021, arXiv 2106.09685, section 4.1: a model with adapters computes what one computes whose matrices W are
// replaced by W + alpha/r A B. So A and B have the gradients alpha/r dW B' and alpha/r A' dW of that model's matrices.
TEST(OneRank, AdaptersAreALowRankPartOfTheirMatrices) {
  constexpr double kAlpha = 6;
  constexpr std::size_t kRank = 4;
  constexpr double kScale = kAlpha / kRank;
  struct Case {
    const char *model, *plan;
    std::vector<std::string> targets;
    std::size_t adapters;
  };
  const std::vector<std::string> all{"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"},
      latents{"linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj"};
  for (const Case& c : {Case{"llama", R"({"flash_attention": true})", all, 16},
                        Case{"llama", R"({"flash_attention": false, "micro_batch_size": 2})", all, 16},
                        Case{"mixtral", R"({"micro_batch_size": 2})", all, 12},  // one layer without experts
                        Case{"shared_experts", "{}", all, 12},                   // of shared and of routed experts
                        Case{"switch", R"({"framework": "fsdp"})", all, 16},
                        Case{"latent", R"({"flash_attention": false})", latents, 16}}) {
    SCOPED_TRACE(c.model);
    json patch = base(c.model);
    patch["plan"] = json::parse(c.plan);
    const Scenario dense = runnable(tiny(patch.dump()));
    patch["plan"].merge_patch({{"lora_rank", kRank}, {"lora_alpha", kAlpha}, {"lora_targets", c.targets}});
    ExecutionOptions options = seeded(1, 1);
    options.learning_rate = 0;
    const Execution adapted = execute(runnable(tiny(patch.dump())), options);

    std::map<std::string, const WholeTensor*> adapters, gradients;
    std::vector<WholeTensor> matrices;
    for (const WholeTensor& t : adapted.parameters) {
      if (t.name.find("_lora_") != std::string::npos) {
        adapters[t.name] = &t;
      } else {
        matrices.push_back(t);
      }
    }
    for (const WholeTensor& t : adapted.gradients) gradients[t.name] = &t;
    ASSERT_EQ(adapters.size(), 2 * c.adapters);
    const auto first_values = [&] {
      options.first_values.clear();
      for (const WholeTensor& t : matrices) options.first_values.push_back(t.values);
    };
    first_values();
    EXPECT_GT(std::abs(execute(dense, options).losses[0] - adapted.losses[0]), 1e-3) << "without what adapters add";

    // visit(matrix, a, b, experts, rows, columns)
    const auto each = [&](auto visit) {
      for (std::size_t t = 0; t < matrices.size(); ++t)
        if (const auto found = adapters.find(matrices[t].name + "_lora_a"); found != adapters.end()) {
          const WholeTensor &a = *found->second, &b = *adapters.at(matrices[t].name + "_lora_b");
          const std::vector<std::int64_t>& sizes = matrices[t].sizes;
          const bool grouped = matrices[t].name.find(" expert_fc") != std::string::npos;
          if (sizes.size() + (grouped ? 3 : 2) != a.sizes.size() + b.sizes.size()) continue;  // a bias of the same name
          const auto experts = static_cast<std::size_t>(grouped ? sizes[0] : 1);
          visit(t, a, b, experts, a.values.size() / (experts * kRank), b.values.size() / (experts * kRank));
        }
    };
    // visit(element of the matrix, of A, of B), for each product that W + alpha/r A B adds
    const auto each_product = [](std::size_t experts, std::size_t rows, std::size_t columns, auto visit) {
      for (std::size_t e = 0; e < experts; ++e)
        for (std::size_t i = 0; i < rows; ++i)
          for (std::size_t j = 0; j < columns; ++j)
            for (std::size_t r = 0; r < kRank; ++r)
              visit((e * rows + i) * columns + j, (e * rows + i) * kRank + r, (e * kRank + r) * columns + j);
    };
    each([&](std::size_t t, const WholeTensor& a, const WholeTensor& b, std::size_t experts, std::size_t rows,
             std::size_t columns) {
      ASSERT_EQ(matrices[t].values.size(), experts * rows * columns);
      each_product(experts, rows, columns, [&](std::size_t w, std::size_t of_a, std::size_t of_b) {
        matrices[t].values[w] += static_cast<float>(kScale * a.values[of_a] * b.values[of_b]);
      });
    });
    first_values();
    const Execution merged = execute(dense, options);
    EXPECT_NEAR(merged.losses[0], adapted.losses[0], 1e-5);
    std::size_t compared = 0;
    each([&](std::size_t t, const WholeTensor& a, const WholeTensor& b, std::size_t experts, std::size_t rows,
             std::size_t columns) {
      const WholeTensor& whole = merged.gradients[t];
      ASSERT_EQ(whole.name, matrices[t].name);
      WholeTensor da = *gradients.at(a.name), db = *gradients.at(b.name);
      std::vector<double> expected_a(da.values.size()), expected_b(db.values.size());
      each_product(experts, rows, columns, [&](std::size_t w, std::size_t of_a, std::size_t of_b) {
        const double slope = kScale * whole.values[w];
        expected_a[of_a] += slope * b.values[of_b];
        expected_b[of_b] += slope * a.values[of_a];
      });
      WholeTensor by_a = da, by_b = db;
      std::ranges::copy(expected_a, by_a.values.begin());
      std::ranges::copy(expected_b, by_b.values.begin());
      EXPECT_LT(distance({by_a, by_b}, {da, db}), 2e-5) << whole.name;
      ++compared;
    });
    EXPECT_EQ(compared, c.adapters);
  }
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
    for (const TimelineSpan& interval : ranks.front().intervals) {
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

// A gradient that is zero agrees with itself, and with what rounding leaves of it; a small one must still be right.
TEST(AgreementOfExecutions, MeasuresZerosByTheNormOfAll) {
  Execution a, b;
  a.losses = b.losses = a.gradient_norms = b.gradient_norms = {1};
  a.gradients = a.parameters = b.gradients = b.parameters = {{"zero", {2}, {0, 0}}, {"other", {2}, {30, 40}}};
  EXPECT_TRUE(agreement(a, b).within(0));
  b.gradients[0].values = {0, 5e-8f};
  EXPECT_NEAR(agreement(a, b).gradients, 1e-5, 1e-9);
  a.gradients[0].values = {0, 1e-6f};
  EXPECT_GT(agreement(a, b).gradients, 1e-4);
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
  ExecutionOptions options = seeded(1, static_cast<std::int64_t>(one.losses.size()));
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

// Each collective of each layout's Program dropped, issued twice, and over each group that has a digit more or less.
TEST(Mutants, AreCaughtByTheCheckOrByTheNumbers) {
  int mutants = 0, by_check = 0, by_numbers = 0;
  for (const Layout& layout : layouts()) {
    const Scenario scenario = scenario_of(layout);
    const Program right = lowered(scenario);
    std::array<Execution, 2> one;  // its first step, and both: most mutants show in the first
    const auto judge = [&](const Program& mutant, const Piece& piece, const Op& op, const char* how) {
      ++mutants;
      if (!check(mutant).empty()) {
        ++by_check;
        return;
      }
      const bool unnoticed = std::ranges::all_of(one, [&](Execution& steps) {
        if (steps.losses.empty()) steps = execute(on_one_rank(scenario), seeded(1, &steps - one.data() + 1));
        return computes_the_numbers_of(steps, scenario, mutant);
      });
      if (unnoticed)
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
          for (std::size_t digit = 0; digit < right.mesh.digits().size(); ++digit) {
            const auto bits = static_cast<std::uint16_t>(op.group.bits() ^ 1u << digit);
            if (bits == 0) continue;
            ops[i].group = MeshGroup::from_bits(bits);
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
  for (const char* model : {"gpt", "vit", "t5"}) {
    json patch = base(model);
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
