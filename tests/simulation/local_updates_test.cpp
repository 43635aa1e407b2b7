// Iterations of local updates in time: does what is known of them in closed form come out of the tasks, and do both
// engines agree?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "sim/base/error.h"
#include "strategies/read_scenario.h"
#include "study/simulation/simulation.h"

namespace orrery {
namespace {

using nlohmann::json;

// GPT-2 XL on nodes of eight A100 with one NIC of `gigabits` Gb/s each; workers are nodes.
Scenario over(double gigabits, std::int64_t local_steps, const std::string& plan = "{}", std::int64_t nodes = 4) {
  json document = json::parse(R"({
    "model": {"layers": 12, "hidden": 1600, "heads": 25, "vocab": 50257, "max_positions": 1024},
    "cluster": {"node": "dgx-a100", "fabric": "ethernet-tcp"}, "workload": {"sequence_length": 1024},
    "plan": {"micro_batch_size": 4, "outer_optimizer": "momentum", "outer_delay": 1, "outer_dtype": "bf16"}})");
  document["cluster"]["nodes"] = nodes;
  document["cluster"]["inter_node_bytes_per_second"] = gigabits / 8 * 1e9;
  document["workload"]["global_batch_size"] = 32 * nodes;
  document["plan"]["local_steps"] = local_steps;
  document["plan"].merge_patch(json::parse(plan));
  return read_scenario(document, {});
}
Report report_of(const Scenario& scenario, Engine engine = Engine::analytical) {
  SimulationOptions options;
  options.engine = engine;
  return Simulator().evaluate(scenario, options).report;
}

// FairScale's documentation of SlowMo: agreeing every f steps is faster than sums under every backward if
// t_all_reduce (1 - 1 / f) > t_backward. It leaves out what the two have in common and what rounds off the corner.
TEST(LocalUpdateTimes, LocalStepsPayOffWhereSlowMosRuleSaysSo) {
  constexpr double kFrequency = 3, kCorner = 0.25;
  bool faster = false, slower = false;
  for (const double gigabits : {100.0, 200.0, 400.0, 800.0, 1600.0}) {
    const char* plan = R"({"framework": "fsdp", "gradient_dtype": "fp32", "outer_optimizer": "average",
                           "outer_dtype": "fp32", "outer_delay": 0})";
    SimulationOptions options;
    options.ops = true;
    const Report sums = Simulator().evaluate(over(gigabits, 0, plan), options).report;
    double all_reduce = 0, backward = 0;
    for (const OpReport& op : sums.ops) {
      const double seconds = op.seconds * op.times_per_step;
      if (op.name.ends_with("gradients.all_reduce")) all_reduce += seconds;
      if (op.name.find(".backward.") != std::string::npos && op.stream == Stream::compute) backward += seconds;
    }
    const double rule = all_reduce * (1 - 1 / kFrequency) / backward;
    if (std::abs(rule - 1) < kCorner) continue;
    const Report local = report_of(over(gigabits, static_cast<std::int64_t>(kFrequency), plan));
    EXPECT_EQ(sums.step_seconds > local.step_seconds, rule > 1) << gigabits << " Gb/s: " << rule;
    (rule > 1 ? faster : slower) = true;
  }
  EXPECT_TRUE(faster && slower);
}

// T = max(tau kappa t_local, t_exchange) + t_outer (CO2), with kappa what kernels lose beside a collective.
TEST(LocalUpdateTimes, AnExchangeIsHiddenByEnoughSteps) {
  for (const double gigabits : {1.0, 10.0, 80.0})
    for (const std::int64_t tau : {1, 3, 6, 12, 24, 48, 96}) {
      const Report r = report_of(over(gigabits, tau));
      ASSERT_EQ(r.tasks.size(), 3u);
      const double local = r.tasks[0].seconds, outer = r.tasks[1].seconds, exchange = r.tasks[2].seconds;
      const auto steps = static_cast<double>(tau);
      const double least = std::max(steps * local, exchange) + outer;
      EXPECT_GE(r.iteration_seconds, least * (1 - 1e-9));
      // Beside an exchange all kernels are slower, but no longer than it lasts.
      constexpr double kSlowest = 0.2;
      EXPECT_LE(r.iteration_seconds,
                std::max(steps * local + kSlowest * std::min(exchange, steps * local), exchange) + outer + 1e-9)
          << gigabits << " Gb/s, " << tau << " steps";
      EXPECT_NEAR(r.step_seconds, r.iteration_seconds / steps, 1e-12 * r.step_seconds);
      for (const StageReport& stage : r.stages) EXPECT_NEAR(stage.time.total(), r.step_seconds, 1e-9 * r.step_seconds);
      // It waits for what the steps have not hidden.
      EXPECT_EQ(r.tasks[1].waiting_seconds > 0, exchange > steps * local) << gigabits << " Gb/s, " << tau << " steps";
    }
}

