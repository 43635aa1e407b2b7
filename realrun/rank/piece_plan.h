// What a rank knows of a piece before it runs it: where its tensors lie, when they begin and end, which ops are issued
// ahead, what of its parameters the rank holds. A pure function of the Program and the rank's position; the same for
// all instances and micro-batches.
#pragma once

#include <array>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "realrun/layout.h"
#include "realrun/rank/run_setup.h"
#include "sim/program/issue.h"
#include "sim/program/step_end.h"

namespace orrery::realrun {

// The number of the set to which a buffer of the update belongs. Throws ExecutionError where there is none.
std::size_t set_number(const Piece& piece, TensorId buffer);
inline bool is_vocabulary_table(const Tensor& t) { return t.rank == 2 && t.axes[0] == Axis::vocab; }

// Of a parameter set what a rank updates: all of it, or its part; of a frozen one, which has no gradients, what it has.
struct HeldSet {
  TensorId parameters = kNoTensor, gradients = kNoTensor;
  std::int64_t begin = 0, elements = 0;  // where the part begins in the whole flat buffers; elements of the whole
};

class PiecePlan {
 public:
  PiecePlan(const Piece& piece, const Program& program, Position position, const SequenceLengths& sequences);

  const Piece& piece() const { return *piece_; }
  const Tensor& tensor(TensorId id) const { return piece_->tensors[id]; }
  const std::vector<Op>& ops(std::size_t block) const { return (piece_->*kBlocks[block]).ops; }
  std::int64_t sequence() const { return sequence_; }  // whole length of those that it works on

  // Where tensors lie. Views stay where they are as long as the plan lives (Slice::index).
  const View& view(TensorId id) const { return views_[id]; }
  TensorId root(TensorId id) const { return views_[id].root; }
  std::int64_t capacity(TensorId storage) const { return capacity_[storage]; }  // of elements

  // Whether a storage lives for the whole run, not for a micro-batch; whether it ends once the block has handed it on.
  bool lasts(TensorId storage) const { return lives_.of(storage).keeper == Keeper::step; }
  bool ends_handed_on(TensorId storage, std::size_t block) const;
  // Storages that nothing uses behind the op, here or at a neighbour; those that last, but begin anew there: gradients
  // of all micro-batches in one buffer that is reduced in each.
  std::span<const TensorId> ends(std::size_t block, std::size_t op) const { return ends_[block][op]; }
  std::span<const TensorId> begin_anew(std::size_t block, std::size_t op) const { return begin_anew_[block][op]; }
  // Whether any op adds to what a storage holds (Op::accumulate): it begins at zero.
  bool begins_at_zero(TensorId storage) const { return added_to_[storage]; }

  bool is_ahead(std::size_t block, std::size_t op) const { return !ahead_[block].empty() && ahead_[block][op] != 0; }
  std::int64_t longest_ahead(std::size_t block) const;
  std::size_t issues_ahead_from(std::size_t block) const { return orrery::issues_ahead_from(ops(block)); }

  std::span<const HeldSet> held() const { return held_; }  // by set
  std::pair<std::size_t, std::size_t> update_range(UpdatePart part) const { return update_.range(part); }
  // The update's first op behind which gradients are no longer as they were summed: the norm, or what follows it.
  std::size_t norm_begin() const;
  // What a set's held gradients are still multiplied by behind that, or where the host has a copy, but for clipping:
  // the inverse of a loss scale.
  double factor_behind_norm(std::size_t set) const;

  // Sums gradients in a buffer that no op fills; of each set the elements of the held gradients that lie in the buffer.
  bool is_packed_reduction(const Op& op) const { return is_communication(op.kind) && packed_.contains(op.reads[0]); }
  const std::vector<std::vector<std::int64_t>>& packed(const Op& op) const { return packed_.at(op.reads[0]); }

  // Sums the ranks' gradient norms; of one instance those of its sets, or of its parts (gradient_norm.h).
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
  std::vector<View> views_;
  std::vector<std::int64_t> capacity_;  // of each storage: shards may reach beyond the buffer they divide
  Liveness lives_;
  UpdateParts update_;
  ByOp ends_, begin_anew_;
  std::array<std::vector<std::uint8_t>, kBlocks.size()> ahead_;  // by block and op; empty: none
  std::vector<HeldSet> held_;
  std::map<TensorId, std::vector<std::vector<std::int64_t>>> packed_;  // by buffer
  std::vector<bool> of_norm_;   // by storage: holds the gradient norm, or parts of it
  std::vector<bool> added_to_;  // by storage
};

}  // namespace orrery::realrun
