// The elements that a gradient norm counts: every element of every parameter of the model once, over all ranks over
// which the norm is summed. Nothing is declared; it follows from the layouts. Ranks that differ in a digit which
// divides neither the parameter nor the buffer of its gradients hold the same elements. Only the first of these ranks
// counts them.
#pragma once

#include "sim/program/program.h"

namespace orrery {

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
