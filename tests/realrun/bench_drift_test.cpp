// Is a planted change of level found among noisy runs, with its run and size, and none where there is only noise?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "realrun/bench/drift.h"
#include "realrun/bench/statistics.h"

namespace orrery::bench {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

const VerdictOptions kUsual{.threshold = 0.02};  // that of `orrery bench drift`

HistorySeries runs_of(const std::string& name, const std::vector<double>& seconds) {
  HistorySeries series{name, "a device", {}};
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    HistoryPoint point;
    point.date = "2026-01-" + std::to_string(10 + i);
    point.commit = "commit" + std::to_string(i);
    point.device = series.device;
    point.repetitions = 1;
    point.median_seconds = point.low_seconds = point.high_seconds = point.fastest_seconds = seconds[i];
    series.points.push_back(point);
  }
  return series;
}

// By run: its level.
using Level = std::function<double(std::size_t)>;
double flat(std::size_t) { return 1; }
Level step(std::size_t at, double factor) {
  return [=](std::size_t run) { return run < at ? 1 : factor; };
}

// Benchmarks of which the first has the level, and all have noise of 1 % between runs.
class NoisyRuns {
 public:
  explicit NoisyRuns(std::uint32_t seed) : generator_(seed) {}
  bool outliers = false;  // one run in ten takes up to half as long again
  double likeness = 0;    // of the noise of neighbouring runs: their correlation

  std::vector<HistorySeries> history(std::size_t benchmarks, std::size_t runs, const Level& level) {
    std::vector<HistorySeries> all;
    for (std::size_t b = 0; b < benchmarks; ++b) {
      std::vector<double> seconds;
      double noise = noise_(generator_);
      for (std::size_t run = 0; run < runs; ++run) {
        noise = likeness * noise + std::sqrt(1 - likeness * likeness) * noise_(generator_);
        seconds.push_back((b == 0 ? level(run) : 1) * std::exp(noise));
        if (outliers && uniform_(generator_) < 0.1) seconds.back() *= 1 + uniform_(generator_) / 2;
      }
      all.push_back(runs_of("kernel " + std::to_string(b), seconds));
    }
    return all;
  }

 private:
  std::mt19937 generator_;
  std::normal_distribution<double> noise_{0, 0.01};
  std::uniform_real_distribution<double> uniform_{0, 1};
};

const Trend& first_kernel(const Drift& drift) {
  for (const Trend& trend : drift.benchmarks)
    if (trend.name == "kernel 0") return trend;
  throw std::runtime_error("no kernel 0");
}

std::size_t changed(const Drift& drift) {
  return static_cast<std::size_t>(std::count_if(drift.benchmarks.begin(), drift.benchmarks.end(),
                                                [](const Trend& t) { return !t.changes.empty(); }));
}

// Runs of one level after another, nearly without noise.
std::vector<double> levels(std::initializer_list<std::pair<int, double>> parts) {
  std::vector<double> seconds;
  for (const auto& [runs, level] : parts)
    for (int i = 0; i < runs; ++i) seconds.push_back(level * (1 + 1e-5 * ((7 * i) % 10)));
  return seconds;
}
Trend only(const std::vector<double>& seconds, const VerdictOptions& options = kUsual) {
  return find_drift({runs_of("kernel 0", seconds)}, options).benchmarks.at(0);
}

// ---- planted steps

TEST(Drift, FindsAStepOfThreePercentInNoiseOfOne) {
  constexpr int kHistories = 100;
  int found = 0, slower = 0, near = 0, others = 0;
  for (std::uint32_t seed = 1; seed <= kHistories; ++seed) {
    const Drift drift = find_drift(NoisyRuns(seed).history(50, 30, step(15, 1.03)), kUsual);
    const Trend& trend = first_kernel(drift);
    others += static_cast<int>(changed(drift)) - !trend.changes.empty();
    if (trend.changes.empty()) continue;
    ++found;
    slower += trend.verdict == Verdict::regression;
    EXPECT_EQ(drift.exit_code(), drift.count(Verdict::regression) > 0 ? 1 : 0);
    EXPECT_NEAR(trend.changes[0].ratio, 1.03, 0.015) << seed;
    near += trend.changes[0].first >= 14 && trend.changes[0].first <= 16;
  }
  EXPECT_GE(found, 95);
  EXPECT_GE(slower, 90) << "the rest is within the threshold of 2 %";
  EXPECT_GE(near, 90);
  EXPECT_LE(others, 2);
}

