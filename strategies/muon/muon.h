// Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon; Liu et al. 2025, arXiv 2502.16982). A matrix is
// updated by its momentum, whose singular values a Newton-Schulz iteration makes nearly equal. AdamW updates everything
// else: vectors, the embedding and the head.
#pragma once

#include <cstdint>

#include "sim/program/piece.h"

namespace orrery::muon {

// A parameter as the matrices of a product. Its dimensions are those of the experts, then those of a row's number, then
// those of a column's.
struct Matrices {
  int leading = 0, rows = 0;  // numbers of dimensions
  bool any = false;           // false: the parameter is no matrix, or the embedding's or the head's table
};
Matrices matrices_of(const Piece& piece, TensorId parameter);
// The same of any piece: the head's table, too.
Matrices matrices_of_product(const Piece& piece, TensorId parameter);

}  // namespace orrery::muon