// Workers that wait: T = tau t_local + t_outer, whose second term has the exchange.
TEST(LocalUpdateTimes, WhoWaitsPaysTheWholeExchange) {
  for (const std::int64_t tau : {1, 7, 50}) {
    const Report waits = report_of(over(10, tau, R"({"outer_delay": 0})")), late = report_of(over(10, tau));
    ASSERT_EQ(waits.tasks.size(), 2u);
    EXPECT_NEAR(waits.iteration_seconds, static_cast<double>(tau) * waits.tasks[0].seconds + waits.tasks[1].seconds,
                1e-9 * waits.iteration_seconds);
    EXPECT_NEAR(waits.tasks[1].seconds, late.tasks[1].seconds + late.tasks[2].seconds, 0.02 * waits.tasks[1].seconds);
    EXPECT_LT(late.step_seconds, waits.step_seconds);
  }
}

// More local steps, and a faster network, never make a step longer.
TEST(LocalUpdateTimes, MoreStepsAndMoreBandwidthAreNoSlower) {
  for (const char* plan : {"{}", R"({"outer_delay": 0})", R"({"zero_stage": 3})"}) {
    double before = 1e9;
    for (const std::int64_t tau : {1, 2, 4, 8, 16, 32, 64, 128}) {
      const double step = report_of(over(25, tau, plan)).step_seconds;
      EXPECT_LE(step, before * (1 + 1e-9)) << plan << " " << tau;
      before = step;
    }
    before = 1e9;
    for (const double gigabits : {1.0, 5.0, 25.0, 100.0, 400.0, 800.0}) {
      const double step = report_of(over(gigabits, 8, plan)).step_seconds;
      EXPECT_LE(step, before * (1 + 1e-9)) << plan << " " << gigabits;
      before = step;
    }
  }
}

// The workers' communicator has buffers as any other, and the parts of the memory add up to the peak.
TEST(LocalUpdateTimes, MemoryHasTheCommunicatorOfTheWorkers) {
  Scenario alone = over(10, 8);
  alone.plan.local = {};
  const Report with = report_of(over(10, 8)), without = report_of(alone);
  EXPECT_GT(with.stages[0].memory.framework_bytes, without.stages[0].memory.framework_bytes * 1.2);
  for (const Report* r : {&with, &without}) {
    const MemoryBreakdown& m = r->stages[static_cast<std::size_t>(r->memory_stage)].memory;
    EXPECT_NEAR(device_bytes(m.bytes) + m.framework_bytes, r->memory_peak_bytes, 1);
  }
}

// Perturbations of a part of a step have no meaning where tasks are simulated apart.
TEST(LocalUpdateTimes, TimedPerturbationsAreRefused) {
  if (!built_with_simgrid()) GTEST_SKIP() << "built without SimGrid";
  Scenario scenario = over(10, 4);
  Perturbation& slow = scenario.perturbations.emplace_back();
  slow.devices = {3};
  slow.factor = 0.5;
  EXPECT_GT(report_of(scenario, Engine::des).step_seconds, report_of(over(10, 4), Engine::des).step_seconds);
  slow.until_seconds = 0.1;
  try {
    report_of(scenario, Engine::des);
    ADD_FAILURE() << "not refused";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(),
                testing::HasSubstr("/perturbations/0/until_seconds: found 0.1, expected 0 with other tasks"));
  }
}

// Both engines, where links are idle and where the workers' own collectives need the network that the exchange needs.
// An exchange that ends within the step in which it begins meets a part of the step: the closed form knows only the
// mean.
TEST(LocalUpdateTimes, BothEnginesAgree) {
  if (!built_with_simgrid()) GTEST_SKIP() << "built without SimGrid";
  constexpr double kAgree = 0.03, kWithinAStep = 0.06;
  for (const char* plan : {"{}", R"({"outer_delay": 0})", R"({"zero_stage": 3, "local_workers": 2})",
                           R"({"local_workers": 2})", R"({"local_workers": 8, "zero_stage": 3})"})
    for (const double gigabits : {10.0, 100.0})
      for (const std::int64_t tau : {1, 4, 16, 64}) {
        const Scenario scenario = over(gigabits, tau, plan);
        const Report closed = report_of(scenario), events = report_of(scenario, Engine::des);
        const TaskReport& last = closed.tasks.back();
        const bool within = last.beside && last.seconds < closed.tasks[0].seconds && tau == 1;
        EXPECT_NEAR(closed.step_seconds / events.step_seconds, 1, within ? kWithinAStep : kAgree)
            << plan << " " << gigabits << " Gb/s, " << tau << " steps";
      }
}

