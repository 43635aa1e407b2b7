// Random draws by counter, numbered by element of the whole tensor (realrun/kernel.h): the same numbers on all
// backends, whatever the layout of ranks.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

#include "realrun/kernel.h"

namespace orrery {

struct PhiloxWords {
  std::uint32_t at[4];
  bool operator==(const PhiloxWords&) const = default;
};
struct PhiloxKey {
  std::uint32_t at[2];
};

// Philox4x32-10, the counter-based generator of Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3",
// section 3.3. PyTorch's dropout uses it. Any draw is computed without the draws before it.
ORRERY_ON_DEVICES inline PhiloxWords philox(PhiloxWords counter, PhiloxKey key) {
  // The paper's multipliers and Weyl increments (table 2 and section 3.3; the golden ratio and sqrt(3) - 1).
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  constexpr int kRounds = 10, kWordBits = 32;
#ifdef __CUDA_ARCH__  // not in nvcc's pass for the host
#pragma unroll
#endif
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t a = kMultiplier0 * counter.at[0], b = kMultiplier1 * counter.at[2];
    counter = {{static_cast<std::uint32_t>(b >> kWordBits) ^ counter.at[1] ^ key.at[0], static_cast<std::uint32_t>(b),
                static_cast<std::uint32_t>(a >> kWordBits) ^ counter.at[3] ^ key.at[1], static_cast<std::uint32_t>(a)}};
    key.at[0] += kWeyl0;
    key.at[1] += kWeyl1;
  }
  return counter;
}

ORRERY_ON_DEVICES inline PhiloxWords words_of_draw(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  constexpr int kWordBits = 32;
  return philox({{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> kWordBits),
                  static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> kWordBits)}},
                {{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> kWordBits)}});
}

// A number in [-1, 1) that replaces an element of a linearly dependent column (OpKind::orthogonalise).
ORRERY_ON_DEVICES inline float replacement(std::int64_t element) {
  return static_cast<float>(words_of_draw(0, 0, static_cast<std::uint64_t>(element)).at[0]) * 0x1p-31f - 1;
}

// Returns draw `index` of a stream, uniform in [0, 1).
inline double uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  return words_of_draw(seed, stream, index).at[0] * 0x1p-32;
}

// Returns draw `index` of a stream, standard normal, from two words (Box and Muller 1958).
inline double normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  const PhiloxWords words = words_of_draw(seed, stream, index);
  const double radius = std::sqrt(-2 * std::log((words.at[0] + 1.0) * 0x1p-32));  // from a number in (0, 1]
  return radius * std::cos(2 * std::numbers::pi * (words.at[1] * 0x1p-32));
}

// Maps an element of a part to its index in the whole tensor.
struct WholeElements {
  bool whole;  // elements are numbered by their index in the part
  int rank, by_position;
  std::int64_t sizes[Tensor::kMaxRank], begin[Tensor::kMaxRank], strides[Tensor::kMaxRank];
  const std::int64_t* positions;

  ORRERY_ON_DEVICES std::uint64_t index(std::int64_t element) const {
    if (whole) return static_cast<std::uint64_t>(element);
    std::int64_t at = 0;
    for (int d = rank - 1; d >= 0; --d) {
      const std::int64_t i = element % sizes[d];
      element /= sizes[d];
      at += strides[d] * (d == by_position ? positions[i] : begin[d] + i);
    }
    return static_cast<std::uint64_t>(at);
  }
};

// `positions`: KernelContext::query_positions, where the kernel reads them.
inline WholeElements whole_elements(const Tensor& part, const KernelContext& context, const std::int64_t* positions) {
  WholeElements w{};
  w.rank = part.rank;
  w.positions = positions;
  const int sequence = part.find(Axis::sequence);
  const bool by_position =
      sequence >= 0 && static_cast<std::int64_t>(context.query_positions.size()) == part.sizes[sequence];
  w.by_position = by_position ? sequence : -1;
  w.whole = !by_position;
  std::int64_t stride = 1;
  for (int d = part.rank - 1; d >= 0; --d) {
    w.sizes[d] = part.sizes[d];
    w.begin[d] = context.part_begin[d];
    w.strides[d] = stride;
    const std::int64_t whole = context.whole_sizes[d] > 0 ? context.whole_sizes[d] : part.sizes[d];
    stride *= whole;
    if (w.begin[d] != 0 || (whole != part.sizes[d] && d > 0)) w.whole = false;
  }
  return w;
}

}  // namespace orrery
