// The ops of a rank: operands bound to memory, kernels, collectives, copies.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "realrun/rank.h"
#include "sim/base/error.h"

namespace orrery::realrun {
namespace {

// The dimension along which a gather or scatter divides.
int divided_dimension(const Tensor& whole, const Tensor& part) {
  int found = -1;
  for (int d = 0; d < whole.rank; ++d)
    if (whole.sizes[d] != part.sizes[d]) {
      if (found >= 0)
        throw std::logic_error(std::string("a collective divides two dimensions of \"") + whole.name + "\"");
      found = d;
    }
  return std::max(found, 0);
}

// Flat buffers are padded to a multiple of the ranks.
void check_division(const Tensor& part, const Tensor& whole, int dim, std::int64_t ranks) {
  const std::int64_t parts = part.sizes[dim] * ranks;
  if (parts < whole.sizes[dim] || (whole.rank > 1 && parts != whole.sizes[dim]))
    throw std::logic_error(std::to_string(ranks) + " parts of \"" + part.name + "\" do not make \"" + whole.name +
                           "\"");
}

bool lies_part_after_part(const Tensor& whole, const Tensor& part, int dim) {
  for (int d = 0; d < dim; ++d)
    if (whole.sizes[d] != 1) return false;
  return is_contiguous_part(whole, part, dim);
}

}  // namespace

void Rank::execute(const Op& op, Instance& instance, std::int64_t micro_batch, std::size_t block) {
  if (instance.plan->sums_norms(op)) return;  // reduce_gradient_norm() does
  communicator_.at(name_of(op.phase), op.name, micro_batch);
  try {
    Issue issue;
    waited_for_ = 0;
    wait_for_operands(op, instance, micro_batch);
    if (measuring_) {
      const Piece& piece = *instance.plan->piece;
      issue = {.piece = static_cast<std::uint16_t>(&piece - program_.pieces.data()),
               .block = static_cast<std::uint8_t>(block),
               .op = static_cast<std::uint16_t>(&op - (piece.*kBlocks[block]).ops.data()),
               .stream = op.stream,
               .begin = backend_.mark(op.stream),
               .waited_for = waited_for_,
               .micro_batch = micro_batch};
    }
    if (is_communication(op.kind)) {
      communicate(op, instance, micro_batch);
    } else if (op.kind == OpKind::copy) {
      copy_between_memories(op, instance, micro_batch);
    } else if (op.kind == OpKind::gradient_norm) {
      gradient_norm(op, instance, micro_batch);
    } else {
      kernel(op, instance, micro_batch);
    }
    if (measuring_) {
      issue.end = backend_.mark(op.stream);
      issues_.push_back(issue);
    }
    note_uses(op, instance, micro_batch);
  } catch (const std::logic_error& error) {
    throw ExecutionError(describe(op, instance) + ": " + error.what());
  }
  if (!setup_.options.find_undefined) return;
  for (TensorId id : op.writes) {
    if (id == kNoTensor || instance.plan->reduces_norm(op) || op.kind == OpKind::gradient_norm) continue;
    if (instance.plan->is_packed_reduction(op)) continue;
    if (backend_.has_nan(slice(instance, id, micro_batch, false, op.stream)))
      throw ExecutionError(describe(op, instance) + " wrote NaN into \"" + instance.plan->piece->tensors[id].name +
                           "\": rank " + std::to_string(position_.rank) + ", micro-batch " +
                           std::to_string(micro_batch));
  }
}

// Data from other streams, and the kernels issued before it.
void Rank::wait_for_operands(const Op& op, Instance& instance, std::int64_t micro_batch) {
  if (instance.plan->reduces_norm(op) || instance.plan->is_packed_reduction(op)) return;
  const auto wait = [&](Use& use) {
    if (use.serial == 0 || use.stream == op.stream) return;
    order_.wait(op.stream, use);
    waited_for_ |= std::uint64_t{1} << static_cast<unsigned>(use.stream);
  };
  const auto operand = [&](TensorId id, bool write) {
    if (id == kNoTensor || (op.kind == OpKind::gradient_norm && write)) return;
    const Located place = resolve(instance, id);
    Storage& s = storage(*place.instance, place.id, micro_batch, write, op.stream);
    wait(s.written);
    if (!write) return;
    for (Use& use : s.read) wait(use);
  };
  for (TensorId id : op.reads) operand(id, false);
  for (TensorId id : op.writes) operand(id, true);
  if (waits_for_compute(op)) order_.wait_for_compute(op.stream);
}

void Rank::note_uses(const Op& op, Instance& instance, std::int64_t micro_batch) {
  if (instance.plan->reduces_norm(op)) return;
  const Use use = order_.issued(op.stream);
  if (instance.plan->is_packed_reduction(op)) {
    const auto& packed = instance.plan->packed.at(op.reads[0]);
    for (std::size_t s = 0; s < packed.size(); ++s)
      if (!packed[s].empty())
        storage(instance, instance.plan->held[s].gradients, -1, false, op.stream).note_written(use);
    return;
  }
  const auto note = [&](TensorId id, bool write) {
    if (id == kNoTensor || (op.kind == OpKind::gradient_norm && write)) return;
    const Located place = resolve(instance, id);
    Storage& s = storage(*place.instance, place.id, micro_batch, write, op.stream);
    write ? s.note_written(use) : s.note_read(use);
  };
  for (TensorId id : op.reads) note(id, false);
  for (TensorId id : op.writes) note(id, true);
}

void Rank::kernel(const Op& given, Instance& instance, std::int64_t micro_batch) {
  const Piece& piece = *instance.plan->piece;
  const ExecutionOptions& options = setup_.options;
  Op op = given;
  op.accumulate = false;  // whatever writes gradients adds to them: below

  KernelContext context;
  context.seed = options.seed;
  context.round_to_bf16 = options.round_to_bf16;
  context.step = step_ + 1;
  context.learning_rate = options.learning_rate, context.beta1 = options.beta1, context.beta2 = options.beta2;
  context.epsilon = options.epsilon, context.weight_decay = options.weight_decay, context.momentum = options.momentum;
  context.decoupled_weight_decay = setup_.scenario.plan.optimizer.rule != optimizer::Rule::adam;

  std::array<Tensor, 6> in_tensors;
  std::array<Tensor, 4> out_tensors;
  std::array<Operand, 6> reads;
  std::array<Operand, 4> writes;
  std::vector<StoragePtr> held;  // gathered operands, until the kernel is issued
  std::vector<std::int64_t> positions, key_positions;
  if (is_attention(op.kind) && op.parts > 1) {
    AttentionPositions at = attention_positions(op, piece, position_);
    positions = std::move(at.queries);
    key_positions = std::move(at.keys);
  }
  if (op.kind == OpKind::rotary || op.kind == OpKind::rotary_backward)
    positions = sequence_positions(*instance.plan, piece.tensors[op.reads[0]]);
  if (traits_of(op.kind).random) {
    positions = sequence_positions(*instance.plan, piece.tensors[op.writes[0]]);
    place_dropout(given, instance, micro_batch, context);
  }
  if (op.kind == OpKind::softmax || op.kind == OpKind::softmax_backward)
    context.attention_scale = 1 / std::sqrt(static_cast<double>(setup_.scenario.model.head_dim));
  context.query_positions = positions;
  context.key_positions = key_positions;

  for (std::size_t i = 0; i < reads.size(); ++i) {
    const TensorId id = op.reads[i];
    if (id == kNoTensor) continue;
    Tensor& t = in_tensors[i];
    t = piece.tensors[id];
    StoragePtr copy;
    reads[i] = {dense(instance, id, micro_batch, op.stream, copy), &t};
    if (copy != nullptr) held.push_back(std::move(copy));
    if (t.rank == 2 && t.axes[0] == Axis::vocab) context.first_vocabulary_row = position_.begin(t, 0);
  }
  // This rank's part of what is whole: that of the digits which divide `part` as well.
  const auto part_in = [&](Division part, Division whole) {
    return program_.mesh.coordinate(static_cast<std::int64_t>(position_.rank), part.group().without(whole.group()));
  };
  if (op.kind == OpKind::embedding) {
    Tensor& t = in_tensors[0];
    const Tensor& y = piece.tensors[op.writes[0]];
    const std::int64_t whole = t.sizes[1], size = y.sizes[1];
    if (size != whole) {
      const Slice part{reads[0].data, t.dtype, 0, t.elements() / whole * size,
                       &part_index(t, 1, part_in(y.over[1], t.over[1]) * size, size)};
      held.push_back(scratch(part.elements, t.dtype, op.stream));
      backend_.gather(op.stream, part, held.back()->data);
      held.back()->note_written(order_.issued(op.stream));
      t.sizes[1] = size;
      reads[0].data = held.back()->data;
    }
  }
  if (op.kind == OpKind::add && op.reads[2] != kNoTensor && in_tensors[2].rank == 2 &&
      in_tensors[2].axes[0] == Axis::sequence && in_tensors[2].sizes[0] != in_tensors[0].sizes[1]) {
    Tensor& t = in_tensors[2];
    t.sizes[0] = in_tensors[0].sizes[1];
    const std::int64_t part = part_in(in_tensors[0].over[1], t.over[0]);
    reads[2].data = element(reads[2].data, part * t.elements(), t.dtype);
  }

  struct Addition {
    Slice to;
    StoragePtr from;
  };
  std::vector<Addition> copied;  // results that are not dense, or added to by kernels that cannot
  for (std::size_t i = 0; i < writes.size(); ++i) {
    const TensorId id = op.writes[i];
    if (id == kNoTensor) continue;
    Tensor& t = out_tensors[i];
    t = piece.tensors[id];
    Slice to = slice(instance, id, micro_batch, true, op.stream);
    if (op.kind == OpKind::bias_gradient && t.rank == 2 && t.axes[0] == Axis::sequence &&
        in_tensors[0].sizes[1] < t.sizes[0]) {  // a part of a table of positions
      t.sizes[0] = in_tensors[0].sizes[1];
      const std::int64_t first = part_in(in_tensors[0].over[1], t.over[0]) * t.elements();
      if (to.index != nullptr) {
        std::vector<std::int64_t>& rows = row_indices_[{to.index, first}];
        if (rows.empty()) rows.assign(to.index->begin() + first, to.index->begin() + first + t.elements());
        to.index = &rows;
      } else {
        to.offset += first;
      }
      to.elements = t.elements();
    }
    const bool add = adds(op, instance, id), by_kernel = accumulates(op.kind, i);
    if (to.index == nullptr && (!add || by_kernel)) {
      writes[i].data = element(to.base, to.offset, to.dtype);
      op.accumulate |= add;
    } else {
      const StoragePtr result = scratch(t.elements(), t.dtype, op.stream);
      if (options.find_undefined)
        backend_.fill(op.stream, {result->data, t.dtype, 0, t.elements(), nullptr},
                      std::numeric_limits<float>::quiet_NaN());
      writes[i].data = result->data;
      copied.push_back({to, result});
    }
    writes[i].tensor = &t;
    if (t.rank == 2 && t.axes[0] == Axis::vocab) context.first_vocabulary_row = position_.begin(t, 0);
  }
  if (op.accumulate)  // one flag for all that a kernel adds to
    for (std::size_t i = 0; i < writes.size(); ++i)
      if (accumulates(op.kind, i))
        for (const Addition& c : copied)
          if (c.from->data == writes[i].data)
            backend_.fill(op.stream, {c.from->data, c.from->dtype, 0, c.from->elements, nullptr}, 0);
  const bool loss = op.kind == OpKind::cross_entropy || op.kind == OpKind::cross_entropy_backward;
  const Tensor& logits = in_tensors[0];
  const bool divided_loss = loss && !logits.over[logits.rank - 1].empty();
  if (divided_loss) context.first_vocabulary_row = position_.begin(logits, logits.rank - 1);

  backend_.run(op, reads, writes, context);

  for (const Addition& c : copied) {
    // `to` may be all of a gradient that other ops of the step have added to.
    const bool add = [&] {
      for (std::size_t i = 0; i < writes.size(); ++i)
        if (writes[i].data == c.from->data) return adds(op, instance, op.writes[i]);
      return false;
    }();
    backend_.scatter(op.stream, c.from->data, c.to, add);
  }
  if (!held.empty() || !copied.empty()) {
    const Use use = order_.issued(op.stream);
    for (const StoragePtr& s : held) s->note_read(use);
    for (const Addition& c : copied) c.from->note_read(use);
  }
  if (op.kind == OpKind::cross_entropy && !divided_loss) note_loss(instance, op.writes[0], micro_batch);
}

// Every parameter of the model counts once, on whichever rank holds it first.
void Rank::find_counted(Instance& instance, std::size_t set) const {
  const PiecePlan& plan = *instance.plan;
  const Piece& piece = *plan.piece;
  CountedGradients& counted = instance.counted[set];
  counted.known = true;
  const Tensor& gradients = piece.tensors[plan.held[set].gradients];
  const std::int64_t held = gradients.elements();
  MeshGroup summed;  // over which the ranks' norms are
  for (const Op& op : piece.update.ops)
    if (plan.reduces_norm(op)) summed = op.group;
  summed = summed.without(gradients.divided_over() | program_.mesh.group(MeshAxis::pp));
  std::int64_t begin = -plan.held[set].begin;
  std::size_t ordinal = instance.first_parameter;
  for (const ParameterGradient& p : piece.parameters) {
    const std::size_t own = ordinal++;
    const Tensor& t = piece.tensors[p.parameter];
    if (t.shared || p.set != set) continue;
    // Of ranks that hold the same parameter, or the same keys and values of it, the first counts them.
    const MeshGroup same = summed.without(t.divided_over());
    const bool elsewhere =
        setup_.parameters[own].values_of != static_cast<std::int64_t>(own) || !position_.is_first(same);
    const bool shares = !position_.is_first(divided_by_query_heads(t));
    const std::int64_t first = std::clamp<std::int64_t>(begin, 0, held),
                       last = std::clamp<std::int64_t>(begin + t.elements(), 0, held);
    if (!elsewhere && first < last && !shares) {
      if (!counted.ranges.empty() && counted.ranges.back().second == first) {
        counted.ranges.back().second = last;
      } else {
        counted.ranges.emplace_back(first, last);
      }
    } else if (!elsewhere && first < last) {
      for (std::int64_t e = first; e < last; ++e)
        if (!is_behind_query_heads(t, e - begin))
          counted.scattered.push_back(plan.views[plan.held[set].gradients].at(e));
    }
    begin += t.elements();
  }
}

// Squares of the norm of what is counted; added up by reduce_gradient_norm().
void Rank::gradient_norm(const Op& op, Instance& instance, std::int64_t micro_batch) {
  const PiecePlan& plan = *instance.plan;
  const std::size_t set = held_by(*plan.piece, op.reads[0]);
  instance.counted.resize(plan.held.size());
  CountedGradients& counted = instance.counted[set];
  if (!counted.known) find_counted(instance, set);
  const Slice all = slice(instance, op.reads[0], micro_batch, false, op.stream);
  if (all.index != nullptr) throw std::logic_error("flat gradients are not flat");
  const auto square = [&](void* data, std::int64_t elements) {
    Tensor gradients, scalar;
    gradients.rank = 1, gradients.sizes[0] = elements, gradients.dtype = all.dtype;
    scalar.rank = 1, scalar.dtype = Dtype::fp32;
    norm_parts_.push_back(scratch(1, Dtype::fp32, op.stream));
    const std::array<Operand, 1> read{{{data, &gradients}}}, write{{{norm_parts_.back()->data, &scalar}}};
    backend_.run(op, read, write, {});
    norm_parts_.back()->note_written(order_.issued(op.stream));
  };
  for (const auto& [first, last] : counted.ranges)
    square(element(all.base, all.offset + first, all.dtype), last - first);
  if (counted.scattered.empty()) return;
  const auto n = static_cast<std::int64_t>(counted.scattered.size());
  const StoragePtr packed = scratch(n, all.dtype, op.stream);
  backend_.gather(op.stream, {all.base, all.dtype, 0, n, &counted.scattered}, packed->data);
  square(packed->data, n);
  packed->note_read(order_.issued(op.stream));
}

// Positions of the whole batch that a loss is the mean over, from the targets on this rank in one micro-batch.
double Rank::tokens(const Tensor& targets) const {
  return static_cast<double>(targets.elements() * program_.mesh.size(targets.divided_over()) *
                             program_.schedule.micro_batches);
}

// All ranks of a stage that have the same targets know the same loss.
void Rank::note_loss(Instance& instance, TensorId statistics, std::int64_t micro_batch) {
  const Mesh& mesh = program_.mesh;
  Tensor targets = instance.plan->piece->tensors[statistics];
  const MeshGroup parts = targets.divided_over() | mesh.group(MeshAxis::pp);
  MeshGroup same;
  for (std::size_t d = 0; d < mesh.digits().size(); ++d) same = same | MeshGroup::of_digit(static_cast<int>(d));
  if (!position_.is_first(same.without(parts))) return;
  targets.sizes[0] = 1;
  loss_statistics_.emplace_back(storage_pointer(instance, statistics, micro_batch, false, Stream::compute), targets);
}

// ---- communication ----------------------------------------------------------------------------------------------

// Where a result goes: the tensor itself, or what is scattered into it afterwards.
Rank::Target Rank::target(Instance& instance, TensorId id, std::int64_t micro_batch, Stream stream) {
  const Slice to = slice(instance, id, micro_batch, true, stream);
  if (to.index == nullptr) return {element(to.base, to.offset, to.dtype), to, nullptr};
  const StoragePtr copy = scratch(to.elements, to.dtype, stream);
  return {copy->data, to, copy};
}

void Rank::put(const Target& target, Stream stream) {
  if (target.copy == nullptr) return;
  backend_.scatter(stream, target.copy->data, target.slice, false);
  target.copy->note_read(order_.issued(stream));
}

std::string Rank::meeting(const Op& op) const {
  if (op.stages != 0) return "sum " + std::to_string(op.stages) + " over stages";  // of several pieces' ops
  return std::string(op.name) + ", " + name_of(op.phase);
}

void Rank::copy_between_memories(const Op& op, Instance& instance, std::int64_t micro_batch) {
  const Slice from = slice(instance, op.reads[0], micro_batch, false, op.stream),
              to = slice(instance, op.writes[0], micro_batch, true, op.stream);
  if (from.dtype != to.dtype || from.elements != to.elements)
    throw std::logic_error("a copy between memories changes the tensor's dtype or size");
  if (from.index != nullptr || to.index != nullptr) throw std::logic_error("a copy between memories is not dense");
  backend_.copy(op.stream, element(to.base, to.offset, to.dtype), element(from.base, from.offset, from.dtype),
                from.elements * backend_.stored_bytes(from.dtype));
}

Members Rank::members_of(const Op& op) const {
  if (op.stages == 0) return position_.group(op.group);
  const Members line = position_.group(MeshAxis::pp);
  Members members;
  for (const std::uint16_t stage : program_.stage_groups[op.stages - 1u]) members.push_back(line.at(stage));
  return members;
}

void Rank::communicate(const Op& op, Instance& instance, std::int64_t micro_batch) {
  if (instance.plan->reduces_norm(op)) return;  // once for all pieces: reduce_gradient_norm
  if (instance.plan->is_packed_reduction(op)) return reduce_packed_gradients(op, instance);
  switch (op.kind) {
    case OpKind::all_reduce:
      return all_reduce(op, instance, micro_batch);
    case OpKind::all_gather:
      return all_gather(op, instance, micro_batch);
    case OpKind::reduce_scatter:
      return reduce_scatter(op, instance, micro_batch);
    case OpKind::all_to_all:
    case OpKind::redistribute:
      return redistribute(op, instance, micro_batch);
    case OpKind::ring_shift:
      return ring_shift(op, instance, micro_batch);
    default:
      throw std::logic_error("no strategy has lowered to this collective yet");
  }
}

void Rank::all_reduce(const Op& op, Instance& instance, std::int64_t micro_batch) {
  const Members members = members_of(op);
  StoragePtr gathered;
  void* from = dense(instance, op.reads[0], micro_batch, op.stream, gathered);
  const Slice to = slice(instance, op.writes[0], micro_batch, true, op.stream);
  const std::int64_t n = instance.plan->piece->tensors[op.reads[0]].elements();
  const bool in_place = instance.plan->views[op.writes[0]].root == instance.plan->views[op.reads[0]].root;
  const bool add = !in_place && adds(op, instance, op.writes[0]);
  if (add) {
    const StoragePtr sum = scratch(n, to.dtype, op.stream);
    backend_.copy(op.stream, sum->data, from, n * backend_.stored_bytes(to.dtype));
    communicator_.all_reduce(members, meeting(op), op.stream, sum->data, n, to.dtype);
    backend_.scatter(op.stream, sum->data, to, true);
    const Use use = order_.issued(op.stream);
    for (const StoragePtr& s : {sum, gathered})
      if (s != nullptr) s->note_read(use);
    return;
  }
  void* data = to.index == nullptr ? element(to.base, to.offset, to.dtype) : from;
  if (op.reduction == Reduction::merge) {
    if (to.index != nullptr) throw std::logic_error("statistics are not dense");
    const auto ranks = static_cast<std::int64_t>(members.size());
    const StoragePtr all = scratch(ranks * n, to.dtype, op.stream);
    communicator_.all_gather(members, meeting(op), op.stream, from, all->data, n, to.dtype);
    std::vector<const void*> parts;
    for (std::int64_t r = 0; r < ranks; ++r) parts.push_back(element(all->data, r * n, to.dtype));
    backend_.merge_statistics(op.stream, parts, data, n / 3);
    all->note_read(order_.issued(op.stream));
    return note_loss(instance, op.writes[0], micro_batch);
  }
  if (data != from) backend_.copy(op.stream, data, from, n * backend_.stored_bytes(to.dtype));
  communicator_.all_reduce(members, meeting(op), op.stream, data, n, to.dtype);
  if (to.index != nullptr) backend_.scatter(op.stream, data, to, false);
  if (gathered != nullptr) gathered->note_read(order_.issued(op.stream));
}

void Rank::all_gather(const Op& op, Instance& instance, std::int64_t micro_batch) {
  const Piece& piece = *instance.plan->piece;
  const Tensor &part = piece.tensors[op.reads[0]], &whole = piece.tensors[op.writes[0]];
  const Members members = position_.group(op.group);
  const int dim = divided_dimension(whole, part);
  const std::int64_t n = part.elements(), ranks = static_cast<std::int64_t>(members.size());
  check_division(part, whole, dim, ranks);
  StoragePtr gathered;
  const void* from = dense(instance, op.reads[0], micro_batch, op.stream, gathered);
  const Target to = target(instance, op.writes[0], micro_batch, op.stream);
  const bool room = to.copy == nullptr && to.slice.offset + n * ranks <=
                                              storage(instance, op.writes[0], micro_batch, true, op.stream).elements;
  if (lies_part_after_part(whole, part, dim) && (room || n * ranks == whole.elements())) {
    communicator_.all_gather(members, meeting(op), op.stream, from, to.data, n, part.dtype);
  } else {
    const StoragePtr all = scratch(n * ranks, part.dtype, op.stream);
    communicator_.all_gather(members, meeting(op), op.stream, from, all->data, n, part.dtype);
    for (std::int64_t r = 0; r < ranks; ++r) {
      const std::vector<std::int64_t>& index = member_index(whole, part, dim, members[static_cast<std::size_t>(r)], r);
      backend_.scatter(op.stream, element(all->data, r * n, part.dtype),
                       {to.data, part.dtype, 0, static_cast<std::int64_t>(index.size()), &index}, false);
    }
    all->note_read(order_.issued(op.stream));
  }
  put(to, op.stream);
  if (gathered != nullptr) gathered->note_read(order_.issued(op.stream));
}

void Rank::reduce_scatter(const Op& op, Instance& instance, std::int64_t micro_batch) {
  const Piece& piece = *instance.plan->piece;
  const Tensor &part = piece.tensors[op.writes[0]], &whole = piece.tensors[op.reads[0]];
  const Members members = position_.group(op.group);
  const int dim = divided_dimension(whole, part);
  const std::int64_t n = part.elements(), ranks = static_cast<std::int64_t>(members.size());
  check_division(part, whole, dim, ranks);
  StoragePtr gathered;
  void* from = dense(instance, op.reads[0], micro_batch, op.stream, gathered);
  StoragePtr ordered;  // part after part
  if (!lies_part_after_part(whole, part, dim) || n * ranks != whole.elements()) {
    ordered = scratch(n * ranks, part.dtype, op.stream);
    if (n * ranks != whole.elements()) backend_.fill(op.stream, {ordered->data, part.dtype, 0, n * ranks, nullptr}, 0);
    for (std::int64_t r = 0; r < ranks; ++r) {
      const std::vector<std::int64_t>& index = member_index(whole, part, dim, members[static_cast<std::size_t>(r)], r);
      backend_.gather(op.stream, {from, part.dtype, 0, static_cast<std::int64_t>(index.size()), &index},
                      element(ordered->data, r * n, part.dtype));
    }
    from = ordered->data;
  }
  const Slice to = slice(instance, op.writes[0], micro_batch, true, op.stream);
  const bool in_place = instance.plan->views[op.writes[0]].root == instance.plan->views[op.reads[0]].root;
  const bool add = !in_place && adds(op, instance, op.writes[0]);
  if (to.index == nullptr && !add) {
    communicator_.reduce_scatter(members, meeting(op), op.stream, from, element(to.base, to.offset, to.dtype), n,
                                 to.dtype);
  } else {
    const StoragePtr sum = scratch(n, part.dtype, op.stream);
    communicator_.reduce_scatter(members, meeting(op), op.stream, from, sum->data, n, to.dtype);
    backend_.scatter(op.stream, sum->data, to, add);
    sum->note_read(order_.issued(op.stream));
  }
  const Use use = order_.issued(op.stream);
  for (const StoragePtr& s : {gathered, ordered})
    if (s != nullptr) s->note_read(use);
}

// Every rank sends each what it has and that one has in the new layout, in the order of the whole; parts are as long as
// the longest.
void Rank::redistribute(const Op& op, Instance& instance, std::int64_t micro_batch) {
  const Piece& piece = *instance.plan->piece;
  const Tensor &before = piece.tensors[op.reads[0]], &after = piece.tensors[op.writes[0]];
  const Members members = position_.group(op.group);
  const auto ranks = static_cast<std::int64_t>(members.size());
  const std::int64_t n = longest_exchange(before, after, members);
  StoragePtr gathered;
  void* from = dense(instance, op.reads[0], micro_batch, op.stream, gathered);
  const Target to = target(instance, op.writes[0], micro_batch, op.stream);
  const StoragePtr sent = scratch(n * ranks, before.dtype, op.stream),
                   received = scratch(n * ranks, after.dtype, op.stream);
  const auto elements = [](const std::vector<std::int64_t>& index) { return static_cast<std::int64_t>(index.size()); };
  for (std::int64_t m = 0; m < ranks; ++m) {
    const std::vector<std::int64_t>& index =
        exchanged_index(before, position_.rank, after, members[static_cast<std::size_t>(m)]);
    backend_.gather(op.stream, {from, before.dtype, 0, elements(index), &index},
                    element(sent->data, m * n, before.dtype));
  }
  communicator_.all_to_all(members, meeting(op), op.stream, sent->data, received->data, n, before.dtype);
  std::int64_t arrived = 0;
  for (std::int64_t m = 0; m < ranks; ++m) {
    const std::vector<std::int64_t>& index =
        exchanged_index(after, position_.rank, before, members[static_cast<std::size_t>(m)]);
    backend_.scatter(op.stream, element(received->data, m * n, after.dtype),
                     {to.data, after.dtype, 0, elements(index), &index}, false);
    arrived += elements(index);
  }
  if (arrived != after.elements())
    throw std::logic_error(std::string("\"") + before.name + "\" does not become \"" + after.name +
                           "\" by an exchange");
  put(to, op.stream);
  const Use use = order_.issued(op.stream);
  for (const StoragePtr& s : {gathered, sent, received})
    if (s != nullptr) s->note_read(use);
}

void Rank::ring_shift(const Op& op, Instance& instance, std::int64_t micro_batch) {
  const Members members = position_.group(op.group);
  const auto n = static_cast<std::int64_t>(members.size()),
             own = program_.mesh.coordinate(static_cast<std::int64_t>(position_.rank), op.group);
  StoragePtr gathered;
  const void* from = dense(instance, op.reads[0], micro_batch, op.stream, gathered);
  const Target to = target(instance, op.writes[0], micro_batch, op.stream);
  const std::int64_t next = (own + op.places) % n, previous = (own + n - op.places % n) % n;
  communicator_.permute(members, meeting(op), op.stream, from, to.data, to.slice.elements, to.slice.dtype,
                        static_cast<std::size_t>(next), static_cast<std::size_t>(previous));
  put(to, op.stream);
  if (gathered != nullptr) gathered->note_read(order_.issued(op.stream));
}

void Rank::reduce_packed_gradients(const Op& op, Instance& instance) {
  const PiecePlan& plan = *instance.plan;
  const auto& elements = plan.packed.at(op.reads[0]);
  const Dtype dtype = plan.piece->tensors[op.reads[0]].dtype;
  std::int64_t all = 0;
  std::vector<std::pair<std::int64_t, Slice>> parts;  // where in the buffer, of what is held of each set
  for (std::size_t set = 0; set < elements.size(); ++set) {
    if (elements[set].empty()) continue;
    Storage& s = storage(instance, plan.held[set].gradients, -1, false, op.stream);
    order_.wait(op.stream, s.written);
    const auto n = static_cast<std::int64_t>(elements[set].size());
    parts.push_back({all, {s.data, s.dtype, 0, n, &elements[set]}});
    all += n;
  }
  order_.wait_for_compute(op.stream);
  const StoragePtr packed = scratch(all, dtype, op.stream);
  for (const auto& [begin, part] : parts) backend_.gather(op.stream, part, element(packed->data, begin, dtype));
  communicator_.all_reduce(position_.group(op.group), meeting(op), op.stream, packed->data, all, dtype);
  for (const auto& [begin, part] : parts)
    backend_.scatter(op.stream, element(packed->data, begin, dtype), part, false);
  packed->note_read(order_.issued(op.stream));
}

}  // namespace orrery::realrun
