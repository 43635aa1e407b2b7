// Runs whose steps differ: a gate that closes, experts that have copies and move. Divided, they compute what one rank
// does, step after step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "realrun/agreement.h"
#include "realrun/backend.h"
#include "realrun/executor.h"
#include "realrun/mpi/launch.h"
#include "sim/base/error.h"
#include "sim/program/check.h"
#include "strategies/dts_gate/options.h"
#include "strategies/lower.h"
#include "strategies/read_scenario.h"
#include "strategies/strategy.h"

namespace orrery {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json changing_document(const std::string& plan, const std::string& rest = "{}") {
  json document = json::parse(R"({
    "model": {"layers": 4, "hidden": 32, "heads": 4, "ffn": 48, "vocab": 512, "max_positions": 16, "dropout": 0,
              "experts": 4, "experts_per_token": 1, "expert_ffn": 48, "expert_period": 2, "expert_bias": true},
    "cluster": {"node": "dgx-h100", "nodes": 1},
    "workload": {"sequence_length": 16, "global_batch_size": 8},
    "plan": {"precision": "fp32", "data_parallel": 1}})");
  document["plan"].merge_patch(json::parse(plan));
  document.merge_patch(json::parse(rest));
  return document;
}
Scenario changing(const std::string& plan, const std::string& rest = "{}") {
  return read_scenario(changing_document(plan, rest), {});
}

ExecutionOptions steps_of_run(std::int64_t steps) {
  ExecutionOptions options;
  options.steps = steps;
  options.epsilon = 1e-4;  // above the rounding of gradients that are zero
  return options;
}

void expect_what_one_rank_computes(const Scenario& scenario, std::int64_t steps) {
  for (const RunPart& part : parts_of(runnable(scenario), steps))
    for (const Violation& v : check(part.program)) ADD_FAILURE() << v.text;
  const Execution one = execute(on_one_rank(scenario), steps_of_run(steps)),
                  many = execute(scenario, steps_of_run(steps));
  ASSERT_EQ(many.losses.size(), static_cast<std::size_t>(steps));
  const Agreement a = agreement(one, many);
  EXPECT_TRUE(a.within(kFp32Tolerance)) << "loss " << a.loss << ", norm " << a.gradient_norm << ", gradients "
                                        << a.gradients << " (" << a.worst_gradient << "), parameters " << a.parameters
                                        << " (" << a.worst_parameter << "), ranks " << a.disagreement;
}

// ---- the gate ---------------------------------------------------------------------------------------------------

// Two steps of one expert, three of a falling temperature, then one expert a token.
constexpr const char* kGate =
    R"("moe_gate": "dense_to_sparse", "moe_gate_seed_steps": 2, "moe_gate_hard_step": 5, "moe_gate_decay_steps": 3,
       "moe_gate_last_temperature": 0.3, "moe_gate_threshold": 0.05)";
std::string gated(const std::string& layout) { return "{" + std::string(kGate) + ", " + layout + "}"; }

TEST(GatedRun, IsOfOneProgramAPhaseAndTemperature) {
  const std::vector<RunPart> parts = parts_of(runnable(changing(gated(R"("data_parallel": 1)"))), 7);
  std::vector<std::int64_t> steps, choices;
  std::vector<float> temperatures, thresholds;
  for (const RunPart& part : parts) {
    steps.push_back(part.steps);
    std::int64_t k = 0;
    float temperature = 0, threshold = 0;
    for (const Piece& piece : part.program.pieces)
      for (const Op& op : piece.forward.ops)
        if (op.kind == OpKind::route) {
          k = piece.tensors[op.writes[1]].sizes[2];
          temperature = op.router.gumbel_temperature;
          threshold = op.router.threshold;
        }
    choices.push_back(k);
    temperatures.push_back(temperature);
    thresholds.push_back(threshold);
  }
  EXPECT_EQ(steps, (std::vector<std::int64_t>{2, 1, 1, 1, 2}));
  EXPECT_EQ(choices, (std::vector<std::int64_t>{0, 4, 4, 4, 1}));
  EXPECT_EQ(thresholds, (std::vector<float>{0, 0.05f, 0.05f, 0.05f, 0})) << "the most likely is always active";
  EXPECT_EQ(temperatures[1], 1.0f);
  EXPECT_LT(temperatures[3], temperatures[2]);
  EXPECT_FLOAT_EQ(temperatures[4], 0.3f);
}

