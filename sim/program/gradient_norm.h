// What a gradient norm counts: every element of every parameter of the model once, of all the ranks over which it is
// summed. Nothing is declared: it follows from the layouts. Ranks that differ in a digit which divides neither the
// parameter nor the buffer of its gradients hold the same elements, and the first of them counts these.
#pragma once

#include "sim/program/program.h"

namespace orrery {

struct CountedInNorm {
  bool here = true;  // false: a piece before this one has the same parameter (ParameterGradient::tied), and counts it
  // The ranks that count: the first of those that differ in these digits.
  MeshGroup first_of;
  // Those that count what is behind query heads, which lies on all ranks that divide these: the first of these, too.
  MeshGroup first_of_behind;
};

// Of a parameter whose gradient this piece keeps (no Tensor::shared) in the buffer `gradients`. `summed`: the digits
// over which the norm is summed (Op::group).
CountedInNorm counted_in_norm(const Program& program, const Piece& piece, const ParameterGradient& parameter,
                              TensorId gradients, MeshGroup summed);

// Do all ranks that divide the query heads hold element e of a tensor: is it of a key or a value? True of any other
// tensor.
bool is_behind_query_heads(const Tensor& local, std::int64_t e);

}  // namespace orrery
