// Is a step with the dense-to-sparse gate the step of the model that it is at that time?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "sim/base/error.h"
#include "strategies/strategy.h"
#include "tests/simulation/support.h"

namespace orrery {
namespace {

using dts_gate::MoeGate;
using testing::HasSubstr;

const Strategy& gate_strategy() { return *std::ranges::find(all_strategies(), "dts_gate", &Strategy::name); }

Scenario gated() {
  Scenario s = scenario_of("gpt2-124m", "dgx-a100", 2);
  s.model.experts = 16;
  s.model.experts_per_token = 1;
  s.model.expert_ffn = s.model.ffn;
  s.model.expert_period = 2;
  s.workload = {1024, 0, 512};
  s.plan.batch.micro_batch_size = 4;
  s.plan.expert.degree = 16;
  s.plan.data.zero_stage = 1;
  s.plan.dts_gate.kind = MoeGate::dense_to_sparse;
  s.plan.dts_gate.gate.seed_steps = 100;
  s.plan.dts_gate.gate.hard_step = 1000;
  s.plan.dts_gate.gate.decay_steps = 640;
  return s;
}

Report at(Scenario s, std::int64_t step) {
  s.workload.step = step;
  return simulate(s);
}

void expect_same(const Report& a, const Report& b) {
  EXPECT_EQ(a.step_seconds, b.step_seconds);
  EXPECT_EQ(a.memory_peak_bytes, b.memory_peak_bytes);
  EXPECT_EQ(a.mfu, b.mfu);
  EXPECT_EQ(a.hfu, b.hfu);
  EXPECT_EQ(a.exposed_communication_seconds, b.exposed_communication_seconds);
}

TEST(DtsGateStep, OfASingleExpertIsThatOfTheDenseModel) {
  Scenario dense = gated();
  dense.model.experts = dense.model.experts_per_token = 0;
  dense.model.expert_period = 1;
  dense.plan.expert = {};
  dense.plan.dts_gate = {};
  expect_same(at(gated(), 0), simulate(dense));
  expect_same(at(gated(), 99), simulate(dense));
  EXPECT_GT(at(gated(), 100).step_seconds, simulate(dense).step_seconds);
}

TEST(DtsGateStep, PaddedIsThatOfAllExpertsAToken) {
  Scenario padded = gated();
  padded.plan.dts_gate.gate.padded = true;
  Scenario all = gated();
  all.plan.dts_gate = {};
  all.model.experts_per_token = 16;
  expect_same(at(padded, 100), simulate(all));
  expect_same(at(padded, 999), simulate(all));
}

TEST(DtsGateStep, BehindTheSwitchIsThatOfTopOne) {
  Scenario top = gated();
  top.plan.dts_gate = {};
  expect_same(at(gated(), 1000), simulate(top));
  EXPECT_LT(simulate(top).step_seconds, at(gated(), 999).step_seconds);
}

TEST(DtsGateStep, TakesWhatItsExpertsTakeAndLessFromStepToStep) {
  double before = at(gated(), 100).step_seconds, memory = at(gated(), 100).memory_peak_bytes;
  for (std::int64_t step = 150; step < 750; step += 50) {
    const Report now = at(gated(), step);
    EXPECT_LT(now.step_seconds, before) << step;
    EXPECT_LE(now.memory_peak_bytes, memory) << step;
    before = now.step_seconds;
    memory = now.memory_peak_bytes;
  }
  EXPECT_EQ(at(gated(), 740).step_seconds, at(gated(), 900).step_seconds);  // the decay is over
}

// Of any length of the decay, what the schedule itself says of each step.
TEST(DtsGateStep, HasTheExpertsOfItsSchedule) {
  for (const std::int64_t decay : {3, 50, 64, 100, 999}) {
    Scenario s = gated();
    s.plan.dts_gate.gate.decay_steps = decay;
    dts_gate::Gate gate = s.plan.dts_gate.gate;
    gate.experts = s.model.experts;
    const dts_gate::SampledGate tokens(gate.experts, 1 << 12, 1);
    for (const std::int64_t part : {0, 1, 2, 5, 7, 10}) {
      s.workload.step = gate.seed_steps + decay * part / 10;
      if (s.workload.step >= gate.hard_step) continue;
      const double expected = tokens.active_experts(temperature(gate, s.workload.step), gate.threshold,
                                                    logit_deviation(gate, s.workload.step));
      const Model model = gate_strategy().settle(s).value().model;
      const double found = model.mean_experts_per_token > 0 ? model.mean_experts_per_token
                                                            : static_cast<double>(model.experts_per_token);
      EXPECT_NEAR(found, expected, 0.0051 + 0.002 * expected) << decay << " " << part;
    }
  }
}

TEST(DtsGateStep, BetweenWholeNumbersLiesBetweenTheirSteps) {
  Scenario s = gated();
  s.workload.step = 740;
  const std::optional<Scenario> settled = gate_strategy().settle(s);
  ASSERT_TRUE(settled);
  const double mean = settled->model.mean_experts_per_token;
  EXPECT_NEAR(mean, 10.09, 0.02 * 10.09);  // tests/strategies/dts_gate_test.cpp: of 16 at 0.5
  EXPECT_EQ(settled->model.experts_per_token, static_cast<std::int64_t>(std::ceil(mean)));
  const auto top = [](std::int64_t k) {
    Scenario all = gated();
    all.plan.dts_gate = {};
    all.model.experts_per_token = k;
    return simulate(all);
  };
  const Report less = top(settled->model.experts_per_token - 1), more = top(settled->model.experts_per_token);
  const Report between = simulate(s);
  EXPECT_GT(between.step_seconds, less.step_seconds);
  EXPECT_LT(between.step_seconds, more.step_seconds);
  EXPECT_GT(between.mfu * between.step_seconds, less.mfu * less.step_seconds);
  EXPECT_LT(between.mfu * between.step_seconds, more.mfu * more.step_seconds);
  EXPECT_LE(between.hfu, more.hfu * more.step_seconds / between.step_seconds);
}

TEST(DtsGateStep, ComposesWithUnequalRouting) {
  Scenario skewed = gated();
  skewed.workload.routing = ExpertRouting::zipf;
  skewed.workload.routing_skew = 1;
  for (const std::int64_t step : {500, 2000}) EXPECT_GT(at(skewed, step).step_seconds, at(gated(), step).step_seconds);
  EXPECT_EQ(at(skewed, 0).step_seconds, at(gated(), 0).step_seconds);  // one expert has no favourites
}

TEST(DtsGatePlan, IsRefusedWhereItMeansNothing) {
  const auto refused = [](const char* pointer, const std::function<void(Scenario&)>& change) {
    Scenario s = gated();
    change(s);
    try {
      check_strategies(s, "dts_gate");
      ADD_FAILURE() << pointer;
    } catch (const InputError& error) {
      EXPECT_EQ(error.where().pointer, pointer) << error.what();
    }
  };
  EXPECT_NO_THROW(check_strategies(gated()));
  refused("/plan/moe_gate", [](Scenario& s) { s.model.experts_per_token = 2; });
  refused("/plan/moe_gate", [](Scenario& s) { s.model.shared_expert_ffn = 64; });
  refused("/plan/moe_gate", [](Scenario& s) { s.model.experts = 0; });
  refused("/plan/moe_gate_seed_steps", [](Scenario& s) { s.plan.dts_gate.kind = MoeGate::top_k; });
  refused("/plan/moe_expert_capacity_factor", [](Scenario& s) { s.plan.expert.capacity_factor = 1; });
  refused("/workload/routing", [](Scenario& s) {
    s.model.experts = 128;
    s.workload.routing = ExpertRouting::zipf;
  });
  refused("/plan/moe_gate_seed_steps", [](Scenario& s) { s.model.expert_ffn = 64; });
  refused("/plan/moe_gate_hard_step", [](Scenario& s) { s.plan.dts_gate.gate.hard_step = 50; });
  refused("/plan/moe_gate_first_temperature", [](Scenario& s) { s.plan.dts_gate.gate.first_temperature = 0.1; });
}

TEST(DtsGateController, SaysWhichStepsAreAlike) {
  Scenario s = gated();
  const std::unique_ptr<TrainingController> controller = gate_strategy().control(s);
  ASSERT_NE(controller, nullptr);
  const auto state = [&](std::int64_t step) {
    s.workload.step = step;
    return controller->state(s);
  };
  EXPECT_EQ(state(0), state(99));
  EXPECT_NE(state(99), state(100));
  EXPECT_NE(state(99), state(1000));  // one expert a token in both, but one expert in all in the first
  EXPECT_NE(state(999), state(1000));
  EXPECT_EQ(state(800), state(999));
  EXPECT_EQ(state(1000), state(5000));
  std::vector<double> values;
  s.workload.step = 740;
  controller->figures(s, values);
  ASSERT_EQ(values.size(), controller->figures().size());
  EXPECT_NEAR(values[0], 0.5, 1e-12);
  EXPECT_NEAR(values[1], values[2], 0.0051);
}

}  // namespace
}  // namespace orrery
