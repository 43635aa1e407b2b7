// Is a slower kernel caught, and do identical runs stay quiet on a machine that is not?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "realrun/bench/compare.h"
#include "realrun/bench/suite.h"
#include "sim/base/error.h"

namespace orrery::bench {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

Series series_of(const std::string& name, const std::vector<double>& seconds) {
  Series series;
  series.name = name;
  for (const double s : seconds) series.repetitions.push_back({s, s, 1, {}});
  return series;
}

BenchmarkRun run_of(std::vector<Series> series) {
  BenchmarkRun run;
  run.file = "run.json";
  run.series = std::move(series);
  return run;
}

// Ten repetitions around `seconds`, all different.
Series steady(const std::string& name, double seconds, int repetitions = 10) {
  std::vector<double> values;
  for (int i = 0; i < repetitions; ++i) values.push_back(seconds * (1 + 0.001 * i));
  return series_of(name, values);
}

Series with_yardsticks(Series series, double arithmetic, double memory) {
  for (Repetition& r : series.repetitions) r.yardstick_seconds = {arithmetic, memory};
  return series;
}

const Difference& at(const Comparison& comparison, const std::string& name) {
  for (const Difference& d : comparison.benchmarks)
    if (d.name == name) return d;
  throw std::runtime_error("no " + name);
}

Verdict verdict(const Series& before, const Series& after, const VerdictOptions& options = {}) {
  return compare_runs(run_of({before}), run_of({after}), options).benchmarks.at(0).verdict;
}

// ---- verdicts

TEST(Compare, SlowerBeyondTheThresholdIsARegressionAndFasterAnImprovement) {
  EXPECT_EQ(verdict(steady("a", 1), steady("a", 1.1)), Verdict::regression);
  EXPECT_EQ(verdict(steady("a", 1), steady("a", 0.9)), Verdict::improvement);
  EXPECT_EQ(verdict(steady("a", 1), steady("a", 1.0005)), Verdict::unchanged);
}

TEST(Compare, WhatIsSignificantButSmallIsNamedAndNoFailure) {
  EXPECT_EQ(verdict(steady("a", 1), steady("a", 1.04)), Verdict::slower_below_threshold);
  EXPECT_EQ(verdict(steady("a", 1), steady("a", 0.96)), Verdict::faster_below_threshold);
  const Comparison c = compare_runs(run_of({steady("a", 1)}), run_of({steady("a", 1.04)}), {.strict = true});
  EXPECT_EQ(c.exit_code(), 0) << "it was told";
  EXPECT_THAT(comparison_text(c, false), HasSubstr("slower below the threshold\n"));
  EXPECT_THAT(comparison_text(c, false), HasSubstr("changed by less than 5 %"));
  EXPECT_THAT(comparison_junit(c), HasSubstr("<system-out>slower below the threshold: "));
  EXPECT_EQ(verdict(steady("a", 1), steady("a", 1.04), {.threshold = 0.03}), Verdict::regression);
}

TEST(Compare, WhatIsLargeButNotSignificantIsUnchanged) {
  const Series before = series_of("a", {1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  const Series after = series_of("a", {1.5, 2.5, 3.5, 4.5, 7.5, 8.5, 9.5, 10.5, 11, 12});
  const Comparison c = compare_runs(run_of({before}), run_of({after}), {});
  EXPECT_GT(at(c, "a").ratio, 1.4);
  EXPECT_EQ(at(c, "a").verdict, Verdict::unchanged);
}

TEST(Compare, AsFastAtItsBestIsNotSlower) {
  Series after = steady("a", 1.5);
  after.repetitions[3] = {1, 1, 1, {}};  // the machine was quiet once
  EXPECT_EQ(verdict(steady("a", 1), after), Verdict::unchanged);
}

TEST(Compare, TheSmallestPossiblePDecidesHowManyRepetitionsAreEnough) {
  // 2 / binomial(10, 5) = 0.0079 is below 0.01, twice that is not.
  EXPECT_EQ(verdict(steady("a", 1, 5), steady("a", 2, 5)), Verdict::regression);
  EXPECT_EQ(verdict(steady("a", 1, 4), steady("a", 2, 4)), Verdict::too_few_repetitions);
  const Comparison two =
      compare_runs(run_of({steady("a", 1, 5), steady("b", 1, 5)}), run_of({steady("a", 2, 5), steady("b", 1, 5)}), {});
  EXPECT_EQ(at(two, "a").verdict, Verdict::too_few_repetitions);
  EXPECT_EQ(two.needed_repetitions, 6u);
  EXPECT_THAT(comparison_text(two, false), HasSubstr("too few repetitions: 6 on both sides"));
}

TEST(Compare, TheNumberOfBenchmarksRaisesTheBar) {
  // p = 0.00033 alone; among 50 Holm makes it 0.016.
  const Series before = series_of("a", {1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  const Series after = series_of("a", {7.5, 8.5, 9.5, 10.5, 11, 12, 13, 14, 15, 16});
  EXPECT_EQ(verdict(before, after), Verdict::regression);
  std::vector<Series> many_before{before}, many_after{after};
  for (int i = 0; i < 49; ++i) {
    many_before.push_back(steady("b" + std::to_string(i), 1));
    many_after.push_back(steady("b" + std::to_string(i), 1));
  }
  EXPECT_EQ(at(compare_runs(run_of(many_before), run_of(many_after), {}), "a").verdict, Verdict::unchanged);
}

// ---- what could have been seen

TEST(Compare, SaysTheLeastSlowdownThatWouldHaveBeenARegression) {
  std::mt19937 generator(7);
  std::normal_distribution<double> jitter(0, 0.04);
  const auto noisy = [&](const std::string& name) {
    std::vector<double> values;
    for (int i = 0; i < 12; ++i) values.push_back(std::exp(jitter(generator)));
    return series_of(name, values);
  };
  const auto times = [](Series series, double factor) {
    for (Repetition& r : series.repetitions) r.cpu_seconds *= factor;
    return series;
  };
  bool by_spread = false;
  for (int i = 0; i < 20; ++i) {
    const Series before = noisy("a"), after = noisy("a");
    const Difference d = compare_runs(run_of({before}), run_of({after}), {}).benchmarks.at(0);
    EXPECT_GE(d.least_slowdown, 0.05 - 1e-12);
    by_spread |= d.least_slowdown > 0.06;
    const double to_least = (1 + d.least_slowdown) / d.ratio;
    EXPECT_EQ(verdict(before, times(after, to_least * 1.0005)), Verdict::regression);
    EXPECT_NE(verdict(before, times(after, to_least * 0.9995)), Verdict::regression);
  }
  EXPECT_TRUE(by_spread) << "the threshold alone decides nothing here";
  // What the yardsticks leave open hides as much.
  const Comparison open = compare_runs(run_of({with_yardsticks(steady("a", 1), 1, 1)}),
                                       run_of({with_yardsticks(steady("a", 1), 1, 1.1)}), {});
  EXPECT_NEAR(at(open, "a").least_slowdown, 1.05 * std::pow(1.1, 1.5) - 1, 1e-9);
  EXPECT_THAT(comparison_text(open, false), HasSubstr("slow-down that can be seen in these runs: 21.1 %\n"));
}

TEST(Compare, SaysFirstHowLittleItSees) {
  const Comparison c =
      compare_runs(run_of({steady("a", 1), steady("b", 1)}), run_of({steady("a", 1), steady("b", 1)}), {});
  EXPECT_EQ(c.least_slowdown().benchmarks, 2u);
  const std::string least = "the least slow-down that can be seen in these runs: 5.0 % (median; 5.0 % to 5.0 % over 2";
  EXPECT_THAT(comparison_text(c, false), HasSubstr(least));
  EXPECT_THAT(comparison_markdown(c), HasSubstr(least));
  EXPECT_NEAR(json::parse(comparison_json(c))["least_visible_slowdown"]["median"], 0.05, 1e-9);
  const Comparison none = compare_runs(run_of({steady("a", 1, 2)}), run_of({steady("a", 1, 2)}), {});
  EXPECT_THAT(comparison_text(none, false), HasSubstr("no slow-down, however large, can be seen"));
}

TEST(Compare, IsNeverGreenWhereNothingCouldBeTold) {
  const BenchmarkRun baseline = run_of({with_yardsticks(steady("a", 1), 1, 1)});
  const std::vector<BenchmarkRun> tell_nothing{
      run_of({with_yardsticks(steady("a", 1.1), 1, 1.1)}),     // the machine was another
      run_of({with_yardsticks(steady("a", 1, 2), 1, 1)}),      // too few repetitions
      run_of({with_yardsticks(steady("another", 1), 1, 1)})};  // none in common
  for (const BenchmarkRun& candidate : tell_nothing)
    for (const bool strict : {false, true}) {
      const Comparison c = compare_runs(baseline, candidate, {.strict = strict});
      EXPECT_TRUE(c.nothing_told());
      EXPECT_EQ(c.exit_code(), 3);
      EXPECT_EQ(json::parse(comparison_json(c))["exit_code"], 3);
      EXPECT_THAT(comparison_text(c, false), HasSubstr("nothing could be told of any benchmark"));
      EXPECT_THAT(comparison_junit(c), HasSubstr("<error type="));
      EXPECT_THAT(comparison_junit(c), Not(HasSubstr("<skipped")));
    }
}

TEST(Compare, StrictFailsWhatIsMissingOrCannotBeTold) {
  const Series same = with_yardsticks(steady("same", 1.1), 1, 1), open = with_yardsticks(steady("open", 1), 1, 1),
               gone = with_yardsticks(steady("gone", 1), 1, 1);
  // "same" is faster whichever yardstick it follows; "open" may have followed one.
  const Series same_after = with_yardsticks(steady("same", 0.9), 1, 1.1),
               open_after = with_yardsticks(steady("open", 1.1), 1, 1.1);
  const auto code = [](const std::vector<Series>& before, const std::vector<Series>& after, bool strict) {
    return compare_runs(run_of(before), run_of(after), {.strict = strict}).exit_code();
  };
  EXPECT_EQ(code({same, gone}, {same}, false), 0);
  EXPECT_EQ(code({same, gone}, {same}, true), 1);
  EXPECT_EQ(code({same}, {same, gone}, true), 0) << "a new one lacks nothing";
  const Comparison lenient = compare_runs(run_of({same, open}), run_of({same_after, open_after}), {});
  ASSERT_EQ(at(lenient, "same").verdict, Verdict::improvement);
  ASSERT_EQ(at(lenient, "open").verdict, Verdict::cannot_tell);
  EXPECT_EQ(lenient.exit_code(), 0);
  EXPECT_EQ(code({same, open}, {same_after, open_after}, true), 1);
  const Comparison c = compare_runs(run_of({same, gone}), run_of({same}), {.strict = true});
  for (const std::string& text : {comparison_text(c, false), comparison_markdown(c), comparison_junit(c)})
    EXPECT_THAT(text, HasSubstr("missing: the new run lacks 1 of the baseline's benchmarks: gone"));
  EXPECT_THAT(comparison_junit(c), HasSubstr("<failure type=\"only in baseline\""));
  EXPECT_THAT(comparison_markdown(c), HasSubstr("**only in baseline**"));
  EXPECT_EQ(json::parse(comparison_json(c))["missing"], json({"gone"}));
}

// Which benchmarks are looked at does not change what is said of them.
TEST(Compare, TakesWhatIsUsualFromTheWholeRun) {
  const Series busy = with_yardsticks(steady("busy", 1, 12), 1.3, 1),
               quiet = with_yardsticks(steady("quiet", 1, 12), 1, 1);
  Series mixed = busy;
  for (std::size_t i = 0; i < 6; ++i) mixed.repetitions[i].yardstick_seconds = {1.1, 1};
  const BenchmarkRun run = run_of({mixed, quiet});
  const VerdictOptions one{.wanted = [](const std::string& name) { return name == "busy"; }};
  const Comparison all = compare_runs(run, run, {}), some = compare_runs(run, run, one);
  ASSERT_EQ(some.benchmarks.size(), 1u);
  EXPECT_EQ(at(some, "busy").new_repetitions, at(all, "busy").new_repetitions);
  EXPECT_EQ(at(some, "busy").new_seconds, at(all, "busy").new_seconds);
  EXPECT_EQ(some.repetitions, 24u) << "of what is compared";
}

TEST(RunText, HasTheMediansThatACompareHas) {
  Series disturbed = with_yardsticks(steady("disturbed", 1, 12), 1, 1);
  for (std::size_t i = 0; i < 7; ++i) {
    disturbed.repetitions[i].cpu_seconds = 3;
    disturbed.repetitions[i].yardstick_seconds = {1.3, 1};
  }
  const BenchmarkRun run = run_of({disturbed, with_yardsticks(steady("quiet", 2, 12), 1, 1)});
  const Comparison c = compare_runs(run, run, {.alpha = 0.5});
  EXPECT_NEAR(at(c, "disturbed").new_seconds, 1.009, 1e-9);
  EXPECT_THAT(run_text(run), testing::ContainsRegex("disturbed +1\\.009 s"));
  EXPECT_THAT(run_text(run), HasSubstr("7 of 24 repetitions are ignored"));
}

// ---- of one file only

TEST(Compare, BenchmarksOfOneFileAndFailuresAreSaid) {
  Series broken = steady("c", 1);
  broken.repetitions.clear();
  broken.error = "no memory";
  const Comparison c = compare_runs(run_of({steady("a", 1), steady("b", 1), steady("c", 1)}),
                                    run_of({steady("b", 1), broken, steady("d", 1)}), {});
  EXPECT_EQ(at(c, "a").verdict, Verdict::only_in_baseline);
  EXPECT_EQ(at(c, "b").verdict, Verdict::unchanged);
  EXPECT_EQ(at(c, "c").verdict, Verdict::failed);
  EXPECT_EQ(at(c, "d").verdict, Verdict::only_in_new);
  EXPECT_EQ(c.exit_code(), 1);
  EXPECT_THAT(comparison_text(c, false), HasSubstr("failed: no memory"));
  EXPECT_EQ(verdict(broken, steady("c", 1)), Verdict::only_in_new);
  EXPECT_EQ(compare_runs(run_of({broken}), run_of({broken}), {}).count(Verdict::failed), 0u) << "nothing new";
}

TEST(Compare, TheMachineExplainsWhatItsYardsticksSay) {
  const auto verdict_at = [](double kernel, double arithmetic, double memory) {
    return verdict(with_yardsticks(steady("a", 1), 1, 1), with_yardsticks(steady("a", kernel), arithmetic, memory));
  };
  EXPECT_EQ(verdict_at(1.1, 1.1, 1.1), Verdict::unchanged);
  EXPECT_EQ(verdict_at(1.21, 1.1, 1.1), Verdict::regression);
  EXPECT_EQ(verdict_at(0.9, 0.9, 0.9), Verdict::unchanged);
  EXPECT_EQ(verdict_at(1, 0.9, 0.9), Verdict::regression) << "on a faster machine";
  EXPECT_EQ(verdict_at(1, 1.1, 1.1), Verdict::improvement) << "on a slower one";
  // The benefit of the doubt: a kernel may follow either yardstick.
  EXPECT_EQ(verdict_at(1.1, 1, 1.1), Verdict::cannot_tell);
  EXPECT_EQ(verdict_at(1.02, 1, 1.03), Verdict::unchanged) << "at the one end as at the other";
  EXPECT_EQ(verdict_at(1.03, 1, 1.1), Verdict::cannot_tell) << "7 % faster, were it the memory's";
  EXPECT_EQ(verdict_at(1.2, 1, 1.1), Verdict::regression);
  EXPECT_EQ(verdict_at(1.1, 1.1, 1), Verdict::cannot_tell);
  EXPECT_EQ(verdict_at(1, 0.9, 1), Verdict::cannot_tell);
  EXPECT_EQ(verdict_at(1.13, 1, 1.1), Verdict::cannot_tell) << "somewhat beyond the yardsticks";
  EXPECT_EQ(verdict_at(1.1, 0.9, 1), Verdict::regression);
  EXPECT_EQ(verdict_at(0.9, 1.1, 1), Verdict::improvement);
  const Comparison c = compare_runs(run_of({with_yardsticks(steady("a", 1), 1, 1)}),
                                    run_of({with_yardsticks(steady("a", 1.1), 1.1, 1)}), {});
  EXPECT_THAT(comparison_text(c, false), HasSubstr("yardstick_arithmetic_seconds by +10.0 %"));
}

TEST(Compare, SetsAsideWhatRanBesideADisturbance) {
  const Series before = with_yardsticks(steady("a", 1, 12), 1, 1);
  Series after = with_yardsticks(steady("a", 1, 12), 1, 1), slower = with_yardsticks(steady("a", 1.1, 12), 1, 1);
  for (int i = 0; i < 5; ++i) {
    after.repetitions[i].cpu_seconds = 3;
    slower.repetitions[i].cpu_seconds = 0.9;  // for whatever reason
    after.repetitions[i].yardstick_seconds = slower.repetitions[i].yardstick_seconds = {1.3, 1};
  }
  const Comparison quiet = compare_runs(run_of({before}), run_of({after}), {});
  EXPECT_EQ(at(quiet, "a").verdict, Verdict::unchanged);
  EXPECT_EQ(at(quiet, "a").new_repetitions, 7u);
  EXPECT_NEAR(at(quiet, "a").ratio, 1, 0.01);
  EXPECT_EQ(quiet.set_aside, 5u);
  EXPECT_THAT(comparison_text(quiet, false), HasSubstr("5 of 24 repetitions are ignored"));
  EXPECT_EQ(verdict(before, slower), Verdict::regression);
}

// Another run's slow phase is not a benchmark's change: products lost more than either yardstick.
TEST(Compare, ARunOnACoreThatWasSharedTellsNothingButGrossChanges) {
  const auto verdict_at = [](double kernel) {
    return verdict(with_yardsticks(steady("a", 2.1), 1.17, 2), with_yardsticks(steady("a", kernel), 1, 1));
  };
  EXPECT_EQ(verdict_at(1), Verdict::cannot_tell);
  EXPECT_EQ(verdict_at(1.1), Verdict::cannot_tell);
  EXPECT_EQ(verdict_at(2.5), Verdict::regression);
  EXPECT_EQ(verdict_at(0.8), Verdict::improvement);
  const Comparison c = compare_runs(run_of({with_yardsticks(steady("a", 2.1), 1.17, 2)}),
                                    run_of({with_yardsticks(steady("a", 1), 1, 1)}), {});
  EXPECT_THAT(comparison_text(c, false), HasSubstr("1 cannot tell"));
  EXPECT_THAT(comparison_junit(c), HasSubstr("<error type=\"cannot tell\""));
  EXPECT_EQ(c.exit_code(), 3);
}

TEST(MachineState, UsualIsWhatTheQuickestTwentiethSaw) {
  Series series = with_yardsticks(steady("a", 1, 40), 1, 1);
  for (int i = 4; i < 40; ++i) series.repetitions[static_cast<std::size_t>(i)].yardstick_seconds = {1.2, 2};
  Series quiet = with_yardsticks(steady("b", 1, 5), 1, 1), failed = quiet;
  failed.name = "c";
  failed.error = "no memory";
  failed.repetitions.clear();
  const Lacking lacking = lacking_repetitions(run_of({series, quiet, failed}), 5);
  EXPECT_EQ(lacking.names, std::vector<std::string>{"a"});
  EXPECT_EQ(lacking.repetitions, 1u);
  EXPECT_TRUE(lacking_repetitions(run_of({steady("a", 1, 5)}), 5).names.empty()) << "no yardsticks, no disturbance";
  // A benchmark that lowers the clock itself.
  const BenchmarkRun run =
      run_of({with_yardsticks(steady("a", 1, 40), 1, 1), with_yardsticks(steady("b", 1, 5), 1.15, 1)});
  EXPECT_TRUE(lacking_repetitions(run, 5).names.empty());
}

TEST(Compare, WarnsOfAnotherMachine) {
  BenchmarkRun a = run_of({steady("a", 1)}), b = a;
  a.context = {{"device", "NVIDIA H200"}, {"date", "yesterday"}};
  b.context = {{"device", "NVIDIA H100"}, {"date", "today"}};
  const Comparison c = compare_runs(a, b, {});
  ASSERT_EQ(c.warnings.size(), 1u);
  for (const std::string& text : {comparison_text(c, false), comparison_markdown(c), comparison_junit(c)})
    EXPECT_THAT(text, HasSubstr("device was NVIDIA H200 in the baseline and is NVIDIA H100 in the new run"));
}

// ---- forms

Comparison all_verdicts() {
  return compare_runs(run_of({steady("same", 1), steady("slow", 1), steady("slower|<&>", 1), steady("fast", 1),
                              steady("few", 1, 2), steady("gone", 1)}),
                      run_of({steady("same", 1), steady("slow", 1.2), steady("slower|<&>", 1.5), steady("fast", 0.5),
                              steady("few", 1, 2), steady("come", 1)}),
                      {});
}

TEST(CompareText, IsAlignedWorstFirst) {
  const std::string text = comparison_text(all_verdicts(), false);
  std::size_t last = 0;
  for (const char* name : {"slower|<&>", "slow ", "same", "fast", "few", "gone", "come"}) {
    const std::size_t found = text.find(std::string("\n  ") + name);
    ASSERT_NE(found, std::string::npos) << name << "\n" << text;
    EXPECT_GT(found, last) << name << "\n" << text;
    last = found;
  }
  EXPECT_THAT(text, HasSubstr("+50.0 %"));
  EXPECT_THAT(text, HasSubstr("2 regressions, 1 improvement, 1 unchanged, 1 too few repetitions, 1 only in baseline, "
                              "1 only in new\n"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(comparison_text(all_verdicts(), true), HasSubstr("\x1b[31mregression\x1b[0m"));
}

TEST(CompareMarkdown, HasTheSummaryFirstAndNoMarkupOfNames) {
  const std::string text = comparison_markdown(all_verdicts());
  EXPECT_THAT(text, testing::StartsWith("**2 regressions, "));
  EXPECT_THAT(text, HasSubstr("| slower\\|&lt;&amp;&gt; |"));
  EXPECT_THAT(text, HasSubstr("**regression** |"));
  const Series hostile = steady("a\n| b | <script>alert(1)</script>\x1b[31m [c](d)`", 1);
  const Comparison c = compare_runs(run_of({hostile}), run_of({hostile}), {});
  EXPECT_THAT(comparison_markdown(c),
              HasSubstr("\n| a \\| b \\| &lt;script&gt;alert(1)&lt;/script&gt;?\\[31m \\[c\\](d)\\` |"));
  EXPECT_THAT(comparison_text(c, false), HasSubstr("\n  a | b | <script>alert(1)</script>?[31m [c](d)`  "));
}

TEST(CompareJunit, FailsRegressionsAndSkipsWhatWasNotCompared) {
  const std::string text = comparison_junit(all_verdicts());
  const auto count = [&](const std::string& what) {
    std::size_t n = 0;
    for (std::size_t i = text.find(what); i != std::string::npos; i = text.find(what, i + 1)) ++n;
    return n;
  };
  EXPECT_EQ(count("<testcase "), 7u);
  EXPECT_EQ(count("<failure "), 2u);
  EXPECT_EQ(count("<skipped "), 3u);
  EXPECT_THAT(text, HasSubstr("tests=\"7\" failures=\"2\" errors=\"0\" skipped=\"3\""));
  EXPECT_THAT(text, HasSubstr("name=\"slower|&lt;&amp;&gt;\""));
}

TEST(CompareJson, HasEveryBenchmarkAndItsNumbers) {
  const json j = json::parse(comparison_json(all_verdicts()));
  EXPECT_EQ(j["verdicts"]["regression"], 2);
  EXPECT_EQ(j["benchmarks"].size(), 7u);
  EXPECT_EQ(j["benchmarks"][0]["name"], "slower|<&>");
  EXPECT_NEAR(j["benchmarks"][0]["ratio_of_medians"], 1.5, 1e-12);
  EXPECT_NEAR(j["benchmarks"][0]["p"], 2.0 / 184756, 1e-15);
}

TEST(CompareCsv, HasAsManyFieldsInEveryRow) {
  const std::string text = comparison_csv(all_verdicts());
  std::istringstream lines(text);
  std::size_t rows = 0;
  for (std::string line; std::getline(lines, line); ++rows)
    EXPECT_EQ(std::count(line.begin(), line.end(), ','), 11) << line;
  EXPECT_EQ(rows, 8u);
}

TEST(CompareCsv, NamesAreNoFormulas) {
  for (const std::string name : {"=1+1", "+1", "-1", "@SUM(A1)"}) {
    const Comparison c = compare_runs(run_of({steady(name, 1)}), run_of({steady(name, 1)}), {});
    EXPECT_THAT(comparison_csv(c), HasSubstr("\n'" + name + ",unchanged,10,10,"));
  }
  const Comparison quoted = compare_runs(run_of({steady("=a,b", 1)}), run_of({steady("=a,b", 1)}), {});
  EXPECT_THAT(comparison_csv(quoted), HasSubstr("\n\"'=a,b\",unchanged,"));
}

// ---- a noisy machine, simulated

// What a shared machine does to times: whole runs at another clock; phases of seconds in which others compute; what the
// loader does to each benchmark of a run; jitter; now and then a stall. Yardsticks feel phases less than kernels do.
// Deterministic in the seed.
class NoisyMachine {
 public:
  explicit NoisyMachine(std::uint32_t seed) : generator_(seed) {}

  struct Plan {
    double slower = 1;  // the first benchmark
    bool interleaved = true, yardsticks = true;
  };
  BenchmarkRun run(const Plan& plan) {
    const double clock = uniform(0.95, 1.05);
    std::vector<Series> series;
    std::vector<double> layout;
    std::vector<std::size_t> order;
    for (int i = 0; i < kBenchmarks; ++i) {
      series.push_back(series_of("kernel " + std::to_string(i), {}));
      layout.push_back(uniform(0.99, 1.01));
      for (int r = 0; r < kRepetitions; ++r) order.push_back(static_cast<std::size_t>(i));
    }
    if (plan.interleaved) std::shuffle(order.begin(), order.end(), generator_);
    for (const std::size_t i : order) {
      const double slow = phase();
      double seconds = clock * layout[i] * slow * jitter();
      if (i == 0) seconds *= plan.slower;
      if (uniform(0, 1) < 0.03) seconds *= uniform(1.2, 3);
      series[i].repetitions.push_back({seconds, seconds, 1, {}});
      const double felt = 1 + (slow - 1) * uniform(0.4, 1);
      if (plan.yardsticks) series[i].repetitions.back().yardstick_seconds = {clock * jitter(), clock * felt * jitter()};
      now_ += kRepetition;
    }
    return run_of(series);
  }
  static constexpr int kBenchmarks = 100, kRepetitions = 25;

 private:
  static constexpr double kRepetition = 0.05;      // seconds
  static constexpr double kQuiet = 12, kBusy = 6;  // seconds a phase lasts, on average
  double uniform(double from, double to) { return std::uniform_real_distribution<double>(from, to)(generator_); }
  double jitter() { return std::exp(std::normal_distribution<double>(0, 0.012)(generator_)); }
  double phase() {
    while (now_ >= phase_end_) {
      busy_ = !busy_;
      factor_ = busy_ ? uniform(1.1, 1.8) : 1;
      phase_end_ += std::exponential_distribution<double>(1 / (busy_ ? kBusy : kQuiet))(generator_);
    }
    return factor_;
  }

  std::mt19937 generator_;
  double now_ = 0, phase_end_ = 0, factor_ = 1;
  bool busy_ = true;
};

constexpr int kRuns = 10;
constexpr std::array kSeeds{1u, 2u, 3u, 4u, 5u};

TEST(NoisyMachines, TenIdenticalRunsStayQuiet) {
  for (const std::uint32_t seed : kSeeds) {
    NoisyMachine machine(seed);
    const BenchmarkRun baseline = machine.run({});
    for (int i = 0; i < kRuns; ++i) {
      const Comparison c = compare_runs(baseline, machine.run({}), {});
      EXPECT_EQ(c.count(Verdict::regression) + c.count(Verdict::improvement), 0u) << "seed " << seed << " run " << i;
    }
  }
}

struct Caught {
  int slower = 0, faster = 0, others = 0;
};
Caught plant_ten_percent(bool yardsticks) {
  Caught caught;
  for (const std::uint32_t seed : kSeeds) {
    NoisyMachine machine(seed);
    const BenchmarkRun baseline = machine.run({.yardsticks = yardsticks});
    for (int i = 0; i < kRuns; ++i)
      for (const double factor : {1.1, 1 / 1.1}) {
        const Comparison c = compare_runs(baseline, machine.run({.slower = factor, .yardsticks = yardsticks}), {});
        for (const Difference& d : c.benchmarks) {
          const bool changed = d.verdict == Verdict::regression || d.verdict == Verdict::improvement;
          if (d.name != "kernel 0") {
            caught.others += changed;
          } else if (changed && (d.verdict == Verdict::regression) == (factor > 1)) {
            ++(factor > 1 ? caught.slower : caught.faster);
          }
        }
      }
  }
  return caught;
}

// A slow phase that the yardsticks hardly felt hides one now and then; nothing else is ever reported.
TEST(NoisyMachines, APlantedTenPercentIsCaughtAndNothingElse) {
  const Caught caught = plant_ten_percent(true);
  const int planted = kRuns * static_cast<int>(kSeeds.size());
  EXPECT_GE(caught.slower, planted * 9 / 10);
  EXPECT_GE(caught.faster, planted * 8 / 10);
  EXPECT_EQ(caught.others, 0);
}

// Why there are yardsticks: without them slow phases and clocks hide it, or take its place.
TEST(NoisyMachines, WithoutYardsticksItIsLostOrOneOfMany) {
  const Caught caught = plant_ten_percent(false);
  EXPECT_LT(caught.slower, kRuns * static_cast<int>(kSeeds.size()) / 2);
  EXPECT_GT(caught.others, 100);
}

// Why repetitions are interleaved: the same machine with repetitions one after another.
TEST(NoisyMachines, RepetitionsBackToBackWouldCryWolf) {
  std::size_t alarms = 0;
  for (const std::uint32_t seed : kSeeds) {
    NoisyMachine machine(seed);
    const NoisyMachine::Plan plan{.interleaved = false, .yardsticks = false};
    const BenchmarkRun baseline = machine.run(plan);
    for (int i = 0; i < kRuns; ++i) alarms += compare_runs(baseline, machine.run(plan), {}).count(Verdict::regression);
  }
  EXPECT_GT(alarms, 100u);
}

// ---- files

TEST(RunFile, TakesRepetitionsAndPassesOverAggregates) {
  const BenchmarkRun run = parse_run(R"({
    "context": {"date": "2026-01-02T03:04:05+00:00", "num_cpus": 2, "caches": [], "device": "a CPU"},
    "benchmarks": [
      {"name": "a", "run_name": "a", "run_type": "iteration", "repetition_index": 0, "iterations": 7, "real_time": 2.0,
       "cpu_time": 1.0, "time_unit": "us", "bytes": 64.0, "flops": 0.0},
      {"name": "b/real_time", "run_name": "b/real_time", "run_type": "iteration", "iterations": 1, "real_time": 2.0,
       "cpu_time": 1.0, "time_unit": "ms"},
      {"name": "a", "run_name": "a", "run_type": "iteration", "repetition_index": 1, "iterations": 7, "real_time": 4.0,
       "cpu_time": 3.0, "time_unit": "us"},
      {"name": "a_mean", "run_name": "a", "run_type": "aggregate", "iterations": 2, "real_time": 3.0, "cpu_time": 2.0,
       "time_unit": "us"},
      {"name": "c", "run_name": "c", "error_occurred": true, "error_message": "no", "iterations": 0, "real_time": 0.0,
       "cpu_time": 0.0, "time_unit": "ns"}]})",
                                     "run.json");
  EXPECT_EQ(run.date, "2026-01-02T03:04:05+00:00");
  EXPECT_EQ(run.fact("num_cpus"), "2");
  ASSERT_EQ(run.series.size(), 3u);
  const Series& a = *run.find("a");
  ASSERT_EQ(a.repetitions.size(), 2u);
  EXPECT_DOUBLE_EQ(a.seconds(a.repetitions[0]), 1e-6);
  EXPECT_DOUBLE_EQ(a.seconds(a.repetitions[1]), 3e-6);
  EXPECT_EQ(run.find("a")->bytes, 64);
  const Series& b = *run.find("b/real_time");
  EXPECT_DOUBLE_EQ(b.seconds(b.repetitions[0]), 2e-3);
  EXPECT_EQ(run.find("c")->error, "no");
}

TEST(RunFile, IsTheSameHoweverItIsSpelled) {
  const std::string text = R"({"context": {"date": "2026-01-02"}, "benchmarks": []})";
  EXPECT_EQ(parse_run(text, "a").digest, parse_run(json::parse(text).dump(4), "b").digest);
  EXPECT_NE(parse_run(text, "a").digest,
            parse_run(R"({"context": {"date": "2026-01-03"}, "benchmarks": []})", "a").digest);
}

TEST(RunFile, SaysWhatIsWrong) {
  const auto refusal = [](const std::string& text) -> std::string {
    try {
      parse_run(text, "run.json");
    } catch (const InputError& error) {
      return error.what();
    }
    return "none";
  };
  const auto entry = [](const std::string& fields) { return R"({"context": {}, "benchmarks": [{)" + fields + "}]}"; };
  EXPECT_THAT(refusal(""), HasSubstr("run.json"));
  EXPECT_THAT(refusal("[]"), HasSubstr("the JSON of a Google Benchmark run"));
  EXPECT_THAT(refusal(R"({"model": "gpt"})"), HasSubstr("the JSON of a Google Benchmark run"));
  EXPECT_THAT(refusal(R"({"context": 1, "benchmarks": []})"), HasSubstr("/context: found 1"));
  EXPECT_THAT(refusal(R"({"context": {}, "benchmarks": {}})"), HasSubstr("/benchmarks: found"));
  EXPECT_THAT(refusal(R"({"context": {}, "benchmarks": [1]})"), HasSubstr("/benchmarks/0: found 1"));
  const auto of_date = [](const std::string& date) {
    return json{{"context", {{"date", date}}}, {"benchmarks", json::array()}}.dump();
  };
  for (const char* date : {"2026-01-01T00:00:00'; DROP TABLE runs;--", "now", "", "2026-02-30", "2026-13-01",
                           "2026-01-01T24:00:00", "2026-01-01T00:00:00+99:00", "2026-01-01T00:00:00Z\n"})
    EXPECT_THAT(refusal(of_date(date)), HasSubstr("run.json: /context/date: found \"")) << date;
  for (const char* date : {"2026-01-01", "2024-02-29 23:59", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00.5-08:00"})
    EXPECT_EQ(refusal(of_date(date)), "none") << date;
  EXPECT_THAT(refusal(entry(R"("real_time": 1)")), HasSubstr("/benchmarks/0/name"));
  EXPECT_THAT(refusal(entry(R"("name": "a", "time_unit": "h")")), HasSubstr("/benchmarks/0/time_unit: found \"h\""));
  EXPECT_THAT(refusal(entry(R"("name": "a", "time_unit": "s", "real_time": -1)")),
              HasSubstr("/benchmarks/0/real_time"));
  EXPECT_THAT(refusal(entry(R"("name": "a", "time_unit": "s", "real_time": 1, "cpu_time": 0, "iterations": 1)")),
              HasSubstr("/benchmarks/0/cpu_time: found 0"));
  EXPECT_THAT(refusal(entry(R"("name": "a", "time_unit": "s", "real_time": 1, "cpu_time": 1e300, "iterations": 1)")),
              HasSubstr("/benchmarks/0/cpu_time: found 1e+300, expected a time from 1e-18 to 1e9 seconds"));
  EXPECT_THAT(refusal(entry(R"("name": "a", "time_unit": "s", "real_time": 1, "cpu_time": 1, "iterations": 1,
                               "yardstick_memory_seconds": 1e-300)")),
              HasSubstr("/benchmarks/0/yardstick_memory_seconds: found 1e-300"));
  EXPECT_THAT(refusal(entry(R"("name": "a_mean", "run_type": "aggregate")")), HasSubstr("aggregates only"));
  EXPECT_THAT(refusal(entry(R"("name": "a", "run_type": 3)")), HasSubstr("/benchmarks/0"));
}

}  // namespace
}  // namespace orrery::bench
