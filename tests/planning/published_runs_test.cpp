// Do published trainings come out as published? Inputs are the sources' own figures; nothing is fitted. Each tolerance
// says how near it is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "sim/planning/candidate.h"
#include "sim/planning/presets.h"
#include "sim/planning/training_run.h"

namespace orrery {
namespace {

using ::testing::AllOf;
using ::testing::Gt;
using ::testing::Lt;

constexpr double kDay = 86400;

double seconds_between(const char* rate, double devices) {
  return kDay / (PresetsOf<FailureRate>::find(rate).failures_per_node_day * devices / 8);
}

// Llama 3 405B (arXiv 2407.21783, sections 3.3.1, 3.3.4): 16,384 H100, 54 days, "more than 90 % effective training
// time". Restart times are those of the same company's fleet (Kokolis et al.: 5 to 20 min); a checkpoint is 14 bytes a
// parameter (bf16 weights, fp32 copy and two moments), to storage of 2 TB/s, as often as Daly says: how often it really
// was is not published.
TrainingRun llama_3(double restart_seconds) {
  TrainingRun run;
  run.step_seconds = 1;  // any: what is compared are shares
  run.steps = static_cast<std::int64_t>(54 * kDay);
  run.devices = 16384;
  run.nodes = 2048;
  run.failures_per_node_second = PresetsOf<FailureRate>::find("llama-3-405b").failures_per_node_day / kDay;
  run.restart_seconds = restart_seconds;
  run.checkpoint_bytes = 14 * 405e9;
  run.write_bytes_per_second = PresetsOf<CheckpointStorage>::find("llama-3-tectonic").write_bytes_per_second;
  run.read_bytes_per_second = run.write_bytes_per_second;
  return run;
}

TEST(PublishedRuns, Llama3sEffectiveTimeLiesWithinItsRestartTimes) {
  const double fast = expected_run(llama_3(PresetsOf<RestartOverhead>::find("meta-rsc-fast").restart_seconds)).ettr();
  const double slow = expected_run(llama_3(PresetsOf<RestartOverhead>::find("meta-rsc-slow").restart_seconds)).ettr();
  const double between = expected_run(llama_3(600)).ettr();
  // To first order, at the interval of 250 s: 1 - (2.8/250 + (125 + 303) / 11,130) and with 1,203 s instead of 303.
  EXPECT_NEAR(fast, 0.950, 0.005);
  EXPECT_NEAR(slow, 0.881, 0.005);  // eight failures a day of 20 min each would not leave 90 %
  EXPECT_GT(between, 0.90);         // as published, at the geometric mean of the two
  // With the 47 planned interruptions, 466 in all, taken for failures, too.
  TrainingRun all = llama_3(600);
  all.failures_per_node_second = 466 / (54 * kDay * 2048);
  EXPECT_GT(expected_run(all).ettr(), 0.90);
}

TEST(PublishedRuns, Llama3sInterruptionsComeOutAsOftenAsTheyCame) {
  // 54 days of wall time hold 419 unexpected interruptions. The rate is of these: what is tested is that a simulated
  // run has them at that rate, too, within the noise of one history (a share of 1/sqrt(419), 5 %) and of 100.
  const TrainingRun run = llama_3(600);
  double failures = 0, days = 0;
  for (const RunOutcome& out : simulate_runs(run, 100)) {
    EXPECT_NEAR(out.failures * 54 * kDay / out.wall_seconds, 419, 419 * 4 / std::sqrt(419));
    failures += out.failures;
    days += out.wall_seconds / kDay;
  }
  EXPECT_NEAR(failures / days * 54, 419, 419 * 4 / std::sqrt(100 * 419));
  EXPECT_NEAR(run.seconds_between_failures() / 3600, 3.09, 0.01);
}

// Rates of other fleets of the same company bracket it: 0.6 and 1.7 times as many. A rate is good to a factor of two.
TEST(PublishedRuns, RatesOfOtherFleetsAreWithinAFactorOfTwo) {
  const double frequent = 54 * kDay / seconds_between("meta-rsc-1", 16384);
  const double rare = 54 * kDay / seconds_between("meta-rsc-2", 16384);
  EXPECT_NEAR(frequent, 719, 1);
  EXPECT_NEAR(rare, 259, 1);
  EXPECT_THAT(419.0, AllOf(Gt(rare), Lt(frequent)));
}

// Kokolis et al. project jobs of 16,384 and 131,072 GPUs to fail each 1.8 h and 0.23 h on RSC-1. They measured 7.9 h at
// 1,024 GPUs, where the rate says 28.8 h: it counts faults of infrastructure alone.
TEST(PublishedRuns, MetasProjections) {
  EXPECT_NEAR(seconds_between("meta-rsc-1", 16384) / 3600, 1.8, 0.01);
  EXPECT_NEAR(seconds_between("meta-rsc-1", 131072) / 3600, 0.23, 0.01);
  EXPECT_NEAR(seconds_between("meta-rsc-1", 1024) / 3600, 28.8, 0.1);
  EXPECT_GT(seconds_between("meta-rsc-1", 1024) / 3600, 3 * 7.9);
}

// "ETTR 0.9 at 12,000 GPUs needs 1e-3 failures a node-day" (the same), with checkpoints of 5 min and 5 min to restart.
TEST(PublishedRuns, MetasRateForAnEttrOfNineTenths) {
  TrainingRun run;
  run.step_seconds = 10;
  run.steps = 1'000'000;
  run.devices = 12000;
  run.nodes = 1500;
  run.failures_per_node_second = 1e-3 / kDay;
  run.restart_seconds = 300;
  run.checkpoint_bytes = 300e9;
  run.write_bytes_per_second = 1e9;
  run.read_bytes_per_second = 1e30;  // within the 5 min
  EXPECT_NEAR(expected_run(run).ettr(), 0.9, 0.01);
  const double between = run.seconds_between_failures();
  // To first order (Kokolis et al. 2024, arXiv 2410.21680), restarting after 300 s.
  const double interval = young_interval(300, between);
  EXPECT_NEAR((1 - (300 + interval / 2) / between) / (1 + 300 / interval), 0.9, 0.01);
  // RSC-1's rate gives far less.
  run.failures_per_node_second *= 6.5;
  EXPECT_LT(expected_run(run).ettr(), 0.8);
}

// BLOOM (bigscience tr11-176B; Luccioni et al., arXiv 2211.02001): 366e9 tokens in steps of 2,048 x 2,048 tokens and
// 105 s, a GPU lost each week, checkpoints of 40 s each 3 h: 118.24 days. 6 to 10 % less come out: the batch grew from
// 192, with steps less efficient, and four failures lost 6 to 18 h each (42 h, 1.5 %), far beyond the interval.
TEST(PublishedRuns, BloomsDays) {
  TrainingRun run;
  run.step_seconds = 105;
  run.steps = static_cast<std::int64_t>(std::ceil(366e9 / (2048 * 2048)));
  run.devices = 384;
  run.nodes = 48;
  run.failures_per_node_second = PresetsOf<FailureRate>::find("bloom-176b").failures_per_node_day / kDay;
  run.restart_seconds = 1800;  // by hand (more than 30 min: Minder, NSDI 2025)
  run.checkpoint_bytes = 2.3e12;
  run.write_bytes_per_second = PresetsOf<CheckpointStorage>::find("bloom-jean-zay").write_bytes_per_second;
  run.read_bytes_per_second = run.write_bytes_per_second;
  run.checkpoint_interval_seconds = 3 * 3600;
  const RunOutcome out = expected_run(run);
  EXPECT_NEAR(out.checkpoint_seconds / out.useful_seconds, 0.0037, 0.0001);  // as published
  EXPECT_NEAR(out.failures, 118.24 / 7, 2);
  EXPECT_THAT(out.wall_seconds / kDay, AllOf(Gt(0.90 * 118.24), Lt(0.94 * 118.24)));
}

// OPT-175B (metaseq chronicles): 33 days of computing without failures at an uptime of 59 % (glennklockwood.com), two
// machines lost a day, about 90 restarts noted. A quarter more come out.
TEST(PublishedRuns, OptsRestarts) {
  const double days = 33 / 0.59;
  EXPECT_NEAR(days * kDay / seconds_between("opt-175b", 1024), 90, 0.25 * 90);
}

// LLaMA-65B (arXiv 2302.13971, section 2.4 and Table 15): 380 tokens/s for each of 2,048 A100, 1.4e12 tokens: 1,022,362
// device-hours, of which none are for failures.
TEST(PublishedRuns, LlamasDeviceHours) {
  Candidate candidate;
  TrainingRun& run = candidate.run;
  run.steps = 350'000;  // of 4e6 tokens
  candidate.step_seconds.low = candidate.step_seconds.value = candidate.step_seconds.high = 4e6 / (380 * 2048);
  run.step_seconds = candidate.step_seconds.value;
  run.devices = 2048;
  run.nodes = 256;
  run.write_bytes_per_second = run.read_bytes_per_second = 1;
  candidate.power = PresetsOf<Power>::find("a100-board");
  candidate.site = PresetsOf<SiteOverhead>::find("llama");
  candidate.grid = PresetsOf<Grid>::find("us-average-in-llama-paper");
  const Forecast out = forecast(candidate);
  EXPECT_NEAR(out.device_hours.value, 1'022'362, 0.002 * 1'022'362);
  EXPECT_NEAR(out.energy_kwh.value / 1000, 449, 0.005 * 449);  // Table 15: MWh, 400 W, PUE 1.1
  EXPECT_NEAR(out.carbon_kg.value / 1000, 173, 0.005 * 173);   // and tCO2eq
  // With failures of a Meta fleet, at 10 min each, it would have been some per cent more.
  run.failures_per_node_second = PresetsOf<FailureRate>::find("meta-rsc-1").failures_per_node_day / kDay;
  run.restart_seconds = 600;
  run.checkpoint_bytes = 14 * 65e9;
  run.write_bytes_per_second = run.read_bytes_per_second = 1e11;
  EXPECT_THAT(forecast(candidate).device_hours.value / 1'022'362, AllOf(Gt(1.01), Lt(1.05)));
}

// Device-hours of model cards to energy and carbon.
TEST(PublishedRuns, EnergyAndCarbonOfModelCards) {
  struct Card {
    const char* what;
    double device_hours;
    const char *power, *site, *grid;  // site or grid nullptr: not in the figure
    double mwh, tonnes;               // 0: not published
    double tolerance;
  };
  const std::vector<Card> cards{
      // meta-llama/llama-models: TDP times hours; location-based with the US grid's average. Site and year are not
      // said.
      {"Llama 3.1 405B", 30.84e6, "h100-board", "meta", "united-states", 0, 8930, 0.06},
      {"Llama 3.1 70B", 7.0e6, "h100-board", "meta", "united-states", 0, 2040, 0.06},
      {"Llama 3 70B", 6.4e6, "h100-board", "meta", "united-states", 0, 1900, 0.06},
      {"Llama 2 70B", 1720320, "a100-board", "meta", "united-states", 0, 291.42, 0.06},
      // Luccioni et al. 2022 (arXiv 2211.02001): TDP times hours, without the site's overhead.
      {"BLOOM", 1082990, "a100-bloom", nullptr, "jean-zay", 433.196, 24.7, 0.001},
      // Patterson et al. 2021 (arXiv 2104.10350), Table 4: measured watts, PUE 1.10.
      {"GPT-3", 14.8 * 24 * 10000, "v100-system-measured", "llama", nullptr, 1287, 0, 0.002},
      // Apertus report, section 6.2: 4,096 GH200 for 90 days.
      {"Apertus 70B", 90 * 24 * 4096, "gh200-apertus", nullptr, nullptr, 5000, 0, 0.01},
  };
  for (const Card& card : cards) {
    Candidate candidate;
    candidate.run.devices = 8;
    candidate.run.nodes = 1;
    candidate.power = PresetsOf<Power>::find(card.power);
    if (card.site != nullptr) candidate.site = PresetsOf<SiteOverhead>::find(card.site);
    if (card.grid != nullptr) candidate.grid = PresetsOf<Grid>::find(card.grid);
    RunOutcome outcome;
    outcome.wall_seconds = outcome.useful_seconds = card.device_hours * 3600 / 8;
    const Expenses out = expenses(candidate, outcome);
    EXPECT_NEAR(out.device_hours, card.device_hours, 1e-6 * card.device_hours) << card.what;
    if (card.mwh > 0) {
      EXPECT_NEAR(out.energy_kwh / 1000, card.mwh, card.tolerance * card.mwh) << card.what;
    }
    if (card.tonnes > 0) {
      EXPECT_NEAR(out.carbon_kg / 1000, card.tonnes, card.tolerance * card.tonnes) << card.what;
    }
  }
}

// DeepSeek-V3 (arXiv 2412.19437, Table 1): 180,000 H800-hours for 1e12 tokens on 2,048 devices, 3.7 days; 2.788e6 hours
// for all at 2 USD, 5.576e6 USD.
TEST(PublishedRuns, DeepSeeksCost) {
  Candidate candidate;
  candidate.run.devices = 2048;
  candidate.run.nodes = 256;
  candidate.price = PresetsOf<Price>::find("deepseek-v3-h800");
  candidate.power.busy_watts = 1;
  RunOutcome outcome;
  outcome.wall_seconds = outcome.useful_seconds = 2.788e6 / 2048 * 3600;
  EXPECT_NEAR(expenses(candidate, outcome).cost, 5.576e6, 1);
  outcome.wall_seconds = outcome.useful_seconds = 3.7 * kDay;
  EXPECT_NEAR(expenses(candidate, outcome).device_hours, 180'000, 0.015 * 180'000);
}

}  // namespace
}  // namespace orrery
