#include "realrun/bench/yardstick.h"

#include <time.h>

#include <algorithm>
#include <limits>

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

}  // namespace

Yardsticks::Yardsticks() : array_(kArrayBytes / sizeof(std::uint64_t), 1) {}

std::array<double, kYardsticks.size()> Yardsticks::measure(bool real_time) {
  return {fastest(real_time, arithmetic), fastest(real_time, [this] { memory(array_); })};
}

}  // namespace orrery::bench
