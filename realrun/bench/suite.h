// The benchmarks, run by Google Benchmark.
//
// Repetitions of all benchmarks are run in random order (compare.h says why) with the yardsticks beside each, and all
// of them are kept. Times: of a CPU's kernels the thread's CPU time; of a GPU's the device's clock, of training steps
// the time between the ends of steps (both "/manual_time").
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
  std::string filter;             // a regular expression (ECMAScript) that a name must contain a match of; empty: all
  std::vector<Shape> shapes;      // these kernels instead of the suite's kernels and steps
  std::int64_t repetitions = 25;  // compare.h: fewer are soon too few among hundreds of benchmarks
  double min_seconds = 0.02;      // of a repetition
  // Where the machine was busy beside repetitions (machine_state.h), more follow until each benchmark has so many that
  // were not disturbed: a round is begun within so many seconds of the first one's end. Of a CPU.
  double patience_seconds = 60;
  // Before each iteration what it reads is put out of the caches, untimed (cold_cache.h). Kernels only: a step's own
  // ops fill and empty the caches.
  bool cold_cache = false;
  bool progress = false;                                   // on standard error
  std::vector<std::pair<std::string, std::string>> facts;  // of the program: version, commit
};

struct SuiteEntry {
  std::string name;
  double bytes = 0, flops = 0;  // of an iteration; a step's bytes are not counted
};

// What options.filter leaves. Throws InputError for a filter that is no regular expression or that nothing matches, and
// for shapes that cannot be (shape_cases; that they fit a GPU's memory is known once it is there: run_suite says so).
std::vector<SuiteEntry> suite_entries(const SuiteOptions& options);

// Runs it: a document in Google Benchmark's JSON format. The context has the machine's facts; every repetition has the
// counters bytes and flops (where there are any), bytes_per_second, flops_per_second, percent_of_peak (the time that
// FLOPs or bytes would take at the device's peak, whichever is longer, by the time taken; context: peak_source) and the
// yardsticks. FLOPs and bytes are those of sim/program/work.h. Throws DeviceError when the device cannot be used. Once
// a process at a time. What Google Benchmark aggregates (mean, median, ...) is there of benchmarks of one round only.
std::string run_suite(const SuiteOptions& options);

// A run as an aligned table; medians and quartiles over the repetitions that nothing disturbed (machine_state.h), as
// compare_runs takes them.
std::string run_text(const BenchmarkRun& run);

}  // namespace orrery::bench
