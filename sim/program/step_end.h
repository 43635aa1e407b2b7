// How a step ends on a stage, after its last slot and the work that asynchronous streams have left. The update blocks
// of all its pieces run in parts; each part begins when the one before it has ended. Both engines and the executor use
// it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "sim/program/piece.h"

namespace orrery {

enum class UpdatePart : std::uint8_t {
  gradients,  // reductions that did not overlap with the backward
  stages,     // sums over the stages that hold one parameter (Op::stages); these stages wait for each other
  norm,       // the gradient norms, and the exchange of their sum: one exchange for all instances of a stage,
              // by the op of the last instance; then all stages with a norm meet
  update,     // the optimizer, and what follows it
};
inline constexpr int kUpdateParts = 4;
inline constexpr std::array<UpdatePart, kUpdateParts> kStepEnd{UpdatePart::gradients, UpdatePart::stages,
                                                               UpdatePart::norm, UpdatePart::update};

// The positions of the parts in a piece's update block.
class UpdateParts {
 public:
  // `storage`: by tensor, its storage (Liveness). `sums_over_stages`: whether any piece of the Program has such a sum.
  // If none has, reductions are in part `norm`, and only data dependencies order the two.
  UpdateParts(const Piece& piece, std::span<const TensorId> storage, bool sums_over_stages);
  UpdateParts() = default;

  // The first op of the part, and one past its last.
  std::pair<std::size_t, std::size_t> range(UpdatePart part) const {
    const auto i = static_cast<std::size_t>(part);
    return {begins_[i], begins_[i + 1]};
  }

 private:
  std::array<std::size_t, kUpdateParts + 1> begins_{};
};

}  // namespace orrery
