// Runs the benchmarks with Google Benchmark.
//
// Repetitions of all benchmarks run in random order (compare.h says why), each with the yardsticks beside it, and all
// are kept. Times: CPU kernels by the thread's CPU time; GPU kernels by the device's clock and training steps by the
// time between the ends of steps (both "/manual_time").
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "realrun/bench/cases.h"
#include "realrun/bench/run_file.h"
#include "realrun/bench/shapes.h"

namespace orrery::bench {

struct SuiteOptions {
  DeviceKind device = DeviceKind::cpu;
  // A regular expression (ECMAScript) that must match a part of a name; empty: all.
  std::string filter;
  std::vector<Shape> shapes;      // run these kernels instead of the suite's kernels and steps
  std::int64_t repetitions = 25;  // with fewer, hundreds of benchmarks soon have too few (compare.h)
  double min_seconds = 0.02;      // per repetition
  // CPU only. If repetitions were disturbed (machine_state.h), more rounds follow until each benchmark has
  // `repetitions` undisturbed ones. A round begins only within this time after the end of the first one.
  double patience_seconds = 60;
  // Evicts the operands of each iteration from the caches first, untimed (cold_cache.h). Kernels only: a step's own ops
  // fill and empty the caches.
  bool cold_cache = false;
  bool progress = false;                                   // reported on standard error
  std::vector<std::pair<std::string, std::string>> facts;  // about the program: version, commit
};

struct SuiteEntry {
  std::string name;
  double bytes = 0, flops = 0;  // per iteration; 0 bytes for a step, as they are not counted
};

// Returns the entries that options.filter selects. Throws InputError for a filter that is not a regular expression or
// matches nothing, and for impossible shapes (shape_cases). run_suite checks whether they fit a GPU's memory.
std::vector<SuiteEntry> suite_entries(const SuiteOptions& options);

// Runs the suite. Returns a document in Google Benchmark's JSON format. Its context has the machine's facts. Every
// repetition has the counters bytes and flops (if any), bytes_per_second, flops_per_second, percent_of_peak (the time
// that FLOPs or bytes would take at the device's peak, whichever is longer, over the time taken; context: peak_source)
// and the yardsticks. FLOPs and bytes are those of sim/program/work.h. Only benchmarks of one round have the library's
// aggregates (mean, median, ...). Throws DeviceError if the device cannot be used. Only one call at a time.
std::string run_suite(const SuiteOptions& options);

// Formats a run as an aligned table, with medians and quartiles over the undisturbed repetitions, as in compare_runs.
std::string run_text(const BenchmarkRun& run);

}  // namespace orrery::bench
