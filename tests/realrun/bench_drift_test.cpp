// Is a planted change of level found among noisy runs, with its run and size, and none where there is only noise?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <sstream>

#include "realrun/bench/drift.h"
#include "realrun/bench/history.h"
#include "realrun/bench/statistics.h"
#include "sim/base/error.h"

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

// Each line of the CSV has a cell for each heading: the row's member by that name, or nothing.
void expect_rows(const std::string& csv, const std::vector<json>& rows) {
  std::istringstream lines(csv);
  const auto cells = [&] {
    std::string line, cell;
    std::getline(lines, line);
    std::vector<std::string> all;
    bool quoted = false;
    for (std::size_t i = 0; i < line.size(); ++i) {
      if (line[i] == '"' && quoted && line[i + 1] == '"') {
        cell += line[i++];
      } else if (line[i] == '"') {
        quoted = !quoted;
      } else if (line[i] == ',' && !quoted) {
        all.push_back(cell);
        cell.clear();
      } else {
        cell += line[i];
      }
    }
    all.push_back(cell);
    return all;
  };
  const std::vector<std::string> headings = cells();
  for (const json& row : rows) {
    const std::vector<std::string> line = cells();
    ASSERT_EQ(line.size(), headings.size()) << row;
    for (std::size_t i = 0; i < line.size(); ++i) {
      const auto found = row.find(headings[i]);
      if (found == row.end()) {
        EXPECT_EQ(line[i], "") << headings[i];
      } else if (found->is_number_float()) {
        EXPECT_EQ(std::stod(line[i]), found->get<double>()) << headings[i];
      } else {
        const std::string text = found->is_string() ? found->get<std::string>() : found->dump();
        EXPECT_EQ(line[i], text.starts_with("=") ? "'" + text : text) << headings[i];
      }
    }
  }
  std::string more;
  EXPECT_FALSE(std::getline(lines, more)) << more;
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

// By every fact: what is known on both sides of a change and differs is said, and nothing else.
TEST(Drift, SaysOfEveryFactThatItChangedAndOfNoneThatIsUnknown) {
  for (std::size_t fact = 0; fact < kMachineFacts.size(); ++fact)
    for (const auto& [before, after] :
         {std::pair("old", "new"), {"same", "same"}, {"old", ""}, {"", "new"}, {"", ""}}) {
      HistorySeries series = runs_of("kernel 0", levels({{12, 1}, {12, 1.1}}));
      for (std::size_t i = 0; i < series.points.size(); ++i) series.points[i].machine[fact] = i < 12 ? before : after;
      const Trend trend = find_drift({series}, kUsual).benchmarks.at(0);
      ASSERT_EQ(trend.changes.size(), 1u);
      const std::string said = std::string(kMachineFacts[fact]) + " was old and is new";
      EXPECT_EQ(trend.changes[0].machine, before == std::string("old") && after == std::string("new")
                                              ? std::vector<std::string>{said}
                                              : std::vector<std::string>{});
    }
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

// Each cell of the CSV is the member of the JSON by that name, or empty where there is none; a benchmark without a
// change has a row, and each change one.
TEST(DriftForms, CsvAndJsonAreTheSame) {
  const Drift drift = some();
  const json all = json::parse(drift_json(drift));
  std::vector<json> rows;
  for (const json& benchmark : all["benchmarks"]) {
    json row{{"benchmark", benchmark["name"]}};
    for (const char* key : {"device", "verdict", "runs", "last_level_seconds"}) row[key] = benchmark[key];
    for (json change : benchmark["changes"]) {
      change.update(row);
      rows.push_back(change);
    }
    if (!benchmark["changes"].empty()) continue;
    if (benchmark.contains("adjusted_p")) row["adjusted_p"] = benchmark["adjusted_p"];
    rows.push_back(row);
  }
  expect_rows(drift_csv(drift), rows);
  // The judgement is what the points say.
  EXPECT_EQ(all["needed_runs"], drift.needed_runs);
  EXPECT_EQ(all["runs"], 30);
  std::map<std::string, std::size_t> verdicts;
  for (const json& benchmark : all["benchmarks"]) ++verdicts[benchmark["verdict"]];
  for (const auto& [verdict, count] : all["verdicts"].items()) EXPECT_EQ(count, verdicts[verdict]) << verdict;
  for (const Trend& trend : drift.benchmarks)
    for (std::size_t i = 0; i < trend.changes.size(); ++i) {
      const LevelChange& change = trend.changes[i];
      EXPECT_DOUBLE_EQ(change.ratio, change.after_seconds / change.before_seconds);
      EXPECT_DOUBLE_EQ(change.fastest_ratio, change.ratio) << "one repetition each";
      if (i > 0) {
        EXPECT_EQ(change.before_seconds, trend.changes[i - 1].after_seconds);
      }
      EXPECT_LT(change.adjusted_p, 0.01);
    }
}

TEST(DriftForms, ReadLikeThis) {
  Drift drift = some();
  drift.history = "a.db";
  EXPECT_EQ(drift_text(drift, false), R"(a.db: the last 30 runs
maximally selected rank statistic of the runs' medians, binary segmentation, Holm-adjusted p < 0.01; slower: the last level, of medians and of fastest repetitions, more than 2 % above the fastest before it

  benchmark  runs    before     since   change  fastest      p  first run            verdict
  twice        30   1.000 s  900.0 ms  -10.0 %  -10.0 %  5e-04  2026-01-20 commit10  regression
  twice        30  900.0 ms   1.200 s  +33.3 %  +33.3 %  6e-06  2026-01-30 commit20
  slow|<&>     20   1.000 s   1.100 s  +10.0 %  +10.0 %  4e-04  2026-01-20 commit10  regression
  =same        20         -   1.000 s        -        -  1.000  -                    unchanged
  few           2         -   1.000 s        -        -      -  -                    too few runs

too few runs: 12 are needed for a significant result with so many benchmarks
2 regressions, 1 unchanged, 1 too few runs
)");
}

// ---- a history and its forms

class Kept {
 public:
  Kept() {
    std::string name = (std::filesystem::path(testing::TempDir()) / "orrery_history_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    folder_ = name;
  }
  ~Kept() { std::filesystem::remove_all(folder_); }
  std::string path() const { return folder_ + "/history.db"; }

 private:
  std::string folder_;
};

BenchmarkRun run_on(const std::string& device, const std::string& date, std::vector<Series> series) {
  BenchmarkRun run;
  run.date = date;
  run.digest = device + date;
  run.context = {{"device", device},
                 {"git_commit", "0123456789abcdef"},
                 {"orrery_version", "9.8"},
                 {"software", "driver of " + date}};
  run.series = std::move(series);
  return run;
}

Series kept_series(const std::string& name, const std::vector<double>& seconds, bool by_real_time = false) {
  Series series;
  series.name = name;
  series.by_real_time = by_real_time;
  for (const double s : seconds)
    series.repetitions.push_back({by_real_time ? s : 9 * s, by_real_time ? 9 * s : s, 7, {}});
  return series;
}

// By date and not as they came, with quartiles as NumPy has them; a benchmark that failed has no point.
TEST(History, GivesBackWhatRunsHad) {
  const Kept kept;
  {
    History history(kept.path(), History::Mode::write);
    EXPECT_TRUE(history.add(run_on("cpu", "2026-03-02T00:00:00+00:00",
                                   {kept_series("a", {4, 1, 3, 2}), kept_series("failed", {}),
                                    kept_series("b/manual_time", {8, 6}, /*by_real_time=*/true)})));
    EXPECT_TRUE(history.add(run_on("cpu", "2026-03-01T23:00:00+02:00", {kept_series("a", {1, 2})})));
    EXPECT_TRUE(history.add(run_on("gpu", "2026-03-01T22:00:00+00:00", {kept_series("a", {0.5})})));
    EXPECT_FALSE(history.add(run_on("gpu", "2026-03-01T22:00:00+00:00", {kept_series("a", {0.5})})));
    BenchmarkRun cold = run_on("cpu", "2026-03-03T00:00:00+00:00", {kept_series("a", {5})});
    cold.context.emplace_back("cache_state", "cold");
    EXPECT_TRUE(history.add(cold));
  }
  const History history(kept.path(), History::Mode::read);
  EXPECT_EQ(history.runs(), 4);
  EXPECT_EQ(history.benchmarks(), (std::vector<std::string>{"a", "b/manual_time"}));
  const std::vector<HistoryPoint> points = history.points("a");
  ASSERT_EQ(points.size(), 4u);
  EXPECT_EQ(points[0].date, "2026-03-01T23:00:00+02:00") << "21 o'clock in Greenwich";
  EXPECT_EQ(points[1].device, "gpu");
  const HistoryPoint& later = points[2];
  EXPECT_EQ(later.commit, "0123456789abcdef");
  EXPECT_EQ(later.version, "9.8");
  EXPECT_EQ(later.machine[0], "cpu");
  EXPECT_EQ(later.machine[1], "") << "unknown";
  EXPECT_EQ(later.machine[2], "driver of 2026-03-02T00:00:00+00:00");
  EXPECT_EQ(later.repetitions, 4u);
  EXPECT_DOUBLE_EQ(later.low_seconds, 1.75);
  EXPECT_DOUBLE_EQ(later.median_seconds, 2.5);
  EXPECT_DOUBLE_EQ(later.high_seconds, 3.25);
  EXPECT_EQ(later.fastest_seconds, 1);
  EXPECT_EQ(points[0].ratio, 0) << "the first";
  EXPECT_EQ(points[1].ratio, 0) << "the first of its device";
  EXPECT_DOUBLE_EQ(later.ratio, 2.5 / 1.5);
  EXPECT_EQ(points[3].device, "cpu, cold caches");
  EXPECT_EQ(history.points("b").at(0).median_seconds, 7) << "by real time, and without its suffix";
  // Of several with that name but for a suffix the first; the name itself comes before them all.
  {
    History more(kept.path(), History::Mode::write);
    more.add(run_on("tpu", "2026-04-01T00:00:00+00:00",
                    {kept_series("c/manual_time", {1}, true), kept_series("c/real_time", {2}, true),
                     kept_series("d", {3}), kept_series("d/real_time", {4}, true)}));
  }
  EXPECT_EQ(history.points("c").at(0).median_seconds, 1);
  EXPECT_EQ(history.points("c/real_time").at(0).median_seconds, 2);
  EXPECT_EQ(history.points("d").at(0).median_seconds, 3);
  EXPECT_EQ(history.points("d/real_time").at(0).median_seconds, 4);
  const std::vector<HistorySeries> last = history.last_runs(1);
  ASSERT_EQ(last.size(), 8u) << "a and b on the CPU, a with cold caches, a on the GPU, and the four of the last run";
  for (const HistorySeries& series : last) EXPECT_EQ(series.points.size(), 1u) << series.name;
  EXPECT_EQ(last[0].points[0].date, "2026-03-02T00:00:00+00:00");
  EXPECT_EQ(history.last_runs(2).at(0).points.size(), 2u);
  try {
    history.points("e");
    ADD_FAILURE();
  } catch (const InputError& error) {
    EXPECT_EQ(error.expected(), "the name of one of its benchmarks");
  }
}

// Two devices, a point without date and commit, and one that fell out of the picture's rounding.
std::vector<HistoryPoint> some_points() {
  std::vector<HistoryPoint> points(4);
  for (std::size_t i = 0; i < points.size(); ++i) {
    HistoryPoint& p = points[i];
    p.date = i == 3 ? "" : "2026-03-0" + std::to_string(i + 1) + "T10:00:00+00:00";
    p.commit = i == 3 ? "" : "0123456789abcde" + std::to_string(i);
    p.version = "0." + std::to_string(i);
    p.device = i == 2 ? "" : "a <cpu>";
    p.repetitions = 5 + i;
    p.median_seconds = 1e-3 * static_cast<double>(i + 1);
    p.low_seconds = 0.9 * p.median_seconds;
    p.high_seconds = 1.25 * p.median_seconds;
    p.ratio = i == 1 ? 2 : i == 3 ? 0.5 : 0;
  }
  return points;
}

TEST(HistoryForms, CsvAndJsonAreThePoints) {
  const std::vector<HistoryPoint> points = some_points();
  const json all = json::parse(history_json("a, \"b\"", points));
  EXPECT_EQ(all["benchmark"], "a, \"b\"");
  ASSERT_EQ(all["runs"].size(), points.size());
  std::vector<json> rows;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const HistoryPoint& p = points[i];
    json expected{{"date", p.date},
                  {"git_commit", p.commit},
                  {"version", p.version},
                  {"device", p.device},
                  {"repetitions", p.repetitions},
                  {"median_seconds", p.median_seconds},
                  {"first_quartile_seconds", p.low_seconds},
                  {"third_quartile_seconds", p.high_seconds}};
    if (p.ratio > 0) expected["ratio_to_previous"] = p.ratio;
    EXPECT_EQ(all["runs"][i], expected);
    expected["benchmark"] = "a, \"b\"";
    rows.push_back(expected);
  }
  expect_rows(history_csv("a, \"b\"", points), rows);
}

TEST(HistoryForms, ReadLikeThis) {
  EXPECT_EQ(history_text("a\nb", some_points()), R"(a b

  date                       commit        device   n    median  quartiles               change
  2026-03-01T10:00:00+00:00  0123456789ab  a <cpu>  5  1.000 ms  900.0 us .. 1.250 ms         -  ████▊
  2026-03-02T10:00:00+00:00  0123456789ab  a <cpu>  6  2.000 ms  1.800 ms .. 2.500 ms  +100.0 %  █████████▋
  2026-03-03T10:00:00+00:00  0123456789ab  -        7  3.000 ms  2.700 ms .. 3.750 ms         -  ██████████████▍
  -                          -             a <cpu>  8  4.000 ms  3.600 ms .. 5.000 ms   -50.0 %  ███████████████████▎
)");
}

// What is drawn is where its figures say: x by number, y by seconds, labels by their ticks, a line for each device.
TEST(HistoryForms, PictureIsToScale) {
  const std::vector<HistoryPoint> points = some_points();
  const std::string svg = history_svg("a <b>", points);
  EXPECT_THAT(svg, testing::AllOf(HasSubstr("<title>a &lt;b&gt;</title>"), HasSubstr(">unknown device</text>"),
                                  HasSubstr(">a &lt;cpu&gt;</text>"), HasSubstr("height=\"456\"")));
  const auto numbers = [&](const char* form) {
    std::vector<std::vector<double>> found;
    const std::regex wanted(form);
    for (std::sregex_iterator at(svg.begin(), svg.end(), wanted), end; at != end; ++at) {
      found.emplace_back();
      for (std::size_t i = 1; i < at->size(); ++i) found.back().push_back(std::stod((*at)[i]));
    }
    return found;
  };
  // The tick labels give the scale.
  const auto ticks = numbers("<text x=\"72\" y=\"([0-9.]+)\"[^>]*>([0-9.]+)(?: ms| s)</text>");
  ASSERT_GT(ticks.size(), 3u);
  EXPECT_EQ(ticks[0][1], 0);
  const double zero = ticks[0][0] - 4, per_ms = (ticks[0][0] - ticks.back()[0]) / ticks.back()[1];
  EXPECT_NEAR(zero, 330, 0.05) << "the axis";
  for (const auto& tick : ticks) EXPECT_NEAR(tick[0], zero + 4 - per_ms * tick[1], 0.11);
  EXPECT_NEAR(zero - per_ms * 5 * 1.05, 50, 0.2) << "the slowest quartile, 5 ms, has a little room";
  const auto marks = numbers("<circle cx=\"([0-9.]+)\" cy=\"([0-9.]+)\" r=\"3.5\"");
  const auto quartiles =
      numbers("<line x1=\"([0-9.]+)\" y1=\"([0-9.]+)\" x2=\"[0-9.]+\" y2=\"([0-9.]+)\" stroke=\"#[0-9a-f]+\" opacity");
  ASSERT_EQ(marks.size(), 4u);
  ASSERT_EQ(quartiles.size(), 4u);
  const std::size_t order[]{0, 1, 3, 2};  // device by device
  for (std::size_t k = 0; k < 4; ++k) {
    const HistoryPoint& p = points[order[k]];
    const double x = 80 + 800.0 / 3 * static_cast<double>(order[k]);
    EXPECT_NEAR(marks[k][0], x, 0.06);
    EXPECT_NEAR(quartiles[k][0], x, 0.06);
    EXPECT_NEAR(marks[k][1], zero - per_ms * 1e3 * p.median_seconds, 0.2);
    EXPECT_NEAR(quartiles[k][1], zero - per_ms * 1e3 * p.low_seconds, 0.2);
    EXPECT_NEAR(quartiles[k][2], zero - per_ms * 1e3 * p.high_seconds, 0.2);
  }
  EXPECT_THAT(svg, HasSubstr("rotate(-35)\" text-anchor=\"end\" fill=\"#666\">2026-03-01 0123456789ab</text>"));
  EXPECT_EQ(numbers("points=\"([0-9.]+),[0-9.]+ [0-9.]+,[0-9.]+ [0-9.]+,[0-9.]+\"").size(), 1u) << "three of the CPU";
  // One run is in the middle, and many have no more than twelve labels.
  const std::string alone = history_svg("a", {points[0]});
  EXPECT_THAT(alone, HasSubstr("<circle cx=\"480.0\""));
  for (const std::size_t count : {12u, 13u, 24u, 100u}) {
    const std::string many = history_svg("a", std::vector<HistoryPoint>(count, points[0]));
    std::size_t labels = 0;
    for (std::size_t at = many.find("rotate(-35)"); at != many.npos; at = many.find("rotate(-35)", at + 1)) ++labels;
    EXPECT_LE(labels, 12u) << count;
    EXPECT_GT(labels, 5u) << count;
  }
  EXPECT_THAT(history_svg("a", {}), testing::EndsWith("</svg>\n"));
}

}  // namespace
}  // namespace orrery::bench
