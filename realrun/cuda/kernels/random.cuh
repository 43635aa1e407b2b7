// Random draws by counter, numbered by element of the whole tensor: the same numbers whatever the layout of ranks.
#pragma once

#include "realrun/cuda/kernels/call.cuh"

namespace orrery::cuda {
namespace {

// The first two words of Philox4x32-10 (realrun/cpu/philox.h has the source of the constants).
__device__ uint2 philox(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  constexpr int kRounds = 10, kWordBits = 32;
  std::uint32_t c0 = static_cast<std::uint32_t>(index), c1 = static_cast<std::uint32_t>(index >> kWordBits),
                c2 = static_cast<std::uint32_t>(stream), c3 = static_cast<std::uint32_t>(stream >> kWordBits),
                k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> kWordBits);
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t a = kMultiplier0 * c0, b = kMultiplier1 * c2;
    c0 = static_cast<std::uint32_t>(b >> kWordBits) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(b);
    c2 = static_cast<std::uint32_t>(a >> kWordBits) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(a);
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return {c0, c1};
}

// Maps an element of a part to its index in the whole tensor (realrun/cpu/whole_index.h).
struct WholeElements {
  std::int64_t elements;
  bool whole;  // elements are numbered by their index in the part
  int rank, by_position;
  std::int64_t sizes[Tensor::kMaxRank], begin[Tensor::kMaxRank], strides[Tensor::kMaxRank];
  const std::int64_t* positions;

  __device__ std::uint64_t index(std::int64_t element) const {
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

inline WholeElements whole_elements_of(const Call& call, const Tensor& t) {
  WholeElements d{};
  d.elements = t.elements();
  d.rank = t.rank;
  const int sequence = t.find(Axis::sequence);
  const bool by_position =
      sequence >= 0 && static_cast<std::int64_t>(call.context.query_positions.size()) == t.sizes[sequence];
  d.by_position = by_position ? sequence : -1;
  d.positions = call.launch.query_positions;
  call.require(!by_position || d.positions != nullptr, "the positions are not on the device");
  d.whole = !by_position;
  std::int64_t stride = 1;
  for (int i = t.rank - 1; i >= 0; --i) {
    d.sizes[i] = t.sizes[i];
    d.begin[i] = call.context.part_begin[i];
    d.strides[i] = stride;
    const std::int64_t whole = call.context.whole_sizes[i] > 0 ? call.context.whole_sizes[i] : t.sizes[i];
    stride *= whole;
    if (d.begin[i] != 0 || (whole != t.sizes[i] && i > 0)) d.whole = false;
  }
  return d;
}

}  // namespace
}  // namespace orrery::cuda
