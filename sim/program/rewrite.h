// Helpers for passes that rewrite blocks of ops.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "sim/program/piece.h"

namespace orrery {

// Whether the piece is a seam: it takes the residual stream and also embeds other tokens, with which the model goes on.
// These are the tokens of a second stack, or the next tokens of multi-token prediction.
inline bool is_seam(const Piece& piece) {
  return piece.sides[kEncoderOutput].output != kNoTensor || piece.sides[kLastState].output != kNoTensor;
}

// Whether the piece takes the residual stream and hands it on: not an end of the model and not a seam. Joints do, too.
inline bool is_layer(const Piece& piece) {
  return piece.input != kNoTensor && piece.output != kNoTensor && !is_seam(piece);
}

// Whether the piece only redistributes the residual stream, between pieces that lay it out differently.
inline bool is_joint(const Piece& piece) {
  return piece.forward.ops.size() == 1 && piece.forward.ops.front().kind == OpKind::redistribute;
}

inline void replace_reads(Op& op, TensorId from, TensorId to) {
  std::replace(op.reads.begin(), op.reads.end(), from, to);
}

// The tensor that owns the memory of `id`: itself, or the tensor that it is a view of.
inline TensorId storage_of(const Piece& piece, TensorId id) {
  while (piece.tensors[id].alias_of != kNoTensor) id = piece.tensors[id].alias_of;
  return id;
}

// A set of the storages of a piece's tensors: a view is in it with the tensor that owns its memory. A tensor that the
// piece gets after the set was made is not in it, and must not be added.
class Storages {
 public:
  explicit Storages(const Piece& piece) : piece_(piece), in_(piece.tensors.size()) {}

  // kNoTensor is in no set.
  void add(TensorId id) {
    if (id != kNoTensor) in_[storage_of(piece_, id)] = 1;
  }
  template <class Ids>
  void add_all(const Ids& ids) {
    for (const TensorId id : ids) add(id);
  }
  bool has(TensorId id) const {
    if (id == kNoTensor) return false;
    const TensorId storage = storage_of(piece_, id);
    return storage < in_.size() && in_[storage] != 0;
  }
  template <class Ids>
  bool has_any(const Ids& ids) const {
    return std::ranges::any_of(ids, [&](TensorId id) { return has(id); });
  }

