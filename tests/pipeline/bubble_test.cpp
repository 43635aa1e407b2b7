// Do the schedules cost what their papers say? Closed forms are written here, and nowhere in the program.
#include <gtest/gtest.h>

#include "tests/pipeline/pipeline_cases.h"

namespace orrery::pipeline_parallel {
namespace {

constexpr double kF = 1.0, kB = 2.0;

// Huang et al. 2019, section 2.3; Narayanan et al. 2021, section 2.2.1: (p-1)/m of the ideal time, for both.
TEST(Bubble, OfGpipeAndOneFOneBIsPMinusOneOverM) {
  for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b})
    for (std::int64_t p = 1; p <= 12; ++p)
      for (std::int64_t m = 1; m <= 50; ++m) {
        const Schedule schedule = schedule_of(kind, p, m);
        const double ideal = real(m) * (kF + kB);
        const double bubble = clock_of(schedule, uniform_costs(schedule, kF, kB)).makespan / ideal - 1;
        EXPECT_NEAR(bubble, real(p - 1) / real(m), 1e-12) << name_of(kind) << " p=" << p << " m=" << m;
      }
}

// Narayanan et al. 2021, section 2.2.2: (p-1)/(v m), with durations of a chunk 1/v of the stage's.
TEST(Bubble, OfInterleavedIsSmallerByTheChunks) {
  for (std::int64_t p = 2; p <= 9; ++p)
    for (std::int64_t v = 2; v <= 5; ++v)
      for (std::int64_t groups = 1; groups <= 6; ++groups) {
        const std::int64_t m = groups * p;
        const Schedule schedule = schedule_of(ScheduleKind::interleaved, p, m, v);
        const double ideal = real(m) * (kF + kB);
        const double bubble =
            clock_of(schedule, uniform_costs(schedule, kF / real(v), kB / real(v))).makespan / ideal - 1;
        EXPECT_NEAR(bubble, real(p - 1) / real(v * m), 1e-12) << "p=" << p << " v=" << v << " m=" << m;
      }
}

// Qi et al. 2024, table 2: ZB-H1's bubble is (p-1)(T_F + T_B - T_W), for m >= p. (DeepSeek writes it F + B - 2W with B
// the whole backward.) Holds while W is no longer than B: the drain hides (p-1) weight gradients.
TEST(Bubble, OfZbH1HidesWeightGradients) {
  for (std::int64_t p = 1; p <= 12; ++p)
    for (std::int64_t m = p; m <= 3 * p + 5; ++m)
      for (const double w : {0.5, 0.8, 1.0}) {
        const double f = 1.0, b = 1.0;
        const Schedule schedule = schedule_of(ScheduleKind::zb_h1, p, m);
        const PipelineClock clock = clock_of(schedule, uniform_costs(schedule, f, b, w));
        EXPECT_NEAR(clock.makespan - real(m) * (f + b + w), real(p - 1) * (f + b - w), 1e-9)
            << "p=" << p << " m=" << m << " w=" << w;
      }
}

// Qi et al. 2024, section 6: no bubble when F = B = W. No stage idles between its first and its last slot, so each is
// busy for 6 m unit slots in a row; what remains is the shear of the first stage's forwards down the pipeline, which
// the paper's measure (the largest span of a stage) does not count.
TEST(Bubble, OfZbVIsZeroWhenForwardBackwardAndWeightGradientAreEqual) {
  for (std::int64_t p = 1; p <= 12; ++p)
    for (std::int64_t m = 2 * p; m <= 4 * p + 3; ++m) {
      const Schedule schedule = schedule_of(ScheduleKind::zb_v, p, m);
      const PipelineClock clock = clock_of(schedule, uniform_costs(schedule, 1, 1, 1));
      for (const StageClock& stage : clock.stages)
        EXPECT_NEAR(stage.finish - stage.first_forward_begin, real(6 * m), 1e-9) << "p=" << p << " m=" << m;
      EXPECT_NEAR(clock.makespan, real(6 * m + p - 1), 1e-9);
    }
}

