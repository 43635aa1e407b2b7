// Has anything become slower over the runs of a history, when, and by how much? One verdict for each benchmark.
//
// A run is one value, the median of its repetitions: what moves a whole run (clocks, neighbours, where the loader puts
// things) makes its repetitions alike, so that only runs are independent of each other. Over the runs of one benchmark
// on one device:
//  - change_point (statistics.h), a maximally selected rank statistic, finds the run from which on the level is
//    another. Its p is adjusted by Holm's procedure for the number of benchmarks (compare.h says why Holm);
//  - before and behind a change that is found the search goes on in the same way, each part tested at alpha by the
//    number of benchmarks: binary segmentation (Vostrikova 1981, Soviet Mathematics Doklady 24). So of a history in
//    which nothing changed the chance that anything is reported is alpha at the most; of one in which something did,
//    each further part of that benchmark may add alpha / benchmarks;
//  - levels are medians over the runs between changes. A benchmark is slower where its last level is above the fastest
//    level before it by more than the threshold, of the medians and of the fastest repetitions: a slow-down that was
//    made good is no failure, one that follows a speed-up is, and so are several that are small.
//
// Runs are taken for independent. Where neighbouring runs are alike (made within one slow hour, say) a slow phase looks
// like a change of level; the threshold is what then keeps it from being a regression.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "realrun/bench/compare.h"
#include "realrun/bench/history.h"

namespace orrery::bench {

struct DriftOptions {
  // Less than between two runs (CompareOptions): that runs of one binary differ by a few percent is what the test sees
  // in the runs themselves.
  double threshold = 0.02;
  double alpha = 0.01;                                  // chance of a false alarm over all benchmarks, at the most
  bool strict = false;                                  // a benchmark of too few runs fails
  std::function<bool(const std::string&)> wanted = {};  // by name; empty: all
};

// The run from which on a benchmark took another time.
struct LevelChange {
  std::size_t first = 0;                         // index into Trend::points: the first run of the new level, not 0
  double before_seconds = 0, after_seconds = 0;  // the levels
  double ratio = 1, fastest_ratio = 1;           // after by before: of medians, and of the fastest repetitions
  double adjusted_p = 1;
  std::vector<std::string> machine;  // "software was CUDA 12.8 and is CUDA 13.0": facts that changed with that run
};

struct Trend {
  std::string name, device;
  // too_few_repetitions: of runs. Never failed, cannot_tell, only_in_baseline or only_in_new.
  Verdict verdict = Verdict::unchanged;
  std::vector<HistoryPoint> points;
  std::vector<LevelChange> changes;     // by date
  double seconds = 0;                   // the last level
  double ratio = 1, fastest_ratio = 1;  // the last level by the fastest before it if slower for it, else by the first
  double adjusted_p = 1;                // of the surest change
};
std::string_view trend_verdict(const Trend& trend);  // name_of(verdict), but "too few runs"

struct Drift {
  std::string history;
  std::size_t runs = 0;  // that were looked at of each device, at the most
  DriftOptions options;
  std::vector<Trend> trends;          // slowest first, then what cannot be told
  std::size_t needed_runs = 0;        // of a benchmark among so many for a change to be significant
  std::vector<std::string> warnings;  // runs with which most benchmarks changed, which the machine may have

  std::size_t count(Verdict verdict) const;
  bool nothing_told() const;
  bool fails(const Trend& trend) const;
  int exit_code() const;  // as Comparison::exit_code
};

// REQUIRES: options.threshold >= 0, 0 < options.alpha < 1.
Drift find_drift(const History& history, const std::string& file, std::size_t runs, const DriftOptions& options);
Drift find_drift(std::vector<HistorySeries> series, const DriftOptions& options);

std::string drift_text(const Drift& drift, bool colour);
std::string drift_markdown(const Drift& drift);
std::string drift_json(const Drift& drift);
std::string drift_csv(const Drift& drift);  // a row for each change, and for each benchmark without one

}  // namespace orrery::bench
