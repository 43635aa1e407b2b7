// The forward of one micro-batch beside the backward of another: while one's tokens travel to their experts or back,
// the other's kernels run (DeepSeek-V3, arXiv 2412.19437, section 3.2.1; Megatron-Core's
// --overlap-moe-expert-parallel-comm).
//
//   kernels   .. | forward: up to dispatch | backward: experts  | forward: experts  | backward: the rest | ..
//   exchange     | backward: to experts    | forward: dispatch  | backward: back    | forward: combine   |
#pragma once

#include <array>

#include "sim/program/piece.h"

namespace orrery {

// The ops of a block at which the other block's turn comes, twice: behind the exchange that takes tokens to their
// experts, and behind the one that takes them back. A block without such exchanges has something to compute beside the
// other's: half of its FLOPs beside each.
struct PairCuts {
  std::array<std::size_t, 2> at{};
  bool exchanges = false;
};
PairCuts pair_cuts(const Piece& piece, bool forward);
// Has exchanges of experts run on their own stream, in both blocks.
void unblock_exchanges(Piece& piece);

// Fills out.forward with the ops of both blocks in the order of issue; exchanges of experts are on their own stream.
// What the forward writes are tensors of its own. False, and `out` is what it was: there is nothing to hide, a block
// has not two such exchanges.
bool pair_blocks(const Piece& piece, Piece& out);

}  // namespace orrery