// README of github deepseek-ai/DualPipe: (PP / 2 - 1) (F&B + B - 3 W) of PP chunks on PP / 2 stages, B with the weight
// gradients, F&B the two beside each other. Beside what no stage can be without: the first one waits for nothing, the
// last chunk's first backward comes when it has come down and up.
TEST(Bubble, OfDualPipeVIsThatOfItsAuthors) {
  for (const double saves : {0.0, 0.5, 1.0})
    for (std::int64_t p = 1; p <= 8; ++p)
      for (std::int64_t m = 2 * p; m <= 4 * p + 3; ++m) {
        const Schedule schedule = schedule_of(ScheduleKind::dualpipe_v, p, m);
        const Costs costs = uniform_costs(schedule, 1, 1, 1);
        PipelineCosts with = costs.view();
        const std::vector<double> saved(costs.seconds.size(), saves);
        with.pair_saves = saved;
        PipelineClock clock;
        PipelineWalker().walk(schedule, with, clock);
        const double pair = 3 - saves, backward = 2, weights = 1;
        const double published = real(p - 1) * (pair + backward - 3 * weights);
        for (std::size_t s = 0; s < clock.stages.size(); ++s)
          EXPECT_LE(clock.idle_seconds(s), published + 1e-9) << "p=" << p << " m=" << m << " stage " << s;
        if (saves == 0) {
          EXPECT_GE(clock.idle_seconds(0), 0.5 * published) << "p=" << p << " m=" << m;
        }
      }
}

TEST(Bubble, OfEachStageIsWhatItIsNotBusy) {
  const Schedule schedule = schedule_of(ScheduleKind::one_f_one_b, 4, 8);
  const PipelineClock clock = clock_of(schedule, uniform_costs(schedule, kF, kB));
  for (int s = 0; s < 4; ++s) {
    EXPECT_DOUBLE_EQ(clock.stages[s].busy_seconds, 8 * (kF + kB));
    EXPECT_DOUBLE_EQ(clock.idle_seconds(s), 3 * (kF + kB));
    EXPECT_DOUBLE_EQ(clock.stages[s].first_forward_begin, s * kF);
    EXPECT_DOUBLE_EQ(clock.stages[s].last_backward_end, clock.makespan - s * kB);
  }
}

// A transfer after each hop down and up delays the one micro-batch that fills and drains the pipeline; and as only p
// micro-batches are under way, every p-th pair waits for a whole round trip.
TEST(Bubble, OfOneFOneBGrowsWithTheRoundTripOfItsTransfers) {
  const double hop = 0.1;
  for (std::int64_t p = 2; p <= 8; ++p)
    for (std::int64_t m = 1; m <= 40; ++m) {
      const Schedule schedule = schedule_of(ScheduleKind::one_f_one_b, p, m);
      const double transfers = 2 * hop * real(m + p - 1 - (m + p - 1 + p - 1) / p);  // full turns as long as they fit
      const PipelineClock clock = clock_of(schedule, uniform_costs(schedule, kF, kB, 0, hop));
      EXPECT_NEAR(clock.makespan, real(m + p - 1) * (kF + kB) + transfers, 1e-9) << "p=" << p << " m=" << m;
    }
}

// Blocking: in 1F1B's steady state each stage exchanges once after a forward and once after a backward.
TEST(Bubble, OfBlockingTransfersIsTwoExchangesAPair) {
  const double hop = 0.1;
  Schedule schedule = schedule_of(ScheduleKind::one_f_one_b, 4, 100);
  schedule.blocking_transfers = true;
  const double makespan_100 = clock_of(schedule, uniform_costs(schedule, kF, kB, 0, hop)).makespan;
  schedule = schedule_of(ScheduleKind::one_f_one_b, 4, 101);
  schedule.blocking_transfers = true;
  const double makespan_101 = clock_of(schedule, uniform_costs(schedule, kF, kB, 0, hop)).makespan;
  EXPECT_NEAR(makespan_101 - makespan_100, kF + kB + 2 * hop, 1e-9);
}

}  // namespace
}  // namespace orrery::pipeline_parallel