TEST(Drift, FindsAStepThatIsAnImprovementAndOneNearTheEnd) {
  int faster = 0, late = 0;
  for (std::uint32_t seed = 1; seed <= 40; ++seed) {
    const Drift drift = find_drift(NoisyRuns(seed).history(50, 30, step(12, 1 / 1.04)), kUsual);
    faster += first_kernel(drift).verdict == Verdict::improvement;
    EXPECT_NE(first_kernel(drift).verdict, Verdict::regression);
    late += first_kernel(find_drift(NoisyRuns(seed).history(50, 30, step(23, 1.06)), kUsual)).verdict ==
            Verdict::regression;
  }
  EXPECT_GE(faster, 38);
  EXPECT_GE(late, 38) << "seven runs at the new level";
}

TEST(Drift, FindsNothingInNoiseMoreOftenThanItSays) {
  constexpr int kHistories = 300;
  for (const bool outliers : {false, true})
    for (const double alpha : {0.01, 0.1}) {
      int alarms = 0, failures = 0;
      for (std::uint32_t seed = 1; seed <= kHistories; ++seed) {
        NoisyRuns runs(seed);
        runs.outliers = outliers;
        const Drift drift = find_drift(runs.history(20, 30, flat), {.threshold = 0.02, .alpha = alpha});
        alarms += changed(drift) > 0;
        failures += drift.exit_code() != 0;
      }
      // Three standard deviations of a count whose mean is what is promised.
      const double most = kHistories * alpha, spread = std::sqrt(most * (1 - alpha));
      EXPECT_LE(alarms, most + 3 * spread) << alpha << " " << outliers;
      EXPECT_LE(failures, alarms);
    }
  int alarms = 0;  // that the bound is of something
  for (std::uint32_t seed = 1; seed <= 50; ++seed)
    alarms += changed(find_drift(NoisyRuns(seed).history(20, 30, flat), {.threshold = 0.02, .alpha = 0.5})) > 0;
  EXPECT_GT(alarms, 0);
}

// Why runs are to be made apart from each other.
TEST(Drift, NeighbouringRunsThatAreAlikeCryWolf) {
  constexpr int kHistories = 200;
  const auto failures = [&](double likeness) {
    int count = 0;
    for (std::uint32_t seed = 1; seed <= kHistories; ++seed) {
      NoisyRuns runs(seed);
      runs.likeness = likeness;
      count += find_drift(runs.history(50, 30, flat), kUsual).exit_code() == 1;
    }
    return count;
  };
  EXPECT_LE(failures(0), kHistories / 100);
  EXPECT_LE(failures(0.3), kHistories / 20);
  EXPECT_GE(failures(0.6), kHistories / 10);
}

TEST(Drift, OutliersHideNoStep) {
  int slower = 0;
  for (std::uint32_t seed = 1; seed <= 40; ++seed) {
    NoisyRuns runs(seed);
    runs.outliers = true;
    slower += first_kernel(find_drift(runs.history(1, 30, step(15, 1.05)), kUsual)).verdict == Verdict::regression;
  }
  EXPECT_GE(slower, 32);
}

// ---- the statistic

// By hand: the first two of five differ from the rest as much as can be; p = 2 / binomial(5, 2) there, places 1 to 4.
TEST(ChangePoint, IsTheLeastPTimesTheNumberOfPlaces) {
  const ChangePoint change = change_point(std::vector<double>{1, 2, 5, 4, 3}, 10);
  EXPECT_EQ(change.first, 2u);
  EXPECT_NEAR(change.p, 4 * 2.0 / 10, 1e-12);
  const std::vector<double> seconds = levels({{12, 1}, {9, 2}});
  const ChangePoint of_many = change_point(seconds, 1e-3);
  EXPECT_EQ(of_many.first, 12u);
  // 21 values: sides of 5 and more, 2 x 5! 16! / 21! x 12 = 0.0012 is not below 0.001; of 6, x 10 = 0.00037, is.
  const MannWhitney test = mann_whitney(std::span(seconds).first(12), std::span(seconds).subspan(12));
  EXPECT_NEAR(of_many.p, test.p * 10, 1e-15);
}

