// Did anything become slower? Two runs of the same benchmarks, one verdict for each.
//
// A benchmark has changed when all of these say so, in the same direction:
//  - a two-sided Mann-Whitney U test on its repetitions, p adjusted by Holm's procedure for the number of benchmarks
//    compared. Holm rather than Benjamini-Hochberg: a comparison stops a build, so that one false alarm among hundreds
//    is one too many, and it holds however the tests depend on each other, which they do on one machine;
//  - the ratio of the medians, beyond the threshold. Two runs of one binary differ by more than chance: where loader
//    and kernel put things moves whole runs by a few percent (Mytkowicz et al. 2009, ASPLOS, "Producing wrong data
//    without doing anything obviously wrong"), which a test with enough repetitions takes for significant;
//  - the ratio of the fastest repetitions, beyond it too. What else happens on a machine only ever adds time: a slow
//    phase touches some repetitions, slower code all (Chen & Revels 2016, arXiv 1608.04295). So a change that leaves
//    the fastest repetition as it was is not seen.
//
// The machine is taken out of it by the yardsticks (run_file.h), where a run has them:
//  - a repetition beside which one was disturbed (machine_state.h) is set aside. Which ones says the yardstick, not the
//    benchmark, so the test stays as exact as it was;
//  - what slows (or quickens) whole runs, such as another clock frequency or neighbours at the memory, is divided out:
//    the ratio of what was usual for a yardstick in the new run to what was in the baseline. Kernels lie between
//    arithmetic and memory, or, where a neighbour has the core's other thread, somewhat beyond (up to kBeyond of the
//    yardsticks' disagreement, in logarithms), so each gets the benefit of the doubt: slower counts beyond the larger
//    end of that range, faster beyond the smaller. 1 for a yardstick not measured. What might be a change at one end of
//    the range and is none at the other cannot be told: measure again.
// What the test is sure of, though median or fastest repetition stay within the threshold, is slower (or faster) below
// the threshold: said, but no failure.
//
// What could have been seen at all? The least slow-down of a benchmark is the smallest f for which the new run, moved
// onto the baseline's median and then made f times as slow, is a regression:
//   f = max(1 + threshold, (1 + threshold) x fastest before / fastest after, least_significant_factor) x most / least
// with the fastest repetitions each in units of its run's median. least_significant_factor (statistics.h) is that of
// the repetitions at alpha / number of benchmarks, which Holm's procedure asks of one that changed alone; least to most
// is the range that the yardsticks leave to the machine, of which the benchmark may have followed the end that hides
// it. It follows from the repetitions that these runs have and their spread; a real change of just this size is seen
// about every other time.
//
// The test takes repetitions for independent. They are not where one benchmark's repetitions run back to back, inside
// one slow phase: `orrery bench` runs the repetitions of all benchmarks in random order.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "realrun/bench/machine_state.h"
#include "realrun/bench/run_file.h"

namespace orrery::bench {

enum class Verdict {
  failed,  // in the new run, not in the baseline
  regression,
  improvement,
  slower_below_threshold,
  faster_below_threshold,
  unchanged,
  cannot_tell,          // the machine was another: a change lies within what the yardsticks leave open
  too_few_repetitions,  // not even wholly separated repetitions could be significant
  only_in_baseline,
  only_in_new,
};
const char* name_of(Verdict verdict);  // "regression", "too few repetitions"
bool is_told(Verdict verdict);         // it says something of the benchmark

// Products on a core of which a neighbour had the other thread took 2.1 times as long, where the memory yardstick took
// 2.0 and the arithmetic one 1.17 times (two cores of a shared Xeon, realrun/README.md).
inline constexpr double kBeyond = 0.25;

struct CompareOptions {
  double threshold = 0.05;  // of the ratio of medians: 0.05 asks for 5% slower, or faster by the same ratio
  double alpha = 0.01;      // chance of a false alarm in a comparison, at the most
  bool strict = false;      // a benchmark of the baseline of which nothing can be told fails
  // Which benchmarks are compared, by name; empty: all. What is usual on a machine is taken from all of its run.
  std::function<bool(const std::string&)> wanted = {};
};

struct Difference {
  std::string name;
  Verdict verdict = Verdict::unchanged;
  std::size_t baseline_repetitions = 0, new_repetitions = 0;  // without those set aside
  double baseline_seconds = 0, new_seconds = 0;               // medians as measured; 0 where there is none
  double ratio = 1;                                           // of medians, new by baseline, as measured
  double fastest_ratio = 1;                                   // of the fastest repetitions
  double explained = 1;  // by the machine: what of both ratios is not the benchmark's, as close to the ratio as may be
  double p = 1, adjusted_p = 1;
  double least_slowdown = 0;  // that would be a regression: 0.05 is 5 %; infinity: none would; 0: not tested
  std::string note;           // why it failed
};

// Over the benchmarks that were tested.
struct LeastSlowdown {
  std::size_t benchmarks = 0;
  double median = 0, least = 0, most = 0;
};

struct Comparison {
  std::string baseline_file, new_file, baseline_date, new_date;
  CompareOptions options;
  std::vector<Difference> differences;                 // what failed, then slowest first, then what cannot be compared
  std::array<double, kYardsticks.size()> drift{1, 1};  // of the yardsticks, new by baseline; 1 where not measured
  std::size_t repetitions = 0, set_aside = 0;          // in both runs, and how many of them were disturbed
  std::vector<std::string> warnings;                   // facts of the machines that differ, and more
  std::size_t needed_repetitions = 0;                  // on both sides, for the smallest p to be below alpha

  std::size_t count(Verdict verdict) const;
  LeastSlowdown least_slowdown() const;
  std::vector<std::string> missing() const;  // benchmarks of the baseline that the new run does not have

  bool failed() const { return count(Verdict::regression) + count(Verdict::failed) > 0; }
  // No benchmark has a verdict: none in common, too few repetitions, or a machine too different.
  bool nothing_told() const;
  bool fails(const Difference& difference) const;  // by its verdict, and options.strict
  // What the program ends with. 0: nothing is slower; 1: something is, fails now, or options.strict asks for more; 3:
  // nothing_told(), whether strict or not.
  int exit_code() const;
};

// Throws InputError for runs of which one alone had cold caches. REQUIRES: options.threshold >= 0, 0 < options.alpha
// < 1.
Comparison compare_runs(const BenchmarkRun& baseline, const BenchmarkRun& candidate, const CompareOptions& options);

// Worst first, aligned, for a terminal.
std::string comparison_text(const Comparison& comparison, bool colour);
std::string comparison_markdown(const Comparison& comparison);
// JUnit XML (the format of the Jenkins xUnit plug-in, junit-10.xsd): a test case for each benchmark.
std::string comparison_junit(const Comparison& comparison);
std::string comparison_json(const Comparison& comparison);
std::string comparison_csv(const Comparison& comparison);

}  // namespace orrery::bench
