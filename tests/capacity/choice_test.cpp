// Is the cheapest taken, the fastest, and what to give way where nothing meets all?
#include "study/capacity/choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace orrery {
namespace {

using testing::ElementsAre;
using testing::Eq;
using testing::IsEmpty;
using testing::Optional;

constexpr double kDay = 86400;

// Two clusters; days and cost of each size, with a high end 20 % above.
SizedCandidate size(std::size_t cluster, std::int64_t devices, double days, double cost) {
  SizedCandidate sized;
  sized.cluster = cluster;
  sized.devices = devices;
  sized.memory_peak_bytes = 60;
  sized.memory_capacity_bytes = 80;
  sized.forecast.wall_seconds = {.low = 0.9 * days * kDay, .value = days * kDay, .high = 1.2 * days * kDay};
  sized.forecast.cost = {.low = 0.9 * cost, .value = cost, .high = 1.2 * cost};
  return sized;
}

const std::vector<SizedCandidate> kSizes{size(0, 8, 40, 100), size(0, 16, 22, 110), size(0, 32, 12, 140),
                                         size(1, 8, 28, 120), size(1, 16, 18, 135)};

CapacityPlan plan_of(double days, double budget) {
  CapacityPlan plan;
  plan.clusters.resize(2);
  plan.deadline_seconds = days * kDay;
  if (budget > 0) plan.budget = Budget{budget, "USD"};
  return plan;
}

TEST(Choice, TakesTheCheapestAndTheFastestOfThoseThatMeetAll) {
  const Choice choice = choose(plan_of(30, 136), kSizes, HeldBy::expectation);
  EXPECT_THAT(choice.cheapest, Optional(1));
  EXPECT_THAT(choice.fastest, Optional(4));
  EXPECT_THAT(choice.best, ElementsAre(Optional(1), Optional(3)));
  EXPECT_THAT(choice.fewest, ElementsAre(Optional(1), Optional(3)));
  EXPECT_THAT(choice.frontier, ElementsAre(2, 4, 1, 0));  // 28 days for 120 is worse than 22 for 110
  EXPECT_THAT(choice.relaxations, IsEmpty());
  EXPECT_NEAR(choice.verdicts[0].time_excess, 1.0 / 3, 1e-12);
  EXPECT_NEAR(choice.verdicts[2].cost_excess, 140.0 / 136 - 1, 1e-12);
}

TEST(Choice, ByTheSlowEndOfTheIntervalLessMeets) {
  const Choice choice = choose(plan_of(30, 140), kSizes, HeldBy::worst);
  EXPECT_THAT(choice.cheapest, Optional(1));  // 26.4 days, 132; the other cluster's 28 days may be 33.6
  EXPECT_THAT(choice.fastest, Optional(1));
  EXPECT_FALSE(choice.verdicts[3].in_time);
  EXPECT_FALSE(choice.verdicts[4].in_budget);
}

TEST(Choice, WithoutBudgetOrDeadlineAllMeet) {
  const Choice choice = choose(plan_of(std::numeric_limits<double>::infinity(), 0), kSizes, HeldBy::worst);
  EXPECT_THAT(choice.cheapest, Optional(0));
  EXPECT_THAT(choice.fastest, Optional(2));
}

TEST(Choice, SaysTheLeastThatWouldHaveToGiveWay) {
  const Choice choice = choose(plan_of(20, 130), kSizes, HeldBy::expectation);
  EXPECT_FALSE(choice.cheapest);
  ASSERT_EQ(choice.relaxations.size(), 2u);
  EXPECT_EQ(choice.relaxations[0].candidate, 1u);  // within 130: the fastest takes 22 days
  EXPECT_THAT(choice.relaxations[0].deadline_seconds, Optional(22 * kDay));
  EXPECT_THAT(choice.relaxations[0].budget_amount, Eq(std::nullopt));
  EXPECT_EQ(choice.relaxations[1].candidate, 4u);  // within 20 days: the cheapest costs 135
  EXPECT_THAT(choice.relaxations[1].budget_amount, Optional(135));
  EXPECT_THAT(choice.relaxations[1].deadline_seconds, Eq(std::nullopt));
  // The other size of each cluster that misses by least.
  EXPECT_THAT(choice.best, ElementsAre(Optional(2), Optional(4)));
}

TEST(Choice, LetsBothGiveWayWhereNeitherAloneHelps) {
  const Choice choice = choose(plan_of(10, 90), kSizes, HeldBy::expectation);
  ASSERT_EQ(choice.relaxations.size(), 1u);
  EXPECT_EQ(choice.relaxations[0].candidate, 2u);  // 20 % and 56 % over; the others by 80 % and more
  EXPECT_THAT(choice.relaxations[0].deadline_seconds, Optional(12 * kDay));
  EXPECT_THAT(choice.relaxations[0].budget_amount, Optional(140));
}

TEST(Choice, NothingBuysMemory) {
  std::vector<SizedCandidate> sizes = kSizes;
  for (SizedCandidate& sized : sizes) sized.memory_fits = false;
  sizes[3].memory_peak_bytes = 50;
  sizes[4].impossible = "too many";
  const Choice choice = choose(plan_of(30, 136), sizes, HeldBy::expectation);
  EXPECT_FALSE(choice.cheapest);
  EXPECT_THAT(choice.relaxations, IsEmpty());
  EXPECT_THAT(choice.frontier, IsEmpty());
  EXPECT_THAT(choice.best, ElementsAre(Optional(1), Optional(3)));
  EXPECT_THAT(choice.fewest, ElementsAre(Eq(std::nullopt), Eq(std::nullopt)));
  EXPECT_FALSE(choice.verdicts[4].possible);
}

}  // namespace
}  // namespace orrery
