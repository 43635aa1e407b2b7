// How a dimension of a tensor is divided over a mesh.
#pragma once

#include <bit>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "sim/program/mesh.h"

namespace orrery {

// Which indices each part of a dimension has.
enum class Deal : std::uint8_t {
  contiguous,   // part p the p-th of equal parts
  zigzag,       // of twice as many blocks as parts, the p-th from the front and the p-th from the back: the ranks of a
                // causal mask then have equal work
  query_heads,  // of a key/value group: its query heads are divided, the key and the value behind them are on every
                // rank
  striped,      // index i to part i mod the parts: equal causal work, too, but for one diagonal
};
inline constexpr int kDeals = 4;
const char* name_of(Deal deal);

// The digits of a mesh that a dimension is divided over, major to minor: the first cuts the dimension, the next cuts
// what one rank of the first has, and so on. Like a group it means nothing without its mesh.
class Division {
 public:
  static constexpr int kMost = 4;

  constexpr int count() const {
    int n = 0;
    while (n < kMost && digit(n) >= 0) ++n;
    return n;
  }
  constexpr bool empty() const { return digits_ == 0; }
  // The n-th digit, or -1.
  constexpr int digit(int n) const { return ((digits_ >> (4 * n)) & 0xf) - 1; }
  // Of a group the outermost digit is the major one, so that parts are in the order of the group's ranks. Both throw
  // std::logic_error for more than kMost digits.
  void append(MeshGroup minor) {
    for (unsigned bits = minor.bits(); bits != 0;) {
      const int outermost = std::bit_width(bits) - 1;
      push_back(outermost);
      bits &= ~(1u << outermost);
    }
  }
  void prepend(MeshGroup major) {
    const Division minor = *this;
    digits_ = 0;
    append(major);
    for (int n = 0; n < minor.count(); ++n) push_back(minor.digit(n));
  }
  // No digit twice, and not too many.
  constexpr bool has_room_for(MeshGroup minor) const {
    int n = count();
    for (int d = 0; d < Mesh::kMaxDigits; ++d) n += minor.contains(d) ? 1 : 0;
    return n <= kMost && !group().meets(minor);
  }
  constexpr MeshGroup group() const {
    MeshGroup group;
    for (int n = 0; n < count(); ++n) group = group | MeshGroup::of_digit(digit(n));
    return group;
  }
  // Whether the first digits are those of `major`.
  constexpr bool begins_with(Division major) const {
    const unsigned mask = (1u << (4 * major.count())) - 1;
    return (digits_ & mask) == major.digits_;
  }
  // The digits behind those of `major`. REQUIRES: begins_with(major).
  constexpr Division behind(Division major) const {
    Division minor;
    minor.digits_ = static_cast<std::uint16_t>(digits_ >> (4 * major.count()));
    return minor;
  }
  constexpr bool operator==(const Division&) const = default;

 private:
  void push_back(int digit) {
    const int n = count();
    if (n == kMost) throw std::logic_error("a dimension divided over more than four digits");
    digits_ = static_cast<std::uint16_t>(digits_ | ((digit + 1) << (4 * n)));
  }
  std::uint16_t digits_ = 0;  // four bits each, the digit's number and one; the first in the lowest
};

// Which of the parts is `rank`'s: they count the digits in the order of the division.
std::int64_t part_of(Division over, const Mesh& mesh, std::int64_t rank);

// The indices that `rank` has of a dimension of `whole`, `local` of them. The deal is of the first digit; the
// rest cut what it leaves contiguously. Indices of a last part may reach beyond
// `whole` (padded flat buffers).
std::vector<std::int64_t> dealt_indices(Deal deal, Division over, std::int64_t whole, std::int64_t local,
                                        const Mesh& mesh, std::int64_t rank);

}  // namespace orrery
