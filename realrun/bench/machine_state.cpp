#include "realrun/bench/machine_state.h"

#include <time.h>

#include <algorithm>
#include <limits>
#include <span>

#include "sim/base/statistics.h"

namespace orrery::bench {
namespace {

constexpr int kChains = 8;       // enough to keep the multipliers busy
constexpr int kRounds = 20'000;  // about 30 us
constexpr std::size_t kArrayBytes = 2 << 20;
constexpr int kTimes = 5;

double now(bool real_time) {
  timespec time{};
  ::clock_gettime(real_time ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Aligned, so that two builds run it at the same speed.
[[gnu::noinline, gnu::aligned(64)]] void arithmetic() {
  std::array<double, kChains> x{1, 2, 3, 4, 5, 6, 7, 8};
  for (int i = 0; i < kRounds; ++i)
    for (double& value : x) value = value * 0.999 + 0.5;
  asm volatile("" : : "r"(x.data()) : "memory");
}

[[gnu::noinline, gnu::aligned(64)]] void memory(const std::vector<std::uint64_t>& array) {
  std::uint64_t sum = 0;
  for (const std::uint64_t value : array) sum += value;
  asm volatile("" : : "r"(sum) : "memory");
}

template <class Work>
double fastest(bool real_time, Work work) {
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTimes; ++i) {
    const double begin = now(real_time);
    work();
    least = std::min(least, now(real_time) - begin);
  }
  return least;
}

// 0: not measured.
double usual(std::size_t yardstick, std::span<const Series> all) {
  std::vector<double> seconds;
  for (const Series& series : all)
    for (const Repetition& r : series.repetitions)
      if (r.yardstick_seconds[yardstick] > 0) seconds.push_back(r.yardstick_seconds[yardstick]);
  return seconds.empty() ? 0 : quantile(std::move(seconds), kUsualQuantile);
}

}  // namespace

Yardsticks::Yardsticks() : array_(kArrayBytes / sizeof(std::uint64_t), 1) {}

std::array<double, kYardsticks.size()> Yardsticks::measure(bool real_time) {
  return {fastest(real_time, arithmetic), fastest(real_time, [this] { memory(array_); })};
}

MachineState::MachineState(const BenchmarkRun& run) {
  for (std::size_t y = 0; y < usual_seconds.size(); ++y) usual_seconds[y] = usual(y, run.series);
}

std::vector<Repetition> MachineState::undisturbed(const Series& series) const {
  std::vector<Repetition> good = series.repetitions;
  for (std::size_t y = 0; y < usual_seconds.size(); ++y) {
    const double most = (1 + kDisturbance[y]) * std::max(usual_seconds[y], usual(y, {&series, 1}));
    if (most > 0) std::erase_if(good, [&](const Repetition& r) { return r.yardstick_seconds[y] > most; });
  }
  return good;
}

Lacking lacking_repetitions(const BenchmarkRun& run, std::size_t wanted) {
  const MachineState machine(run);
  Lacking lacking;
  for (const Series& series : run.series) {
    if (!series.error.empty()) continue;
    const std::size_t good = machine.undisturbed(series).size();
    if (good >= wanted) continue;
    lacking.names.push_back(series.name);
    lacking.repetitions = std::max(lacking.repetitions, wanted - good);
  }
  return lacking;
}

}  // namespace orrery::bench
