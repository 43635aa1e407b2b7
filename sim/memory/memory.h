// Bytes that the blocks of a piece hold: resident ones, those saved from forward to backward, and those that live
// inside a block. All follow from the lives of the piece's storages (sim/program/liveness.h).
//
//  - A storage is saved if the forward defines it and the backward (or the weight gradient) uses it without defining it
//    anew.
//  - piece.input belongs to the piece that consumes it: it is saved if that piece's backward reads it. piece.output
//  lives
//    to the end of the forward and is saved only if the piece's own backward reads it. Inputs of side streams are held
//    once for all instances that read them.
//  - Storages that pieces of a stage share (Tensor::lent) are counted with the lender. The chunk decides how long other
//    pieces hold them.
//
// Each place is counted by itself, at its own worst instant.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/program/liveness.h"
#include "sim/program/program.h"
#include "sim/program/tensor.h"

namespace orrery {

// For each place, the bytes at the instant at which their sum was largest so far; the instants of two places may
// differ.
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
  PlacedBytes resident{};               // parameters, gradients, optimizer state: for the whole step
  PlacedBytes saved{};                  // from forward to backward (or weight_gradient): per micro-batch in flight
  PlacedBytes saved_side_input{};       // side inputs that the backward reads: once for all instances
  PlacedBytes saved_weight_gradient{};  // of `saved` plus the output gradients: held until weight_gradient has run
  // Bytes in addition to the saved ones, at the worst instant inside the block. For each place, the categories are
  // those at that one instant. A category may be negative: at that instant the backward has freed saved tensors, or the
  // forward has not yet defined them.
  PlacedBytes forward_transient{}, backward_transient{}, weight_gradient_transient{}, update_transient{};
  // Non-resident gradients that are lent. The last piece of the chunk that shares them begins them. They are held
  // through the backward of every piece before it, down to this piece, whose transient includes them.
  bool lends_gradients = false;
  PlacedBytes lent_gradients{};
  // For a piece that shares gradients of another: its backward's transient before it first adds to them, and from then
  // on, both without these gradients.
  bool shares_gradients = false;
  PlacedBytes backward_before_shared{}, backward_from_shared{};
};

// Working storage of piece_memory(), kept between calls so that a search does not allocate.
struct MemoryScratch {
  struct Storage {
    double bytes = 0;
    TensorId next_start = kNoTensor, next_end = kNoTensor;  // links of the lists `starts` and `ends`
  };
  Liveness lives;
  std::vector<Storage> storages;                               // by tensor; valid for storages, not for views
  std::vector<TensorId> passing;                               // storages that are neither resident nor another piece's
  std::array<std::vector<TensorId>, kBlocks.size()> entering;  // by block: storages alive at its beginning
  std::vector<TensorId> starts, ends;  // by op of a block: the first storage whose life begins, ends there
};

// Each storage is rounded up to its place's granularity. `instances`: number of instances in the piece's longest run;
// it bounds how many instances' buffers wait for a bucket to fill or are gathered ahead. Cost: linear in ops and
// tensors.
PieceMemory piece_memory(const Piece& piece, const Granularity& granularity, std::int64_t instances = 1);
PieceMemory piece_memory(const Piece& piece, const Granularity& granularity, std::int64_t instances,
                         MemoryScratch& scratch);

// Memory that follows from how a training stack works, as Program::runtime describes it: buffers that a rank of a
// pipeline stage holds beside the tensors of its pieces, and tensors that it holds for a part of the step only.

struct StageBuffers {
  PlacedBytes resident{};  // held for the whole run
  double backward = 0;     // bytes on the device while a backward runs, or the weight gradients of a split one
  double update = 0;       // the most bytes on the device while parameters are updated
};
// `stage`: the chunks of one stage, an element of Program::stages.
StageBuffers stage_buffers(const Program& program, std::span<const Chunk> stage);

// Bytes of an instance's whole gradients on the device beyond the part of them that the rank keeps. They are held from
// a chunk's first backward to its last one. 0 unless Runtime::releases_gradients.
double released_gradient_bytes(const Program& program, const Piece& piece);

// Bytes of the output that a chunk has sent to the next stage and holds until its backward (Runtime::sent_outputs).
// `position`: the chunk's place in the model. 0 for the model's last chunk, where the stack frees the output at once,
// and where the backward needs the output anyway, so that it is counted already.
double sent_output_bytes(const Program& program, const Chunk& chunk, std::int64_t position);

}  // namespace orrery
