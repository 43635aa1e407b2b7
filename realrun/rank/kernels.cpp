// Runs the kernels of a rank: binds operands to memory, and tells kernels where their part lies in the whole model.
#include <array>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

#include "realrun/rank/op_runner.h"
#include "sim/program/load.h"

namespace orrery::realrun {
namespace {

bool is_table_of_positions(const Tensor& t) { return t.rank == 2 && t.axes[0] == Axis::sequence; }

// An op's index among its block's ops with the same random draw, and their number: pieces of several layers repeat ops.
struct Repetition {
  std::int64_t before = 0, all = 0;
};
Repetition repetition_of(const OpCall& call) {
  Repetition repetition;
  if (call.block != kForwardBlock && call.block != kBackwardBlock) return repetition;
  for (const Op& other : call.plan().ops(call.block)) {
    if (other.kind != call.op.kind || other.draw != call.op.draw) continue;
    repetition.before += &other < &call.op;
    ++repetition.all;
  }
  return repetition;
}

// The tensor whose elements number the draws: for a router its logits.
const Tensor& drawn_for(const OpCall& call) { return call.op.kind == OpKind::route ? call.read(0) : call.written(0); }

}  // namespace

struct OpRunner::Binding {
  // A result that is not dense.
  struct Result {
    std::size_t write = 0;
    Slice to;
    StoragePtr from;
  };
  Op op;
  KernelContext context;
  std::vector<std::int64_t> query_positions, key_positions, document_begins;
  std::array<Tensor, 6> in_tensors;
  std::array<Tensor, 4> out_tensors;
  std::array<Operand, 6> reads;
  std::array<Operand, 4> writes;
  std::array<TensorMemory::Dense, 6> dense;  // reads, kept until the kernel is issued
  std::vector<Result> results;
};

void OpRunner::run_kernel(const OpCall& call, const RowCounts* rows) {
  Binding binding;
  binding.op = call.op;
  binding.context = kernel_context();
  if (call.op.is_random()) place_draws(call, binding.context);
  if (traits_of(call.op.kind).regroups) {
    // Copies of experts: ranks begin with different ones, to spread remainders evenly.
    binding.context.expert_of_slot = program_.expert_of_slot;
    binding.context.first_copy = position_.coordinate(position_.experts);
  }
  find_positions(call, binding);
  bind_reads(call, binding);
  if (call.op.kind == OpKind::embedding) take_own_columns(call, binding);
  if (call.op.kind == OpKind::add) take_own_rows(call, binding);
  bind_writes(call, binding);
  binding.context.rows_are_counted = rows != nullptr;
  // The op adds to cleared memory, which is added to the tensor below.
  const auto adds = [&](const Binding::Result& result) {
    return call.op.accumulate && accumulates(call.op.kind, result.write);
  };
  for (const Binding::Result& result : binding.results)
    if (adds(result)) memory_.fill(*result.from, 0, call.stream);
  if (rows != nullptr && !traits_of(call.op.kind).regroups) {
    run_rows(call, binding, *rows);
  } else {
    backend_.run(binding.op, binding.reads, binding.writes, binding.context);
  }
  for (const Binding::Result& result : binding.results)
    backend_.scatter(call.stream, result.from->data, result.to, adds(result));
}

KernelContext OpRunner::kernel_context() const {
  const ExecutionOptions& options = setup_.options;
  KernelContext context;
  context.seed = options.seed;
  context.round_to_bf16 = options.round_to_bf16;
  context.step = step_ + 1;
  context.learning_rate = options.learning_rate, context.beta1 = options.beta1, context.beta2 = options.beta2;
  context.epsilon = options.epsilon, context.weight_decay = options.weight_decay, context.momentum = options.momentum;
  return context;
}

void OpRunner::find_positions(const OpCall& call, Binding& binding) const {
  const Op& op = call.op;
  if (is_attention(op.kind) && op.parts > 1) {
    AttentionPositions at = attention_positions(op, call.instance.piece(), position_);
    binding.query_positions = std::move(at.queries);
    binding.key_positions = std::move(at.keys);
  } else if (op.kind == OpKind::rotary || op.kind == OpKind::rotary_backward) {
    binding.query_positions = sequence_positions(call.plan(), call.read(0), position_);
  } else if (op.is_random()) {
    binding.query_positions = sequence_positions(call.plan(), drawn_for(call), position_);
  }
  // For some tokens of a sequence (recomputed ones), the result is a view of the result for all tokens.
  const Piece& piece = call.instance.piece();
  if ((op.kind == OpKind::rotary || op.is_random()) && piece.tensors[op.writes[0]].alias_of != kNoTensor)
    if (std::vector<std::int64_t> own = positions_of_tokens(piece, op.writes[0], position_); !own.empty())
      binding.query_positions = std::move(own);
  if (op.documents.has_value()) binding.document_begins = document_begins(call);
  binding.context.document_begins = binding.document_begins;
  binding.context.query_positions = binding.query_positions;
  binding.context.key_positions = binding.key_positions;
}

// Uses the micro-batch's own sequences, whatever class of micro-batches it is timed as.
std::vector<std::int64_t> OpRunner::document_begins(const OpCall& call) const {
  const PackedSequences& packed = *program_.packed;
  const std::int64_t sequences = call.read(queries_operand(call.op.kind)).sizes[0],
                     of_replica = program_.schedule.micro_batches * sequences,
                     first = position_.replica * of_replica + call.micro_batch * sequences;
  std::vector<std::int64_t> begins;
  begins.reserve(static_cast<std::size_t>(sequences * packed.length));
  for (std::int64_t s = first; s < first + sequences; ++s)
    for_each_document(packed.ends_of(s), [&](std::int64_t begin, std::int64_t end) {
      begins.insert(begins.end(), static_cast<std::size_t>(end - begin), begin);
    });
  return begins;
}

// The place of an op in the model is that of its layer's first parameter.
void OpRunner::place_draws(const OpCall& call, KernelContext& context) const {
  const Repetition repetition = repetition_of(call);
  const std::size_t layer = call.instance.first_parameter + static_cast<std::size_t>(repetition.before) *
                                                                call.instance.piece().parameters.size() /
                                                                static_cast<std::size_t>(repetition.all);
  std::uint64_t hash = layer;
  const auto append = [&hash](std::uint64_t value) { hash = (hash ^ value) * 0x100000001b3ull; };  // FNV-1a
  append(call.op.draw);
  append(static_cast<std::uint64_t>(position_.replica * program_.schedule.micro_batches + call.micro_batch));
  append(static_cast<std::uint64_t>(step_));
  context.dropout_stream = hash;
  const Tensor& y = drawn_for(call);
  for (int d = 0; d < y.rank; ++d) {
    const auto i = static_cast<std::size_t>(d);
    context.whole_sizes[i] = y.sizes[d];
    if (y.axes[d] == Axis::sequence) {
      context.whole_sizes[i] = call.plan().sequence();
    } else if (y.axes[d] != Axis::batch) {  // parts of a batch have their own numbers
      context.whole_sizes[i] = y.sizes[d] * position_.mesh->size(y.over[d].group());
      context.part_begin[i] = position_.begin(y, d);
    }
  }
}

void OpRunner::bind_reads(const OpCall& call, Binding& binding) {
  for (std::size_t i = 0; i < binding.reads.size(); ++i) {
    const TensorId id = call.op.reads[i];
    if (id == kNoTensor) continue;
    Tensor& t = binding.in_tensors[i];
    t = call.instance.tensor(id);
    binding.dense[i] = memory_.dense(call, id);
    binding.reads[i] = {binding.dense[i].data, &t};
    if (is_vocabulary_table(t)) binding.context.first_vocabulary_row = position_.begin(t, 0);
    note_experts(call, t, binding.context);
  }
  if (call.op.kind != OpKind::cross_entropy && call.op.kind != OpKind::cross_entropy_backward) return;
  const Tensor& logits = binding.in_tensors[0];
  if (!logits.over[logits.rank - 1].empty())
    binding.context.first_vocabulary_row = position_.begin(logits, logits.rank - 1);
}

void OpRunner::note_experts(const OpCall& call, const Tensor& t, KernelContext& context) const {
  if (const int d = t.find(Axis::experts); d >= 0 && traits_of(call.op.kind).regroups && !t.over[d].empty())
    context.first_expert = position_.begin(t, d);
}

std::int64_t OpRunner::part_in(Division part, Division whole) const {
  return position_.coordinate(part.group().without(whole.group()));
}

// An embedding whose result is divided along the width, while the table's rows are whole.
void OpRunner::take_own_columns(const OpCall& call, Binding& binding) {
  Tensor& t = binding.in_tensors[0];
  const Tensor& y = call.written(0);
  const std::int64_t whole = t.sizes[1], size = y.sizes[1];
  if (size == whole) return;
  const Slice part{binding.reads[0].data, t.dtype, 0, t.elements() / whole * size,
                   &indices_.part(t, 1, part_in(y.over[1], t.over[1]) * size, size)};
  const StoragePtr copy = memory_.scratch(part.elements, t.dtype, call.stream);
  backend_.gather(call.stream, part, copy->data);
  t.sizes[1] = size;
  binding.dense[0].gathered = copy;
  binding.reads[0].data = copy->data;
}

// A table of positions that is added to a part of the sequence.
void OpRunner::take_own_rows(const OpCall& call, Binding& binding) {
  if (call.op.reads[2] == kNoTensor) return;
  const Tensor& x = binding.in_tensors[0];
  Tensor& t = binding.in_tensors[2];
  if (!is_table_of_positions(t) || t.sizes[0] == x.sizes[1]) return;
  t.sizes[0] = x.sizes[1];
  const std::int64_t part = part_in(x.over[1], t.over[0]);
  binding.reads[2].data = memory_.element(binding.reads[2].data, part * t.elements(), t.dtype);
}

// The rows of such a table's gradient that belong to this rank's part of the sequence.
Slice OpRunner::own_rows(const OpCall& call, const Binding& binding, Slice to, Tensor& t) {
  const Tensor& x = binding.in_tensors[0];
  if (call.op.kind != OpKind::bias_gradient || !is_table_of_positions(t) || x.sizes[1] >= t.sizes[0]) return to;
  t.sizes[0] = x.sizes[1];
  const std::int64_t first = part_in(x.over[1], t.over[0]) * t.elements();
  if (to.index != nullptr) {
    to.index = &indices_.stretch(*to.index, first, t.elements());
  } else {
    to.offset += first;
  }
  to.elements = t.elements();
  return to;
}

void OpRunner::bind_writes(const OpCall& call, Binding& binding) {
  for (std::size_t i = 0; i < binding.writes.size(); ++i) {
    const TensorId id = call.op.writes[i];
    if (id == kNoTensor) continue;
    Tensor& t = binding.out_tensors[i];
    t = call.instance.tensor(id);
    const Slice to = own_rows(call, binding, memory_.slice(call, id, Access::write), t);
    binding.writes[i].tensor = &t;
    if (to.index == nullptr) {
      binding.writes[i].data = memory_.element(to);
    } else {
      const StoragePtr result = memory_.scratch(t.elements(), t.dtype, call.stream);
      if (setup_.options.find_undefined) memory_.fill(*result, std::numeric_limits<float>::quiet_NaN(), call.stream);
      binding.writes[i].data = result->data;
      binding.results.push_back({i, to, result});
    }
    if (is_vocabulary_table(t)) binding.context.first_vocabulary_row = position_.begin(t, 0);
    note_experts(call, t, binding.context);
  }
}

void OpRunner::run_rows(const OpCall& call, Binding& binding, const RowCounts& rows) {
  if (traits_of(call.op.kind).random) throw std::logic_error("numbers are drawn for rows that are counted");
  const TensorId of_blocks = rows_.first_rows(call, call.op.reads);
  const std::vector<std::int64_t> blocks = rows_.blocks(call, of_blocks, rows);
  const std::int64_t experts = call.instance.tensor(of_blocks).sizes[0],
                     chunks = static_cast<std::int64_t>(blocks.size()) / experts;
  std::array<Tensor, 6> read_tensors;
  std::array<Tensor, 4> write_tensors;
  // The part of an operand that belongs to an expert, and for rows to a chunk.
  const auto part_of = [&](const Operand& whole, std::int64_t expert, std::int64_t chunk, std::int64_t count,
                           Tensor& t) -> Operand {
    if (whole.tensor == nullptr || whole.data == nullptr) return whole;
    t = *whole.tensor;
    const int slots = t.find(Axis::slots);
    if (t.find(Axis::experts) != 0) throw std::logic_error("an operand beside rows is not of experts");
    std::int64_t begin = expert * (t.elements() / experts);
    t.sizes[0] = 1;
    if (slots >= 0) {
      begin += chunk * (t.elements() / chunks);
      if (chunks > 1) t.sizes[t.find(Axis::chunks)] = 1;
      t.sizes[slots] = count;
    }
    return {memory_.element(whole.data, begin, t.dtype), &t};
  };
  // Gradients of an expert's weights sum over all its rows, in all chunks.
  const auto is_sum = [&](std::size_t write) {
    const Tensor* const t = binding.writes[write].tensor;
    return t != nullptr && accumulates(call.op.kind, write) && t->find(Axis::slots) < 0;
  };
  bool adds_up = false;
  for (std::size_t i = 0; i < binding.writes.size(); ++i) adds_up = adds_up || is_sum(i);
  for (std::int64_t e = 0; e < experts; ++e) {
    Op op = binding.op;
    bool begun = op.accumulate;
    for (std::int64_t c = 0; c < chunks; ++c) {
      const std::int64_t count = blocks[static_cast<std::size_t>(e * chunks + c)];
      if (count == 0) continue;
      std::array<Operand, 6> reads;
      std::array<Operand, 4> writes;
      for (std::size_t i = 0; i < reads.size(); ++i) reads[i] = part_of(binding.reads[i], e, c, count, read_tensors[i]);
      for (std::size_t i = 0; i < writes.size(); ++i)
        writes[i] = part_of(binding.writes[i], e, c, count, write_tensors[i]);
      if (adds_up) op.accumulate = begun;
      backend_.run(op, reads, writes, binding.context);
      begun = true;
    }
    for (std::size_t i = 0; !begun && i < binding.writes.size(); ++i) {
      if (!is_sum(i)) continue;
      const Operand none = part_of(binding.writes[i], e, 0, 0, write_tensors[i]);
      backend_.fill(op.stream, {none.data, none.tensor->dtype, 0, none.tensor->elements(), nullptr}, 0);
    }
  }
}

}  // namespace orrery::realrun
