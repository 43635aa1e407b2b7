// Runs a rank's collectives: makes operands dense, orders them for the communicator, and writes results to tensors.
#include <algorithm>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "realrun/rank/op_runner.h"
#include "sim/program/rewrite.h"

namespace orrery::realrun {
namespace {

// How a gather or scatter divides `whole` along a dimension.
struct Partition {
  int dim = 0;
  bool in_order = false;  // the parts are consecutive in memory
};

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

bool lies_part_after_part(const Tensor& whole, const Tensor& part, int dim) {
  for (int d = 0; d < dim; ++d)
    if (whole.sizes[d] != 1) return false;
  return is_contiguous_part(whole, part, dim);
}

// Flat buffers are padded to a multiple of the ranks.
Partition partition(const Tensor& whole, const Tensor& part, std::int64_t ranks) {
  const int dim = divided_dimension(whole, part);
  const std::int64_t parts = part.sizes[dim] * ranks;
  if (parts < whole.sizes[dim] || (whole.rank > 1 && parts != whole.sizes[dim]))
    throw std::logic_error(std::to_string(ranks) + " parts of \"" + part.name + "\" do not make \"" + whole.name +
                           "\"");
  return {dim, lies_part_after_part(whole, part, dim)};
}

std::int64_t count(const ElementIndices::Elements& index) { return static_cast<std::int64_t>(index.size()); }

}  // namespace

void OpRunner::run_collective(const OpCall& call, const RowCounts* rows) {
  if (rows != nullptr) return exchange_rows(call, *rows);
  if (call.plan().is_packed_reduction(call.op)) return reduce_packed_gradients(call);
  if (call.op.reduction == Reduction::copies) return replicas_.run(call);
  switch (call.op.kind) {
    case OpKind::all_reduce:
      return all_reduce(call);
    case OpKind::all_gather:
      return all_gather(call);
    case OpKind::reduce_scatter:
      return reduce_scatter(call);
    case OpKind::all_to_all:
      return exchange_contributions(call);
    case OpKind::redistribute:
      return redistribute(call);
    case OpKind::ring_shift:
      return ring_shift(call);
    default:
      throw std::logic_error("no strategy has lowered to this collective yet");
  }
}

CollectiveCall OpRunner::meeting(const OpCall& call, Dtype dtype) const {
  const Op& op = call.op;
  CollectiveCall meeting{position_.group(op.group), std::string(op.name) + ", " + name_of(op.phase), call.stream,
                         dtype};
  if (op.stages.has_value()) {
    const Members line = position_.group(MeshAxis::pp);
    meeting.members.clear();
    for (const std::uint16_t stage : program_.stage_groups[op.stages.value()])
      meeting.members.push_back(line.at(stage));
    meeting.what = "sum " + std::to_string(op.stages.value()) + " over stages";  // of several pieces' ops
  }
  if (call.plan().reduces_norm(op)) meeting.what = "gradient norm";  // of all pieces
  return meeting;
}

void OpRunner::all_reduce(const OpCall& call) {
  const bool add = call.op.accumulate;
  if (!add && call.op.reduction == Reduction::merge) return merge_statistics(call);
  const TensorMemory::Dense from = memory_.dense(call, call.op.reads[0]);
  const Slice to = memory_.slice(call, call.op.writes[0], Access::write);
  const std::int64_t n = call.read(0).elements();
  const StoragePtr sum = add ? memory_.scratch(n, to.dtype, call.stream) : nullptr;
  void* data = add ? sum->data : to.index == nullptr ? memory_.element(to) : from.data;
  if (data != from.data) backend_.copy(call.stream, data, from.data, bytes(n, to.dtype));
  const CollectiveCall of = meeting(call, to.dtype);
  communicator_.all_reduce(of, data, n);
  if (call.op.reduction == Reduction::mean) divide(backend_, call.stream, data, call.read(0), of.members.size());
  if (add || to.index != nullptr) backend_.scatter(call.stream, data, to, add);
}

std::optional<SumBeside> OpRunner::sum_beside(const OpCall& call) const {
  if (call.op.kind != OpKind::all_reduce || call.op.accumulate || call.op.reduction == Reduction::merge) return {};
  const TensorMemory::Dense from = memory_.dense(call, call.op.reads[0]);
  const Slice to = memory_.slice(call, call.op.writes[0], Access::write);
  if (from.gathered != nullptr || to.index != nullptr) return {};
  return SumBeside{meeting(call, to.dtype), call.op.name,  from.data,
                   memory_.element(to),     &call.read(0), call.op.reduction == Reduction::mean};
}

void OpRunner::merge_statistics(const OpCall& call) {
  const TensorMemory::Dense from = memory_.dense(call, call.op.reads[0]);
  const Slice to = memory_.slice(call, call.op.writes[0], Access::write);
  if (to.index != nullptr) throw std::logic_error("statistics are not dense");
  const CollectiveCall of = meeting(call, to.dtype);
  const std::int64_t n = call.read(0).elements();
  const auto ranks = static_cast<std::int64_t>(of.members.size());
  const StoragePtr all = memory_.scratch(ranks * n, to.dtype, call.stream);
  communicator_.all_gather(of, from.data, all->data, n);
  std::vector<const void*> parts;
  for (std::int64_t r = 0; r < ranks; ++r) parts.push_back(memory_.element(all->data, r * n, to.dtype));
  backend_.merge_statistics(call.stream, parts, memory_.element(to), n / 3);
}

void OpRunner::all_gather(const OpCall& call) {
  const Tensor &part = call.read(0), &whole = call.written(0);
  const CollectiveCall of = meeting(call, part.dtype);
  const auto ranks = static_cast<std::int64_t>(of.members.size());
  const Partition divided = partition(whole, part, ranks);
  const std::int64_t n = part.elements(), all = n * ranks;
  const TensorMemory::Dense from = memory_.dense(call, call.op.reads[0]);
  const TensorMemory::Target to = memory_.target(call, call.op.writes[0]);
  const bool room =
      to.copy == nullptr && to.slice.offset + all <= memory_.storage(call, call.op.writes[0], Access::write).elements;
  if (divided.in_order && (room || all == whole.elements())) {
    communicator_.all_gather(of, from.data, to.data, n);
  } else {
    const StoragePtr parts = memory_.scratch(all, part.dtype, call.stream);
    communicator_.all_gather(of, from.data, parts->data, n);
    for (std::int64_t r = 0; r < ranks; ++r) {
      const auto& index = indices_.of_member(whole, part, divided.dim, of.members[static_cast<std::size_t>(r)], r);
      backend_.scatter(call.stream, memory_.element(parts->data, r * n, part.dtype),
                       {to.data, part.dtype, 0, count(index), &index}, false);
    }
  }
  memory_.put(to, call.stream);
}

// Puts the parts of all members behind each other.
void OpRunner::gather_parts(const OpCall& call, const Members& members, const Tensor& whole, const Tensor& part,
                            int dim, void* from, void* to) {
  for (std::size_t r = 0; r < members.size(); ++r) {
    const auto place = static_cast<std::int64_t>(r);
    const auto& index = indices_.of_member(whole, part, dim, members[r], place);
    backend_.gather(call.stream, {from, part.dtype, 0, count(index), &index},
                    memory_.element(to, place * part.elements(), part.dtype));
  }
}

void OpRunner::reduce_scatter(const OpCall& call) {
  const Tensor &part = call.written(0), &whole = call.read(0);
  const CollectiveCall of = meeting(call, part.dtype);
  const auto ranks = static_cast<std::int64_t>(of.members.size());
  const Partition divided = partition(whole, part, ranks);
  const std::int64_t n = part.elements(), all = n * ranks;
  TensorMemory::Dense from = memory_.dense(call, call.op.reads[0]);
  StoragePtr ordered;
  if (!divided.in_order || all != whole.elements()) {
    ordered = memory_.scratch(all, part.dtype, call.stream);
    if (all != whole.elements()) backend_.fill(call.stream, {ordered->data, part.dtype, 0, all, nullptr}, 0);
    gather_parts(call, of.members, whole, part, divided.dim, from.data, ordered->data);
    from.data = ordered->data;
  }
  const Slice to = memory_.slice(call, call.op.writes[0], Access::write);
  const bool add = call.op.accumulate;
  if (to.index == nullptr && !add) {
    communicator_.reduce_scatter(of, from.data, memory_.element(to), n);
  } else {
    const StoragePtr sum = memory_.scratch(n, part.dtype, call.stream);
    communicator_.reduce_scatter(of, from.data, sum->data, n);
    backend_.scatter(call.stream, sum->data, to, add);
  }
}

// Every rank sends each other rank the part that the other has of the sum. Contributions lie rank after rank.
void OpRunner::exchange_contributions(const OpCall& call) {
  const Tensor& whole = call.read(0);
  const Tensor part = without_contributions(call.written(0));
  const CollectiveCall of = meeting(call, whole.dtype);
  const auto ranks = static_cast<std::int64_t>(of.members.size());
  const Partition divided = partition(whole, part, ranks);
  const std::int64_t n = part.elements();
  const TensorMemory::Dense from = memory_.dense(call, call.op.reads[0]);
  const TensorMemory::Target to = memory_.target(call, call.op.writes[0]);
  const StoragePtr ordered = memory_.scratch(n * ranks, part.dtype, call.stream);
  gather_parts(call, of.members, whole, part, divided.dim, from.data, ordered->data);
  communicator_.all_to_all(of, ordered->data, to.data, n);
  memory_.put(to, call.stream);
}

// Every rank sends each other rank what it has and the other needs in the new layout, operand by operand in the order
// of the whole. All parts have the length of the longest. Rows without an index hold zeros.
void OpRunner::redistribute(const OpCall& call) {
  const Tensor& after = call.written(0);
  const Dtype dtype = after.dtype;
  const CollectiveCall of = meeting(call, dtype);
  const Members& members = of.members;
  const auto ranks = static_cast<std::int64_t>(members.size());
  std::vector<TensorId> operands;
  std::vector<const Tensor*> before;
  for (const TensorId id : call.op.reads)
    if (id != kNoTensor) {
      operands.push_back(id);
      before.push_back(&call.instance.tensor(id));
    }
  const std::int64_t n = indices_.longest_exchange(before, after, members);
  const TensorMemory::Target to = memory_.target(call, call.op.writes[0]);
  const StoragePtr sent = memory_.scratch(n * ranks, dtype, call.stream),
                   received = memory_.scratch(n * ranks, dtype, call.stream);
  std::vector<std::int64_t> filled(members.size(), 0), taken(members.size(), 0);
  for (std::size_t r = 0; r < operands.size(); ++r) {
    const TensorMemory::Dense from = memory_.dense(call, operands[r]);
    for (std::size_t m = 0; m < members.size(); ++m) {
      const auto& index = indices_.exchanged(*before[r], position_.rank, after, members[m]);
      backend_.gather(call.stream, {from.data, dtype, 0, count(index), &index},
                      memory_.element(sent->data, static_cast<std::int64_t>(m) * n + filled[m], dtype));
      filled[m] += count(index);
    }
  }
  communicator_.all_to_all(of, sent->data, received->data, n);
  const std::int64_t rows = indices_.rows_without_index(after, position_.rank);
  if (rows > 0) backend_.fill(call.stream, {to.data, dtype, 0, after.elements(), nullptr}, 0);
  std::int64_t arrived = 0;
  for (const Tensor* from : before)
    for (std::size_t m = 0; m < members.size(); ++m) {
      const auto& index = indices_.exchanged(after, position_.rank, *from, members[m]);
      backend_.scatter(call.stream, memory_.element(received->data, static_cast<std::int64_t>(m) * n + taken[m], dtype),
                       {to.data, dtype, 0, count(index), &index}, false);
      taken[m] += count(index);
      arrived += count(index);
    }
  if (arrived != after.elements() - rows)
    throw std::logic_error(std::string("\"") + before[0]->name + "\" does not become \"" + after.name +
                           "\" by an exchange");
  memory_.put(to, call.stream);
}

// Each member gets those of this rank's rows that it has in the new layout, ordered by expert, chunk and source rank.
// All ranks know this order from the counts.
void OpRunner::exchange_rows(const OpCall& call, const RowCounts& rows) {
  const Op& op = call.op;
  const bool adds = op.kind == OpKind::reduce_scatter;
  if ((op.kind != OpKind::redistribute && op.kind != OpKind::all_gather && !adds) || op.accumulate)
    throw std::logic_error("rows that are counted do not travel so");
  const TensorId before = op.reads[0], after = op.writes[0];
  const Tensor& t = call.read(0);
  const std::int64_t width =
      t.elements() / (t.sizes[0] * (t.find(Axis::chunks) < 0 ? 1 : t.sizes[1]) * t.sizes[t.find(Axis::slots)]);
  const Dtype dtype = t.dtype;
  const CollectiveCall meets = meeting(call, dtype);
  const Members& members = meets.members;
  const auto common = [](const std::vector<RowStretch>& of, const std::vector<RowStretch>& in) {
    std::vector<RowStretch> both;  // stretches that both lists have; the lists are in the same order
    auto at = in.begin();
    for (const RowStretch& stretch : of) {
      while (at != in.end() && at->of() < stretch.of()) ++at;
      if (at == in.end() || at->of() != stretch.of() || stretch.rows == 0) continue;
      // Contiguous in memory: one copy.
      if (!both.empty() && both.back().begin + both.back().rows == stretch.begin) {
        both.back().rows += stretch.rows;
      } else {
        both.push_back(stretch);
      }
    }
    return both;
  };
  const std::vector<RowStretch> own_before = rows_.held(call, before, position_.rank, rows),
                                own_after = rows_.held(call, after, position_.rank, rows);
  std::vector<std::vector<RowStretch>> leave, come;
  std::vector<std::int64_t> sends, receives;
  const auto rows_in = [](const std::vector<RowStretch>& stretches) {
    std::int64_t sum = 0;
    for (const RowStretch& s : stretches) sum += s.rows;
    return sum;
  };
  for (const std::size_t m : members) {
    leave.push_back(common(own_before, rows_.held(call, after, m, rows)));
    come.push_back(common(own_after, rows_.held(call, before, m, rows)));
    sends.push_back(width * rows_in(leave.back()));
    receives.push_back(width * rows_in(come.back()));
  }
  const TensorMemory::Dense from = memory_.dense(call, before);
  const TensorMemory::Target to = memory_.target(call, after);
  const std::int64_t all_sent = std::reduce(sends.begin(), sends.end()),
                     all_received = std::reduce(receives.begin(), receives.end());
  const StoragePtr sent = memory_.scratch(std::max<std::int64_t>(1, all_sent), dtype, call.stream),
                   received = memory_.scratch(std::max<std::int64_t>(1, all_received), dtype, call.stream);
  std::int64_t at = 0;
  const auto move = [&](void* target, std::int64_t target_at, const void* source, std::int64_t source_at,
                        std::int64_t count) {
    backend_.copy(call.stream, memory_.element(target, target_at, dtype),
                  memory_.element(const_cast<void*>(source), source_at, dtype), bytes(count, dtype));
  };
  for (const std::vector<RowStretch>& of_member : leave)
    for (const RowStretch& s : of_member) {
      move(sent->data, at, from.data, s.begin * width, s.rows * width);
      at += s.rows * width;
    }
  communicator_.all_to_all_v(meets, sent->data, sends, received->data, receives);
  if (adds && receives[0] > 0) {  // equally many rows from each member, in the same order
    std::vector<const void*> parts;
    for (std::size_t m = 0; m < members.size(); ++m)
      parts.push_back(memory_.element(received->data, static_cast<std::int64_t>(m) * receives[0], dtype));
    backend_.sum(call.stream, parts, received->data, receives[0], dtype);
  }
  at = 0;
  std::int64_t arrived = 0;
  for (std::size_t m = 0; m < (adds ? 1 : members.size()); ++m)
    for (const RowStretch& s : come[m]) {
      move(to.data, s.begin * width, received->data, at, s.rows * width);
      at += s.rows * width;
      arrived += s.rows;
    }
  if (arrived != rows_in(own_after))
    throw std::logic_error(std::string("\"") + t.name + "\" does not become \"" + call.written(0).name +
                           "\" by an exchange");
  memory_.put(to, call.stream);
}

void OpRunner::ring_shift(const OpCall& call) {
  const TensorMemory::Dense from = memory_.dense(call, call.op.reads[0]);
  const TensorMemory::Target to = memory_.target(call, call.op.writes[0]);
  const CollectiveCall of = meeting(call, to.slice.dtype);
  const auto n = static_cast<std::int64_t>(of.members.size()), own = position_.coordinate(call.op.group);
  const std::int64_t next = (own + call.op.distance) % n, previous = (own + n - call.op.distance % n) % n;
  communicator_.permute(of, from.data, to.data, to.slice.elements, static_cast<std::size_t>(next),
                        static_cast<std::size_t>(previous));
  memory_.put(to, call.stream);
}

// Waits for its operands itself: no op fills the buffer that the op names.
void OpRunner::reduce_packed_gradients(const OpCall& call) {
  const auto& elements = call.plan().packed(call.op);
  const Dtype dtype = call.read(0).dtype;
  std::int64_t all = 0;
  // Places in the buffer, and the parts of each set's held gradients.
  std::vector<std::pair<std::int64_t, Slice>> parts;
  for (std::size_t set = 0; set < elements.size(); ++set) {
    if (elements[set].empty()) continue;
    Storage& s = memory_.storage(call, call.plan().held()[set].gradients, Access::read);
    memory_.order().wait(call.stream, s.written);
    parts.push_back({all, {s.data, s.dtype, 0, count(elements[set]), &elements[set]}});
    all += count(elements[set]);
  }
  memory_.order().wait_for_compute(call.stream);
  const StoragePtr packed = memory_.scratch(all, dtype, call.stream);
  for (const auto& [begin, part] : parts)
    backend_.gather(call.stream, part, memory_.element(packed->data, begin, dtype));
  communicator_.all_reduce(meeting(call, dtype), packed->data, all);
  for (const auto& [begin, part] : parts)
    backend_.scatter(call.stream, memory_.element(packed->data, begin, dtype), part, false);
}

}  // namespace orrery::realrun
