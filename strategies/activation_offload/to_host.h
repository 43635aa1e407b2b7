// Activations that leave the device behind a layer's forward and come back ahead of its backward.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/program/piece.h"

namespace orrery::activation_offload {

// The storages that a layer's forward keeps on the device for its backward: activations, with the layer's input.
std::vector<TensorId> kept_activations(const Piece& piece);

// The tokens from `begin` on, `count` of them, of a tensor that runs along the sequence: a view. REQUIRES: it has them.
TensorId view_of_tokens(Piece& piece, TensorId id, std::int64_t begin, std::int64_t count);

class ToHost {
 public:
  // `buffers`: Op::buffers of the copies.
  explicit ToHost(Piece& piece, std::uint16_t buffers = 0)
      : piece_(piece), buffers_(buffers), returned_(piece.tensors.size(), kNoTensor) {}

  // A storage of kept_activations(): all of it goes, or its first `tokens`. What else the backward needs of it is for
  // others to write.
  void move(TensorId id);
  void move(TensorId id, std::int64_t tokens);
  // In front of the backward: the copies; the backward reads what has come back, and views of it.
  void finish();

  // What the backward has in place of a storage that was moved; kNoTensor for any other tensor.
  TensorId returned(TensorId id) const { return returned_[id]; }

 private:
  void copy_both_ways(TensorId from, TensorId to);

  Piece& piece_;
  const std::uint16_t buffers_;
  std::vector<TensorId> returned_;  // by what has gone to the host, and its views
  std::vector<Op> back_;
};

}  // namespace orrery::activation_offload
