// When the storages of a piece begin and end to live, block by block. The memory prediction uses it, and the executor
// allocates and frees by it. Lifetimes follow from first definition and last use; nothing is declared.
//
// A storage is a tensor with all its views. It lives from its first definition to the last use of any view, in the
// order of the ops. A block defines a storage if the block's first op on it writes it without reading it or adding to
// it, and writes all of it, or a part that no earlier block has touched. Storages that outlive a block:
//  - Tensors flagged resident live for the whole step. Another piece keeps tensors flagged shared, and the inputs of
//    side streams.
//  - Unflagged parameters and optimizer states are resident, unless every block that touches them first defines them
//    anew in every micro-batch (a gathered ZeRO-3 parameter): then they live within the block. The same holds for
//    gradients. Accumulating into a gradient that no earlier block touched defines it: a gradient that the backward
//    begins and a split weight gradient continues is one buffer, to which all micro-batches add. A piece without flat
//    buffers keeps the gradients that nothing reads.
//  - Activations, communication buffers and workspace are kept for the next block that uses them without defining them
//    anew; if there is none, they live within the block. They are resident if the update and another block use them, or
//    if they are written only in some micro-batches but read in all. Tensors outside the device that no op writes
//    before they are read are resident, too.
//  - Tensors that neighbours take (Piece::output, Piece::input_gradient, those of side streams) outlive the block that
//    hands them on.
//  - Of the tensors lent to other pieces of the stage (Tensor::lent), gathered parameters live from the forward to the
//    end of the backward. Non-resident lent gradients have been begun by another piece when the backward begins.
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
  blocks,  // lives within blocks, or from one block to a later one
  step,    // resident: lives for the whole step
  others,  // kept by another piece, or by the stream that it is a part of
};

// The life of one storage.
struct Life {
  std::array<std::uint16_t, kBlocks.size()> first{}, last{};  // by block: index of the first, last op that touches it
  BlockSet touched = 0;
  BlockSet defined = 0;    // the blocks that define it: their first access is a definition
  BlockSet enters = 0;     // the blocks that begin with it alive
  BlockSet kept = 0;       // the blocks at whose end it lives on for a later block
  BlockSet handed_on = 0;  // the blocks at whose end it lives on for a neighbour
  Keeper keeper = Keeper::blocks;
  bool read = false;
  bool lent = false;           // other pieces of the stage use it (Tensor::lent)
  bool conditional = false;    // first written only in some micro-batches
  bool unconditional = false;  // touched in every micro-batch

  bool touches(std::size_t block) const { return (touched & bit_of_block(block)) != 0; }
  bool enters_block(std::size_t block) const { return (enters & bit_of_block(block)) != 0; }
  bool outlives(std::size_t block) const { return ((kept | handed_on) & bit_of_block(block)) != 0; }
};

// Keeps its storage between calls, so that a search does not allocate.
class Liveness {
 public:
  // Finds the lives of the piece's storages; the functions below tell of the last piece. Cost: linear in ops and
  // tensors.
  void find(const Piece& piece);

  // By tensor: the storage that it lives in, named by the tensor that is not a view.
  std::span<const TensorId> storage() const { return storage_; }
  TensorId storage(TensorId id) const { return storage_[id]; }
  std::span<const TensorId> storages() const { return storages_; }  // ascending
  // REQUIRES: `storage` is a storage, not a view.
  const Life& of(TensorId storage) const { return lives_[storage]; }

 private:
  void end(const Piece& piece, TensorId id);

  std::vector<TensorId> storage_, storages_;
  std::vector<Life> lives_;
};

}  // namespace orrery
