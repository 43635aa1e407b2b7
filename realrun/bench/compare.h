// Compares two runs of the same benchmarks. Did anything become slower? Each benchmark gets one verdict.
//
// A benchmark has changed when all of these say so, in the same direction:
//  - a two-sided Mann-Whitney U test on its repetitions, with p adjusted by Holm's procedure for the number of
//    benchmarks compared. Holm's and not Benjamini-Hochberg's: a comparison stops a build, so that one false alarm
//    among hundreds is one too many. Holm's holds however tests depend on each other, and on one machine they do;
//  - the ratio of the medians, beyond the threshold. Two runs of one binary differ by more than chance: where loader
//    and kernel place code and data moves whole runs by a few percent (Mytkowicz et al. 2009, ASPLOS, "Producing wrong
//    data without doing anything obviously wrong"), which a test with enough repetitions calls significant;
//  - the ratio of the fastest repetitions, beyond the threshold too. Other work on a machine only adds time: a slow
//    phase affects some repetitions, slower code affects all (Chen & Revels 2016, arXiv 1608.04295). So a change that
//    leaves the fastest repetition as it was is not detected.
//
// Yardsticks (run_file.h), if a run has them, remove the machine's influence:
//  - a repetition is set aside if a yardstick beside it was disturbed (machine_state.h). The yardstick and not the
//    benchmark decides, so the test stays as exact as it was;
//  - what slows (or quickens) whole runs, such as another clock frequency or neighbours at the memory, is divided out:
//    the ratio of a yardstick's usual time in the new run to its usual time in the baseline (1 if not measured).
//    Kernels lie between arithmetic and memory, or, if a neighbour uses the core's other thread, somewhat beyond (up to
//    kBeyond of the yardsticks' disagreement, in logarithms). Each benchmark gets the benefit of the doubt: slower
//    counts beyond the larger end of that range, faster beyond the smaller. If there is a change at one end of the
//    range but none at the other, the verdict is cannot_tell: measure again.
// If the test is significant but the median or the fastest repetition stays within the threshold, the verdict is slower
// (or faster) below the threshold: reported, but not a failure.
//
// What could have been detected at all? The least slow-down of a benchmark is the smallest f for which the new run,
// moved onto the baseline's median and then made f times as slow, is a regression:
//   f = max(1 + threshold, (1 + threshold) x fastest before / fastest after, least_significant_factor) x most / least
// with the fastest repetitions each in units of its run's median. least_significant_factor (statistics.h) is computed
// from the repetitions at level alpha / number of benchmarks, which Holm's procedure requires of a benchmark that
// changed alone. least to most is the range that the yardsticks attribute to the machine; the benchmark may have
// followed the end that hides the change. f follows from the repetitions of these runs and their spread; a real change
// of exactly this size is detected about half of the time.
//
// The test assumes independent repetitions. Repetitions of one benchmark that run back to back, inside one slow phase,
// are not. `orrery bench` therefore runs the repetitions of all benchmarks in random order.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "realrun/bench/machine_state.h"
#include "realrun/bench/run_file.h"

namespace orrery::bench {

enum class Verdict {
  failed,  // fails in the new run, not in the baseline
  regression,
  improvement,
  slower_below_threshold,
  faster_below_threshold,
  unchanged,
  cannot_tell,          // the machine differed: a change lies within the range that the yardsticks leave open
  too_few_repetitions,  // not even wholly separated repetitions could be significant
  only_in_baseline,
  only_in_new,
};
const char* name_of(Verdict verdict);  // "regression", "too few repetitions"
// Returns false for the verdicts that mean that nothing could be told of the benchmark.
inline bool is_told(Verdict verdict) { return verdict < Verdict::cannot_tell; }

struct VerdictOptions {
  double threshold = 0.05;  // on the ratio of medians: 0.05 means 5% slower, or faster by the same ratio
  double alpha = 0.01;      // largest chance of a false alarm in a comparison, or over all benchmarks of a drift
  bool strict = false;      // a benchmark of the baseline without a verdict, or with too few runs, is a failure
  // Selects benchmarks by name; empty: all. The machine's usual yardstick times come from the whole run.
  std::function<bool(const std::string&)> wanted = {};
};

// Benchmarks, each with its verdict, and the options that these follow from: a comparison (Difference) or a drift
// (drift.h).
template <class Judged>
struct Verdicts {
  VerdictOptions options;
  std::vector<Judged> benchmarks;  // in the order of sort()

