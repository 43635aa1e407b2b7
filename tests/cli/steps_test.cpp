// orrery simulate --steps as a user meets it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/command.h"

namespace orrery {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kDrift =
    "simulate mixtral-8x7b-64-h100 --set workload.routing_interval=5 --set workload.global_batch_size=64 ";

TEST(Steps, AreTheSameInEveryForm) {
  const Workplace place;
  const CommandResult run =
      place.orrery(std::string(kDrift) + "--steps 30 --json run.json --csv run.csv --svg run.svg --label drift");
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("busiest rank"), HasSubstr("6 different steps for all 30")));
  const json answer = json::parse(place.read("run.json"));
  EXPECT_EQ(answer["label"], "drift");
  EXPECT_EQ(answer["training"]["steps"], 30);
  EXPECT_EQ(answer["training"]["different_steps"], 6);
  EXPECT_EQ(answer["first"]["step_seconds"], answer["training"]["columns"]["step_seconds"][0]);
  EXPECT_TRUE(answer["inputs"].contains("scenario"));
  const std::string csv = place.read("run.csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 31);
  EXPECT_THAT(csv, HasSubstr("\ndrift,29,"));
  EXPECT_THAT(place.read("run.svg"), HasSubstr("</svg>"));
}

TEST(Steps, GoOnFromTheirDatabase) {
  const Workplace place;
  const std::string with = std::string(kDrift) + "--db runs.db --json - ";
  const CommandResult part = place.orrery(with + "--steps 10");
  ASSERT_EQ(part.code, 0) << part.err;
  const CommandResult whole = place.orrery(with + "--steps 30");
  const CommandResult again = place.orrery(with + "--steps 30");
  const CommandResult fresh = place.orrery(std::string(kDrift) + "--json - --steps 30");
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_EQ(whole.out, again.out);
  EXPECT_EQ(whole.out, fresh.out);
  const int code = place.python(
      "-c \"import sqlite3; d = sqlite3.connect('runs.db'); c = lambda q: d.execute(q).fetchone()[0]; "
      "assert c('select count(*) from outcomes') == 6; assert c('select count(*) from trainings') == 2; "
      "assert c('select count(*) from steps') == 40\"");
  EXPECT_EQ(code, 0) << place.read(".stderr");
}

TEST(Steps, WhatIsForOneStepIsRefusedBesideThem) {
  const Workplace place;
  const auto refused = [&](const std::string& arguments, const char* text) {
    const CommandResult run = place.orrery(arguments);
    EXPECT_EQ(run.code, 2) << arguments;
    EXPECT_THAT(run.err, HasSubstr(text)) << arguments;
  };
  for (const char* other : {"--trace t.json", "--explain total", "--ops", "--verify", "--engine both"})
    refused(std::string(kDrift) + "--steps 3 " + other, "--steps");
  refused(std::string(kDrift) + "--steps 0", "--steps");
  refused(std::string(kDrift) + "--db runs.db", "--steps N");
  refused("simulate two-jobs-one-spine --engine des --steps 3", "jobs");
  refused(std::string(kDrift) + "--steps 3 --set workload.step=16777215", "16777216");
  place.write("x.json", "{}");
  refused("simulate x.json --steps 3", "cluster");
  place.write("not.db", "this is no database");
  refused(std::string(kDrift) + "--steps 3 --db not.db", "not.db");
  EXPECT_EQ(place.files(), (std::set<std::string>{"not.db", "x.json"}));
}

TEST(Steps, NoRunTakesWhatChangesBetweenThem) {
  const Workplace place;
  const auto refused = [&](const char* scenario, const char* pointer) {
    const CommandResult run = place.orrery(std::string("run ") + scenario);
    EXPECT_EQ(run.code, 2) << scenario;
    EXPECT_THAT(run.err, HasSubstr(pointer));
  };
  refused("flexmoe", "strategies/flexmoe/example.json: /plan/moe_balancer");
}

TEST(Steps, ARunGoesThroughThem) {
  const Workplace place;
  place.write("gate.json", R"({
    "model": {"layers": 2, "hidden": 32, "heads": 4, "ffn": 64, "vocab": 256, "max_positions": 16, "experts": 4,
              "experts_per_token": 1, "expert_ffn": 64, "expert_bias": true},
    "cluster": {"node": "cpu-host", "devices_per_node": 2},
    "workload": {"sequence_length": 16, "global_batch_size": 4, "step": 7},
    "plan": {"precision": "fp32", "framework": "orrery", "data_parallel": 2, "expert_parallel": 2}})");
  const std::string gate =
      " --set plan.moe_gate=dense_to_sparse --set plan.moe_gate_hard_step=9 --set plan.moe_gate_decay_steps=9";
  const CommandResult run = place.orrery("run gate.json --check --warmup 1 --steps 3 --json out.json" + gate);
  EXPECT_EQ(run.code, 0) << run.err;
  const json report = json::parse(place.read("out.json"));
  ASSERT_EQ(report["steps"].size(), 3u);
  EXPECT_EQ(report["steps"][0]["step"], 8) << "behind a warm-up step, from the workload's on";
  EXPECT_LT(report["steps"][2]["loss"], report["steps"][0]["loss"]);
  EXPECT_GT(report["steps"][1]["seconds"], 0);
  EXPECT_GT(report["steps"][0]["active_experts"], 1.5) << "nearly all of four, before the switch";
  EXPECT_EQ(report["steps"][2]["active_experts"], 1);
  EXPECT_LT(report["agreement"]["parameters"], 2e-5);
  EXPECT_THAT(place.orrery("run gate.json --warmup 0 --steps 3" + gate).out, HasSubstr("The steps differ"));
  EXPECT_THAT(place.orrery("run gate.json --warmup 0 --steps 2").out, testing::Not(HasSubstr("The steps differ")));

  const std::string given = "run gate.json --set plan.moe_balancer=given --set plan.moe_expert_placement=";
  for (const auto& [placement, says] :
       {std::pair{"[0,1,2,2]", "no replica of expert 3"}, {"[0,1,2]", "3 slots"}, {"[0,1,2,-1]", "-1"}}) {
    const CommandResult refused = place.orrery(given + placement);
    EXPECT_EQ(refused.code, 2) << placement;
    EXPECT_THAT(refused.err, HasSubstr("/plan/moe_expert_placement")) << placement;
    EXPECT_THAT(refused.err, HasSubstr(says)) << placement;
  }
}

TEST(Steps, FieldsOfRoutingOverTimeAreChecked) {
  const Workplace place;
  const auto refused = [&](const std::string& sets, const char* text) {
    const CommandResult run = place.orrery("simulate expert_parallel --set workload.routing=" + sets);
    EXPECT_EQ(run.code, 2) << sets;
    EXPECT_THAT(run.err, HasSubstr(text)) << sets;
  };
  refused("worst --set workload.routing_noise=0.2", "/workload/routing_noise");
  refused("zipf --set workload.routing_autocorrelation=0.2", "/workload/routing_autocorrelation");
  refused("zipf --set workload.routing_period=3", "/workload/routing_period");
  refused("rotating --set workload.routing_burst_steps=2", "/workload/routing_burst_steps");
  refused("burst --set workload.routing_skew=0.5 --set workload.routing_burst_steps=2",
          "/workload/routing_burst_steps");
  refused("burst", "/workload/routing_skew");
}

}  // namespace
}  // namespace orrery
