// Does the search come to the rules that USP's authors came to by measuring (Fang & Zhao 2024, arXiv 2405.07719,
// sections 4 and 5, tips 1 to 7)? Nothing states them: they follow from what plans cost.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "strategies/read_scenario.h"
#include "study/search/plan_field.h"
#include "study/search/search.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

// Llama 3 8B, which has eight key heads, over A800 as the paper's; zero_stage 1 and everything kept, unless `plan` says
// otherwise.
Scenario on_a800(int nodes, std::int64_t length, int batch, const Json& plan = Json::object()) {
  Json document{{"model", {{"preset", "llama-3-8b"}, {"max_positions", length}}},
                {"cluster", {{"node", "hgx-a800"}, {"nodes", nodes}}},
                {"workload", {{"sequence_length", length}, {"global_batch_size", batch}}},
                {"plan", {{"zero_stage", 1}, {"context_parallel_fp32_gradients", true}}}};
  document["plan"].update(plan);
  return read_scenario(document, {"test", {}});
}

// The plans of a search over how sequences are divided, the fastest first, as fields.
struct Found {
  std::vector<Plan> plans;
  std::vector<FoundPlan> found;
  const FoundPlan* first(const std::function<bool(const Plan&)>& is) const {
    for (std::size_t i = 0; i < plans.size(); ++i)
      if (is(plans[i])) return &found[i];
    return nullptr;
  }
};
constexpr double kAnyMemory = 1e13, kThatOfTheDevice = 0;
Found over(const Scenario& scenario, std::vector<AxisRequest> axes, double most_memory_bytes = kAnyMemory) {
  SpaceOptions options;
  options.fixed = {"recompute",         "micro_batch_size",      "framework", "pipeline_parallel",
                   "pipeline_schedule", "reshard_after_forward", "zero_stage"};
  std::erase_if(options.fixed, [&](const std::string& field) {
    return std::ranges::any_of(axes, [&](const AxisRequest& axis) { return axis.field == field; });
  });
  options.over = std::move(axes);
  const Space space(scenario, options);
  Found result;
  result.found = search(space, {.top = 200, .leanest = false, .most_memory_bytes = most_memory_bytes}).best;
  for (const FoundPlan& plan : result.found) result.plans.push_back(space.scenario(plan.values).plan);
  return result;
}

const AxisRequest kTypes{"context_parallel_type", {"ring", "ulysses", "usp"}};

bool is_of(const Plan& plan, const char* type) { return field_of(plan, "context_parallel_type") == type; }

TEST(UspRules, Tip1GroupsInRingsAreFasterThanEitherAlone) {
  const Found f = over(on_a800(2, 65536, 1, {{"tensor_parallel", 1}}),
                       {kTypes, {"tensor_parallel", {1}}, {"ulysses_degree", {0, 2, 4, 8, 16}}});
  ASSERT_FALSE(f.plans.empty());
  EXPECT_TRUE(is_of(f.plans[0], "usp"));
  for (const char* alone : {"ring", "ulysses"}) {
    const FoundPlan* one = f.first([&](const Plan& plan) { return is_of(plan, alone); });
    ASSERT_NE(one, nullptr);
    EXPECT_GT(one->step_seconds, 1.03 * f.found[0].step_seconds) << alone;
  }
}

TEST(UspRules, Tip2DataParallelismIsPreferredWhileTheBatchAllows) {
  const Json repeated{{"recompute", "full"}};
  const Found f = over(on_a800(2, 8192, 16, repeated), {kTypes, {"tensor_parallel", {1}}});
  ASSERT_FALSE(f.plans.empty());
  EXPECT_EQ(f.plans[0].context.degree, 1);
  const Found few = over(on_a800(2, 8192, 4, repeated), {kTypes, {"tensor_parallel", {1}}});
  ASSERT_FALSE(few.plans.empty());
  EXPECT_EQ(few.plans[0].context.degree, 4) << "as few ranks a sequence as the batch leaves";
}

