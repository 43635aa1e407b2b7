// Are candidates what their scenarios become on so many devices, with the spares that pay?
#include "study/capacity/sized_candidate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "sim/report/memory_verdict.h"
#include "tests/capacity/plans.h"

namespace orrery {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TrainingRun run_with_repairs(double failures_per_node_day, double repair_days) {
  TrainingRun run;
  run.step_seconds = 10;
  run.steps = 500'000;
  run.devices = 2048;
  run.nodes = 256;
  run.failures_per_node_second = failures_per_node_day / 86400;
  run.repair_seconds = repair_days * 86400;
  run.restart_seconds = 300;
  run.checkpoint_bytes = 1e12;
  run.write_bytes_per_second = run.read_bytes_per_second = 1e11;
  return run;
}

TEST(SpareNodes, AreThoseWithTheFewestDeviceHours) {
  for (const auto& [rate, days] : {std::pair(0.0038, 1.0), std::pair(0.0038, 0.1), std::pair(0.02, 3.0)}) {
    TrainingRun run = run_with_repairs(rate, days);
    std::int64_t best = -1;
    double least = std::numeric_limits<double>::infinity();
    for (run.spare_nodes = 0; run.spare_nodes <= 60; ++run.spare_nodes) {
      const double hours = expected_run(run).wall_seconds * static_cast<double>(run.nodes + run.spare_nodes);
      if (hours >= least) continue;
      least = hours;
      best = run.spare_nodes;
    }
    EXPECT_EQ(cheapest_spare_nodes(run), best) << rate << " a node-day, " << days << " days";
    EXPECT_GT(best, 0);
  }
  EXPECT_EQ(cheapest_spare_nodes(run_with_repairs(0.0038, 0)), 0);
  EXPECT_EQ(cheapest_spare_nodes(run_with_repairs(0, 1)), 0);
}

TEST(Sizes, AreTheScenarioWithAsManyReplicasAsTheDevicesHold) {
  const CapacityPlan plan = read_plan(example_plan());
  ASSERT_EQ(plan.clusters.size(), 2u);
  EXPECT_THAT(plan.clusters[0].devices, ElementsAre(32, 64, 128));
  Simulator simulator;
  for (const SizedCandidate& sized : size_up(plan, simulator)) {
    ASSERT_THAT(sized.impossible, IsEmpty());
    const Scenario& s = *sized.scenario;
    EXPECT_EQ(s.cluster.devices(), sized.devices);
    EXPECT_EQ(data_parallel_degree(s), sized.devices / 8);
    EXPECT_EQ(s.workload.global_batch_size, 128);
    // The step is what `simulate` says of that scenario, with its interval.
    const Report report = simulator.evaluate(s, {}).report;
    const Candidate& c = sized.candidate;
    EXPECT_EQ(c.step_seconds.value, report.step_seconds);
    ASSERT_TRUE(report.expected);
    EXPECT_EQ(c.step_seconds.low, report.expected->low_seconds);
    EXPECT_EQ(c.step_seconds.high, report.expected->high_seconds);
    EXPECT_EQ(c.tokens_per_step, 128 * 8192);
    EXPECT_EQ(c.run.steps, static_cast<std::int64_t>(std::ceil(1e11 / (128 * 8192))));
    EXPECT_EQ(c.run.nodes, sized.devices / 8);
    // bf16 parameters, fp32 copies and two moments.
    EXPECT_EQ(c.run.checkpoint_bytes, 14.0 * static_cast<double>(parameters(s.model)));
  }
}

TEST(Sizes, HaveTheirOwnReplicasWhateverThePatternSays) {
  nlohmann::json document = example_plan();
  document["all_candidates"]["plan"]["data_parallel"] = 4;  // of 32 devices
  Simulator simulator;
  for (const SizedCandidate& sized : size_up(read_plan(document), simulator))
    EXPECT_EQ(ranks(*sized.scenario), sized.devices);
}

TEST(Sizes, ThatCannotBeLaidOutSayWhy) {
  nlohmann::json document = example_plan();
  document["candidates"][0]["devices"] = {12, 24, 64};
  Simulator simulator;
  const auto sized = size_up(read_plan(document), simulator);
  ASSERT_EQ(sized.size(), 6u);
  EXPECT_THAT(sized[0].impossible, HasSubstr("found 12, expected whole nodes of 8 devices"));
  EXPECT_THAT(sized[1].impossible, HasSubstr("/workload/global_batch_size: found 128, expected a multiple of 3"));
  EXPECT_THAT(sized[2].impossible, IsEmpty());
}

// A hand's arithmetic: no failures, no checkpoints, a step that was measured.
TEST(Sizes, OfAMeasuredStepComeToWhatAHandWorksOut) {
  const nlohmann::json document = nlohmann::json::parse(R"({
    "steps": 86400, "deadline_days": 3, "candidates": [{
      "name": "mine", "step_seconds": 2, "step_seconds_low": 1, "step_seconds_high": 4, "devices": 16,
      "failures": {"failures_per_node_day": 0}, "restarts": {"restart_seconds": 0},
      "storage": {"write_bytes_per_second": 1e9}, "checkpoint_bytes": 0,
      "price": {"per_device_hour": 3, "currency": "EUR", "date": "2026"}, "electricity_per_kwh": 0.5,
      "power": {"busy_watts": 1000}, "site": {"pue": 1.25}, "grid": {"grams_per_kwh": 400}}]})");
  Simulator simulator;
  const auto sized = size_up(read_plan(document), simulator);
  ASSERT_EQ(sized.size(), 1u);
  const Forecast& f = sized.front().forecast;
  // Two days of 16 devices: 768 h; 768 kWh, 960 with the site's; 384 kg; 2304 EUR, and 480 of electricity.
  EXPECT_DOUBLE_EQ(f.wall_seconds.value, 2 * 86400);
  EXPECT_DOUBLE_EQ(f.device_hours.value, 768);
  EXPECT_DOUBLE_EQ(f.energy_kwh.value, 960);
  EXPECT_DOUBLE_EQ(f.carbon_kg.value, 384);
  EXPECT_DOUBLE_EQ(f.cost.value, 2304 + 480);
  // The step's interval is that of time and cost.
  EXPECT_DOUBLE_EQ(f.wall_seconds.low, 86400);
  EXPECT_DOUBLE_EQ(f.wall_seconds.high, 4 * 86400);
  EXPECT_DOUBLE_EQ(f.cost.high, 2 * (2304 + 480));
}