TEST(GatedRun, DividedComputesWhatOneRankDoesThroughAllPhases) {
  for (
      const char* layout :
      {R"("data_parallel": 4, "expert_parallel": 4)", R"("data_parallel": 4, "expert_parallel": 2, "zero_stage": 1)",
       R"("data_parallel": 2, "expert_parallel": 2, "zero_stage": 3, "moe_gate_padded": true)",
       R"("data_parallel": 4, "expert_parallel": 2, "zero_stage": 2, "recompute": "full", "moe_gate_decay": "linear")",
       R"("data_parallel": 2, "tensor_parallel": 2, "sequence_parallel": true, "expert_parallel": 2,
           "expert_tensor_parallel": 1)",
       R"("data_parallel": 2, "context_parallel": 2, "expert_parallel": 4, "pipeline_parallel": 2)",
       R"("data_parallel": 2, "expert_parallel": 2, "zero_stage": 1, "optimizer_offload": true, "precision": "bf16")"}) {
    SCOPED_TRACE(layout);
    expect_what_one_rank_computes(changing(gated(layout)), 7);
  }
}

// As many as are sampled of the gate at that temperature, by routers whose logits are nearly equal.
TEST(GatedRun, CountsTheExpertsOfTokens) {
  const Scenario scenario = runnable(
      changing(gated(R"("data_parallel": 2, "expert_parallel": 2)"), R"({"workload": {"global_batch_size": 64}})"));
  const std::vector<RankResult> ranks =
      execute_ranks(parts_of(scenario, 6), steps_of_run(6), [](std::size_t) { return make_cpu_backend(); });
  const auto active = [&](std::size_t step) {
    double experts = 0, tokens = 0;
    for (const RankResult& rank : ranks) {
      experts += static_cast<double>(rank.active_experts.at(step));
      tokens += static_cast<double>(rank.routed_tokens.at(step));
    }
    return tokens > 0 ? experts / tokens : 0;
  };
  EXPECT_EQ(active(1), 0) << "no router yet";
  EXPECT_GT(active(2), active(4));
  EXPECT_GT(active(4), 1.1);
  EXPECT_EQ(active(5), 1);
  EXPECT_EQ(ranks[0].routed_tokens[5], 64 / 2 * 16 * 2) << "of two layers";
  // Weights of a fresh router are uniform of deviation 1 / sqrt(hidden) on normalised rows: logits of deviation 1.
  const dts_gate::SampledGate sampled(4, 1 << 12, 1);
  EXPECT_NEAR(active(2), sampled.active_experts(1, 0.05, 1), 0.1);
}

// A router draws its noise beside what dropouts draw, and again what it drew where a forward is repeated.
TEST(GatedRun, BesideDropoutsComputesWhatOneRankDoes) {
  for (const char* layout : {R"("data_parallel": 2, "expert_parallel": 2, "recompute": "full")",
                             R"("data_parallel": 2, "expert_parallel": 2, "pipeline_parallel": 2, "zero_stage": 1)"})
    expect_what_one_rank_computes(changing(gated(layout), R"({"model": {"dropout": 0.1}})"), 6);
}

// Whoever is not active is not computed, or computed for nothing.
TEST(GatedRun, PaddedAndSparseComputeTheSame) {
  const Execution sparse = execute(changing(gated(R"("data_parallel": 1)")), steps_of_run(6)),
                  padded = execute(changing(gated(R"("data_parallel": 1, "moe_gate_padded": true)")), steps_of_run(6));
  EXPECT_TRUE(agreement(sparse, padded).within(1e-6));
}

TEST(GatedRun, NoiseTemperatureAndThresholdChangeTheNumbers) {
  const auto loss = [](const std::string& more, std::int64_t steps = 3) {
    return execute(changing(gated(R"("data_parallel": 1)" + more)), steps_of_run(steps)).losses.back();
  };
  const double as_it_is = loss("");
  EXPECT_EQ(loss(""), as_it_is);
  EXPECT_NE(loss(R"(, "moe_gate_threshold": 0.3)"), as_it_is);
  EXPECT_NE(loss(R"(, "moe_gate_first_temperature": 2)"), as_it_is);
  EXPECT_EQ(loss(R"(, "moe_gate_last_temperature": 0.4)"), as_it_is) << "the first soft step's is the first";
  EXPECT_NE(loss(R"(, "moe_gate_last_temperature": 0.4)", 5), loss("", 5));
}

