// Bytes that the blocks of a piece hold: what stays, what is saved from forward to backward, what comes and goes inside
// a block. Everything follows from first definition and last use; nothing is declared.
//
// A storage is a tensor with all its views; it lives from its first definition to the last use of any of them, in the
// order of the ops. What is held beyond a block:
//  - Tensors flagged resident: all step long. Flagged shared: nothing here.
//  - Unflagged parameters and optimizer states are resident unless every block that touches them first defines them
//    anew in every micro-batch (a gathered ZeRO-3 parameter): then they come and go with the block. Gradients likewise,
//    where accumulating into a gradient that no earlier block touched defines it. A piece without flat buffers keeps
//    the gradients that nothing reads.
//  - Activations, communication buffers and workspace are saved when the forward defines and the backward uses them
//    without defining them anew, else they come and go. Used by the update as well as by another block, or written only
//    in some micro-batches but read in all: resident. So is what lies beyond the device and nothing writes first.
//  - piece.input is the consumer's: saved if its backward reads it. piece.output lives to the end of the forward and is
//    saved only if the piece's own backward reads it. Inputs of side streams are held once for all instances
//    that read them.
//
// Places are counted apart, each at its own worst instant.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/program/placed_bytes.h"
#include "sim/program/program.h"

namespace orrery {

// Each place's bytes where they add up to more than those kept so far; the two need not be of one instant.
class Fullest {
 public:
  void consider(const PlacedBytes& bytes);
  const PlacedBytes& bytes() const { return bytes_; }  // zero while nothing has been considered

 private:
  std::array<double, kPlaces> most_{};
  bool any_ = false;
  PlacedBytes bytes_{};
};

struct PieceMemory {
  PlacedBytes resident{};  // parameters, gradients, optimizer state: all step long
  PlacedBytes saved{};  // defined by forward, last used by backward (or weight_gradient): per micro-batch in flight
  PlacedBytes saved_side_input{};       // the side input, if the backward reads it: once for all instances of a chunk
  PlacedBytes saved_weight_gradient{};  // of `saved` plus the output gradients: held until weight_gradient has run
  // Above what is saved, at the worst instant inside the block (of each place, the sum of categories at that one
  // instant). A category may be negative: the backward frees saved tensors before that instant, the forward has yet to
  // define them.
  PlacedBytes forward_transient{}, backward_transient{}, weight_gradient_transient{}, update_transient{};
};

// Storage of piece_memory(), kept between calls so that a search does not allocate.
struct MemoryScratch {
  // Of each tensor that is not a view. Sets of blocks are bits: forward 1, backward 2, weight_gradient 4, update 8.
  struct Storage {
    double bytes = 0;
    std::array<std::uint16_t, 4> first{}, last{};  // op of each block that touches it first, last
    TensorId next_start = kNoTensor, next_end = kNoTensor;  // in the lists below
    std::uint8_t touched = 0;
    std::uint8_t defined = 0;     // the first access in the block is a full definition
    std::uint8_t enters = 0;      // alive at the beginning of the block
    std::uint8_t outlives = 0;    // alive at the end of the block
    bool comes_and_goes = false;  // neither resident nor another piece's
    bool read = false;
    bool conditional = false;    // first written only in some micro-batches
    bool unconditional = false;  // touched in every micro-batch
  };
  std::vector<TensorId> root;
  std::vector<Storage> storages;
  std::array<std::vector<TensorId>, 4> entering;  // alive at the beginning of each block
  std::vector<TensorId> starts, ends;             // by op of a block: the first storage whose life begins, ends there
};

// Each storage is rounded up to its place's granularity. `instances`: in the piece's longest run; bounds how many instances' buffers
// wait for a bucket to fill or are gathered ahead. Cost: linear in ops and tensors.
PieceMemory piece_memory(const Piece& piece, const Granularity& granularity, std::int64_t instances = 1);
PieceMemory piece_memory(const Piece& piece, const Granularity& granularity, std::int64_t instances,
                         MemoryScratch& scratch);

}  // namespace orrery
