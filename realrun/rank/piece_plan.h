// What a rank knows of a piece before it runs it: where tensors lie, when their lives begin and end, which ops are
// issued ahead, and which part of the parameters the rank holds. It depends only on the Program and the rank's
// position, and is the same for all instances and micro-batches.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "realrun/executor.h"
#include "realrun/layout.h"
#include "realrun/rank/carried_state.h"
#include "sim/program/issue.h"
#include "sim/program/step_end.h"

namespace orrery::realrun {

// Sequence lengths in positions: of the whole model, and of the decoder, which the loss is computed on.
struct SequenceLengths {
  std::int64_t whole = 0, decoder = 0;
};

// The arguments of a run of one Program, the same for all ranks.
// REQUIRES: all references outlive the ranks; `program` and `parameters` belong to `scenario`.
struct RunSetup {
  const Scenario& scenario;
  const Program& program;
  const ExecutionOptions& options;
  const std::vector<WholeParameter>& parameters;
  SequenceLengths sequences;
  // If not the run's first Program: the steps before it, warm-up included, and each parameter's number in the last one.
  std::int64_t first_step = 0;
  std::span<const CarriedParameter> carried = {};
};

inline constexpr std::int64_t kOfStep = -1;  // instead of a micro-batch's number: belongs to the step

// Returns the number of the set that a buffer of the update belongs to. Throws ExecutionError if there is none.
std::size_t set_number(const Piece& piece, TensorId buffer);
inline bool is_vocabulary_table(const Tensor& t) { return t.rank == 2 && t.axes[0] == Axis::vocab; }

// The part of a parameter set that a rank updates: all of it or its shard. A frozen set has no gradients; here it is
// the part that the rank has.
struct HeldSet {
  TensorId parameters = kNoTensor, gradients = kNoTensor;
  std::int64_t begin = 0, elements = 0;  // first element in the whole flat buffers; number of elements of the whole
  // The parameters in the whole flat buffers, in their order: all but tables that another piece stores.
  struct Flat {
    const ParameterGradient* parameter;
    std::size_t number;  // among the piece's parameters
    std::int64_t begin;
  };
  std::vector<Flat> flat = {};
};

class PiecePlan {
 public:
  PiecePlan(const Piece& piece, const Program& program, Position position, const SequenceLengths& sequences);

  const Piece& piece() const { return *piece_; }
  const Tensor& tensor(TensorId id) const { return piece_->tensors[id]; }
  const std::vector<Op>& ops(std::size_t block) const { return (piece_->*kBlocks[block]).ops; }
  std::int64_t sequence() const { return sequence_; }  // whole length of the piece's sequences

  // Where tensors lie. Views keep their addresses as long as the plan lives (Slice::index).
  const ElementMap& view(TensorId id) const { return views_[id]; }
  TensorId root(TensorId id) const { return views_[id].root; }
  std::int64_t capacity(TensorId storage) const { return capacity_[storage]; }  // in elements

  // lasts(): a storage lives for the whole run. ends_handed_on(): it ends when the block has handed it on.
  bool lasts(TensorId storage) const { return lives_.of(storage).keeper == Keeper::step; }
  bool ends_handed_on(TensorId storage, std::size_t block) const;
  // ends(): storages that no later op uses, here or in a neighbouring piece. begin_anew(): storages that last but are
  // zeroed after the op: a buffer for the gradients of all micro-batches that is reduced in each.
  std::span<const TensorId> ends(std::size_t block, std::size_t op) const { return ends_[block][op]; }
  std::span<const TensorId> begin_anew(std::size_t block, std::size_t op) const { return begin_anew_[block][op]; }
  // Whether any op adds to the storage (Op::accumulate), so that it begins at zero.
  bool begins_at_zero(TensorId storage) const { return added_to_[storage]; }

  bool is_ahead(std::size_t block, std::size_t op) const { return !ahead_[block].empty() && ahead_[block][op] != 0; }
  std::int64_t longest_ahead(std::size_t block) const;
  std::size_t issues_ahead_from(std::size_t block) const { return orrery::issues_ahead_from(ops(block)); }

  std::span<const HeldSet> held() const { return held_; }  // by set
  std::pair<std::size_t, std::size_t> update_range(UpdatePart part) const { return update_.range(part); }
  // Index of the update's first op after which gradients are no longer the sums: the norm, or what follows it.
  std::size_t norm_begin() const;
  // Factor that a set's held gradients, or the host's copy, need after norm_begin(), clipping aside: 1 / the loss
  // scale.
  double factor_behind_norm(std::size_t set) const;

  // is_packed_reduction(): the op sums gradients in a packed buffer that no op fills. packed(): for each set, the
  // elements of the held gradients that lie in the buffer.
  bool is_packed_reduction(const Op& op) const { return is_communication(op.kind) && packed_.contains(op.reads[0]); }
  const std::vector<std::vector<std::int64_t>>& packed(const Op& op) const { return packed_.at(op.reads[0]); }

  // reduces_norm(): the op sums the ranks' gradient norms. sums_norms(): one instance's over its sets or parts.
  bool reduces_norm(const Op& op) const { return is_communication(op.kind) && is_norm(op.reads[0]); }
  bool sums_norms(const Op& op) const { return op.kind == OpKind::gradient_norm && is_norm(op.reads[0]); }

 private:
  using ByOp = std::array<std::vector<std::vector<TensorId>>, kBlocks.size()>;  // by block and op

  void find_capacities(const Program& program);
  void find_held(const Position& position);
  void find_packed(const PackedGradients& packing, const Program& program);
  void find_ends();
  void find_added_to();
  bool is_norm(TensorId id) const { return of_norm_[root(id)]; }

  const Piece* piece_;
  std::int64_t sequence_ = 0;
  std::vector<ElementMap> views_;
  std::vector<std::int64_t> capacity_;  // by storage; a shard may reach beyond the end of the buffer that it divides
  Liveness lives_;
  UpdateParts update_;
  ByOp ends_, begin_anew_;
  std::array<std::vector<std::uint8_t>, kBlocks.size()> ahead_;  // by block and op; empty: none
  std::vector<HeldSet> held_;
  std::map<TensorId, std::vector<std::vector<std::int64_t>>> packed_;  // by buffer
  std::vector<bool> of_norm_;   // by storage: holds the gradient norm, or parts of it
  std::vector<bool> added_to_;  // by storage
};

// Returns the positions of a tensor along the sequence; none if it runs along another sequence than the piece's.
std::vector<std::int64_t> sequence_positions(const PiecePlan& plan, const Tensor& t, const Position& position);

}  // namespace orrery::realrun
