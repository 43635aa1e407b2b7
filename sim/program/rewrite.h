// Helpers for passes that rewrite blocks of ops.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sim/program/piece.h"

namespace orrery {

// Takes the residual stream and hands it on: a layer, not an end of the model nor the seam between two stacks.
inline bool is_layer(const Piece& piece) {
  return piece.input != kNoTensor && piece.output != kNoTensor && piece.sides[kEncoderOutput].output == kNoTensor;
}

inline void replace_reads(Op& op, TensorId from, TensorId to) {
  std::replace(op.reads.begin(), op.reads.end(), from, to);
}

// The tensor whose memory `id` is, or is a view of.
inline TensorId storage_of(const Piece& piece, TensorId id) {
  while (piece.tensors[id].alias_of != kNoTensor) id = piece.tensors[id].alias_of;
  return id;
}

// A copy of tensor `id` that owns its memory.
inline TensorId clone_tensor(Piece& piece, TensorId id) {
  Tensor t = piece.tensors[id];
  t.alias_of = kNoTensor;
  t.input = Input::none;
  t.resident = t.shared = false;
  return piece.add(t);
}

// Whether `id` is the norm of gradients, or of some of them.
inline bool is_gradient_norm(const Piece& piece, TensorId id) {
  for (const Block* block : {&piece.forward, &piece.backward, &piece.weight_gradient, &piece.update})
    for (const Op& op : block->ops)
      if (op.kind == OpKind::gradient_norm && op.writes[0] == id) return true;
  return false;
}

inline Op communication(OpKind kind, const char* name, Stream stream, MeshGroup group, TensorId read, TensorId write) {
  Op op;
  op.kind = kind;
  op.name = name;
  op.stream = stream;
  op.group = group;
  op.reads[0] = read;
  op.writes[0] = write;
  return op;
}

}  // namespace orrery
