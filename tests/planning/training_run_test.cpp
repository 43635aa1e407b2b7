// Are the closed forms the papers', and does a run simulated event by event come out as they say?
#include "sim/planning/training_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "sim/base/error.h"

namespace orrery {
namespace {

constexpr double kHour = 3600;

// Expected effective training time ratio of Kokolis et al. 2024 (arXiv 2410.21680), to first order: (1 - (restart +
// interval/2) / M) / (1 + stall / interval). Negative where the approximation no longer holds.
double kokolis_ettr(double stall, double interval, double restart, double between) {
  return (1 - (restart + interval / 2) / between) / (1 + stall / interval);
}

RunOutcome simulate_one(const TrainingRun& run, std::uint64_t seed = 1) {
  return simulate_runs(run, 1, {.seed = seed}).front();
}

// The exact time of a checkpoint interval over its useful time (Daly 2006, eq. 20, no restart).
double stretch(double interval, double stall, double between) {
  return between * std::expm1((interval + stall) / between) / interval;
}

TEST(CheckpointInterval, IsThatOfThePapers) {
  // In hours: stall, mean time between failures; Young, Daly, the minimum.
  struct Case {
    double stall, between, young, daly, best;
  };
  for (const auto& [stall, between, young, daly, best] :
       {Case{0.1, 10, 1.4142, 1.3483, 1.3483}, Case{5.0 / 60, 3.09, 0.7176, 0.6632, 0.6632},
        Case{1, 3, 2.4495, 1.8282, 1.8333}}) {
    EXPECT_NEAR(young_interval(stall, between), young, 1e-4);
    EXPECT_NEAR(daly_interval(stall, between), daly, 1e-4);
    EXPECT_NEAR(optimal_interval(stall, between), best, 1e-4);
  }
  EXPECT_EQ(daly_interval(7, 3), 3);  // a checkpoint takes twice the time between failures
}

TEST(CheckpointInterval, TheOptimumIsTheMinimumAndDalyIsNearIt) {
  for (const double between : {1e2, 1e4, 1e7})
    for (const double share : {1e-6, 1e-3, 0.1, 0.5, 1.9}) {
      const double stall = share * between;
      const double best = optimal_interval(stall, between);
      const double least = stretch(best, stall, between);
      EXPECT_LT(least, stretch(best * 1.01, stall, between)) << share;
      EXPECT_LT(least, stretch(best * 0.99, stall, between)) << share;
      EXPECT_LT(stretch(daly_interval(stall, between), stall, between) / least, 1.01) << share;
      // Young's is good where the stall is small, and there alone.
      const double young = stretch(young_interval(stall, between), stall, between) / least;
      if (share <= 1e-3) {
        EXPECT_LT(young, 1.0001) << share;
      } else if (share >= 0.5) {
        EXPECT_GT(young, 1.02) << share;
      }
    }
}

TEST(CheckpointInterval, ErlangsFormulaIsThatOfItsTable) {
  EXPECT_DOUBLE_EQ(erlang_loss(0, 3), 1);
  EXPECT_DOUBLE_EQ(erlang_loss(1, 1), 0.5);
  EXPECT_NEAR(erlang_loss(10, 4.461), 0.01, 1e-5);  // 1 % of 10 lines
  EXPECT_NEAR(erlang_loss(5, 2.219), 0.05, 2e-4);
}

// 1,024 devices that fail each 5 h, with a checkpoint of 90 s and 13 min to recover.
TrainingRun example() {
  TrainingRun run;
  run.step_seconds = 10;
  run.steps = 50 * 24 * 360;  // 50 days
  run.devices = 1024;
  run.nodes = 128;
  run.failures_per_node_second = 1 / (5 * kHour * 128);
  run.detection_seconds = 300;
  run.restart_seconds = 400;
  run.checkpoint_bytes = 9e12;
  run.write_bytes_per_second = 1e11;
  run.read_bytes_per_second = 1.125e11;
  run.checkpoint_interval_seconds = 1800;
  return run;
}

TEST(ExpectedRun, PartsAddUp) {
  TrainingRun run = example();
  EXPECT_EQ(run.stall_seconds(), 90);
  EXPECT_EQ(run.durable_lag_seconds(), 0);
  EXPECT_EQ(run.recovery_seconds(), 780);
  EXPECT_NEAR(run.seconds_between_failures(), 5 * kHour, 1e-6);
  for (const double snapshot : {0.0, 9e11})
    for (const std::int64_t spares : {0, 3}) {
      run.snapshot_bytes_per_second = snapshot;
      run.spare_nodes = spares;
      run.repair_seconds = 20 * kHour;
      const RunOutcome out = expected_run(run);
      EXPECT_NEAR(out.wall_seconds,
                  out.useful_seconds + out.checkpoint_seconds + out.lost_seconds + out.detection_seconds +
                      out.restart_seconds + out.waiting_seconds,
                  1e-6 * out.wall_seconds);
      EXPECT_GT(out.waiting_seconds, 0);
      EXPECT_NEAR(goodput(run, out), out.ettr() * 128.0 / static_cast<double>(128 + spares), 1e-12);
    }
}

TEST(ExpectedRun, WithoutFailuresOnlyCheckpointsTakeTime) {
  TrainingRun run = example();
  run.failures_per_node_second = 0;
  RunOutcome out = expected_run(run);
  EXPECT_EQ(out.wall_seconds, 50 * 86400 + 2400 * 90.0);
  EXPECT_EQ(out.failures, 0);
  run.steps += 1;  // which has a checkpoint of its own
  out = simulate_one(run);
  EXPECT_EQ(out.checkpoint_seconds, 2401 * 90.0);
  EXPECT_NEAR(out.lost_seconds, 0, 1e-6);
  run.steps -= 1;
  run.checkpoint_interval_seconds = 0;  // one, at the end
  out = expected_run(run);
  EXPECT_EQ(out.wall_seconds, 50 * 86400 + 90.0);
  EXPECT_EQ(simulate_one(run).wall_seconds, out.wall_seconds);
}

// To first order in what M is large against: waste = stall / interval + (interval / 2 + recovery) / M.
TEST(ExpectedRun, IsTheFirstOrderFormWhereFailuresAreRare) {
  TrainingRun run = example();
  run.failures_per_node_second /= 1000;
  const RunOutcome out = expected_run(run);
  const double waste = 90.0 / 1800 + (1890.0 / 2 + 780) / run.seconds_between_failures() * (1 + 90.0 / 1800);
  EXPECT_NEAR(out.wall_seconds / out.useful_seconds, 1 + waste, 1e-7);
  EXPECT_NEAR(out.ettr(), kokolis_ettr(90, 1800, 780, run.seconds_between_failures()), 1e-5);
}

TEST(ExpectedRun, AnIntervalThatIsNotGivenIsDalys) {
  TrainingRun run = example();
  run.checkpoint_interval_seconds = 0;
  EXPECT_DOUBLE_EQ(run.interval_seconds(), daly_interval(90, run.seconds_between_failures()));
  const double least = expected_run(run).wall_seconds;
  for (const double factor : {0.5, 0.8, 1.25, 2.0}) {
    run.checkpoint_interval_seconds = factor * daly_interval(90, run.seconds_between_failures());
    EXPECT_GT(expected_run(run).wall_seconds, least * 1.0005) << factor;
  }
  run.checkpoint_interval_seconds = 1;  // no shorter than a step
  EXPECT_EQ(run.interval_seconds(), 10);
  run.snapshot_bytes_per_second = 9e11;  // nor than it takes to write what is copied in 10 s
  EXPECT_EQ(run.interval_seconds(), 80);
  run.checkpoint_interval_seconds = 1e12;
  EXPECT_EQ(run.interval_seconds(), run.useful_seconds());
}

TEST(ExpectedRun, ARunThatHardlyEndsIsRefused) {
  TrainingRun run = example();
  run.failures_per_node_second *= 1000;
  try {
    expected_run(run);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("/failures: found a failure every 18 s, expected rarer failures"));
  }
  EXPECT_THROW(simulate_one(run), InputError);
}

struct Mean {
  double mean, error;  // standard error
};
Mean mean_of(const std::vector<RunOutcome>& outcomes, double RunOutcome::*part) {
  double sum = 0, squares = 0;
  for (const RunOutcome& out : outcomes) sum += out.*part;
  const auto n = static_cast<double>(outcomes.size());
  for (const RunOutcome& out : outcomes) squares += (out.*part - sum / n) * (out.*part - sum / n);
  return {sum / n, std::sqrt(squares / (n * (n - 1)))};
}

void expect_agreement(const TrainingRun& run, const std::string& what) {
  const RunOutcome expected = expected_run(run);
  const auto outcomes = simulate_runs(run, 400);
  for (double RunOutcome::*part :
       {&RunOutcome::wall_seconds, &RunOutcome::checkpoint_seconds, &RunOutcome::lost_seconds,
        &RunOutcome::detection_seconds, &RunOutcome::restart_seconds, &RunOutcome::failures}) {
    const auto [mean, error] = mean_of(outcomes, part);
    EXPECT_NEAR(mean, expected.*part, 4 * error + 1e-9 * expected.wall_seconds) << what;
    EXPECT_LE(error, 0.02 * expected.*part + 1e-9) << what;  // the comparison says something
  }
  const double wall_error = mean_of(outcomes, &RunOutcome::wall_seconds).error;
  EXPECT_LT(wall_error, 0.004 * expected.wall_seconds) << what;
  for (const RunOutcome& out : outcomes)
    EXPECT_NEAR(out.wall_seconds,
                out.useful_seconds + out.checkpoint_seconds + out.lost_seconds + out.detection_seconds +
                    out.restart_seconds + out.waiting_seconds,
                1e-6 * out.wall_seconds);
}

TEST(SimulatedRun, AgreesWithTheClosedFormFromRareFailuresToConstantOnes) {
  for (const double between : {100 * kHour, 5 * kHour, 1 * kHour, 0.4 * kHour}) {
    TrainingRun run = example();
    run.failures_per_node_second = 1 / (between * 128);
    expect_agreement(run, std::to_string(between));
  }
}

TEST(SimulatedRun, AgreesWhereCheckpointsAreWrittenBesideTraining) {
  TrainingRun run = example();
  run.snapshot_bytes_per_second = 9e11;  // 10 s that training waits, 80 s until durable
  for (const double between : {5 * kHour, 0.4 * kHour}) {
    run.failures_per_node_second = 1 / (between * 128);
    expect_agreement(run, std::to_string(between));
  }
  // To wait 10 s instead of 90 is worth the more that is lost.
  EXPECT_LT(expected_run(run).wall_seconds, expected_run([] {
                                              TrainingRun waiting = example();
                                              waiting.failures_per_node_second = 1 / (0.4 * kHour * 128);
                                              return waiting;
                                            }())
                                                .wall_seconds);
}

// Where recovering and the interval are no longer small against the time between failures first-order forms promise too
// much; the exact one still holds (above).
TEST(SimulatedRun, FirstOrderFormsAreOffWhereFailuresAreFrequent) {
  TrainingRun run = example();
  run.failures_per_node_second = 1 / (0.7 * kHour * 128);
  const double simulated = run.useful_seconds() / mean_of(simulate_runs(run, 200), &RunOutcome::wall_seconds).mean;
  const double first_order = kokolis_ettr(90, 1800, 780, run.seconds_between_failures());
  EXPECT_NEAR(expected_run(run).ettr(), simulated, 0.01 * simulated);
  EXPECT_LT(first_order, 0.8 * simulated);
}

// Failures that come in clusters hit recoveries and young intervals, where little is lost: the closed form is too
// pessimistic, here by some 1 % of the run at shape 0.7.
TEST(SimulatedRun, ClusteredFailuresCostLessThanTheClosedFormSays) {
  const TrainingRun run = example();
  const double closed = expected_run(run).wall_seconds;
  const Mean clustered = mean_of(simulate_runs(run, 400, {.shape = 0.7}), &RunOutcome::wall_seconds);
  EXPECT_LT(clustered.mean + 4 * clustered.error, closed);
  EXPECT_GT(clustered.mean, 0.98 * closed);
}

TEST(SimulatedRun, WaitsForNodesAsErlangSays) {
  TrainingRun run = example();
  run.steps *= 4;
  run.repair_seconds = 10 * kHour;
  run.repair_share = 0.75;
  double before = 1;
  for (const std::int64_t spares : {0, 1, 2, 4}) {
    run.spare_nodes = spares;
    const RunOutcome expected = expected_run(run);
    const Mean waiting = mean_of(simulate_runs(run, 200), &RunOutcome::waiting_seconds);
    const double share = waiting.mean / expected.wall_seconds;
    const double expected_share = expected.waiting_seconds / expected.wall_seconds;
    // The clock of failures runs while a fault is detected, so nodes beyond the last spare may go, too.
    EXPECT_NEAR(share, expected_share, 0.05 * expected_share + 4 * waiting.error / expected.wall_seconds) << spares;
    EXPECT_LT(share, 0.7 * before);
    before = share;
  }
  EXPECT_LT(before, 0.02);
}

// Spares are all there when a run starts: one that is over before the first are used up waits less than the closed
// form.
TEST(SimulatedRun, AShortRunHasNotUsedItsSparesUp) {
  TrainingRun run = example();
  run.steps = 360 * 24;
  run.spare_nodes = 8;
  run.repair_seconds = 40 * kHour;
  const double simulated = mean_of(simulate_runs(run, 200), &RunOutcome::waiting_seconds).mean;
  EXPECT_LT(simulated, 0.5 * expected_run(run).waiting_seconds);
}

TEST(SimulatedRun, SameSeedSameBits) {
  TrainingRun run = example();
  run.spare_nodes = 1;
  run.repair_seconds = 5 * kHour;
  const RunOutcome one = simulate_one(run, 7), again = simulate_one(run, 7);
  EXPECT_EQ(one.wall_seconds, again.wall_seconds);
  EXPECT_EQ(one.waiting_seconds, again.waiting_seconds);
  EXPECT_NE(one.wall_seconds, simulate_one(run, 8).wall_seconds);
  const auto several = simulate_runs(run, 3, {.seed = 6});
  EXPECT_EQ(several[1].wall_seconds, one.wall_seconds);
}

TEST(SimulatedRun, OneFailureCostsItsRecoveryAndWhatItLost) {
  TrainingRun run = example();
  run.steps = 1000;
  run.checkpoint_interval_seconds = 2500;  // 4 checkpoints
  run.failures_per_node_second = 1 / (40 * kHour * 128);
  for (std::uint64_t seed = 1; seed < 200; ++seed) {
    const RunOutcome out = simulate_one(run, seed);
    if (out.failures != 1) continue;
    EXPECT_LE(out.lost_seconds, 2500 + 90);
    EXPECT_NEAR(out.wall_seconds, 10'000 + 4 * 90 + 780 + out.lost_seconds, 1e-6);
    return;
  }
  FAIL() << "no run with one failure";
}

}  // namespace
}  // namespace orrery