  std::size_t count(Verdict verdict) const {
    return static_cast<std::size_t>(std::ranges::count(benchmarks, verdict, &Judged::verdict));
  }
  // Returns whether nothing could be told of any benchmark: none are in common, repetitions or runs are too few, or
  // the machines are too different.
  bool nothing_told() const { return std::ranges::none_of(benchmarks, is_told, &Judged::verdict); }
  bool fails(const Judged& judged) const {
    const Verdict v = judged.verdict;
    return v == Verdict::failed || v == Verdict::regression ||
           (options.strict && !is_told(v) && v != Verdict::only_in_new);
  }
  // Exit code of the program. 0: nothing is slower. 1: something is slower, newly fails, or fails by options.strict. 3:
  // nothing_told(), whether strict or not.
  int exit_code() const {
    if (nothing_told()) return 3;
    return std::ranges::any_of(benchmarks, [&](const Judged& judged) { return fails(judged); }) ? 1 : 0;
  }
  // Puts failures first, then the slowest benchmarks, then those without a verdict.
  void sort() {
    const auto key = [](const Judged& judged) {
      const bool ran = judged.verdict > Verdict::improvement && judged.verdict <= Verdict::cannot_tell;
      return std::pair(ran ? Verdict::improvement : judged.verdict, -judged.ratio);
    };
    std::ranges::stable_sort(benchmarks, {}, key);
  }
};

// Products on a core whose other thread a neighbour used took 2.1 times as long, while the memory yardstick took 2.0
// and the arithmetic one 1.17 times as long (two cores of a shared Xeon, realrun/README.md).
inline constexpr double kBeyond = 0.25;

struct Difference {
  std::string name;
  Verdict verdict = Verdict::unchanged;
  std::size_t baseline_repetitions = 0, new_repetitions = 0;  // without those set aside
  double baseline_seconds = 0, new_seconds = 0;               // medians as measured; 0: none
  double ratio = 1;                                           // of the medians as measured, new / baseline
  double fastest_ratio = 1;                                   // of the fastest repetitions
  // The part of both ratios that the machine explains, as close to the ratio as possible.
  double explained = 1;
  double p = 1, adjusted_p = 1;
  // Least slow-down that would be a regression: 0.05 is 5 %; infinity: none would; 0: not tested.
  double least_slowdown = 0;
  std::string note;  // why it failed
};

// Least slow-downs over the benchmarks that were tested.
struct LeastSlowdown {
  std::size_t benchmarks = 0;
  double median = 0, least = 0, most = 0;
};

struct Comparison : Verdicts<Difference> {
  std::string baseline_file, new_file, baseline_date, new_date;
  std::array<double, kYardsticks.size()> drift{1, 1};  // of the yardsticks, new / baseline; 1: not measured
  std::size_t repetitions = 0, set_aside = 0;          // in both runs together, and how many were disturbed
  std::vector<std::string> warnings;                   // e.g. facts of the machines that differ
  std::size_t needed_repetitions = 0;                  // in each run, for the smallest p to be below alpha

  LeastSlowdown least_slowdown() const;
  std::vector<std::string> missing() const;  // benchmarks of the baseline that the new run does not have
};

// Throws InputError if only one of the runs had cold caches. REQUIRES: options.threshold >= 0, 0 < options.alpha < 1.
Comparison compare_runs(const BenchmarkRun& baseline, const BenchmarkRun& candidate, const VerdictOptions& options);

// Worst first, in aligned columns, for a terminal.
std::string comparison_text(const Comparison& comparison, bool colour);
std::string comparison_markdown(const Comparison& comparison);
// JUnit XML (the format of the Jenkins xUnit plug-in, junit-10.xsd): one test case per benchmark.
std::string comparison_junit(const Comparison& comparison);
std::string comparison_json(const Comparison& comparison);
std::string comparison_csv(const Comparison& comparison);

}  // namespace orrery::bench