TEST(Sizes, OfAMeasuredStepKeepTheSparesThatAreGiven) {
  nlohmann::json document = nlohmann::json::parse(R"({
    "steps": 86400, "candidates": [{
      "name": "mine", "step_seconds": 2, "devices": 16, "checkpoint_bytes": 0,
      "failures": {"failures_per_node_day": 0}, "restarts": {"restart_seconds": 0},
      "storage": {"write_bytes_per_second": 1e9},
      "price": {"per_device_hour": 3, "currency": "EUR", "date": "2026"}, "electricity_per_kwh": 0.5,
      "power": {"busy_watts": 1000}, "site": {"pue": 1.25}, "grid": {"grams_per_kwh": 400}}]})");
  Simulator simulator;
  for (const std::int64_t spares : {0, 3}) {  // none pay where nothing fails
    if (spares > 0) document["candidates"][0]["spare_nodes"] = spares;
    EXPECT_EQ(size_up(read_plan(document), simulator).front().candidate.run.spare_nodes, spares);
  }
}

TEST(Sizes, AreAskedOfWhoeverLaysThemOut) {
  Simulator simulator;
  const CapacityPlan plan = read_plan(example_plan());
  const auto wider = [](const Scenario& pattern, std::int64_t devices) {
    Scenario scenario = with_replicas(pattern, devices);
    scenario.plan.batch.micro_batch_size = 2;
    return scenario;
  };
  const auto usual = size_up(plan, simulator), other = size_up(plan, simulator, wider);
  ASSERT_EQ(usual.size(), other.size());
  EXPECT_EQ(other.front().scenario->plan.batch.micro_batch_size, 2);
  EXPECT_NE(usual.front().forecast.cost.value, other.front().forecast.cost.value);
}

TEST(Sizes, WithSearchedPlansAreNoSlowerThanWithThePatterns) {
  const CapacityPlan plan = read_plan(example_plan());
  Simulator simulator;
  SpaceOptions fields;
  fields.fixed = {"context_parallel", "mesh_order"};
  int searches = 0;
  const std::vector<SizedCandidate> own = size_up(plan, simulator);
  const std::vector<SizedCandidate> searched =
      size_up(plan, simulator, searched_plans(fields, 1, {}, [&](const Scenario&) { ++searches; }));
  ASSERT_EQ(own.size(), searched.size());
  EXPECT_EQ(searches, static_cast<int>(own.size()));
  bool faster = false;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const bool surely = kPeakHigh * own[i].memory_peak_bytes <= own[i].memory_capacity_bytes;
    if (surely) {
      EXPECT_LE(searched[i].candidate.step_seconds.value, own[i].candidate.step_seconds.value);
    }
    faster = faster || searched[i].candidate.step_seconds.value < own[i].candidate.step_seconds.value;
    EXPECT_LE(kPeakHigh * searched[i].memory_peak_bytes, searched[i].memory_capacity_bytes);
    EXPECT_EQ(searched[i].devices, own[i].devices);
  }
  EXPECT_TRUE(faster);
}

}  // namespace
}  // namespace orrery
