#include "realrun/rank/gradient_norm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>

#include "sim/program/rewrite.h"
#include "sim/program/step_end.h"

namespace orrery::realrun {
namespace {

MeshGroup summed_over(const PiecePlan& plan) {
  MeshGroup summed;
  for (const Op& op : plan.ops(kUpdateBlock))
    if (plan.reduces_norm(op)) summed = op.group;
  return summed;
}

// The set that the norm's buffer belongs to. One that lies like a set's parameters has the place of this set: the first
// such norm of a block is that of the first trained set.
std::size_t set_of_norm(const OpCall& call) {
  const Piece& piece = call.instance.piece();
  if (set_of(piece, call.op.reads[0]) != nullptr) return set_number(piece, call.op.reads[0]);
  const std::vector<Op>& ops = call.plan().ops(call.block);
  std::int64_t before = std::count_if(ops.begin(), ops.begin() + static_cast<std::ptrdiff_t>(call.index),
                                      [](const Op& op) { return op.kind == OpKind::gradient_norm; });
  for (std::size_t s = 0; s < piece.sets.size(); ++s)
    if (!piece.sets[s].frozen() && before-- == 0) return s;
  throw ExecutionError(std::string("piece \"") + piece.name + "\" takes more norms than it has trained sets");
}

}  // namespace

void GradientNorm::run(const OpCall& call) {
  const Slice all = memory_.slice(call, call.op.reads[0], Access::read),
              to = memory_.slice(call, call.op.writes[0], Access::write);
  if (all.index != nullptr) throw std::logic_error("flat gradients are not flat");
  std::vector<const void*> parts;
  if (call.plan().sums_norms(call.op)) {
    for (std::int64_t i = 0; i < all.elements; ++i)
      parts.push_back(memory_.element(all.base, all.offset + i, all.dtype));
    return add_up(parts, to, call.stream);
  }
  const TensorId buffer = call.op.reads[0];
  const Counted& of = counted(call.instance, set_of_norm(call), buffer);
  std::vector<StoragePtr> squares;
  for (const auto& [first, last] : of.ranges)
    squares.push_back(
        square_of(call, memory_.element(all.base, all.offset + first, all.dtype), last - first, all.dtype));
  if (!of.scattered.empty()) {
    const auto n = static_cast<std::int64_t>(of.scattered.size());
    const StoragePtr packed = memory_.scratch(n, all.dtype, call.stream);
    backend_.gather(call.stream, {all.base, all.dtype, 0, n, &of.scattered}, packed->data);
    squares.push_back(square_of(call, packed->data, n, all.dtype));
  }
  for (const StoragePtr& square : squares) parts.push_back(square->data);
  add_up(parts, to, call.stream);
}

StoragePtr GradientNorm::square_of(const OpCall& call, void* data, std::int64_t elements, Dtype dtype) {
  Tensor gradients, scalar;
  gradients.rank = 1, gradients.sizes[0] = elements, gradients.dtype = dtype;
  scalar.rank = 1, scalar.dtype = Dtype::fp32;
  const StoragePtr square = memory_.scratch(1, Dtype::fp32, call.stream);
  const std::array<Operand, 1> read{{{data, &gradients}}}, write{{{square->data, &scalar}}};
  backend_.run(call.op, read, write, {});
  return square;
}

void GradientNorm::add_up(std::span<const void* const> parts, const Slice& to, Stream stream) {
  constexpr std::size_t kAtOnce = 64;
  void* const result = memory_.element(to);
  if (parts.empty()) return backend_.fill(stream, to, 0);
  backend_.sum(stream, parts.first(std::min(parts.size(), kAtOnce)), result, 1, to.dtype);
  for (std::size_t i = kAtOnce; i < parts.size(); i += kAtOnce) {
    const std::span<const void* const> more = parts.subspan(i, std::min(kAtOnce, parts.size() - i));
    std::vector<const void*> all{result};
    all.insert(all.end(), more.begin(), more.end());
    backend_.sum(stream, all, result, 1, to.dtype);
  }
}

const GradientNorm::Counted& GradientNorm::counted(const Instance& instance, std::size_t set, TensorId buffer) {
  std::vector<std::optional<Counted>>& by_set = counted_[instance.number];
  if (by_set.empty()) by_set.resize(instance.plan->held().size());
  if (!by_set[set]) by_set[set] = find_counted(instance, set, buffer);
  return *by_set[set];
}

GradientNorm::Counted GradientNorm::find_counted(const Instance& instance, std::size_t set, TensorId buffer) const {
  Counted counted;
  const PiecePlan& plan = *instance.plan;
  const HeldSet& own_set = plan.held()[set];
  const MeshGroup summed = summed_over(plan);
  // The buffer is one of equal parts of what the rank holds; the last ones may reach beyond it.
  const Tensor &all = plan.tensor(own_set.gradients), &part = plan.tensor(buffer);
  const std::int64_t before = position_.coordinate(part.divided_over().without(all.divided_over())) * part.elements();
  const std::int64_t held = std::clamp<std::int64_t>(all.elements() - before, 0, part.elements());
  for (const auto& [p, number, place] : own_set.flat) {
    const Tensor& t = plan.tensor(p->parameter);
    const std::int64_t begin = place - own_set.begin - before;
    const std::int64_t first = std::clamp<std::int64_t>(begin, 0, held),
                       last = std::clamp<std::int64_t>(begin + t.elements(), 0, held);
    const CountedInNorm count = counted_in_norm(program_, plan.piece(), *p, buffer, summed);
    const bool here = count.here && position_.is_first(count.first_of);
    if (const int dim = copied_dimension(t, position_); here && dim >= 0) {
      add_first_copies(t, dim, begin, {first, last}, plan.view(buffer), counted);
    } else if (here && first < last && position_.is_first(count.first_of_behind)) {
      if (!counted.ranges.empty() && counted.ranges.back().second == first) {
        counted.ranges.back().second = last;
      } else {
        counted.ranges.emplace_back(first, last);
      }
    } else if (here) {
      for (std::int64_t e = first; e < last; ++e)
        if (!is_behind_query_heads(t, e - begin)) counted.scattered.push_back(plan.view(buffer).at(e));
    }
  }
  return counted;
}

// Counts one copy of each expert with copies.
void GradientNorm::add_first_copies(const Tensor& t, int dim, std::int64_t begin,
                                    std::pair<std::int64_t, std::int64_t> range, const ElementMap& gradients,
                                    Counted& counted) const {
  const std::span<const std::int64_t> experts = position_.expert_of_slot;
  for (std::int64_t e = range.first; e < range.second; ++e) {
    const auto slot = experts.begin() + slot_of(t, dim, e - begin, position_);
    if (std::find(experts.begin(), slot, *slot) == slot) counted.scattered.push_back(gradients.at(e));
  }
}

double GradientNorm::exchange(const std::function<void(const OpCall&)>& run) {
  std::vector<OpCall> exchanges;
  model_.for_each_instance([&](const Instance& instance) {
    const std::vector<Op>& ops = instance.plan->ops(kUpdateBlock);
    for (std::size_t i = 0; i < ops.size(); ++i)
      if (instance.plan->reduces_norm(ops[i])) exchanges.emplace_back(instance, kOfStep, kUpdateBlock, i);
  });
  if (exchanges.empty()) return 0;
  const OpCall& last = exchanges.back();  // the one that runs
  const std::span<const OpCall> others(exchanges.begin(), exchanges.end() - 1);
  for (const OpCall& other : others)
    if (other.op.group != last.op.group || other.stream != last.stream)
      throw ExecutionError("pieces of one stage sum their gradient norms over different ranks or on different streams");
  if (!others.empty()) {  // adds the instances' squares into its operand
    std::vector<const void*> parts;
    for (const OpCall& call : exchanges) {
      memory_.order().wait(last.stream, memory_.storage(call, call.op.reads[0], Access::read).written);
      parts.push_back(memory_.element(memory_.slice(call, call.op.reads[0], Access::read)));
    }
    add_up(parts, memory_.slice(last, last.op.reads[0], Access::read), last.stream);
    const Use use = memory_.order().issued(last.stream);
    for (const OpCall& call : exchanges) memory_.storage(call, call.op.reads[0], Access::read).note_read(use);
    memory_.storage(last, last.op.reads[0], Access::read).note_written(use);
  }
  run(last);
  const Slice sum = memory_.slice(last, last.op.writes[0], Access::read);
  for (const OpCall& call : others) {
    backend_.copy(last.stream, memory_.element(memory_.slice(call, call.op.writes[0], Access::write)),
                  memory_.element(sum), backend_.stored_bytes(sum.dtype));
    const Use use = memory_.order().issued(last.stream);
    memory_.storage(call, call.op.writes[0], Access::write).note_written(use);
    memory_.storage(last, last.op.writes[0], Access::read).note_read(use);
  }
  float square = 0;
  backend_.read(sum, {&square, 1});
  double factor = 1;
  const PiecePlan& plan = last.plan();
  for (std::size_t s = 0; s < plan.piece().sets.size(); ++s)
    if (!plan.piece().sets[s].frozen()) factor = plan.factor_behind_norm(s);  // the same for all sets
  for (const OpCall& call : exchanges) memory_.end_lives(call, call.block, call.index);
  return factor * std::sqrt(static_cast<double>(square));
}

}  // namespace orrery::realrun
