// A benchmark run: a file in Google Benchmark's JSON format, by `orrery bench --output` or any program with the
// library.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace orrery::bench {

// Yardsticks: fixed work that is not part of the benchmarks, done right before and after each repetition. They tell how
// fast the machine was at that moment. They are counters in the file; other programs' files have none.
inline constexpr std::array<std::string_view, 2> kYardsticks{"yardstick_arithmetic_seconds",
                                                             "yardstick_memory_seconds"};

// Runs in which these facts differ are from different machines, or builds of this program or its libraries.
inline constexpr std::array<std::string_view, 6> kMachineFacts{
    "device", "processors", "software", "cpu_governor", "library_build_type", "orrery_build_type"};

// Value of the fact "cache_state" if kernels' operands were evicted from the caches before each iteration. Without this
// fact the caches are as the previous iteration left them.
inline constexpr const char* kColdCaches = "cold";

// One repetition: seconds per iteration.
struct Repetition {
  double real_seconds = 0;
  double cpu_seconds = 0;  // CPU time of the thread that ran it
  std::int64_t iterations = 0;
  std::array<double, kYardsticks.size()> yardstick_seconds{};  // 0: not measured
};

struct Series {
  std::string name;  // "linear/bf16/4096x4096x4096/manual_time"
  // Which time counts, by Google Benchmark's naming: real time if the name ends in /real_time or /manual_time (a
  // device's clock), else CPU time. Other work on the machine costs a thread little CPU time, but much real time.
  bool by_real_time = false;
  std::vector<Repetition> repetitions;  // in their order
  std::string error;                    // its error message if it failed
  double bytes = 0, flops = 0;          // per iteration; 0: unknown
  double bound_seconds = 0;             // time of an iteration at the device's peak; 0: unknown

  double seconds(const Repetition& r) const { return by_real_time ? r.real_seconds : r.cpu_seconds; }
};

struct BenchmarkRun {
  std::string file;
  // ISO 8601, as Google Benchmark writes it with an offset; empty: unknown.
  std::string date;
  std::vector<std::pair<std::string, std::string>> context;  // facts of the run and the machine, plain values only
  std::vector<Series> series;                                // in the file's order
  // Digest of the document's content, not its spelling: the same run has the same digest, wherever its file is.
  std::string digest;

  std::string fact(std::string_view key) const;  // empty: unknown
  bool has_cold_caches() const;
  const Series* find(std::string_view name) const;
};

// Throws InputError if the file is not a run. Skips aggregates (mean, median, ...): a file must contain the
// repetitions.
BenchmarkRun read_run(const std::string& path);
BenchmarkRun parse_run(const std::string& text, const std::string& file);

}  // namespace orrery::bench