TEST(ChangePoint, NeedsAsManyValuesAsCanBeSignificant) {
  EXPECT_EQ(change_point(std::vector<double>{1, 1.1, 2, 2.1, 2.2}, 0.01).first, 0u);
  EXPECT_EQ(change_point(std::vector<double>{1}, 0.01).p, 1);
  EXPECT_EQ(change_point({}, 0.01).p, 1);
  for (const double level : {0.05, 1e-2, 1e-4, 1e-6}) {
    const std::size_t needed = values_for_change(level);
    std::vector<double> values(needed, 1);
    for (std::size_t i = 0; i < needed; ++i) values[i] = (i < needed / 2 ? 1 : 2) + 1e-3 * static_cast<double>(i);
    EXPECT_LT(change_point(values, level).p, level) << needed;
    values.pop_back();
    EXPECT_EQ(change_point(values, level).first, 0u) << needed;
  }
}

TEST(ChangePoint, OfEqualValuesIsNone) { EXPECT_EQ(change_point(std::vector<double>(30, 2.5), 0.01).p, 1); }

// ---- verdicts

TEST(Drift, ASlowDownThatWasMadeGoodIsNoFailure) {
  const Trend trend = only(levels({{45, 1}, {14, 1.1}, {8, 1}}));
  ASSERT_EQ(trend.changes.size(), 2u);
  EXPECT_NEAR(static_cast<double>(trend.changes[0].first), 45, 1);
  EXPECT_NEAR(static_cast<double>(trend.changes[1].first), 59, 1);
  EXPECT_EQ(trend.verdict, Verdict::unchanged);
}

TEST(Drift, ASlowDownBehindASpeedUpIsARegression) {
  const Trend trend = only(levels({{10, 1}, {10, 0.7}, {10, 0.8}}));
  ASSERT_EQ(trend.changes.size(), 2u);
  EXPECT_EQ(trend.verdict, Verdict::regression);
  EXPECT_NEAR(trend.ratio, 0.8 / 0.7, 1e-3);
  EXPECT_EQ(only(levels({{10, 1}, {10, 0.8}, {10, 0.7}})).verdict, Verdict::improvement);
}

TEST(Drift, SmallStepsAddUp) {
  const Trend trend = only(levels({{10, 1}, {10, 1.015}, {10, 1.03}}));
  ASSERT_EQ(trend.changes.size(), 2u);
  EXPECT_EQ(trend.verdict, Verdict::regression);
  EXPECT_NEAR(trend.ratio, 1.03, 1e-3);
  EXPECT_EQ(only(levels({{10, 1}, {10, 1.015}})).verdict, Verdict::slower_below_threshold);
  EXPECT_EQ(only(levels({{10, 1}, {10, 1.015}}), {.threshold = 0.01}).verdict, Verdict::regression);
  EXPECT_EQ(only(levels({{10, 1.015}, {10, 1}})).verdict, Verdict::faster_below_threshold);
  EXPECT_EQ(only(levels({{20, 1}})).verdict, Verdict::unchanged);
}

TEST(Drift, AsFastAtItsBestIsNotSlower) {
  HistorySeries series = runs_of("kernel 0", levels({{10, 1}, {10, 1.5}}));
  for (HistoryPoint& point : series.points) point.fastest_seconds = 0.9;
  const Trend trend = find_drift({series}, kUsual).benchmarks.at(0);
  ASSERT_EQ(trend.changes.size(), 1u);
  EXPECT_EQ(trend.verdict, Verdict::unchanged);
}

TEST(Drift, IsNeverGreenWhereNothingCouldBeTold) {
  const Drift few = find_drift({runs_of("kernel 0", {1, 2, 3})}, kUsual);
  EXPECT_EQ(few.benchmarks[0].verdict, Verdict::too_few_repetitions);
  EXPECT_EQ(few.exit_code(), 3);
  EXPECT_THAT(drift_text(few, false), HasSubstr("nothing could be told of any benchmark"));
  EXPECT_THAT(drift_text(few, false), HasSubstr("too few runs: 10 are needed"));
  EXPECT_EQ(json::parse(drift_json(few))["exit_code"], 3);
  const std::vector<HistorySeries> two{runs_of("long", levels({{20, 1}})), runs_of("short", {1})};
  EXPECT_EQ(find_drift(two, kUsual).exit_code(), 0);
  EXPECT_EQ(find_drift(two, {.threshold = 0.02, .strict = true}).exit_code(), 1);
  EXPECT_EQ(find_drift({}, kUsual).exit_code(), 3);
}