// Experts begin as the only one that there was, states included: the same as long as they have had the same gradients.
TEST(GatedRun, ExpertsBeginAsTheOneThatWas) {
  const Scenario scenario = changing(gated(R"("data_parallel": 1)"));
  ExecutionOptions options = steps_of_run(3);
  options.learning_rate = 0;  // what the third step finds
  const Execution run = execute(scenario, options);
  const Execution seed = execute(scenario, [&] {
    ExecutionOptions two = options;
    two.steps = 2;
    return two;
  }());
  int experts = 0;
  for (const WholeTensor& t : run.parameters) {
    if (t.name.find(" expert_") == std::string::npos || t.sizes[0] != 4) continue;
    const std::size_t each = t.values.size() / 4;
    for (std::size_t e = 0; e < 4; ++e) {
      const std::vector<float> own(t.values.begin() + static_cast<std::ptrdiff_t>(e * each),
                                   t.values.begin() + static_cast<std::ptrdiff_t>((e + 1) * each));
      EXPECT_TRUE(std::ranges::any_of(seed.parameters, [&](const WholeTensor& was) { return was.values == own; }))
          << t.name << " " << e;
      ++experts;
    }
  }
  EXPECT_EQ(experts, 2 * 4 * 4) << "two matrices and two biases of four experts in two layers";
}

TEST(GatedRun, GradientsAreTheDerivativeOfTheLoss) {
  const Scenario scenario =
      changing(R"({"moe_gate": "dense_to_sparse", "moe_gate_hard_step": 9, "moe_gate_threshold": 1e-9})",
               R"({"model": {"layers": 2, "vocab": 64}, "workload": {"sequence_length": 8, "global_batch_size": 2}})");
  ExecutionOptions options = steps_of_run(1);
  const Execution at = execute(scenario, options);
  const auto router = std::ranges::find_if(
      at.gradients, [](const WholeTensor& t) { return t.sizes.size() == 2 && t.sizes[0] + t.sizes[1] == 32 + 4; });
  ASSERT_NE(router, at.gradients.end());
  options.nudged_parameter = router - at.gradients.begin();
  for (const std::int64_t element : {0, 17, 90}) {
    constexpr double kStep = 1e-2;
    options.nudged_element = element;
    options.nudge = kStep;
    const double above = execute(scenario, options).losses[0];
    options.nudge = -kStep;
    const double below = execute(scenario, options).losses[0];
    const double slope = router->values[static_cast<std::size_t>(element)];
    EXPECT_NEAR((above - below) / (2 * kStep), slope, 0.01 * std::abs(slope) + 5e-5) << element;
  }
}

TEST(GatedRun, WhoseExpertCannotBecomeSeveralIsRefused) {
  try {
    execute(changing(gated(R"("data_parallel": 1)"), R"({"model": {"expert_bias": false}})"), steps_of_run(1));
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(error.where().pointer, "/plan/moe_gate_seed_steps");
  }
}

// ---- copies of experts ------------------------------------------------------------------------------------------

// Six slots on two ranks, or twelve on four: some experts have copies, one of them twice on a rank.
std::string placed(const std::string& layout, const std::string& placement, int slots) {
  return R"({"moe_balancer": "given", "moe_slots_per_rank": )" + std::to_string(slots) +
         R"(, "moe_expert_placement": )" + placement + ", " + layout + "}";
}

