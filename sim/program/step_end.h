// How a step ends on a stage, behind its last slot and what asynchronous streams have left: in parts of the update
// blocks of all its pieces, each of which begins when the one before it has ended. Read by both engines and by the
// executor.
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
  stages,     // sums over stages that hold one parameter (Op::stages), which wait for each other
  norm,       // the gradient norms, and an exchange of their results: of all instances of a stage one, of their sum, by
              // the op of the last; behind it all stages with a norm meet
  update,     // the optimizer, and what follows it
};
inline constexpr int kUpdateParts = 4;
inline constexpr std::array<UpdatePart, kUpdateParts> kStepEnd{UpdatePart::gradients, UpdatePart::stages,
                                                               UpdatePart::norm, UpdatePart::update};

// Where the parts of a piece's update block are.
class UpdateParts {
 public:
  // `storage`: of each tensor (Liveness). `sums_over_stages`: of any piece of the Program; without them reductions come
  // with the norm, and only data orders the two.
  UpdateParts(const Piece& piece, std::span<const TensorId> storage, bool sums_over_stages);
  UpdateParts() = default;

  // First op, one past the last.
  std::pair<std::size_t, std::size_t> range(UpdatePart part) const {
    const auto i = static_cast<std::size_t>(part);
    return {begins_[i], begins_[i + 1]};
  }

 private:
  std::array<std::size_t, kUpdateParts + 1> begins_{};
};

}  // namespace orrery
