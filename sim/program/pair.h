// The forward of one micro-batch beside the backward of another: while the tokens of one travel to their experts or
// back, the kernels of the other run (DeepSeek-V3, arXiv 2412.19437, section 3.2.1; Megatron-Core's
// --overlap-moe-expert-parallel-comm).
//
//   kernels   .. | forward: up to dispatch | backward: experts  | forward: experts  | backward: the rest | ..
//   exchange     | backward: to experts    | forward: dispatch  | backward: back    | forward: combine   |
#pragma once

#include <array>

#include "sim/program/piece.h"

namespace orrery {

// The two ops of a block at which the other block takes its turn: the ops behind the exchange that takes tokens to
// their experts, and behind the exchange that takes them back. A block without such exchanges computes beside the
// exchanges of the other: half of its FLOPs beside each.
struct PairCuts {
  std::array<std::size_t, 2> at{};
  bool exchanges = false;
};
PairCuts pair_cuts(const Piece& piece, bool forward);
// Moves exchanges of experts to a stream of their own, in both blocks.
void unblock_exchanges(Piece& piece);

// Fills out.forward with the ops of both blocks in the order of issue, with exchanges of experts on their own stream.
// Tensors that the forward writes get copies of their own. Returns false and leaves `out` unchanged if there is nothing
// to hide: a block does not have two such exchanges.
bool pair_blocks(const Piece& piece, Piece& out);

}  // namespace orrery
