// When the storages of a piece begin and end, block by block: what memory is predicted from, and what the executor
// allocates and frees by. Everything follows from first definition and last use; nothing is declared.
//
// A storage is a tensor with all its views; it lives from its first definition to the last use of any of them, in the
// order of the ops. A block defines it if its first op there writes it rather than reads it or adds to it: all of it,
// or what no block before has touched. What lives longer than a block:
//  - Tensors flagged resident: all step long. Flagged shared, and side streams' inputs: another piece's.
//  - Unflagged parameters and optimizer states are resident unless every block that touches them first defines them
//    anew in every micro-batch (a gathered ZeRO-3 parameter): then they come and go with the block. Gradients likewise,
//    where accumulating into a gradient that no earlier block touched defines it: one that the backward begins and a
//    split weight gradient goes on with is one buffer, to which all micro-batches add. A piece without flat buffers
//    keeps the gradients that nothing reads.
//  - Activations, communication buffers and workspace are kept for the next block that uses them without defining them
//    anew, else they come and go. Used by the update as well as by another block, or written only in some micro-batches
//    but read in all: resident. So is what lies beyond the device and nothing writes first.
//  - What neighbours take (Piece::output, Piece::input_gradient, side streams') outlives the block that hands it on.
//  - Of what is lent to other pieces of the stage (Tensor::lent), gathered parameters stay from the forward to the end of
//    the backward, and gradients that come and go have been begun by another piece when the backward begins.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/program/piece.h"

namespace orrery {

// The blocks of a piece in the order in which a step runs them.
inline constexpr std::array<Block Piece::*, 4> kBlocks{&Piece::forward, &Piece::backward, &Piece::weight_gradient,
                                                       &Piece::update};
inline constexpr std::array<const char*, kBlocks.size()> kBlockNames{"forward", "backward", "weight_gradient",
                                                                     "update"};
inline constexpr std::size_t kForwardBlock = 0, kBackwardBlock = 1, kWeightGradientBlock = 2, kUpdateBlock = 3;
using BlockSet = std::uint8_t;
constexpr BlockSet bit_of_block(std::size_t block) { return static_cast<BlockSet>(1u << block); }

enum class Keeper : std::uint8_t {
  blocks,  // comes and goes
  step,    // resident
  others,  // another piece keeps it, or the stream that it is a part of
};

// Of a storage.
struct Life {
  std::array<std::uint16_t, kBlocks.size()> first{}, last{};  // op of each block that touches it first, last
  BlockSet touched = 0;
  BlockSet defined = 0;    // of those: whose first access is a definition
  BlockSet enters = 0;     // that begin with it alive
  BlockSet kept = 0;       // that end with it alive, for a later block
  BlockSet handed_on = 0;  // that end with it alive, for a neighbour
  Keeper keeper = Keeper::blocks;
  bool read = false;
  bool lent = false;           // other pieces of the stage use it (Tensor::lent)
  bool conditional = false;    // first written only in some micro-batches
  bool unconditional = false;  // touched in every micro-batch

  bool touches(std::size_t block) const { return (touched & bit_of_block(block)) != 0; }
  bool defines(std::size_t block) const { return (defined & bit_of_block(block)) != 0; }
  bool enters_block(std::size_t block) const { return (enters & bit_of_block(block)) != 0; }
  bool outlives(std::size_t block) const { return ((kept | handed_on) & bit_of_block(block)) != 0; }
};

// Keeps its storage between calls, so that a search does not allocate.
class Liveness {
 public:
  // Cost: linear in ops and tensors.
  void find(const Piece& piece);

  // Of each tensor: the storage that it lives in, named by the tensor that is no view.
  std::span<const TensorId> storage() const { return storage_; }
  TensorId storage(TensorId id) const { return storage_[id]; }
  std::span<const TensorId> storages() const { return storages_; }  // ascending
  // REQUIRES: a storage's, not a view's.
  const Life& of(TensorId storage) const { return lives_[storage]; }

 private:
  void end(const Piece& piece, TensorId id);

  std::vector<TensorId> storage_, storages_;
  std::vector<Life> lives_;
};

}  // namespace orrery
