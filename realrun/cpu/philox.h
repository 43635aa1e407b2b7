// Philox4x32-10, the counter-based generator of Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3",
// section 3.3. PyTorch's dropout uses it. Any draw is computed without the draws before it.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace orrery::cpu {

using PhiloxWords = std::array<std::uint32_t, 4>;

inline PhiloxWords philox(PhiloxWords counter, std::array<std::uint32_t, 2> key) {
  // The paper's multipliers and Weyl increments (table 2 and section 3.3; the golden ratio and sqrt(3) - 1).
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  constexpr int kRounds = 10, kWordBits = 32;
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t a = kMultiplier0 * counter[0], b = kMultiplier1 * counter[2];
    counter = {static_cast<std::uint32_t>(b >> kWordBits) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> kWordBits) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

inline PhiloxWords words_of_draw(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  const auto high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); };
  return philox({low(index), high(index), low(stream), high(stream)}, {low(seed), high(seed)});
}

// Returns draw `index` of a stream, uniform in [0, 1).
inline double uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  return words_of_draw(seed, stream, index)[0] * 0x1p-32;
}

// Returns draw `index` of a stream, standard normal, from two words (Box and Muller 1958).
inline double normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  const PhiloxWords words = words_of_draw(seed, stream, index);
  const double radius = std::sqrt(-2 * std::log((words[0] + 1.0) * 0x1p-32));  // from a number in (0, 1]
  return radius * std::cos(2 * std::numbers::pi * (words[1] * 0x1p-32));
}

}  // namespace orrery::cpu
