#include <algorithm>
#include <span>

#include "sim/program/piece_check.h"
#include "sim/program/rewrite.h"
#include "sim/program/work.h"

namespace orrery::proof {
namespace {

// Fused projections are divided by query heads, like the tensors that they are cut into.
Axis divided_axis(Axis axis) { return axis == Axis::group_qkv ? Axis::group_heads : axis; }

bool masks(const Op& op) { return op.causal || op.window > 0; }

// Whether an element of the results needs more of this dimension of an operand than its own part, and a sum of parts
// cannot give it.
bool needs_whole(const Op& op, std::size_t read, const Tensor& t, int dim) {
  const OpTraits& traits = traits_of(op.kind);
  if (traits.whole) return true;
  if (traits.whole_heads && t.axes[dim] == Axis::head_dim) return true;
  if (!has_operand(traits.whole_rows, read)) return false;
  return dim == t.rank - 1 || (traits.masks_rows && masks(op) && dim == t.rank - 2);
}

// Whether the axis counts tokens, or the slots that they are put into.
bool counts_rows(Axis axis) { return axis == Axis::batch || axis == Axis::sequence || axis == Axis::slots; }

std::string axis_words(const Tensor& t, int dim) {
  return t.axes[dim] == Axis::none ? "dimension " + std::to_string(dim) : name_of(t.axes[dim]);
}

}  // namespace

void PieceCheck::compute(const Op& op) {
  for (const TensorId id : op.reads)
    if (id != kNoTensor && (codes_.contains(id) || contributors_.contains(id)))
      report(Rule::codes, "{} has codes or contributions, which only a quantiser reads", layout(id));
  if (block_ == &piece_.update)
    for (const TensorId id : op.reads) {
      if (is_flat(id)) expect_owes_nothing(id);
      if (std::size_t p = 0; is_gradient_of_parameter(id, p)) expect_summed_over_holders(p);
    }
  std::vector<Divided> axes;
  if (!expect_whole(op) || !expect_divided_alike(op, axes)) {  // reported once: its consequences are not checked
    for (const TensorId id : op.writes)
      if (id != kNoTensor) write(id, {});
    return;
  }
  const MeshGroup passed = owed_by_reads(op);
  if (traits_of(op.kind).regroups) expect_own_rows(op);
  if (is_attention(op.kind)) expect_keys(op);
  if (!ring_group_.empty()) follow_ring(op);
  for (std::size_t w = 0; w < op.writes.size(); ++w)
    if (op.writes[w] != kNoTensor) write(op.writes[w], owed_by_result(op, w, axes, passed));
}

bool PieceCheck::expect_whole(const Op& op) {
  for (std::size_t i = 0; i < op.reads.size(); ++i) {
    const TensorId id = op.reads[i];
    for (int d = 0; id != kNoTensor && d < tensor(id).rank; ++d) {
      const MeshGroup parts = tensor(id).over[d].group();
      if (parts.empty() || !needs_whole(op, i, tensor(id), d)) continue;
      report(Rule::whole_for_op, "{} is divided over {} along {}, expected {}", layout(id), words(mesh_, parts),
             axis_words(tensor(id), d), layout_with(id, d, {}));
      return false;
    }
  }
  return true;
}

// Fills `axes`. Operands of which the op takes a part are compared with the others.
bool PieceCheck::expect_divided_alike(const Op& op, std::vector<Divided>& axes) {
  const OpTraits& traits = traits_of(op.kind);
  for (const bool parts : {false, true}) {
    for (std::size_t i = 0; i < op.reads.size(); ++i)
      if (op.reads[i] != kNoTensor && has_operand(traits.takes_positions, i) == parts &&
          !meet(op.reads[i], parts, true, axes))
        return false;
    for (std::size_t i = 0; i < op.writes.size(); ++i)
      if (op.writes[i] != kNoTensor && has_operand(traits.gives_positions, i) == parts &&
          !meet(op.writes[i], parts, false, axes))
        return false;
  }
  return true;
}

bool PieceCheck::meet(TensorId id, bool takes_part, bool read, std::vector<Divided>& axes) {
  const Tensor& t = tensor(id);
  for (int d = 0; d < t.rank; ++d) {
    const Axis axis = divided_axis(t.axes[d]);
    if (axis == Axis::none) continue;
    const bool by_heads = t.deal(d) == Deal::query_heads;
    const Deal deal = by_heads ? Deal::contiguous : t.deal(d);  // of the divided part
    const auto known = std::find_if(axes.begin(), axes.end(), [&](const Divided& a) { return a.axis == axis; });
    if (known == axes.end()) {
      axes.push_back({axis, t.over[d], deal, read, read && !by_heads, id, d});
      continue;
    }
    known->read = known->read || read;
    known->read_in_parts = known->read_in_parts || (read && !by_heads);
    const bool alike =
        takes_part && axis == Axis::sequence ? known->over.begins_with(t.over[d]) : known->over == t.over[d];
    if (alike && (known->deal == deal || t.over[d].empty())) continue;
    report(Rule::operands_agree, "{} and {} are divided differently along {}: over {} and over {}, expected the same",
           layout(id), layout(known->first), name_of(axis), words(mesh_, t, d),
           words(mesh_, tensor(known->first), known->dim));
    return false;
  }
  return true;
}

// compute() has already checked what each parameter in a flat buffer owes. A gradient owes what its buffer has left to
// be summed.
MeshGroup PieceCheck::owed_in_update(TensorId id) const {
  if (is_flat(id)) return {};
  std::size_t p = 0;
  if (!is_gradient_of_parameter(id, p)) return owed(id);
  const auto flat = flats_.find(storage_of(piece_, id));
  return flat == flats_.end() ? owed(id) : flat->second.at(p);
}

// The sum that the results owe because of linear operands.
MeshGroup PieceCheck::owed_by_reads(const Op& op) {
  const OpTraits& traits = traits_of(op.kind);
  MeshGroup passed;
  TensorId owing = kNoTensor;
  int owe = 0, may_owe = 0;
  for (std::size_t i = 0; i < op.reads.size(); ++i) {
    const TensorId id = op.reads[i];
    if (id == kNoTensor) continue;
    const MeshGroup owes = block_ == &piece_.update ? owed_in_update(id) : owed(id);
    const bool linear = (has_operand(traits.linear, i) && !(op.divides && i > 0)) ||
                        is_copy(op.kind);  // a copy passes on what it moves
    if (linear) ++may_owe;
    if (owes.empty()) continue;
    if (!linear || (traits.product && owe > 0)) {
      report(Rule::owed_refused, "{} owes the sum over {}, which has to be taken before this op", layout(id),
             words(mesh_, owes));
      continue;
    }
    if (owe > 0 && owes != passed)
      report(Rule::owed_alike, "{} owes the sum over {}, {} over {}, expected the same", layout(id), words(mesh_, owes),
             layout(owing), words(mesh_, passed));
    ++owe;
    passed = passed | owes;
    owing = id;
  }
  if (owe > 0 && owe < may_owe && !traits.product)
    report(Rule::owed_alike, "{} owes the sum over {}, the other operand does not, expected the same", layout(owing),
           words(mesh_, passed));
  return passed;
}

MeshGroup PieceCheck::owed_by_result(const Op& op, std::size_t result, const std::vector<Divided>& axes,
                                     MeshGroup passed) {
  const OpTraits& traits = traits_of(op.kind);
  const TensorId id = op.writes[result];
  const Tensor& t = tensor(id);
  MeshGroup summed;
  for (const Divided& a : axes) {
    if (a.over.empty() || !a.read || (traits.regroups && counts_rows(a.axis))) continue;
    MeshGroup here;  // digits that also divide the result; parts by heads are summed over heads
    for (int d = 0; d < t.rank; ++d)
      if (divided_axis(t.axes[d]) == a.axis && (t.deal(d) != Deal::query_heads || !a.read_in_parts))
        here = here | t.over[d].group();
    const MeshGroup parts = a.over.group().without(here);
    if (parts.empty()) continue;
    if (traits.sums) {
      summed = summed | parts;
    } else {
      report(Rule::whole_for_op, "{} is made of parts over {} of {} along {}, expected {}", layout(id),
             words(mesh_, parts), layout(a.first), name_of(a.axis), layout_with(a.first, a.dim, {}));
    }
  }
  for (std::size_t i = 0; i < op.reads.size(); ++i)
    if (op.reads[i] != kNoTensor && has_operand(traits.added, i) && !(summed | passed).empty())
      report(Rule::owed_alike, "{} is added on every rank to a partial sum over {}, expected after the sum",
             layout(op.reads[i]), words(mesh_, summed | passed));
  MeshGroup owes = summed.without(workers_);
  if (!has_operand(traits.independent, result)) owes = owes | passed;
  if (const MeshGroup both = owes & divided_without_rest(t); !both.empty()) {
    report(Rule::owed_refused,
           "{} is divided over {}, over which it would owe a sum: the ranks have parts of different elements",
           layout(id), words(mesh_, both));
    owes = owes.without(both);
  }
  return owes;
}

MeshGroup PieceCheck::contributors_of(TensorId id) const {
  const auto at = contributors_.find(id);
  return at == contributors_.end() ? MeshGroup{} : at->second;
}

// Whether the op, which sums over workers, takes their mean.
bool PieceCheck::takes_mean(const Op& op) const { return op.scale == 1 / static_cast<double>(mesh_.size(workers_)); }

// Codes have more dimensions than the numbers: over all dimensions together they are divided as the numbers are.
void PieceCheck::quantiser(const Op& op) {
  const auto divided = [&](TensorId id) {
    Division all;
    for (int d = 0; d < tensor(id).rank; ++d)
      for (int n = 0; n < tensor(id).over[d].count(); ++n) all.append(MeshGroup::of_digit(tensor(id).over[d].digit(n)));
    return all;
  };
  const auto numbers = [&](TensorId id) {
    const Tensor& t = tensor(id);
    return t.elements() / (t.axes[0] == Axis::contributions ? t.sizes[0] : 1);
  };
  const bool quantises = op.kind == OpKind::quantise;
  const TensorId from = op.reads[0], scales = op.reads[1];
  const MeshGroup summed = contributors_of(from);
  if (quantises == codes_.contains(from) || (quantises && !summed.empty()) ||
      (!quantises && (!codes_.contains(scales) || contributors_of(scales) != summed)))
    report(Rule::codes, "{} reads {}, expected {}", name_of(op.kind), layout(from),
           quantises ? "plain numbers" : "codes, with their scales, from the same ranks");
  for (const auto ids : {std::span<const TensorId>(op.reads), std::span<const TensorId>(op.writes)})
    for (const TensorId id : ids)
      if (id != kNoTensor && divided(id) != divided(from))
        report(Rule::operands_agree, "{} and {} are divided differently, expected alike", layout(id), layout(from));
  const TensorId to = op.writes[0];
  const std::int64_t plain = quantises ? numbers(from) : numbers(to), codes = quantises ? numbers(to) : numbers(from);
  if (!summed.empty() && summed == workers_ && !takes_mean(op))
    report(Rule::codes, "{} is summed over workers and multiplied by {}, expected their mean", layout(from),
           std::to_string(op.scale));
  const TensorId error = op.writes[kErrorWrite];
  if (op.kind != OpKind::dequantise && op.reads[error_read(op.kind)] != error)
    report(Rule::codes, "{} has an error that is not both read and written", layout(from));
  if (error != kNoTensor && tensor(error).elements() != (quantises ? plain : codes))
    report(Rule::sizes, "{} has errors of other numbers than {}", layout(error), layout(from));
  if (op.kind == OpKind::requantise ? codes != plain : codes < plain)
    report(Rule::sizes, "{} of {} numbers has {} codes", layout(quantises ? from : to), plain, codes);
  const bool flat = is_flat(from);
  std::map<std::size_t, MeshGroup> sums;
  if (flat) sums = flats_.at(from);
  for (auto& [p, owes] : sums) owes = owes.without(summed);
  for (const TensorId id : op.writes) {
    if (id == kNoTensor) continue;
    write(id, owed(from).without(summed));
    if (flat) flats_[id] = sums;
    if (op.kind == OpKind::dequantise || id == error) continue;
    codes_.insert(id);
    if (codes > plain) padded_[id] = divided(from).group();
    pass_padding(from, id);
  }
}

// The largest numbers travel with their indices, like codes with their scales. They are taken of whole numbers; a sum
// of them is the mean of all workers.
void PieceCheck::sparse(const Op& op) {
  const bool sparsifies = op.kind == OpKind::sparsify;
  const TensorId numbers = sparsifies ? op.reads[0] : op.writes[0], values = sparsifies ? op.writes[0] : op.reads[0],
                 indices = sparsifies ? op.writes[1] : op.reads[1], error = op.writes[kErrorWrite];
  for (const TensorId id : {values, indices})
    if (tensor(id).dtype != (id == values ? Dtype::fp32 : Dtype::int32) ||
        tensor(id).elements() != tensor(values).elements())
      report(Rule::sizes, "{} and {} are not fp32 numbers and as many int32 indices", layout(values), layout(indices));
  if (tensor(numbers).over[0] != tensor(values).over[tensor(values).rank - 2])
    report(Rule::operands_agree, "{} and {} are divided differently, expected alike", layout(numbers), layout(values));
  if (sparsifies) {
    if (codes_.contains(numbers) || !contributors_of(numbers).empty() || (!is_flat(numbers) && !owed(numbers).empty()))
      report(Rule::codes, "{} is no list of plain numbers whose sum is taken", layout(numbers));
    if (is_flat(numbers)) expect_owes_nothing(numbers);
    if (error != kNoTensor && tensor(error).elements() != tensor(numbers).elements())
      report(Rule::sizes, "{} has errors of other numbers than {}", layout(error), layout(numbers));
    codes_.insert({values, indices});
  } else if (!codes_.contains(values) || !codes_.contains(indices) || contributors_of(values) != workers_ ||
             contributors_of(indices) != workers_ || !takes_mean(op)) {
    report(Rule::codes, "{} is multiplied by {}, expected the mean of numbers and their indices from all workers",
           layout(values), std::to_string(op.scale));
  }
  for (const TensorId id : op.writes)
    if (id != kNoTensor) write(id, {});
}

// A rank puts its own tokens into slots: tokens and slots are divided over the same digits. Experts may be divided over
// digits whose ranks have the same tokens.
void PieceCheck::expect_own_rows(const Op& op) {
  const std::span<const TensorId> reads(op.reads), writes(op.writes);
  MeshGroup tokens, slots, experts;
  TensorId rows = kNoTensor, x = kNoTensor;  // first tensor of slots, first tensor of tokens; a mask is both
  for (const std::span<const TensorId> operands : {reads, writes})
    for (const TensorId id : operands) {
      if (id == kNoTensor) continue;
      const Tensor& t = tensor(id);
      const bool of_slots = t.find(Axis::slots) >= 0;
      if (TensorId& first = of_slots ? rows : x; first == kNoTensor) first = id;
      for (int d = 0; d < t.rank; ++d) {
        MeshGroup& group = t.axes[d] == Axis::experts ? experts : t.axes[d] == Axis::slots ? slots : tokens;
        if (counts_rows(t.axes[d]) || t.axes[d] == Axis::experts) group = group | t.over[d].group();
      }
    }
  if (rows == kNoTensor || x == kNoTensor || (tokens == slots && !experts.meets(tokens))) return;
  report(Rule::own_rows,
         "{} has tokens of one part over {}, {} slots of one over {} and experts of one over {}: slots must be divided "
         "as tokens, and experts over other ranks or not at all",
         layout(x), words(mesh_, tokens), layout(rows), words(mesh_, slots), words(mesh_, experts));
}

// ---- rings ----

// Attention reads all keys, or those that a ring brings; the op masks by the same number of positions.
void PieceCheck::expect_keys(const Op& op) {
  const std::size_t first = queries_operand(op.kind);
  const TensorId queries = op.reads[first], keys = op.reads[first + 1] != kNoTensor ? op.reads[first + 1] : queries;
  if (const int d = tensor(queries).find(Axis::sequence); d >= 0 && masks(op))
    if (const std::int64_t parts = mesh_.size(tensor(queries).over[d].group()); parts != op.parts)
      report(Rule::sizes, "{} has one of {} parts of the positions, the op states {}", layout(queries), parts,
             op.parts);
  if (const int d = tensor(keys).find(Axis::sequence); d >= 0)
    if (const MeshGroup parts = meeting(tensor(keys), d).without(ring_group_);
        !parts.empty() && op.window != 1)  // a window of one is the query's own position
      report(Rule::whole_for_op, "{} has the keys of one part over {}, and no ring brings the others, expected {}",
             layout(keys), words(mesh_, parts), layout_with(keys, d, {}));
}

// The digits over which the parts of a dimension have keys that their queries meet.
MeshGroup PieceCheck::meeting(const Tensor& t, int dim) const {
  const Division over = t.over[dim];
  if (over.empty() || !is_table_of_runs(t.deal(dim))) return over.group();
  MeshGroup minor;
  std::int64_t parts = 1;
  for (int n = dealing_digits(t.deal(dim), over, mesh_); n-- > 0 && parts < t.table->meeting_parts;) {
    minor = minor | MeshGroup::of_digit(over.digit(n));
    parts *= mesh_.size(MeshGroup::of_digit(over.digit(n)));
  }
  return minor;
}

void PieceCheck::follow_ring(const Op& op) {
  if (is_attention(op.kind)) return attend_in_ring(op);
  const auto unite = [&](TensorId a, TensorId b, TensorId both) {
    std::vector<bool> seen = united(a, b);
    const Op* const mask = state_[storage_or_self(a)].mask;
    state_[both].seen = std::move(seen);
    state_[both].mask = mask;
  };
  if (op.kind == OpKind::merge_attention) {
    unite(op.reads[0], op.reads[2], op.writes[0]);
    unite(op.reads[1], op.reads[3], op.writes[1]);
    return;
  }
  if (op.kind == OpKind::add && op.reads[1] != kNoTensor && !seen_of(op.reads[0]).empty() &&
      !seen_of(op.reads[1]).empty() && op.reads[2] == kNoTensor) {
    const std::int64_t a = state_[op.reads[0]].travelled, b = state_[op.reads[1]].travelled;
    if (a != b)
      report(Rule::sees_all_keys, "{} is of keys {} ranks from home, {} of keys {} from home", quoted(op.reads[0]), a,
             quoted(op.reads[1]), b);
    unite(op.reads[0], op.reads[1], op.writes[0]);
    state_[op.writes[0]].travelled = a;
    return;
  }
  // The same sum in another dtype, with which the ring continues.
  if (op.kind == OpKind::cast && !op.accumulate && !seen_of(op.reads[0]).empty() &&
      tensor(op.reads[0]).dtype != tensor(op.writes[0]).dtype) {
    const State from = state_[written_as(op.reads[0])];
    state_[op.writes[0]].seen = from.seen;
    state_[op.writes[0]].mask = from.mask;
    state_[op.writes[0]].travelled = from.travelled;
    return;
  }
  for (const TensorId id : op.reads)
    if (id != kNoTensor) expect_complete(id);
  for (const TensorId id : op.writes)
    if (id != kNoTensor) state_[id].seen.clear(), state_[id].travelled = 0;
}

std::int64_t PieceCheck::ranks_within(MeshGroup group) const {
  std::int64_t ranks = 1;
  for (int digit = 0; digit < Mesh::kMaxDigits && !group.contains(digit); ++digit)
    if (ring_group_.contains(digit)) ranks *= mesh_.size(MeshGroup::of_digit(digit));
  return ranks;
}

void PieceCheck::attend_in_ring(const Op& op) {
  const std::int64_t ranks = mesh_.size(ring_group_);
  const bool backward = op.kind == OpKind::attention_backward;
  const std::size_t first = queries_operand(op.kind);
  const TensorId q = op.reads[first], kv = op.reads[first + 1];
  const TensorId keys = kv == kNoTensor ? q : storage_or_self(kv);
  const std::int64_t travelled = state_[keys].travelled % ranks;
  if (travelled != op.keys_before)
    report(Rule::sees_all_keys, "{} has the keys of {} ranks before, the op states {}", quoted(keys), travelled,
           op.keys_before);
  // If keys are dealt by runs, a ring contains only parts that meet.
  const Tensor& of_keys = tensor(keys);
  const int d = of_keys.find(Axis::sequence);
  std::int64_t within = inner_ranks_;
  if (d >= 0 && !of_keys.over[d].empty() && is_table_of_runs(of_keys.deal(d)))
    if (const std::int64_t meet = of_keys.table->meeting_parts; meet < mesh_.size(of_keys.over[d].group()))
      within = meet;
  if (op.inner_parts != within)
    report(Rule::sees_all_keys, "keys go round in rings of {} ranks, the op states {}", within, op.inner_parts);
  if (backward) expect_complete(op.reads[1]), expect_complete(op.reads[2]);
  std::vector<bool> seen(static_cast<std::size_t>(ranks));
  seen[static_cast<std::size_t>(travelled)] = true;
  for (const TensorId id : op.writes)
    if (id != kNoTensor) state_[id].seen = seen, state_[id].mask = &op;
  if (backward && op.writes[1] != kNoTensor) state_[op.writes[1]].travelled = travelled;
}

const std::vector<bool>& PieceCheck::seen_of(TensorId id) const {
  static const std::vector<bool> kNone;
  const TensorId as = written_as(id);
  return as == kNoTensor ? kNone : state_[as].seen;
}

std::vector<bool> PieceCheck::united(TensorId a, TensorId b) {
  std::vector<bool> x = seen_of(a);
  const std::vector<bool>& y = seen_of(b);
  if (x.empty() || y.empty()) return x.empty() ? y : x;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] && y[i])
      report(Rule::sees_all_keys, "{} and {} have both met the keys of {} ranks before", quoted(a), quoted(b), i);
    x[i] = x[i] || y[i];
  }
  return x;
}

void PieceCheck::expect_complete(TensorId id) {
  const TensorId as = written_as(id);
  if (as == kNoTensor || state_[as].seen.empty()) return;
  if (state_[as].travelled != 0)
    report(Rule::sees_all_keys, "{} is still {} ranks away from where its keys belong", quoted(id),
           state_[as].travelled);
  for (std::size_t i = 0; i < state_[as].seen.size(); ++i)
    if (!state_[as].seen[i] && visible(static_cast<std::int64_t>(i), state_[as].mask))
      report(Rule::sees_all_keys, "{} lacks the keys of {} ranks before", quoted(id), i);
}

// Whether any rank's queries see keys of the rank `away` places before.
bool PieceCheck::visible(std::int64_t away, const Op* mask) const {
  if (mask == nullptr) return true;
  Op op = *mask;
  const Tensor& queries = tensor(op.reads[queries_operand(op.kind)]);
  if (const int d = queries.find(Axis::sequence); d >= 0 && !queries.over[d].empty())
    if (is_table_of_runs(queries.deal(d)) && away >= queries.table->meeting_parts) return false;
  op.keys_before = static_cast<std::int32_t>(away);
  return attends(op, piece_.tensors);
}

}  // namespace orrery::proof
