#include "realrun/rank/op_runner.h"

#include <algorithm>
#include <stdexcept>

namespace orrery::realrun {
namespace {

// Calls visit(id, access) for the tensors of an op whose uses streams must order.
template <class Visit>
void for_each_operand(const Op& op, Visit visit) {
  for (const TensorId id : op.reads)
    if (id != kNoTensor) visit(id, Access::read);
  for (const TensorId id : op.writes)
    if (id != kNoTensor) visit(id, Access::write);
}

}  // namespace

OpRunner::OpRunner(const RankShared& rank, StepClock& clock, GradientNorm& norm, StepResults& results)
    : RankShared(rank),
      clock_(clock),
      norm_(norm),
      results_(results),
      indices_(program_.mesh),
      rows_(rank),
      replicas_(rank) {}

void OpRunner::run(const OpCall& call) {
  communicator_.at({name_of(call.op.phase), call.op.name, call.micro_batch});
  RowCountsPtr rows;
  try {
    Issue issue = issue_of(call);
    issue.waited_for = wait_for_operands(call);
    clock_.begin(issue);
    rows = rows_.of(call);
    dispatch(call, rows.get());
    clock_.end(issue);
    note_uses(call);
  } catch (const std::logic_error& error) {
    throw ExecutionError(describe(call) + ": " + error.what());
  }
  if (setup_.options.find_undefined) check_defined(call, rows.get());
}

void OpRunner::dispatch(const OpCall& call, const RowCounts* rows) {
  if (is_communication(call.op.kind)) {
    run_collective(call, rows);
  } else if (call.op.kind == OpKind::copy) {
    copy_between_memories(call);
  } else if (call.op.kind == OpKind::gradient_norm) {
    norm_.run(call);
  } else {
    run_kernel(call, rows);
  }
  results_.note(call);
}

Issue OpRunner::issue_of(const OpCall& call) const {
  return {.op = &call.op,
          .piece = static_cast<std::uint16_t>(&call.instance.piece() - program_.pieces.data()),
          .block = static_cast<std::uint8_t>(call.block),
          .number = static_cast<std::uint16_t>(call.index),
          .stream = call.stream,
          .micro_batch = call.micro_batch};
}

// Waits for data from other streams, and for the kernels issued before it.
std::uint64_t OpRunner::wait_for_operands(const OpCall& call) {
  std::uint64_t waited_for = 0;
  if (call.plan().is_packed_reduction(call.op)) return waited_for;
  const auto wait = [&](Use& use) {
    if (use.serial == 0 || use.stream == call.stream) return;
    memory_.order().wait(call.stream, use);
    waited_for |= std::uint64_t{1} << static_cast<unsigned>(use.stream);
  };
  for_each_operand(call.op, [&](TensorId id, Access access) {
    Storage& s = memory_.storage(call, id, access);
    wait(s.written);
    if (access == Access::read) return;
    for (Use& use : s.read) wait(use);
  });
  if (waits_for_compute(call.op)) memory_.order().wait_for_compute(call.stream);
  return waited_for;
}

void OpRunner::note_uses(const OpCall& call) {
  const Use use = memory_.order().issued(call.stream);
  if (call.plan().is_packed_reduction(call.op)) {
    const auto& packed = call.plan().packed(call.op);
    for (std::size_t s = 0; s < packed.size(); ++s)
      if (!packed[s].empty()) memory_.storage(call, call.plan().held()[s].gradients, Access::read).note_written(use);
    return;
  }
  for_each_operand(call.op, [&](TensorId id, Access access) {
    Storage& s = memory_.storage(call, id, access);
    access == Access::write ? s.note_written(use) : s.note_read(use);
  });
}

void OpRunner::copy_between_memories(const OpCall& call) {
  const Slice from = memory_.slice(call, call.op.reads[0], Access::read),
              to = memory_.slice(call, call.op.writes[0], Access::write);
  if (from.dtype != to.dtype || from.elements != to.elements)
    throw std::logic_error("a copy between memories changes the tensor's dtype or size");
  // A tensor that is not dense on the device is gathered and scattered there.
  const TensorMemory::Dense source = memory_.dense(call, call.op.reads[0]);
  const TensorMemory::Target target = memory_.target(call, call.op.writes[0]);
  Backend& backend = memory_.backend();
  backend.copy(call.stream, target.data, source.data, from.elements * backend.stored_bytes(from.dtype));
  memory_.put(target, call.stream);
}

// For rows, checks only those that exist.
bool OpRunner::has_nan(const OpCall& call, TensorId id, const RowCounts* rows) {
  const Slice slice = memory_.slice(call, id, Access::read);
  if (rows == nullptr || !rows_.is_rows(call, id)) return memory_.backend().has_nan(slice);
  const TensorMemory::Dense dense = memory_.dense(call, id);
  const Tensor& t = call.instance.tensor(id);
  const std::vector<std::int64_t> blocks = rows_.blocks(call, id, *rows);
  const std::int64_t of_block = t.elements() / static_cast<std::int64_t>(blocks.size());
  const std::int64_t width = of_block / t.sizes[t.find(Axis::slots)];
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const Slice filled{dense.data, slice.dtype, static_cast<std::int64_t>(b) * of_block, blocks[b] * width, nullptr};
    if (filled.elements > 0 && memory_.backend().has_nan(filled)) return true;
  }
  return false;
}

void OpRunner::check_defined(const OpCall& call, const RowCounts* rows) {
  if (call.plan().is_packed_reduction(call.op)) return;
  for_each_operand(call.op, [&](TensorId id, Access access) {
    if (access == Access::read || !has_nan(call, id, rows)) return;
    throw ExecutionError(describe(call) + " wrote NaN into \"" + call.instance.tensor(id).name + "\": rank " +
                         std::to_string(position_.rank) + ", micro-batch " + std::to_string(call.micro_batch));
  });
}

std::string OpRunner::describe(const OpCall& call) const {
  const std::size_t parameter = std::min(call.instance.first_parameter, setup_.parameters.size() - 1);
  return std::string(name_of(call.op.kind)) + " \"" + call.op.name + "\" (" + name_of(call.op.phase) + ") of piece \"" +
         call.instance.piece().name + "\" at " + setup_.parameters[parameter].name;
}

}  // namespace orrery::realrun
