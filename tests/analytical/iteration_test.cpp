// How long iterations of tasks take, from the times of the tasks.
#include "sim/analytical/iteration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace orrery {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

constexpr double kRounding = 1e-9;

// Local steps, an update that waits for the exchange of `lag` iterations before, and the exchange beside what follows.
Program late(std::int64_t steps, std::uint16_t lag = 1) {
  Program program;
  program.tasks = {{.name = "steps", .repeats = steps},
                   {.name = "update", .block = 1, .after = {{.task = 2, .lag = lag}}},
                   {.name = "exchange", .block = 2, .beside = true}};
  return program;
}
// A step of one second and an update of a half. Beside the exchange a step takes `seconds`, of which the exchange gets
// `done`.
Iteration of(const Program& program, double exchange, double seconds = 1, double done = 1) {
  const std::vector<double> alone{1, 0.5, exchange};
  return iterate(program, alone, [&](std::size_t task, std::size_t) {
    return task == 0 ? RunBeside{seconds, done} : RunBeside{0.5, 0.5};
  });
}

TEST(Iteration, HidesWhatRunsBesideIt) {
  const Iteration hidden = of(late(4), 3);
  EXPECT_NEAR(hidden.seconds, 4.5, kRounding);
  EXPECT_THAT(hidden.waiting, ElementsAre(0, 0, 0));
  EXPECT_NEAR(hidden.spans[2].begin, 4.5, kRounding);
  EXPECT_NEAR(hidden.spans[2].end, 7.5, kRounding);  // in the next iteration
  const Iteration waited = of(late(4), 6);
  EXPECT_NEAR(waited.seconds, 6.5, kRounding);
  EXPECT_THAT(waited.waiting, ElementsAre(0, DoubleNear(2, kRounding), 0));
}

TEST(Iteration, StepsAreSlowerOnlyBesideIt) {
  // Three seconds of exchange take the time of 3 / 0.75 steps, of 1.2 seconds each.
  EXPECT_NEAR(of(late(10), 3, 1.2, 0.75).seconds, 4 * 1.2 + 6 + 0.5, kRounding);
  EXPECT_NEAR(of(late(2), 3, 1.2, 0.75).seconds, 2 * 1.2 + 1.5 + 0.5, kRounding);
  EXPECT_NEAR(of(late(10), 3, 1.2, 0.75).uncertain_seconds, 0, kRounding);  // whole steps
  EXPECT_NEAR(of(late(10), 0.3, 1.2, 0.75).uncertain_seconds, 0.4 * 0.2, kRounding);
}

// Two iterations may take equally long while the exchange falls behind; only the third waits.
TEST(Iteration, IsTheOneThatRepeats) {
  const Iteration two_late = of(late(1, 2), 2);
  EXPECT_NEAR(two_late.seconds, 2, 0.02);
  EXPECT_NEAR(of(late(1, 3), 1.2).seconds, 1.5, kRounding);
}

TEST(Iteration, OfSeveralRoundsWaitsForEachExchange) {
  Program program;
  program.tasks = {{.name = "steps", .repeats = 2},
                   {.name = "update", .block = 1, .after = {{.task = 2, .lag = 1}}},
                   {.name = "exchange", .block = 2, .beside = true},
                   {.name = "steps", .repeats = 2},
                   {.name = "update", .block = 3, .after = {{.task = 5, .lag = 1}}},
                   {.name = "exchange", .block = 4, .beside = true}};
  const std::vector<double> short_ones{1, 0.5, 2, 1, 0.5, 2}, long_ones{1, 0.5, 4, 1, 0.5, 4};
  const auto beside = [](std::size_t task, std::size_t) {
    return task % 3 == 0 ? RunBeside{1, 1} : RunBeside{0.5, 0.5};
  };
  EXPECT_NEAR(iterate(program, short_ones, beside).seconds, 5, kRounding);
  EXPECT_NEAR(iterate(program, long_ones, beside).seconds, 8, 0.1);  // the exchanges follow each other
  EXPECT_EQ(steps_of_iteration(program), 4);
}

TEST(Iteration, WithoutOtherTasksIsAStep) {
  Program program;
  EXPECT_EQ(steps_of_iteration(program), 1);
  program.tasks = {{.name = "steps", .repeats = 3}};
  EXPECT_EQ(steps_of_iteration(program), 3);
}

}  // namespace
}  // namespace orrery