// Steps of 0/1 Adam, and what workers agree on behind them.
TEST(LocalUpdateTimes, BothEnginesAgreeOnZeroOneAdam) {
  if (!built_with_simgrid()) GTEST_SKIP() << "built without SimGrid";
  for (const std::int64_t tau : {1, 16}) {
    const Scenario scenario = over(10, tau, R"({"gradient_compression": "zero_one_adam", "outer_optimizer": "average",
        "outer_delay": 0, "outer_dtype": "fp32", "optimizer": "adam"})");
    const Report closed = report_of(scenario), events = report_of(scenario, Engine::des);
    ASSERT_EQ(closed.tasks.size(), 2u);
    EXPECT_NEAR(closed.iteration_seconds, static_cast<double>(tau) * closed.tasks[0].seconds + closed.tasks[1].seconds,
                1e-9 * closed.iteration_seconds);
    EXPECT_NEAR(closed.step_seconds / events.step_seconds, 1, 0.03) << tau;
  }
}

// Norms for CO2's penalty, after the first local step and before the outer update, cost little; both engines say so.
TEST(LocalUpdateTimes, APenaltyByNormsIsCheap) {
  const Report norms = report_of(over(10, 8, R"({"outer_gap_norms": true})")), constant = report_of(over(10, 8));
  ASSERT_EQ(norms.tasks.size(), constant.tasks.size() + 2);
  EXPECT_GT(norms.iteration_seconds, constant.iteration_seconds);
  EXPECT_LT(norms.iteration_seconds, 1.02 * constant.iteration_seconds);
  if (!built_with_simgrid()) GTEST_SKIP() << "built without SimGrid";
  const Report events = report_of(over(10, 8, R"({"outer_gap_norms": true})"), Engine::des);
  EXPECT_NEAR(norms.step_seconds / events.step_seconds, 1, 0.03);
}

// One NIC of eight carries the exchange: it takes about eight times as long, and both engines say so.
TEST(LocalUpdateTimes, FirstRanksUseOneNicOfTheirNode) {
  const json plan =
      json::parse(R"({"outer_exchange": "first_ranks", "outer_dtype": "fp32", "overlap_grad_reduce": false})");
  for (const std::int64_t tau : {1, 16}) {
    const Scenario scenario = over(8 * 200, tau, plan.dump());  // eight NICs
    const Report closed = report_of(scenario), all = report_of(over(8 * 200, tau, R"({"outer_dtype": "fp32"})"));
    EXPECT_GT(closed.tasks.back().seconds, 4 * all.tasks.back().seconds);
    EXPECT_LT(closed.tasks.back().seconds, 10 * all.tasks.back().seconds);
    if (!built_with_simgrid()) continue;
    EXPECT_NEAR(closed.step_seconds / report_of(scenario, Engine::des).step_seconds, 1, 0.03) << tau;
    // Links above the leaf switches, narrow for eight NICs of a node, are wide enough for one.
    Scenario narrowed = scenario;
    narrowed.cluster.fabric.kind = FabricKind::fat_tree;
    narrowed.cluster.fabric.nodes_per_leaf = 2;
    narrowed.cluster.fabric.oversubscription = 8;
    EXPECT_NEAR(report_of(narrowed).tasks.back().seconds / closed.tasks.back().seconds, 1, 0.01);
  }
}

// What stages send each other, and their sums of a table that they share, take links from an exchange that lasts
// several steps. Messages between stages are longer than slots here.
TEST(LocalUpdateTimes, BothEnginesAgreeOnPipelinesOverNodes) {
  if (!built_with_simgrid()) GTEST_SKIP() << "built without SimGrid";
  for (const bool tied : {false, true})
    for (const std::int64_t micro_batches : {1, 4})
      for (const std::int64_t tau : {1, 3, 6, 24}) {
        Scenario scenario = over(10, tau, R"({"pipeline_parallel": 2, "micro_batch_size": 1, "local_workers": 16})");
        scenario.workload.global_batch_size = 16 * micro_batches;
        scenario.model.tied_embeddings = tied;
        const Report closed = report_of(scenario), events = report_of(scenario, Engine::des);
        EXPECT_NEAR(closed.tasks[0].seconds / events.tasks[0].seconds, 1, 1e-3);
        EXPECT_NEAR(closed.step_seconds / events.step_seconds, 1, 0.045) << tied << " " << micro_batches << " " << tau;
      }
}

}  // namespace
}  // namespace orrery
