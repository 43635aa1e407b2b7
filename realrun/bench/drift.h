// Finds slow-downs over the runs of a history: has anything become slower, when, and by how much? One verdict per
// benchmark.
//
// Each run counts as one value, the median of its repetitions. What moves a whole run (clocks, neighbours, placement by
// the loader) makes its repetitions alike, so that only runs are independent of each other. Over the runs of one
// benchmark on one device:
//  - change_point (statistics.h), a maximally selected rank statistic, finds the run at which the level changes. Its p
//    is adjusted by Holm's procedure for the number of benchmarks (compare.h says why Holm);
//  - before and after a change the search continues in the same way, each part tested at alpha / number of benchmarks:
//    binary segmentation (Vostrikova 1981, Soviet Mathematics Doklady 24). So if nothing changed in a history, the
//    chance of any report is at most alpha. If something did, each further part of that benchmark may add alpha /
//    benchmarks;
//  - levels are medians over the runs between changes. A benchmark is slower if its last level is above its fastest
//    earlier level by more than the threshold, for the medians and for the fastest repetitions. So a slow-down that was
//    undone is no failure; one that follows a speed-up is, and so are several small ones together.
//
// Runs are assumed to be independent. If neighbouring runs are alike (for example made within one slow hour), a slow
// phase looks like a change of level; then only the threshold keeps it from being a regression.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "realrun/bench/compare.h"
#include "realrun/bench/history.h"

namespace orrery::bench {

// A run at which a benchmark's time changed.
struct LevelChange {
  std::size_t first = 0;                         // index into Trend::points of the first run of the new level; never 0
  double before_seconds = 0, after_seconds = 0;  // the levels
  double ratio = 1, fastest_ratio = 1;           // after / before: of medians, and of the fastest repetitions
  double adjusted_p = 1;
  std::vector<std::string> machine;  // "software was CUDA 12.8 and is CUDA 13.0": facts that changed with that run
};

struct Trend : HistorySeries {
  // too_few_repetitions means too few runs. Never failed, cannot_tell, only_in_baseline or only_in_new.
  Verdict verdict = Verdict::unchanged;
  std::vector<LevelChange> changes;  // by date
  double seconds = 0;                // the last level
  // The last level over the fastest earlier one if the benchmark is slower than that, otherwise over the first.
  double ratio = 1, fastest_ratio = 1;
  double adjusted_p = 1;  // of the most significant change
};

struct Drift : Verdicts<Trend> {
  std::string history;                // the file, if the series are a file's
  std::size_t runs = 0;               // the largest number of runs of a benchmark that were used
  std::size_t needed_runs = 0;        // least runs of a benchmark for a significant change among this many benchmarks
  std::vector<std::string> warnings;  // runs in which most benchmarks changed, perhaps because of the machine
};

// Finds the drift of each series. REQUIRES: options.threshold >= 0, 0 < options.alpha < 1.
Drift find_drift(std::vector<HistorySeries> series, const VerdictOptions& options);

std::string drift_text(const Drift& drift, bool colour);
std::string drift_markdown(const Drift& drift);
std::string drift_json(const Drift& drift);
std::string drift_csv(const Drift& drift);  // a row for each change, and for each benchmark without one

}  // namespace orrery::bench