 private:
  const Piece& piece_;
  std::vector<std::uint8_t> in_;
};

// Adds a tensor with the shape, dtype and layout of `id`, not a view. It holds no data until an op writes it.
inline TensorId clone_tensor(Piece& piece, TensorId id) {
  const TensorId clone = piece.add(piece.tensors[id]);
  Tensor& t = piece.tensors[clone];
  t.alias_of = kNoTensor;
  t.input = Input::none;
  t.resident = t.shared = t.lent = false;
  return clone;
}
// Returns a tensor with the shape and layout of `like`, which is not a view and lives from its definition to its last
// use.
inline Tensor tensor_like(Tensor like, const char* name, Category category, Dtype dtype) {
  like.alias_of = kNoTensor;
  like.alias_begin = 0;
  like.input = Input::none;
  like.resident = like.shared = like.lent = like.common = false;
  like.name = name;
  like.category = category;
  like.dtype = dtype;
  return like;
}
inline TensorId clone_tensor(Piece& piece, TensorId id, const char* name, Category category, Dtype dtype) {
  return piece.add(tensor_like(piece.tensors[id], name, category, dtype));
}

// Adds a view of `base` from its element `begin` on, with the shape and layout of `of`.
inline TensorId view_of(Piece& piece, TensorId base, std::int64_t begin, const Tensor& of) {
  const Tensor& whole = piece.tensors[base];
  Tensor t = tensor_like(of, whole.name, whole.category, whole.dtype);
  t.alias_of = base;
  t.alias_begin = begin;
  return piece.add(t);
}

// The parameter set whose flat buffer of parameters or gradients is `id`: this rank's part of the buffer, or a copy of
// it in another place. Null for any other tensor.
inline const ParameterSet* set_of(const Piece& piece, TensorId id) {
  const auto holds = [&](TensorId buffer) -> const ParameterSet* {
    for (const ParameterSet& set : piece.sets)
      for (const TensorId part : {set.parameters, set.gradients, set.own_parameters, set.own_gradients})
        if (part != kNoTensor && part == buffer) return &set;
    return nullptr;
  };
  if (const ParameterSet* set = holds(id)) return set;
  for (const Block* block : {&piece.backward, &piece.weight_gradient, &piece.update})
    for (const Op& op : block->ops) {
      if (op.kind != OpKind::copy || (op.reads[0] != id && op.writes[0] != id)) continue;
      if (const ParameterSet* set = holds(op.reads[0] == id ? op.writes[0] : op.reads[0])) return set;
    }
  return nullptr;
}

// The parameter whose gradient is `id`, or contains it as a view; null for any other tensor.
inline const ParameterGradient* parameter_of_gradient(const Piece& piece, TensorId id) {
  for (; id != kNoTensor; id = piece.tensors[id].alias_of)
    for (const ParameterGradient& p : piece.parameters)
      if (p.gradient == id) return &p;
  return nullptr;
}

// Splits each parameter set by a key: parameters of a set that have the same key stay in one set. Numbers the new sets
// (ParameterGradient::set) by old set, then by key. Leaves out shared parameters. REQUIRES: Piece::sets is empty.
template <class Key>
void split_sets(Piece& piece, Key key) {
  const auto part_of = [&](const ParameterGradient& p) { return std::pair(p.set, key(p)); };
  std::vector<decltype(part_of(piece.parameters.front()))> parts;
  for (const ParameterGradient& p : piece.parameters)
    if (!piece.tensors[p.parameter].shared) parts.push_back(part_of(p));
  std::ranges::sort(parts);
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
  for (ParameterGradient& p : piece.parameters)
    if (!piece.tensors[p.parameter].shared)
      p.set = static_cast<std::uint8_t>(std::ranges::find(parts, part_of(p)) - parts.begin());
}
inline bool is_frozen(const ParameterGradient& p) { return p.gradient == kNoTensor; }

// Returns how many elements of a tensor every rank has if a dimension is dealt by query heads (Deal::query_heads):
// those of the key and value. For any other tensor it returns the number of all elements.
inline std::int64_t elements_behind_query_heads(const Tensor& t) {
  for (int d = 0; d < t.rank; ++d)
    if (t.deal(d) == Deal::query_heads) return t.elements() / t.sizes[d] * t.kept;
  return t.elements();
}

// The number of elements that a rank packs into a buffer. If gradients are divided into shards, it is the mean over the
// shards of each set, rounded up.
inline std::int64_t packed_elements(const Mesh& mesh, const Piece& piece, const PackedGradients& packed) {
  std::int64_t all = 0;
  for (std::size_t s = 0; s < piece.sets.size(); ++s) {
    if (piece.sets[s].frozen()) continue;
    std::int64_t elements = 0;
    for (const TensorId id : packed.gradients) {
      const ParameterGradient* p = parameter_of_gradient(piece, id);
      if (p == nullptr || p->set != s) continue;
      const Tensor& t = piece.tensors[id];
      // Rows of a table, counted for all the ranks that look into it.
      const MeshGroup rows = t.divided_over().without(piece.tensors[p->gradient].divided_over());
      elements += (packed.shared_heads ? elements_behind_query_heads(t) : t.elements()) * mesh.size(rows);
    }
    const std::int64_t parts = mesh.size(piece.tensors[piece.sets[s].gradients].divided_over());
    all += (elements + parts - 1) / parts;
  }
  return all;
}

// Whether a gradient_norm op writes `id`: the square of this rank's norm of some or all gradients, or several squares.
// The sum over the ranks is another tensor.
inline bool is_gradient_norm(const Piece& piece, TensorId id) {
  const TensorId root = storage_of(piece, id);
  for (const Block* block : {&piece.forward, &piece.backward, &piece.weight_gradient, &piece.update})
    for (const Op& op : block->ops)
      if (op.kind == OpKind::gradient_norm && storage_of(piece, op.writes[0]) == root) return true;
  return false;
}

// Codes of numbers and their scales (OpKind::quantise).
struct Coded {
  TensorId codes = kNoTensor, scales = kNoTensor;
};
// Adds codes of this dtype, of which at most `group` share a scale. `like`: their shape and layout; its last dimension
// counts numbers.
inline Coded add_codes(Piece& piece, const Tensor& like, Dtype dtype, std::int64_t group, const char* codes,
                       const char* scales) {
  const TensorId id = piece.add(tensor_like(like, codes, Category::communication_buffer, dtype));
  Tensor scale = tensor_like(like, scales, Category::communication_buffer, Dtype::fp32);
  std::int64_t& numbers = scale.sizes[static_cast<std::size_t>(scale.rank - 1)];
  numbers = (numbers + group - 1) / group;
  return {id, piece.add(scale)};
}
// Keeps what a quantiser's codes lose, and adds it to the numbers of the next ones. `like`: the layout of the numbers.
// Returns the error, a state of the optimizer.
inline TensorId feed_back(Piece& piece, Op& quantiser, const Tensor& like, const char* name, Dtype dtype) {
  const TensorId error = piece.add(tensor_like(like, name, Category::optimizer_state, dtype));
  piece.tensors[error].resident = true;
  return quantiser.reads[error_read(quantiser.kind)] = quantiser.writes[kErrorWrite] = error;
}

// with_contributions() puts a dimension of Axis::contributions in front of `t`; without_contributions() takes it off.
// REQUIRES: fewer than Tensor::kMaxRank dimensions, none of them dealt.
inline Tensor with_contributions(Tensor t, std::int64_t ranks) {
  std::rotate(t.sizes.begin(), t.sizes.end() - 1, t.sizes.end());
  std::rotate(t.axes.begin(), t.axes.end() - 1, t.axes.end());
  std::rotate(t.over.begin(), t.over.end() - 1, t.over.end());
  t.sizes[0] = ranks, t.axes[0] = Axis::contributions, t.over[0] = {};
  ++t.rank;
  return t;
}
inline Tensor without_contributions(Tensor t) {
  t.sizes[0] = 1, t.axes[0] = Axis::none, t.over[0] = {};
  std::rotate(t.sizes.begin(), t.sizes.begin() + 1, t.sizes.end());
  std::rotate(t.axes.begin(), t.axes.begin() + 1, t.axes.end());
  std::rotate(t.over.begin(), t.over.begin() + 1, t.over.end());
  --t.rank;
  return t;
}

// A kernel on the compute stream. `reads`, `writes`: the op's first ones; the rest stay kNoTensor.
inline Op computation(OpKind kind, const char* name, Phase phase, std::initializer_list<TensorId> reads,
                      std::initializer_list<TensorId> writes) {
  Op op;
  op.kind = kind;
  op.phase = phase;
  op.name = name;
  std::ranges::copy(reads, op.reads.begin());
  std::ranges::copy(writes, op.writes.begin());
  return op;
}

// The op, once for all instances of a stretch: on the flat buffers of all layers at once.
inline Op for_all_instances(Op op) {
  op.every = kAllInstances;
  return op;
}

inline Op communication(OpKind kind, const char* name, Phase phase, Stream stream, MeshGroup group, TensorId read,
                        TensorId write) {
  Op op;
  op.kind = kind;
  op.name = name;
  op.phase = phase;
  op.stream = stream;
  op.group = group;
  op.reads[0] = read;
  op.writes[0] = write;
  return op;
}

// A kernel of the update on whole flat buffers, once for all instances.
inline Op over_buffers(OpKind kind, const char* name, std::initializer_list<TensorId> reads,
                       std::initializer_list<TensorId> writes) {
  return for_all_instances(computation(kind, name, Phase::update, reads, writes));
}

// Returns the pass over gradients that does what an update would: divides by the loss scale, and clips. None: it does
// neither.
inline std::optional<Op> unscaling_of(const Op& update) {
  const TensorId norm = update.reads[static_cast<std::size_t>(norm_operand(update.kind))];
  if (update.scale == 1 && norm == kNoTensor) return std::nullopt;
  Op pass = computation(OpKind::scale, "unscale_and_clip", Phase::update, {update.reads[0]}, {update.reads[0]});
  pass.scale = update.scale;
  pass.clip_limit = update.clip_limit;
  pass.reads[static_cast<std::size_t>(norm_operand(OpKind::scale))] = norm;
  return pass;
}

// Sums gradients over a group once a step, packed into a buffer of their own: they may be divided into shards by then.
// `elements`: of all of them. Does nothing without any.
inline void sum_packed(Piece& piece, PackedGradients packed, const char* name, const char* op_name, Stream stream,
                       MeshGroup group, std::int64_t elements) {
  if (elements == 0) return;
  Tensor t;
  t.name = name;
  t.category = Category::communication_buffer;
  t.dtype = piece.tensors[packed.gradients.front()].dtype;
  t.rank = 1;
  t.sizes[0] = elements;
  const TensorId id = packed.buffer = piece.add(t);
  piece.packed.push_back(std::move(packed));
  piece.update.ops.push_back(
      for_all_instances(communication(OpKind::all_reduce, op_name, Phase::update, stream, group, id, id)));
}

// Casts of one tensor, one after another, are one kernel with several results: the later ones do not read it again.
inline void join_casts(Block& block) {
  for (std::size_t i = 1; i < block.ops.size(); ++i) {
    const Op& before = block.ops[i - 1];
    Op& op = block.ops[i];
    if (op.kind == OpKind::cast && before.kind == OpKind::cast && op.reads[0] == before.reads[0] && !op.accumulate &&
        op.when == before.when && op.phase == before.phase)
      op.passes = 0;
  }
}

// Adds one number in fp32 for a block.
inline TensorId add_number(Piece& piece, const char* name) {
  Tensor number;
  number.name = name;
  number.category = Category::workspace;
  number.dtype = Dtype::fp32;
  number.append({1, Axis::none});
  return piece.add(number);
}

// Adds ops that compute the square of the norm of `buffers`, one of each trained set in their order, and returns the
// tensor with the square over all ranks. `sum`: the all-reduce over the ranks that hold other parts, without operands.
inline TensorId add_norm(Piece& piece, std::span<const TensorId> buffers, const char* name, Op sum,
                         std::vector<Op>& ops) {
  const TensorId local = add_number(piece, name), all_ranks = add_number(piece, name);
  const auto add = [&](TensorId of, TensorId to) {
    ops.push_back(over_buffers(OpKind::gradient_norm, name, {of}, {to}));
  };
  if (buffers.size() == 1) {
    add(buffers.front(), local);
  } else {
    Tensor square = piece.tensors[local], squares = square;
    squares.sizes[0] = static_cast<std::int64_t>(buffers.size());
    square.alias_of = piece.add(squares);
    for (const TensorId buffer : buffers) {
      add(buffer, piece.add(square));
      ++square.alias_begin;
    }
    add(square.alias_of, local);
  }
  sum.reads[0] = local;
  sum.writes[0] = all_ranks;
  ops.push_back(for_all_instances(sum));
  return all_ranks;
}

}  // namespace orrery
