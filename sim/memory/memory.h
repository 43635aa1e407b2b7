// Bytes that the blocks of a piece hold: what stays, what is saved from forward to backward, what comes and goes inside
// a block. Everything follows from the lives of its storages (sim/program/liveness.h).
//
//  - A storage is saved when the forward defines and the backward (or the weight gradient) uses it without defining it
//    anew.
//  - piece.input is the consumer's: saved if its backward reads it. piece.output lives to the end of the forward and is
//    saved only if the piece's own backward reads it. Inputs of side streams are held once for all instances
//    that read them.
//  - What pieces of a stage share (Tensor::lent) is the lender's; how long others hold it is for the chunk to say.
//
// Places are counted apart, each at its own worst instant.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/program/liveness.h"
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
  PlacedBytes saved{};     // defined by forward, last used by backward (or weight_gradient): per micro-batch in flight
  PlacedBytes saved_side_input{};       // the side input, if the backward reads it: once for all instances of a chunk
  PlacedBytes saved_weight_gradient{};  // of `saved` plus the output gradients: held until weight_gradient has run
  // Above what is saved, at the worst instant inside the block (of each place, the sum of categories at that one
  // instant). A category may be negative: the backward frees saved tensors before that instant, the forward has yet to
  // define them.
  PlacedBytes forward_transient{}, backward_transient{}, weight_gradient_transient{}, update_transient{};
  // Gradients that come and go and are lent: begun by the last piece of the chunk that shares them, held from there
  // through the backward of every piece in front of it, down to this one (whose transient has them).
  bool lends_gradients = false;
  PlacedBytes lent_gradients{};
  // Of a piece that shares gradients: its backward's transient before it first adds to them, and from there on. Without
  // them.
  bool shares_gradients = false;
  PlacedBytes backward_before_shared{}, backward_from_shared{};
};

// Storage of piece_memory(), kept between calls so that a search does not allocate.
struct MemoryScratch {
  struct Storage {
    double bytes = 0;
    TensorId next_start = kNoTensor, next_end = kNoTensor;  // in the lists below
  };
  Liveness lives;
  std::vector<Storage> storages;                               // by tensor; of those that are no views
  std::vector<TensorId> passing;                               // that come and go
  std::array<std::vector<TensorId>, kBlocks.size()> entering;  // alive at the beginning of each block
  std::vector<TensorId> starts, ends;  // by op of a block: the first storage whose life begins, ends there
};

// Each storage is rounded up to its place's granularity. `instances`: in the piece's longest run; bounds how many
// instances' buffers wait for a bucket to fill or are gathered ahead. Cost: linear in ops and tensors.
PieceMemory piece_memory(const Piece& piece, const Granularity& granularity, std::int64_t instances = 1);
PieceMemory piece_memory(const Piece& piece, const Granularity& granularity, std::int64_t instances,
                         MemoryScratch& scratch);

}  // namespace orrery
