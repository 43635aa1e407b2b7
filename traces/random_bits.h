// Random numbers for drawn data. A seed gives the same numbers on every platform.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>

#include "sim/base/digest.h"

namespace orrery {

class RandomBits {
 public:
  // `draw`: an enumerator that says what is drawn. Each has its own sequence, independent of the number of others.
  template <class Draw>
  RandomBits(std::uint64_t seed, Draw draw, std::initializer_list<std::int64_t> place) {
    state_ = mixed(seed + kSplitMixStep) + static_cast<std::uint64_t>(draw);
    for (const std::int64_t n : place) state_ = mixed(state_ + kSplitMixStep) + static_cast<std::uint64_t>(n);
    state_ = mixed(state_);
  }

  std::uint64_t next() { return mixed(state_ += kSplitMixStep); }
  double uniform() { return std::ldexp(static_cast<double>(next() >> 11), -53); }  // in [0, 1)
  std::int64_t below(std::int64_t n) {                                             // in [0, n); REQUIRES: 0 < n < 2^31
    return static_cast<std::int64_t>(((next() >> 32) * static_cast<std::uint64_t>(n)) >> 32);
  }
  // Returns how many of n fair coins show heads.
  std::int64_t heads(std::int64_t n) {
    std::int64_t sum = 0;
    for (; n >= 64; n -= 64) sum += std::popcount(next());
    return n > 0 ? sum + std::popcount(next() >> (64 - n)) : sum;
  }
  // Standard normal except for its tails: the sum of 1024 coins, whose kurtosis is 0.002 smaller.
  double normal() { return (static_cast<double>(heads(1024)) - 512) / 16; }

 private:
  std::uint64_t state_;
};

}  // namespace orrery
