// Index in the whole tensor of a rank's element: random draws are numbered by it (realrun/kernel.h).
#pragma once

#include <cstdint>

#include "realrun/kernel.h"

namespace orrery::cpu {

// Maps an element of a part to its index in the whole tensor.
class WholeIndex {
 public:
  WholeIndex(const Tensor& part, const KernelContext& context) : part_(part), context_(context) {
    const int sequence = part.find(Axis::sequence);
    if (sequence >= 0 && static_cast<std::int64_t>(context.query_positions.size()) == part.sizes[sequence])
      by_position_ = sequence;
  }
  std::uint64_t operator()(std::int64_t element) const {
    std::int64_t index = 0, stride = 1;
    for (int d = part_.rank - 1; d >= 0; --d) {
      const std::int64_t i = element % part_.sizes[d];
      element /= part_.sizes[d];
      index += stride *
               (d == by_position_ ? context_.query_positions[static_cast<std::size_t>(i)] : context_.part_begin[d] + i);
      stride *= context_.whole_sizes[d] > 0 ? context_.whole_sizes[d] : part_.sizes[d];
    }
    return static_cast<std::uint64_t>(index);
  }

 private:
  const Tensor& part_;
  const KernelContext& context_;
  int by_position_ = -1;
};

}  // namespace orrery::cpu