TEST(Drift, SaysWhereTheMachineMayHaveChanged) {
  std::vector<HistorySeries> all;
  for (int b = 0; b < 4; ++b) all.push_back(runs_of("kernel " + std::to_string(b), levels({{12, 1}, {12, 1.1}})));
  all.push_back(runs_of("kernel 4", levels({{24, 1}})));
  for (HistorySeries& series : all)
    for (std::size_t i = 0; i < series.points.size(); ++i)
      series.points[i].machine[2] = i < 12 ? "driver 1" : "driver 2";  // kMachineFacts: software
  const std::string text = drift_text(find_drift(all, kUsual), false);
  EXPECT_THAT(text, HasSubstr("4 of 5 benchmarks became slower with one run (2026-01-22, commit12)"));
  EXPECT_THAT(text, HasSubstr("with the run of 2026-01-22 commit12 software was driver 1 and is driver 2\n"));
  for (std::size_t b = 1; b < 4; ++b) all[b] = runs_of("kernel", levels({{24, 1}}));
  EXPECT_THAT(drift_text(find_drift(all, kUsual), false), Not(HasSubstr("became slower with one run")));
}

// ---- forms

Drift some() {
  return find_drift({runs_of("=same", levels({{20, 1}})), runs_of("slow|<&>", levels({{10, 1}, {10, 1.1}})),
                     runs_of("twice", levels({{10, 1}, {10, 0.9}, {10, 1.2}})), runs_of("few", {1, 1})},
                    kUsual);
}

TEST(DriftForms, AreAlignedWorstFirst) {
  const std::string text = drift_text(some(), false);
  std::size_t last = 0;
  for (const char* name : {"twice", "slow|<&>", "=same", "few"}) {
    const std::size_t found = text.find(std::string("\n  ") + name);
    ASSERT_NE(found, std::string::npos) << text;
    EXPECT_GT(found, last) << text;
    last = found;
  }
  EXPECT_THAT(text, HasSubstr("+10.0 %"));
  EXPECT_THAT(text, HasSubstr("2026-01-20 commit10"));
  EXPECT_THAT(text, HasSubstr("2 regressions, 1 unchanged, 1 too few runs\n"));
  EXPECT_THAT(drift_text(some(), true), HasSubstr("\x1b[31mregression\x1b[0m"));
  EXPECT_THAT(drift_markdown(some()), HasSubstr("| slow\\|&lt;&amp;&gt; |"));
  EXPECT_THAT(drift_markdown(some()), HasSubstr("| **regression** |"));
}

TEST(DriftForms, HaveEveryChangeAndItsRuns) {
  const json j = json::parse(drift_json(some()));
  EXPECT_EQ(j["exit_code"], 1);
  EXPECT_EQ(j["verdicts"]["regression"], 2);
  EXPECT_EQ(j["benchmarks"][0]["name"], "twice");
  ASSERT_EQ(j["benchmarks"][0]["changes"].size(), 2u);
  const json& change = j["benchmarks"][0]["changes"][1];
  EXPECT_EQ(change["git_commit"], "commit20");
  EXPECT_EQ(change["previous_git_commit"], "commit19");
  EXPECT_NEAR(change["ratio_of_medians"], 1.2 / 0.9, 1e-3);
  std::istringstream lines(drift_csv(some()));
  std::size_t rows = 0;
  for (std::string line; std::getline(lines, line); ++rows)
    EXPECT_EQ(std::count(line.begin(), line.end(), ','), 13) << line;
  EXPECT_EQ(rows, 6u);
  EXPECT_THAT(drift_csv(some()), HasSubstr("\n'=same,a device,unchanged,20,"));
}

}  // namespace
}  // namespace orrery::bench
