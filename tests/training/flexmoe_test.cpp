// Do experts follow their load: never before their copies are there, and for less than what it saves?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "sim/base/error.h"
#include "strategies/strategy.h"
#include "study/training/training.h"
#include "tests/strategies/support.h"

namespace orrery {
namespace {

using flexmoe::Balancer;

Scenario skewed(Balancer balancer) {
  Scenario s = scenario_of("megablocks-moe-small", "dgx-a100", 2);
  s.workload = {1024, 0, 512};
  s.workload.routing = ExpertRouting::zipf;
  s.workload.routing_skew = 1;
  s.plan.batch.micro_batch_size = 4;
  s.plan.expert.degree = 16;
  s.plan.data.zero_stage = 1;
  s.plan.flexmoe.balancer = balancer;
  if (balancer != Balancer::none) s.plan.flexmoe.slots_per_rank = 8;
  return s;
}

Training trained(const Scenario& scenario, std::int64_t steps) {
  static Simulator simulator;
  TrainingOptions options;
  options.steps = steps;
  return train(simulator, scenario, options);
}

TEST(FlexmoeTraining, BalancedRoutingMovesNothing) {
  for (const Balancer balancer :
       {Balancer::flexmoe, Balancer::eplb, Balancer::symi, Balancer::fastermoe, Balancer::swipe}) {
    Scenario balanced = skewed(balancer), none = skewed(Balancer::none);
    balanced.workload.routing = none.workload.routing = ExpertRouting::balanced;
    balanced.workload.routing_skew = none.workload.routing_skew = 0;
    const bool within_steps = balancer == Balancer::fastermoe || balancer == Balancer::swipe;
    balanced.plan.flexmoe.slots_per_rank = within_steps ? 0 : 4;  // no room for copies
    const Training a = trained(balanced, 5), b = trained(none, 5);
    for (const char* column : {"step_seconds", "waiting_seconds", "memory_peak_bytes", "mfu"})
      EXPECT_EQ(a.column(column), b.column(column)) << column;
    if (balancer != Balancer::swipe) {
      EXPECT_THAT(a.column("replicas"), testing::Each(0));
    }
  }
}

TEST(FlexmoeTraining, FirstStepIsThatOfBlocks) {
  const Training with = trained(skewed(Balancer::flexmoe), 1), without = trained(skewed(Balancer::none), 1);
  EXPECT_NEAR(with.column("busiest_rank")[0], without.column("busiest_rank")[0], 1e-6);
  EXPECT_LE(with.column("balance")[0], with.column("busiest_rank")[0]);  // mean and most of layers
  // Room for copies is room for weights, gradients and states.
  EXPECT_GT(with.column("memory_peak_bytes")[0], without.column("memory_peak_bytes")[0]);
  // What the model is, and its work, are the same.
  EXPECT_NEAR(with.column("mfu")[0] * with.column("step_seconds")[0],
              without.column("mfu")[0] * without.column("step_seconds")[0], 1e-9);
}

TEST(FlexmoeTraining, StepsGetShorterOnceCopiesHaveArrived) {
  const Training training = trained(skewed(Balancer::flexmoe), 60), without = trained(skewed(Balancer::none), 1);
  const std::vector<double>&steps = training.column("step_seconds"), &moving = training.column("moving_seconds"),
        &arrived = training.column("moved_copies"), &replicas = training.column("replicas");
  EXPECT_GT(moving[0], 0);
  EXPECT_EQ(replicas[0], 0);
  EXPECT_LT(steps.back(), 0.75 * without.column("step_seconds")[0]);
  EXPECT_LT(training.column("balance").back(), 0.6 * training.column("balance").front());
  for (std::size_t i = 1; i < steps.size(); ++i) {
    // Nothing is another placement's before it is there, which is when nothing moves any more.
    if (arrived[i] == 0) {
      EXPECT_LE(replicas[i], replicas[i - 1]) << i;
    } else {
      ASSERT_GE(i, 2U);  // decided behind a step, sent beside the next
      EXPECT_GT(moving[i - 2], 0) << i;
    }
  }
  EXPECT_GT(std::accumulate(arrived.begin(), arrived.end(), 0.0), 0);
  EXPECT_THAT(training.column("waiting_seconds"), testing::Each(0)) << "sums over copies are part of the step";
}

TEST(FlexmoeTraining, EplbMovesAtItsIntervalAndStepsWaitForIt) {
  Scenario s = skewed(Balancer::eplb);
  s.plan.flexmoe.interval = 10;
  const Training training = trained(s, 25);
  const std::vector<double>&arrived = training.column("moved_copies"), &waiting = training.column("waiting_seconds");
  for (std::size_t i = 0; i < 25; ++i) EXPECT_EQ(arrived[i] > 0, i == 10) << i;  // the same routing: the same again
  EXPECT_GT(waiting[10], waiting[11]);
  EXPECT_THAT(training.column("moving_seconds"), testing::Each(0));
  EXPECT_LT(training.column("balance")[10], 1.2);
}

TEST(FlexmoeTraining, SymiMovesWeightsAloneAndEveryStep) {
  Scenario s = skewed(Balancer::symi), all = skewed(Balancer::eplb);
  const Training symi = trained(s, 5), eplb = trained(all, 5);
  EXPECT_GT(symi.column("moved_copies")[1], 0);
  const auto a_copy = [](const Training& t) { return (t.column("waiting_seconds")[1]) / t.column("moved_copies")[1]; };
  EXPECT_LT(a_copy(symi), a_copy(eplb));
}

// Every expert on its rank of the blocks and `apart` ranks behind it.
void place_twice(Scenario& s, std::int64_t apart) {
  for (std::int64_t rank = 0; rank < 16; ++rank)
    for (const std::int64_t of : {rank, (rank + apart) % 16})
      for (std::int64_t i = 0; i < 4; ++i) s.plan.flexmoe.placement.push_back(4 * of + i);
}

TEST(FlexmoeTraining, GivenPlacementsHoldForTheirStepsAndAreWaitedFor) {
  Scenario s = skewed(Balancer::given);
  s.plan.flexmoe.interval = 3;
  place_twice(s, 1);
  place_twice(s, 8);
  const Training training = trained(s, 9);
  const std::vector<double>&arrived = training.column("moved_copies"), &waiting = training.column("waiting_seconds"),
        &steps = training.column("step_seconds");
  for (std::size_t i = 0; i < 9; ++i) EXPECT_EQ(arrived[i] > 0, i == 3) << i;
  EXPECT_EQ(arrived[3], 64 * 4) << "each expert's second copy, in the four layers that are drawn";
  EXPECT_THAT(training.column("replicas"), testing::Each(64 * 4));
  for (std::size_t i = 0; i < 9; ++i) EXPECT_EQ(waiting[i] > 0, i == 3) << i;
  EXPECT_NE(steps[2], steps[3]);
  EXPECT_EQ(steps[3], steps[8]) << "the last is kept";
  s.workload.step = 3;
  EXPECT_EQ(trained(s, 1).column("step_seconds")[0], steps[3]) << "a step alone has its own placement";
  s.workload.routing = ExpertRouting::balanced;
  s.workload.routing_skew = 0;
  const std::vector<double> balanced = trained(s, 3).column("step_seconds");
  EXPECT_THAT(balanced, testing::Each(balanced[0])) << "copies are summed whatever tokens do";
}

TEST(FlexmoeTraining, IsTheSameAgain) {
  Scenario s = skewed(Balancer::flexmoe);
  s.workload.routing_noise = 0.5;
  s.workload.routing_autocorrelation = 0.9;
  const Training a = trained(s, 20), b = trained(s, 20);
  for (std::size_t i = 0; i < a.columns.size(); ++i) EXPECT_EQ(a.columns[i].values, b.columns[i].values);
}

TEST(FlexmoeTraining, TriesTheBusiestRanksExpertTooWhereAskedTo) {
  Scenario s = skewed(Balancer::flexmoe);
  s.workload.routing_skew = 1.26;
  const Training paper = trained(s, 60);
  s.plan.flexmoe.also_busiest_rank = true;
  const Training with = trained(s, 60);
  EXPECT_LT(with.column("balance").back(), paper.column("balance").back());
  EXPECT_GT(with.column("replicas").back(), paper.column("replicas").back());
}

TEST(FlexmoeTraining, FasterMoePaysForBroadcastsInEveryStepAndKeepsNothing) {
  const Training none = trained(skewed(Balancer::none), 1);
  Scenario s = skewed(Balancer::fastermoe);
  s.plan.flexmoe.slots_per_rank = 0;
  const Training with = trained(s, 4);
  EXPECT_EQ(with.column("step_seconds")[0], none.column("step_seconds")[0]);
  EXPECT_EQ(with.column("memory_peak_bytes")[0], none.column("memory_peak_bytes")[0]);
  EXPECT_THAT(with.column("moving_seconds"), testing::Each(0));
  EXPECT_EQ(with.column("waiting_seconds")[1], 0);  // of the first step, which is in blocks
  for (const std::size_t i : {1U, 2U, 3U}) {
    EXPECT_LT(with.column("busiest_rank")[i], none.column("busiest_rank")[0]) << i;
    EXPECT_LT(with.column("step_seconds")[i], none.column("step_seconds")[0]) << i;
    EXPECT_GT(with.column("moved_copies")[i], 0) << i;
    EXPECT_EQ(std::fmod(with.column("moved_copies")[i], 15), 0) << "to all ranks but an expert's own";
  }
  EXPECT_GT(with.column("waiting_seconds")[2], 0);
  EXPECT_EQ(with.column("waiting_seconds")[2], with.column("waiting_seconds")[3]);
  // Twice the micro-batches of half the size broadcast twice as often, if they do at all.
  s.plan.batch.micro_batch_size = 2;
  const Training halves = trained(s, 3);
  const auto a_copy = [](const Training& t) { return t.column("waiting_seconds")[2] / t.column("moved_copies")[1]; };
  EXPECT_NEAR(a_copy(halves), 2 * a_copy(with), 1e-9);
}

TEST(FlexmoeTraining, SwipeLeavesAllRanksAlikeAndSaysWhatWasRerouted) {
  Scenario s = skewed(Balancer::swipe), balanced = skewed(Balancer::none);
  s.plan.flexmoe.slots_per_rank = 0;
  balanced.workload.routing = ExpertRouting::balanced;
  balanced.workload.routing_skew = 0;
  const Training with = trained(s, 3), even = trained(balanced, 1);
  EXPECT_NEAR(with.column("busiest_rank")[1], 1, 1e-3);
  // Experts of a rank have unequal rows, and the host waits for their counts.
  EXPECT_NEAR(with.column("step_seconds")[1] / even.column("step_seconds")[0], 1, 0.06);
  EXPECT_EQ(with.column("rerouted_share")[0], 0);
  EXPECT_GT(with.column("rerouted_share")[1], 0.2);
  EXPECT_LT(with.column("rerouted_share")[1], 1);
  // Counts alone: far less than any broadcast, and more than nothing.
  EXPECT_GT(with.column("waiting_seconds")[2], 0);
  EXPECT_LT(with.column("waiting_seconds")[2], 0.05 * with.column("step_seconds")[1]);
}

// DeepSpeed-MoE without dropping: all experts as the busiest.
TEST(FlexmoeTraining, PaddedExpertsAreAllTheBusiest) {
  Scenario s = skewed(Balancer::none);
  const Training plain = trained(s, 1);
  s.plan.expert.pad_to_busiest = true;
  const Training padded = trained(s, 1);
  s.plan.expert.pad_to_busiest = false;
  s.plan.expert.capacity_factor = padded.column("busiest_rank")[0];
  EXPECT_GT(s.plan.expert.capacity_factor, plain.column("busiest_rank")[0]);
  EXPECT_EQ(padded.first.figure("routing", "busiest_rank_over_mean")->value,
            padded.first.figure("routing", "busiest_expert_over_mean")->value);
  // What it takes is what as many slots take, of as many as no layer exceeds.
  const double slots = trained(s, 1).column("step_seconds")[0];
  // But that the host waits until it can read how many slots the busiest expert needs.
  EXPECT_LE(padded.column("step_seconds")[0], 1.005 * slots);
  EXPECT_GT(padded.column("step_seconds")[0], plain.column("step_seconds")[0]);
  s.plan.expert.capacity_factor = 0;
  s.plan.expert.pad_to_busiest = true;
  s.workload.routing = ExpertRouting::balanced;
  s.workload.routing_skew = 0;
  Scenario even = s;
  even.plan.expert.pad_to_busiest = false;
  EXPECT_EQ(trained(s, 1).column("step_seconds"), trained(even, 1).column("step_seconds"));
}

TEST(FlexmoePlan, HasRoomForItsSlots) {
  const auto settle = std::ranges::find(all_strategies(), "flexmoe", &Strategy::name)->settle;
  const std::optional<Scenario> settled = settle(skewed(Balancer::flexmoe));
  ASSERT_TRUE(settled);
  EXPECT_EQ(settled->model.expert_slots, 128);
  EXPECT_FALSE(settle(skewed(Balancer::none)));
}

TEST(FlexmoePlan, IsRefusedWhereItMeansNothing) {
  const auto refused = [](const char* pointer, const std::function<void(Scenario&)>& change) {
    Scenario s = skewed(Balancer::flexmoe);
    change(s);
    try {
      check_strategies(s, "flexmoe");
      ADD_FAILURE() << pointer;
    } catch (const InputError& error) {
      EXPECT_EQ(error.where().pointer, pointer) << error.what();
    }
  };
  EXPECT_NO_THROW(check_strategies(skewed(Balancer::flexmoe)));
  refused("/plan/moe_balancer", [](Scenario& s) { s.model.experts = 0; });
  refused("/plan/moe_balancer", [](Scenario& s) { s.plan.expert.degree = 1; });
  refused("/plan/moe_balancer", [](Scenario& s) { s.plan.expert.tensor_degree = 2; });
  refused("/plan/moe_expert_capacity_factor", [](Scenario& s) { s.plan.expert.capacity_factor = 1; });
  refused("/plan/moe_slots_per_rank", [](Scenario& s) { s.plan.flexmoe.slots_per_rank = 3; });
  refused("/plan/moe_slots_per_rank", [](Scenario& s) { s.plan.flexmoe.slots_per_rank = 65; });
  refused("/plan/moe_slots_per_rank", [](Scenario& s) { s.plan.flexmoe.balancer = Balancer::none; });
  refused("/plan/moe_pad_to_busiest_expert", [](Scenario& s) { s.plan.expert.pad_to_busiest = true; });
  for (const Balancer balancer : {Balancer::fastermoe, Balancer::swipe})
    refused("/plan/moe_slots_per_rank", [balancer](Scenario& s) { s.plan.flexmoe.balancer = balancer; });
  refused("/plan/moe_balance_busiest_rank", [](Scenario& s) {
    s.plan.flexmoe.balancer = Balancer::symi;
    s.plan.flexmoe.also_busiest_rank = true;
  });
  refused("/plan/moe_balance_interval", [](Scenario& s) { s.plan.flexmoe.interval = 2; });
  refused("/plan/moe_balance_threshold", [](Scenario& s) {
    s.plan.flexmoe.balancer = Balancer::eplb;
    s.plan.flexmoe.threshold = 2;
  });
}

}  // namespace
}  // namespace orrery