TEST(CopiesOfExperts, ComputeWhatOneRankDoes) {
  for (const auto& [layout, placement, slots] :
       {std::tuple{R"("data_parallel": 2, "expert_parallel": 2)", "[0,1,3, 2,1,0]", 3},
        {R"("data_parallel": 2, "expert_parallel": 2)", "[0,1,2,3, 3,2,1,0]", 4},
        {R"("data_parallel": 2, "expert_parallel": 2)", "[1,1,0, 2,3,1]", 3},
        {R"("data_parallel": 4, "expert_parallel": 4)", "[0,1, 2,0, 0,3, 3,0]", 2},
        {R"("data_parallel": 4, "expert_parallel": 2)", "[0,1,3, 2,1,0]", 3},
        {R"("data_parallel": 4, "expert_parallel": 2, "zero_stage": 1)", "[0,1,3, 2,1,0]", 3},
        {R"("data_parallel": 4, "expert_parallel": 2, "zero_stage": 2)", "[3,0,1, 1,2,0]", 3},
        {R"("data_parallel": 4, "expert_parallel": 2, "zero_stage": 3)", "[3,0,1, 1,2,0]", 3},
        {R"("data_parallel": 2, "expert_parallel": 2, "pipeline_parallel": 2, "zero_stage": 1)", "[0,1,3, 2,1,0]", 3},
        {R"("data_parallel": 4, "expert_parallel": 4, "moe_schedule": "tutel", "moe_pipeline_degree_forward": 2,
            "moe_pipeline_degree_backward": 2)",
         "[0,1, 2,0, 0,3, 3,0]", 2},
        {R"("data_parallel": 4, "expert_parallel": 4, "moe_token_dispatcher": "flex")", "[0,1, 2,0, 0,3, 3,0]", 2},
        {R"("data_parallel": 2, "tensor_parallel": 2, "sequence_parallel": true, "expert_parallel": 4,
            "expert_tensor_parallel": 1, "recompute": "full")",
         "[0,1, 2,0, 0,3, 3,0]", 2}}) {
    SCOPED_TRACE(std::string(layout) + " " + placement);
    expect_what_one_rank_computes(changing(placed(layout, placement, slots)), 2);
    // Of two experts a token, without biases.
    expect_what_one_rank_computes(
        changing(placed(layout, placement, slots),
                 R"({"model": {"experts_per_token": 2, "expert_bias": false, "expert_period": 1, "layers": 2,
                               "router_score": "softmax_of_top", "activation": "swiglu", "linear_bias": false}})"),
        2);
  }
}

// Rows of an expert go to its copies in equal parts.
TEST(CopiesOfExperts, ChangeNothingButWhereRowsGo) {
  const Scenario with = changing(placed(R"("data_parallel": 2, "expert_parallel": 2)", "[0,1,2,3, 3,2,1,0]", 4));
  const Execution copies = execute(with, steps_of_run(2)),
                  blocks = execute(changing(R"({"data_parallel": 2, "expert_parallel": 2})"), steps_of_run(2));
  EXPECT_TRUE(agreement(blocks, copies).within(kFp32Tolerance));
  EXPECT_LT(copies.parameter_disagreement, 1e-6) << "copies stay equal";
}

// Placement A for two steps, B for two, then C: weights and states of what moves go along.
TEST(CopiesOfExperts, MoveBetweenStepsWithTheirStates) {
  for (const char* layout :
       {R"("data_parallel": 2, "expert_parallel": 2)", R"("data_parallel": 4, "expert_parallel": 2, "zero_stage": 1)",
        R"("data_parallel": 4, "expert_parallel": 2, "zero_stage": 3)",
        R"("data_parallel": 2, "expert_parallel": 2, "pipeline_parallel": 2)",
        R"("data_parallel": 4, "expert_parallel": 2, "zero_stage": 2, "precision": "bf16")"}) {
    SCOPED_TRACE(layout);
    const std::string plan =
        placed(std::string(layout) + R"(, "moe_balance_interval": 2)", "[0,1,3, 2,1,0, 2,2,0, 1,3,2, 3,2,1, 0,1,3]", 3);
    const std::vector<RunPart> parts = parts_of(runnable(changing(plan)), 7);
    ASSERT_EQ(parts.size(), 3u);
    EXPECT_EQ(parts[2].steps, 3) << "the last placement is kept";
    EXPECT_EQ(parts[1].program.expert_of_slot, (std::vector<std::int64_t>{2, 2, 0, 1, 3, 2}));
    expect_what_one_rank_computes(changing(plan), 6);
  }
}

