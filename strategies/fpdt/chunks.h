// Ops of a piece repeated chunk by chunk along the sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/program/piece.h"

namespace orrery::fpdt {

// By their places in the blocks of a piece, ascending.
struct Region {
  std::vector<std::size_t> forward, backward;
};

// What the ops on tensors along the sequence and along `axis` are: of an MLP, or of logits.
Region ops_along(const Piece& piece, Axis axis);

// Which storages only the ops of a region use. There is no need for all of one at a time.
class Inside {
 public:
  Inside(const Piece& piece, const Region& region);
  bool contains(const Piece& piece, TensorId id) const;

 private:
  std::vector<std::uint8_t> inside_;  // by tensor
};

// The tensors of one chunk: of what lies inside the region tensors of its own, views of the rest. What does not run
// along the sequence (weights, their gradients) is the same for all chunks.
class SequenceChunk {
 public:
  // The index-th of `count` equal chunks of what a rank has. `of_sequence`: of all ranks together it is a piece of the
  // sequence, in which the ranks have their parts in order.
  SequenceChunk(Piece& piece, const Inside& inside, std::int64_t count, std::int64_t index, std::int64_t ranks,
                bool of_sequence);

  TensorId part(TensorId id);
  Op part(Op op);
  // In place of what part(id) would make.
  void set(TensorId id, TensorId part) { parts_[id] = part; }
  bool has(TensorId id) const { return id < parts_.size() && parts_[id] != kNoTensor; }

 private:
  void cut(Tensor& t) const;

  Piece* piece_;
  const Inside* inside_;
  std::int64_t count_, index_, ranks_;
  bool of_sequence_;
  std::vector<TensorId> parts_;  // by the tensor that they are of
};

// Puts ops in the place of a region's. What stands between those goes in front where it can.
void replace(Block& block, const Piece& piece, const std::vector<std::size_t>& region, const std::vector<Op>& by);

}  // namespace orrery::fpdt
