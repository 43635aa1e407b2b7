// Workers agree on what stands for the mean of their gradients. What a worker leaves out of its own gradients is added
// to its next ones.
//
// PowerSGD (Vogels et al. 2019, arXiv 1905.13727, algorithms 1 and 2): a product of low rank, P Q', in place of a
// gradient matrix M. One power iteration a step begins with the Q of the step before: P = M Q, the mean of it over the
// workers, orthonormal columns; Q = M' P, the mean of it. A matrix is sent as its factors only if it has more than
// twice their numbers. Other gradients are averaged as they are.
//
// Top-k (Stich et al. 2018, arXiv 1809.07599, algorithm 1; Lin et al. 2018, arXiv 1712.01887): the largest numbers of
// each group of a flat buffer, which all workers gather and average.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/program/mesh.h"
#include "sim/program/piece.h"
#include "strategies/compressed_gradients/options.h"

namespace orrery::compressed_gradients {

// A part of a flat buffer.
struct FlatPart {
  std::int64_t begin = 0, size = 0;
};
// Cuts the flat buffers of a parameter set, in their order, where ranks of a worker begin or end to hold equal numbers:
// between parameters that different digits divide, and around a parameter that other stages hold as well. Ranks that
// choose or scale numbers part by part do so alike for all that they hold in common.
std::vector<FlatPart> parts_of_buffers(const Piece& piece, std::size_t set);
// The whole buffer, if it is one part; otherwise a view.
TensorId part_of_buffer(Piece& piece, TensorId buffer, const std::vector<FlatPart>& parts, std::size_t part);

// Puts the ops in front of the piece's optimizer, which then reads gradients that all workers have alike.
// REQUIRES: Method::powersgd or Method::topk.
void agree_on_gradients(const Options& options, const Mesh& mesh, Piece& piece);

}  // namespace orrery::compressed_gradients
