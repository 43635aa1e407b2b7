// What a benchmark run left behind: a file in Google Benchmark's JSON format, by `orrery bench --output` or by any
// other program that uses the library.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace orrery::bench {

// Fixed work that is no part of what is measured, done right before and after each repetition: how fast the machine was
// just then. Counters of the file; other programs' files have none.
inline constexpr std::array<std::string_view, 2> kYardsticks{"yardstick_arithmetic_seconds",
                                                             "yardstick_memory_seconds"};

// Facts without which two runs are of two machines, or of two builds of this program or the libraries below.
inline constexpr std::array<std::string_view, 6> kMachineFacts{
    "device", "processors", "software", "cpu_governor", "library_build_type", "orrery_build_type"};

// What the fact "cache_state" says where what kernels read was put out of the caches before each iteration; without the
// fact they were as the iteration before had left them.
inline constexpr const char* kColdCaches = "cold";

// One repetition: seconds per iteration.
struct Repetition {
  double real_seconds = 0;
  double cpu_seconds = 0;  // of the thread that ran it
  std::int64_t iterations = 0;
  std::array<double, kYardsticks.size()> yardstick_seconds{};  // 0: not measured
};

struct Series {
  std::string name;  // "linear/bf16/4096x4096x4096/manual_time"
  // What its times are: by Google Benchmark's naming, real time where the name says /real_time or /manual_time (a
  // device's clock), CPU time otherwise: what else ran on the machine costs a thread little CPU time, but much real
  // time.
  bool by_real_time = false;
  std::vector<Repetition> repetitions;  // in their order
  std::string error;                    // it failed instead
  double bytes = 0, flops = 0;          // of an iteration; 0: not given
  double bound_seconds = 0;             // what an iteration would take at the device's peak; 0: not given

  double seconds(const Repetition& r) const { return by_real_time ? r.real_seconds : r.cpu_seconds; }
  std::vector<double> seconds() const;
};

struct BenchmarkRun {
  std::string file;
  std::string date;  // ISO 8601, as Google Benchmark writes it with an offset; empty: the file does not say
  std::vector<std::pair<std::string, std::string>> context;  // facts of the run and the machine, plain values only
  std::vector<Series> series;                                // in the file's order
  // Of the document's content, not its spelling: the same run has the same, wherever it lies.
  std::string digest;

  const std::string* fact(std::string_view key) const;  // nullptr: not known
  bool has_cold_caches() const;
  const Series* find(std::string_view name) const;
};

// Throws InputError for what is not such a file. Aggregates (mean, median, ...) are passed over: a file must have the
// repetitions.
BenchmarkRun read_run(const std::string& path);
BenchmarkRun parse_run(const std::string& text, const std::string& file);

}  // namespace orrery::bench
