// How a step ends on a stage, after its last slot and the work that asynchronous streams have left. The update blocks
// of all its pieces run in parts; each part begins when the one before it has ended. Both engines and the executor use
// it. Also which elements the gradient norm counts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "sim/program/piece.h"
#include "sim/program/program.h"

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

// The elements that a gradient norm counts: every element of every parameter of the model once, over all ranks over
// which the norm is summed. Nothing is declared; it follows from the layouts. Ranks that differ in a digit which
// divides neither the parameter nor the buffer of its gradients hold the same elements. Only the first of these ranks
// counts them.

struct CountedInNorm {
  bool here = true;  // false: an earlier piece has the same parameter (ParameterGradient::tied) and counts it
  // Among ranks that differ only in these digits, only the first counts.
  MeshGroup first_of;
  // If a dimension is dealt by query heads (Deal::query_heads), all ranks along these digits hold the key and the
  // value. Only the first of them counts these elements.
  MeshGroup first_of_behind;
};

// Returns how the norm counts a parameter whose gradient this piece keeps (not Tensor::shared) in the buffer
// `gradients`. `summed`: the digits over which the norm is summed (Op::group).
CountedInNorm counted_in_norm(const Program& program, const Piece& piece, const ParameterGradient& parameter,
                              TensorId gradients, MeshGroup summed);

// Whether all ranks that divide the query heads hold element e of a tensor: it belongs to a key or a value. True for
// tensors that are not dealt by query heads.
bool is_behind_query_heads(const Tensor& local, std::int64_t e);

}  // namespace orrery