// Without the states of those that move, the step after the move is another one.
TEST(CopiesOfExperts, OfAMoveTheStatesMatter) {
  const std::string layout = R"("data_parallel": 2, "expert_parallel": 2, "moe_balance_interval": 1)";
  const Scenario moves = changing(placed(layout, "[0,1, 2,3, 3,2, 1,0]", 2));
  ExecutionOptions options = steps_of_run(2);
  const Execution moved = execute(moves, options);
  const Execution stays = execute(changing(R"({"data_parallel": 2, "expert_parallel": 2})"), options);
  EXPECT_TRUE(agreement(stays, moved).within(kFp32Tolerance));
  options.beta1 = 0;  // the first moment is the gradient
  EXPECT_FALSE(agreement(execute(moves, options), moved).within(1e-4)) << "a state decides";
}

TEST(CopiesOfExperts, AreRefusedWhereAPlacementIsNone) {
  const auto refused = [](const std::string& placement, int slots, const std::string& pointer,
                          const std::string& says) {
    try {
      Program program;
      lower(changing(placed(R"("data_parallel": 2, "expert_parallel": 2)", placement, slots)), program);
      ADD_FAILURE() << placement;
    } catch (const InputError& error) {
      EXPECT_EQ(error.where().pointer, pointer);
      EXPECT_THAT(error.what(), HasSubstr(says));
    }
  };
  const std::string field = "/plan/moe_expert_placement";
  refused("[0,1,2, 2,1,0]", 3, field, "no replica of expert 3");
  refused("[0,1,2,3,1]", 3, field, "5 slots, expected 6 for each placement, 3 on each of 2 ranks");
  refused("[]", 3, field, "0 slots");
  refused("[0,1,4, 2,3,0]", 3, field, "expert 4 in slot 2");
  refused("[0,1,3, 2,1,0, 0,1,1, 2,2,2]", 3, field, "no replica of expert 3 in placement 1");
  try {
    Program program;
    lower(changing(R"({"data_parallel": 2, "expert_parallel": 2, "moe_expert_placement": [0, 1, 2, 3]})"), program);
    ADD_FAILURE();
  } catch (const InputError& error) {
    EXPECT_EQ(error.where().pointer, field);
  }
}

TEST(CopiesOfExperts, WhoseGradientsTheHostSumsAreRefused) {
  try {
    static_cast<void>(runnable(changing(
        placed(R"("data_parallel": 2, "expert_parallel": 2, "optimizer_offload": true)", "[0,1,3, 2,1,0]", 3))));
    ADD_FAILURE();
  } catch (const InputError& error) {
    EXPECT_EQ(error.where().pointer, "/plan/optimizer_offload");
  }
}

// ---- processes --------------------------------------------------------------------------------------------------

TEST(ChangingRuns, OverMpiComputeWhatThreadsDo) {
  if (std::system("mpirun --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "no mpirun";
  setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
  for (const std::string& plan : {gated(R"("data_parallel": 2, "expert_parallel": 2)"),
                                  placed(R"("data_parallel": 2, "expert_parallel": 2, "moe_balance_interval": 1)",
                                         "[0,1,3, 2,1,0, 1,2,0, 0,3,1]", 3)}) {
    SCOPED_TRACE(plan);
    const std::string path = testing::TempDir() + "changing_run.json";
    const json document = changing_document(plan);
    std::FILE* file = std::fopen(path.c_str(), "w");
    ASSERT_NE(file, nullptr);
    std::fputs(document.dump().c_str(), file);
    std::fclose(file);
    const Scenario scenario = runnable(read_scenario(document, {}));
    const ExecutionOptions options = options_to_compare({}, scenario, 6);
    EXPECT_EQ(options.steps, 6);
    const JobResults job = execute_ranks_over_mpi({.scenario = path, .sets = {}, .ranks = 2}, options);
    const Scenario last = parts_of(scenario, options.steps).back().scenario;
    const Agreement a = agreement(execute(on_one_rank(scenario), options), assemble(last, job.ranks));
    EXPECT_TRUE(a.within(kFp32Tolerance))
        << a.loss << " " << a.gradients << " " << a.worst_gradient << " " << a.parameters << " " << a.worst_parameter;
  }
}

}  // namespace
}  // namespace orrery
