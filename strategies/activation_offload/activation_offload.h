// Moves activations to host memory after a layer's forward and back before its backward.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/program/piece.h"

namespace orrery::activation_offload {

// Returns the storages that a layer's forward keeps on the device for its backward: activations and the layer's input.
std::vector<TensorId> kept_activations(const Piece& piece);

// Returns a view of the `count` tokens from `begin` of a tensor with a sequence axis. REQUIRES: it has these tokens.
TensorId view_of_tokens(Piece& piece, TensorId id, std::int64_t begin, std::int64_t count);

// Rewrites a piece so that the storages passed to move() wait in host memory. Call finish() once, after all moves.
class ToHost {
 public:
  // `buffers` becomes Op::buffers of the copies.
  explicit ToHost(Piece& piece, std::uint16_t buffers = 0)
      : piece_(piece), buffers_(buffers), returned_(piece.tensors.size(), kNoTensor) {}

  // Moves a storage of kept_activations(): all of it, or its first `tokens`. The caller restores the rest.
  void move(TensorId id);
  void move(TensorId id, std::int64_t tokens);
  // Puts the copies back to the device in front of the backward, and makes the backward read what was copied back.
  void finish();

  // Returns the tensor that replaces a moved storage in the backward; kNoTensor for any other tensor.
  TensorId returned(TensorId id) const { return returned_[id]; }

 private:
  void copy_both_ways(TensorId from, TensorId to);

  Piece& piece_;
  const std::uint16_t buffers_;
  std::vector<TensorId> returned_;  // by the tensor that was moved, and by its views
  std::vector<Op> back_;
};

}  // namespace orrery::activation_offload
