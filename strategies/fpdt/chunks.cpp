#include "strategies/fpdt/chunks.h"

#include <algorithm>

#include "strategies/storages.h"

namespace orrery::fpdt {
namespace {

template <class Visit>
void for_each_operand(const Op& op, Visit visit) {
  for (const TensorId id : op.reads)
    if (id != kNoTensor) visit(id);
  for (const TensorId id : op.writes)
    if (id != kNoTensor) visit(id);
}

}  // namespace

Region ops_along(const Piece& piece, Axis axis) {
  Region region;
  const auto find = [&](const Block& block, std::vector<std::size_t>& found) {
    for (std::size_t i = 0; i < block.ops.size(); ++i) {
      bool any = false;
      for_each_operand(block.ops[i], [&](TensorId id) {
        const Tensor& t = piece.tensors[id];
        any = any || (t.find(axis) >= 0 && t.find(Axis::sequence) >= 0);
      });
      if (any) found.push_back(i);
    }
  };
  find(piece.forward, region.forward);
  find(piece.backward, region.backward);
  return region;
}

Inside::Inside(const Piece& piece, const Region& region) : inside_(piece.tensors.size()) {
  const auto mark = [&](const Block& block, const std::vector<std::size_t>& ops, bool in_region) {
    for (std::size_t i = 0; i < block.ops.size(); ++i)
      if (std::ranges::binary_search(ops, i) == in_region)
        for_each_operand(block.ops[i], [&](TensorId id) { inside_[storage_of(piece, id)] = in_region ? 1 : 0; });
  };
  mark(piece.forward, region.forward, true);
  mark(piece.backward, region.backward, true);
  mark(piece.forward, region.forward, false);
  mark(piece.backward, region.backward, false);
  const auto handed = [&](TensorId id) {
    if (id != kNoTensor) inside_[storage_of(piece, id)] = 0;
  };
  for (const TensorId id : {piece.input, piece.output, piece.input_gradient, piece.output_gradient}) handed(id);
  for (const SideStream& side : piece.sides)
    for (const TensorId id : {side.input, side.output, side.input_gradient, side.output_gradient}) handed(id);
  for (std::size_t id = 0; id < inside_.size(); ++id)
    if (piece.tensors[id].input != Input::none) handed(static_cast<TensorId>(id));
}

bool Inside::contains(const Piece& piece, TensorId id) const {
  const TensorId root = storage_of(piece, id);
  return root < inside_.size() && inside_[root] != 0;
}

SequenceChunk::SequenceChunk(Piece& piece, const Inside& inside, std::int64_t count, std::int64_t index,
                             std::int64_t ranks, bool of_sequence)
    : piece_(&piece),
      inside_(&inside),
      count_(count),
      index_(index),
      ranks_(ranks),
      of_sequence_(of_sequence),
      parts_(piece.tensors.size(), kNoTensor) {}

void SequenceChunk::cut(Tensor& t) const {
  const int d = t.find(Axis::sequence);
  t.sizes[d] /= count_;
  t.set_deal(d, Deal::contiguous);
  if (of_sequence_) t.sequence_begin = index_ * t.sizes[d] * ranks_;
}

TensorId SequenceChunk::part(TensorId id) {
  if (id == kNoTensor || piece_->tensors[id].find(Axis::sequence) < 0) return id;
  if (has(id)) return parts_[id];
  Tensor t = piece_->tensors[id];
  if (!inside_->contains(*piece_, id)) {
    t.alias_of = id;
    t.alias_begin = index_ * (t.sizes[t.find(Axis::sequence)] / count_);
    t.input = Input::none;
  } else if (t.alias_of != kNoTensor) {
    t.alias_of = part(t.alias_of);
  }
  t.resident = t.shared = t.lent = false;
  cut(t);
  const TensorId made = piece_->add(t);
  parts_[id] = made;
  return made;
}

Op SequenceChunk::part(Op op) {
  for (TensorId& id : op.reads) id = part(id);
  for (TensorId& id : op.writes) id = part(id);
  return op;
}

void replace(Block& block, const Piece& piece, const std::vector<std::size_t>& region, const std::vector<Op>& by) {
  if (region.empty()) return;
  Storages waits(piece);  // those that do not exist before the region has run
  std::vector<Op> ops, behind;
  for (std::size_t i = 0; i < block.ops.size(); ++i) {
    const Op& op = block.ops[i];
    if (std::ranges::binary_search(region, i)) {
      waits.add_all(op.writes);
      if (i == region.back()) {
        ops.insert(ops.end(), by.begin(), by.end());
        ops.insert(ops.end(), behind.begin(), behind.end());
      }
      continue;
    }
    const bool between = i > region.front() && i < region.back();
    const bool late = between && waits.has_any(op.reads);
    if (late) waits.add_all(op.writes);
    (late ? behind : ops).push_back(op);
  }
  block.ops = std::move(ops);
}

}  // namespace orrery::fpdt
