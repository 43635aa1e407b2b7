#include "sim/program/issue.h"

namespace orrery {

std::vector<std::uint8_t> find_ahead(std::span<const Op> ops, std::span<const TensorId> storage, TensorId input) {
  if (std::none_of(ops.begin(), ops.end(), [](const Op& op) { return op.prefetch > 0; })) return {};
  constexpr std::uint8_t kByKernels = 1, kByOthers = 2, kBefore = 4;
  std::vector<std::uint8_t> ahead(ops.size()), made_here(storage.size());  // by storage: who has written it
  if (input != kNoTensor) made_here[storage[input]] = kBefore;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const Op& op = ops[i];
    if (is_communication(op.kind) && op.is_alone()) {
      if (op.reads[0] != kNoTensor && op.writes[0] != kNoTensor)
        made_here[storage[op.writes[0]]] = made_here[storage[op.reads[0]]];
      continue;
    }
    bool needs = false;
    for (const TensorId id : op.reads) needs = needs || (id != kNoTensor && made_here[storage[id]] != 0);
    if (op.accumulate)
      for (const TensorId id : op.writes) needs = needs || (id != kNoTensor && made_here[storage[id]] != 0);
    const bool kernel = op.stream == Stream::compute;
    ahead[i] = op.prefetch > 0 && !kernel && op.every == 1 && !needs;
    for (const TensorId id : op.writes) {
      if (id == kNoTensor) continue;
      std::uint8_t& made = made_here[storage[id]];
      made &= static_cast<std::uint8_t>(~kBefore);
      if (kernel) {
        made |= kByKernels;
      } else {
        made = static_cast<std::uint8_t>((made & kByKernels) | (ahead[i] ? 0 : kByOthers));
      }
    }
  }
  return ahead;
}

Boundary boundary_of(const Piece& piece, std::size_t block) {
  if (block == kForwardBlock) return {piece.input, piece.output};
  if (block == kBackwardBlock) return {piece.output_gradient, piece.input_gradient};
  return {};
}

}  // namespace orrery
