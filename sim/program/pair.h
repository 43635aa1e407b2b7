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

// Where a block is cut into three parts that take turns with the parts of the other block. A block with experts is cut
// after its first exchange, which takes tokens to their experts, and after its last one, which takes them back. A block
// without experts computes beside the exchanges of the other: half of its FLOPs beside each, so one part is empty.
struct PairCuts {
  std::array<std::size_t, 2> at{};  // indices of the first op of the second and of the third part
  bool exchanges = false;           // whether the block has such exchanges
};
PairCuts pair_cuts(const Piece& piece, bool forward);
// Moves exchanges of experts to a stream of their own, in both blocks.
void unblock_exchanges(Piece& piece);

// Makes `out` the piece whose forward holds the ops of both blocks in the order of issue; its other blocks are empty.
// Exchanges of experts are on their own stream. The two micro-batches share parameters and resident tensors; the
// forward has copies of all other tensors. Returns false and leaves `out` unchanged if a block has no exchanges to
// hide.
bool pair_blocks(const Piece& piece, Piece& out);

}  // namespace orrery
