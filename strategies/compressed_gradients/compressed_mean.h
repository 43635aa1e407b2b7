// Workers agree on what stands for the mean of their gradients. What a worker leaves out of its own gradients is added
// to its next ones.
//
// PowerSGD (Vogels et al. 2019, arXiv 1905.13727, algorithms 1 and 2): a product of low rank, P Q', in place of a
// gradient matrix M. One power iteration a step begins with the Q of the step before: P = M Q, the mean of it over the
// workers, orthonormal columns; Q = M' P, the mean of it. Gradients that are no matrices, and matrices with too few
// numbers for their factors to save half of them, are averaged as they are.
//
// Top-k (Stich et al. 2018, arXiv 1809.07599, algorithm 1; Lin et al. 2018, arXiv 1712.01887): the largest numbers of
// each group of a flat buffer, which all workers gather and average.
#pragma once

#include "sim/program/mesh.h"
#include "sim/program/piece.h"
#include "strategies/compressed_gradients/options.h"

namespace orrery::compressed_gradients {

// Puts the ops in front of the piece's optimizer, which then reads gradients that all workers have alike.
// REQUIRES: Method::powersgd or Method::topk.
void agree_on_gradients(const Options& options, const Mesh& mesh, Piece& piece);

}  // namespace orrery::compressed_gradients