// States on every rank are more than a device has; divided they cost no time; parameters divided, too, buy memory.
TEST(UspRules, Tip3StatesAreDividedOverAllRanksOfASequence) {
  const std::vector<AxisRequest> axes{kTypes, {"tensor_parallel", {1}}, {"zero_stage", {0, 1, 2, 3}}};
  const Found fitting = over(on_a800(2, 65536, 1), axes, kThatOfTheDevice), all = over(on_a800(2, 65536, 1), axes);
  const auto seconds = [](const Found& f, int stage) {
    const FoundPlan* best = f.first([&](const Plan& plan) { return plan.data.zero_stage == stage; });
    return best == nullptr ? 0 : best->step_seconds;
  };
  ASSERT_FALSE(fitting.plans.empty());
  EXPECT_GE(fitting.plans[0].data.zero_stage, 1);
  EXPECT_EQ(seconds(fitting, 0), 0) << "of what fits";
  for (const int stage : {1, 2}) EXPECT_LT(seconds(all, stage), 1.02 * seconds(all, 0)) << stage;
  const auto bytes = [&](int stage) {
    return all.first([&](const Plan& plan) { return plan.data.zero_stage == stage; })->memory_peak_bytes;
  };
  constexpr double kParameters = 8.03e9;
  EXPECT_NEAR(bytes(0) - bytes(1), 12 * kParameters * 15 / 16, 0.02 * 12 * kParameters);
  EXPECT_LT(bytes(2), bytes(1));
  EXPECT_LT(bytes(3), bytes(2));
}

TEST(UspRules, Tip4DividingSequencesIsFasterThanTensorParallelismAtScale) {
  const Found f = over(on_a800(2, 32768, 1), {kTypes, {"tensor_parallel", {1, 2, 4, 8, 16}}});
  double before = 0;
  for (const std::int64_t tensor : {1, 4, 8, 16}) {  // 1 and 2 are alike: both stay within a node
    const FoundPlan* best = f.first([&](const Plan& plan) { return plan.tensor.degree == tensor; });
    ASSERT_NE(best, nullptr) << tensor;
    EXPECT_GT(best->step_seconds, 1.02 * before) << tensor;
    before = best->step_seconds;
  }
}

// "Replacing TP-sp by SP does not lengthen the feasible sequence; SP with ZeRO-3 is about as good."
TEST(UspRules, Tip5TheLongestSequenceIsAboutThatOfTensorParallelism) {
  // Of all plans with so many tensor-parallel ranks.
  const auto longest = [](std::int64_t tensor, int zero_stage) {
    constexpr std::int64_t kStep = 16384;
    std::int64_t length = 0;
    while (length < 64 * kStep && !over(on_a800(2, length + kStep, 1, {{"zero_stage", zero_stage}}),
                                        {kTypes, {"tensor_parallel", {tensor}}}, kThatOfTheDevice)
                                       .plans.empty())
      length += kStep;
    return static_cast<double>(length);
  };
  const double tensor = longest(16, 1), zero_1 = longest(1, 1), zero_3 = longest(1, 3);
  EXPECT_LT(zero_1, tensor);
  EXPECT_GT(zero_3, zero_1);
  EXPECT_GT(zero_3 / tensor, 0.75);
  EXPECT_LT(zero_3 / tensor, 1.35);
}

TEST(UspRules, Tip6WhereHeadsRunOutRingsGrow) {
  const Found f = over(on_a800(8, 131072, 1, {{"recompute", "full"}}),
                       {kTypes, {"tensor_parallel", {1}}, {"ulysses_degree", {0, 2, 4, 8}}});
  ASSERT_FALSE(f.plans.empty());
  EXPECT_TRUE(is_of(f.plans[0], "usp"));
  EXPECT_EQ(f.plans[0].context.degree, 64);
  EXPECT_TRUE(f.plans[0].usp.ulysses_degree == 0 || f.plans[0].usp.ulysses_degree == 8)
      << "as many as have key heads; the ring has the rest";
}

TEST(UspRules, Tip7ExchangesLieInsideTheNodeAndRingsAcross) {
  const Found f = over(on_a800(2, 65536, 1), {{"context_parallel_type", {"usp"}},
                                              {"tensor_parallel", {1, 2}},
                                              {"ulysses_degree", {4, 8}},
                                              {"ulysses_inner", {true, false}}});
  for (const std::int64_t tensor : {1, 2})
    for (const std::int64_t exchanging : {std::int64_t{4}, 8 / tensor}) {
      const auto seconds = [&](bool inner) {
        const FoundPlan* plan = f.first([&](const Plan& p) {
          return p.tensor.degree == tensor && p.usp.ulysses_degree == exchanging && p.usp.ulysses_inner == inner &&
                 p.context.degree * tensor == 16;
        });
        return plan == nullptr ? 0 : plan->step_seconds;
      };
      ASSERT_GT(seconds(true), 0);
      EXPECT_LT(seconds(true), seconds(false)) << tensor << " x " << exchanging;
    }
}

}  // namespace
}  // namespace orrery
