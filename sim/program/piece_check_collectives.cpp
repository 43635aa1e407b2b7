#include <algorithm>
#include <optional>
#include <utility>

#include "sim/program/piece_check.h"
#include "sim/program/redistribute.h"
#include "sim/program/rewrite.h"

namespace orrery::proof {
namespace {

bool same_layout(const Tensor& a, const Tensor& b) { return a.rank == b.rank && a.over == b.over && a.is_dealt_as(b); }

}  // namespace

void PieceCheck::communicate(const Op& op) {
  const TensorId from = op.reads[0], to = op.writes[0];
  if (from == kNoTensor || to == kNoTensor) return;
  if (op.stages.has_value()) return sum_over_stages(op, from, to);
  if (op.reduction == Reduction::copies) return sum_over_copies(op, from, to);
  if (const auto packing = packings_.find(from); packing != packings_.end()) return sum_packed(op, *packing->second);
  if (from != to && state_[to].own_block == serial_)
    report(Rule::written_once, "{} has been written in this block before", quoted(to));
  if (is_flat(from) && storage_of(piece_, from) == storage_of(piece_, to)) expect_last(op, from);
  if (codes_.contains(from)) {
    if (op.kind != OpKind::all_gather && op.kind != OpKind::all_to_all)
      report(Rule::codes, "{} has codes, which can only be gathered or exchanged", layout(from));
    codes_.insert(to);
  }
  switch (op.kind) {
    case OpKind::all_gather:
      return gather(op, from, to);
    case OpKind::reduce_scatter:
      expect_part_of(op, from, to);
      return take_sum(op, from, to, Rule::scatters);
    case OpKind::all_reduce:
      return reduce(op, from, to);
    case OpKind::all_to_all:
      return exchange_contributions(op, from, to);
    case OpKind::redistribute:
      return exchange(op, from, to);
    case OpKind::ring_shift:
      return shift(op, from, to);
    default:
      return write(to, owed(from));
  }
}

void PieceCheck::shift(const Op& op, TensorId from, TensorId to) {
  const Tensor &a = tensor(from), &b = tensor(to);
  const int d = a.find(Axis::sequence);
  if (op.group.empty() || d < 0 || !a.over[d].group().contains(op.group) || !same_layout(a, b))
    report(Rule::shifts,
           "{} is shifted over {} into {}: a ring is of the digits that divide the sequence, and changes no layout",
           layout(from), words(mesh_, op.group), layout(to));
  const State source = state_[storage_or_self(from)];
  write(to, owed(from));
  state_[to].seen = source.seen;
  // A shift from ring to ring, or within a ring.
  const std::int64_t within = ranks_within(op.group), ranks = mesh_.size(op.group),
                     at = source.travelled / within % ranks;
  if (inner_ranks_ > 1 && within == 1 && ranks != inner_ranks_)
    report(Rule::shifts, "{} is shifted over {}: in a ring of rings keys go round within one, or from one to the next",
           layout(from), words(mesh_, op.group));
  state_[to].travelled = source.travelled + ((at + op.distance) % ranks - at) * within;
}

// Whether `divided` has the group's digits in exactly one dimension in addition to those of `whole`, as the minor ones.
bool PieceCheck::differs_by(const Tensor& divided, const Tensor& whole, MeshGroup group, int& dim) const {
  if (divided.rank != whole.rank) return false;
  dim = -1;
  for (int d = 0; d < divided.rank; ++d) {
    if (divided.deal(d) != whole.deal(d) && !whole.over[d].empty()) return false;
    if (divided.over[d] == whole.over[d]) continue;
    Division expected = whole.over[d];
    if (!expected.has_room_for(group)) return false;
    expected.append(group);
    if (dim >= 0 || divided.over[d] != expected) return false;
    dim = d;
  }
  return dim >= 0;
}

// The layout after a gather of `part` over `group`: the group's digits are the minor ones of one dimension.
std::string PieceCheck::gathered(TensorId part, MeshGroup group) const {
  if (group.empty()) return layout(part);
  for (int d = 0; d < tensor(part).rank; ++d) {
    const Division over = tensor(part).over[d];
    Division rest, whole;
    for (int n = 0; n < over.count(); ++n)
      if (!group.contains(over.digit(n))) rest.append(MeshGroup::of_digit(over.digit(n)));
    whole = rest;
    if (!whole.has_room_for(group)) continue;
    whole.append(group);
    if (whole == over) return layout_with(part, d, rest);
  }
  return "an operand with " + words(mesh_, group) + " as the minor digits of one dimension";
}

// The layout after a scatter of `whole` over `group`, in the dimension in which `part` is divided over any of the
// group's digits.
std::string PieceCheck::scattered(TensorId whole, const Tensor& part, MeshGroup group) const {
  if (group.empty()) return layout(whole);
  for (int d = 0; d < std::min(part.rank, tensor(whole).rank); ++d) {
    Division over = tensor(whole).over[d];
    if (!part.over[d].group().meets(group) || !over.has_room_for(group)) continue;
    over.append(group);
    return layout_with(whole, d, over);
  }
  return "a result with one dimension divided over " + words(mesh_, group) + " as well";
}

void PieceCheck::expect_parts(const Tensor& part, const Tensor& whole, int dim, MeshGroup group) {
  const std::int64_t parts = part.sizes[dim] * mesh_.size(group);
  // Flat buffers are padded to a multiple of the smallest parts.
  std::int64_t multiple = mesh_.size(group);
  for (const ParameterSet& set : piece_.sets)
    if (set.over.states.contains(group)) multiple = std::max(multiple, mesh_.size(set.over.states));
  const bool padded = whole.rank == 1 && parts >= whole.sizes[0] && parts - whole.sizes[0] < multiple;
  bool rest = true;
  for (int d = 0; d < whole.rank; ++d) rest = rest && (d == dim || part.sizes[d] == whole.sizes[d]);
  if (rest && (parts == whole.sizes[dim] || padded)) return;
  report(Rule::sizes, "\"{}\" {} has {} elements, {} parts of \"{}\" {} have {}", part.name, words(mesh_, part),
         part.elements(), mesh_.size(group), whole.name, words(mesh_, whole), whole.elements());
}

// Checks that one of the two operands is a part of the other, which is whole over the group.
void PieceCheck::expect_part_of(const Op& op, TensorId from, TensorId to) {
  const bool gathers = op.kind == OpKind::all_gather;
  const Tensor &part = tensor(gathers ? from : to), &whole = tensor(gathers ? to : from);
  int dim = 0;
  if (op.group.empty() ? !same_layout(part, whole) : !differs_by(part, whole, op.group, dim)) {
    report(gathers ? Rule::gathers : Rule::scatters, "{} does not become {} by {} over {}, expected {}", layout(from),
           layout(to), gathers ? "gathering" : "scattering", words(mesh_, op.group),
           gathers ? gathered(from, op.group) : scattered(from, part, op.group));
  } else if (!op.group.empty()) {
    expect_parts(part, whole, dim, op.group);
  }
}

void PieceCheck::gather(const Op& op, TensorId from, TensorId to) {
  expect_part_of(op, from, to);
  const TensorId root = storage_of(piece_, to);
  if (tensor(root).category == Category::parameter || tensor(to).category == Category::parameter) {
    const auto stale = stale_.find(root);
    if (stale != stale_.end()) stale->second = stale->second.without(op.group);
  }
  write(to, owed(from));
  if (is_flat(from)) flats_[to] = flats_.at(from);
  if (int dim = -1;
      tensor(to).axes[0] == Axis::contributions && differs_by(tensor(from), tensor(to), op.group, dim) && dim == 0)
    contributors_[to] = op.group;
  pass_padding(from, to);
  if (const auto padded = padded_.find(to); padded != padded_.end() && padded->second.meets(op.group))
    report(Rule::codes, "{} ends with codes of no number on each rank of {}", layout(from),
           words(mesh_, padded->second & op.group));
}

void PieceCheck::pass_padding(TensorId from, TensorId to) {
  if (const auto padded = padded_.find(from); padded != padded_.end()) padded_[to] = padded->second;
}

void PieceCheck::reduce(const Op& op, TensorId from, TensorId to) {
  if (!same_layout(tensor(from), tensor(to)) || tensor(from).elements() != tensor(to).elements())
    report(Rule::reduces, "{} of {} elements and its sum {} of {} have different layouts, expected the same",
           layout(from), tensor(from).elements(), layout(to), tensor(to).elements());
  if (op.reduction == Reduction::mean) {
    expect_mean_of_workers(op, from);
    return write(to, {});
  }
  if (norms_.erase(storage_of(piece_, from)) > 0) norms_.insert(storage_of(piece_, to));
  take_sum(op, from, to, Rule::reduces);
}

void PieceCheck::expect_mean_of_workers(const Op& op, TensorId from) {
  // An all-reduce may take in ranks of a worker, too, which have the same.
  const bool takes_means = op.kind == OpKind::all_to_all
                               ? op.group == workers_
                               : op.kind == OpKind::all_reduce && op.group.contains(workers_) &&
                                     !op.group.meets(tensor(from).divided_over());
  if (!takes_means || workers_.empty() || !owed(from).empty() || is_flat(from))
    report(Rule::common_to_workers,
           "{} is averaged over {}: a mean is over all workers, of what each of them has for itself", layout(from),
           words(mesh_, op.group));
}

void PieceCheck::expect_owes(TensorId id, MeshGroup group, Rule rule, const char* how) {
  if (!is_flat(id)) {
    if (!owed(id).contains(group))
      report(rule, "{} owes the sum over {}, {} {}", layout(id), words(mesh_, owed(id)), how, words(mesh_, group));
    return;
  }
  for (const auto& [p, owes] : flats_.at(id))
    if (!owes.contains(group))
      report(rule, "the gradient of {} owes the sum over {}, {} {}", quoted(piece_.parameters[p].parameter),
             words(mesh_, owes), how, words(mesh_, group));
}

void PieceCheck::take_sum(const Op& op, TensorId from, TensorId to, Rule rule) {
  expect_owes(from, op.group, rule, "the sum is taken over");
  if (!is_flat(from)) return write(to, owed(from).without(op.group));
  std::map<std::size_t, MeshGroup> sums = flats_.at(from);
  for (auto& [p, owes] : sums) owes = owes.without(op.group);
  write(to, {});
  flats_[to] = std::move(sums);
}

void PieceCheck::exchange(const Op& op, TensorId from, TensorId to) {
  std::vector<const Tensor*> parts;
  for (const TensorId id : op.reads) {
    if (id == kNoTensor) continue;
    parts.push_back(&tensor(id));
    expect_complete(id);
    if (id != from && owed(id) != owed(from))
      report(Rule::owed_alike, "{} owes the sum over {}, {} over {}, expected the same", layout(id),
             words(mesh_, owed(id)), layout(from), words(mesh_, owed(from)));
  }
  const std::optional<Redistribution> needed = redistribution(mesh_, parts, tensor(to));
  if (!needed || needed->group != op.group) {
    report(Rule::exchanges, "{} does not become {} by an exchange over {}{}", layout(from), layout(to),
           words(mesh_, op.group),
           needed ? ": what differs is over " + words(mesh_, needed->group)
                  : ": they do not belong to one whole over the same digits");
  } else if (op.share != needed->share) {
    report(Rule::sizes, "{}: a share of {} becomes {}, the op moves {}", layout(from), std::to_string(needed->share),
           layout(to), std::to_string(op.share));
  }
  write(to, owed(from));
}

// Each rank gets all ranks' contributions to its part of a sum, which stays owed until a quantiser takes it.
void PieceCheck::exchange_contributions(const Op& op, TensorId from, TensorId to) {
  const Tensor &whole = tensor(from), &delivered = tensor(to);
  const Tensor part = without_contributions(delivered);
  int dim = 0;
  if (delivered.axes[0] != Axis::contributions || contributors_.contains(from) ||
      !differs_by(part, whole, op.group, dim)) {
    report(Rule::scatters, "{} does not become {} by an exchange of contributions over {}, expected {} of each rank",
           layout(from), layout(to), words(mesh_, op.group), scattered(from, part, op.group));
  } else {
    expect_parts(part, whole, dim, op.group);
    if (delivered.sizes[0] != mesh_.size(op.group))
      report(Rule::sizes, "{} has room for {} contributions, {} ranks contribute", layout(to), delivered.sizes[0],
             mesh_.size(op.group));
  }
  if (op.reduction == Reduction::mean)
    expect_mean_of_workers(op, from);
  else
    expect_owes(from, op.group, Rule::scatters, "contributions come from");
  if (is_flat(from)) flats_[to] = flats_.at(from);
  write(to, owed(from));
  contributors_[to] = op.group;
  pass_padding(from, to);
}

void PieceCheck::expect_last(const Op& op, TensorId id) {
  if (block_ == &piece_.update || op.when == When::last_micro_batch || program_.schedule.micro_batches == 1) return;
  report(Rule::last_micro_batch, "{} is summed in place in every micro-batch, and added to in between", quoted(id));
}

// The parameters whose gradients a tensor holds: all of a flat buffer, or the one of which it is a view.
std::vector<std::size_t> PieceCheck::gradients_in(TensorId id) const {
  std::vector<std::size_t> parameters;
  const auto flat = flats_.find(storage_of(piece_, id));
  if (flat == flats_.end()) return parameters;
  const auto whole = flats_.find(id);
  for (const auto& [p, owes] : whole != flats_.end() ? whole->second : flat->second) {
    const Tensor& gradient = tensor(piece_.parameters[p].gradient);
    if (whole != flats_.end() ||
        (gradient.alias_begin == tensor(id).alias_begin && gradient.elements() == tensor(id).elements()))
      parameters.push_back(p);
  }
  return parameters;
}

void PieceCheck::sum_over_stages(const Op& op, TensorId from, TensorId to) {
  constexpr Rule kRule = Rule::summed_over_holders;
  if (op.stages.value() >= program_.stage_groups.size())
    return report(kRule, "names a list of stages that does not exist");
  const StageGroup& stages = program_.stage_groups[op.stages.value()];
  const bool leads = block_ == &piece_.update && std::all_of(block_->ops.data(), &op, [](const Op& before) {
                       return is_communication(before.kind);
                     });
  if (op.kind != OpKind::all_reduce || !op.group.empty() || from != to || !leads)
    report(kRule,
           "sums over stages must be in-place all-reduces over lists of stages only, after the update's reductions");
  const std::vector<std::size_t> parameters = gradients_in(from);
  if (parameters.empty()) report(kRule, "{} is not a gradient", quoted(from));
  for (const std::size_t p : parameters) {
    const std::string parameter = quoted(piece_.parameters[p].parameter);
    const std::vector<std::uint16_t>* held = holders_.of(piece_, p);
    if (!owes_stages_[p]) {
      report(kRule, "the gradient of {} owes no sum over stages", parameter);
    } else if (*held != stages) {
      report(kRule, "the gradient of {} is summed over stages {}, expected those that hold it, {}", parameter,
             fmt::join(stages, ", "), fmt::join(*held, ", "));
    }
    owes_stages_[p] = false;
  }
  if (const Tensor* other = holders_.meet(op.stages, tensor(from));
      other != nullptr && (other->elements() != tensor(from).elements() || other->over != tensor(from).over))
    report(kRule, "{} is summed with {} of {} elements of another stage, expected the same", layout(from),
           words(mesh_, *other), other->elements());
}

void PieceCheck::sum_over_copies(const Op& op, TensorId from, TensorId to) {
  constexpr Rule kRule = Rule::summed_over_holders;
  const std::vector<std::size_t> parameters = gradients_in(from);
  if (op.kind != OpKind::all_reduce || from != to || block_ != &piece_.update || !op.load.has_value())
    report(kRule, "sums over copies must be in-place all-reduces of the update, with a load that says what ranks send");
  if (parameters.empty()) report(kRule, "{} is not a gradient", quoted(from));
  for (const std::size_t p : parameters) {
    const Tensor& parameter = tensor(piece_.parameters[p].parameter);
    const int experts = parameter.find(Axis::experts);
    if (experts < 0 || parameter.over[experts].group() != op.group)
      report(kRule, "the gradient of {} is summed over the copies of experts on ranks of {}",
             layout(piece_.parameters[p].parameter), words(mesh_, op.group));
    else if (program_.has_copies() && !owes_copies_[p])
      report(kRule, "the gradient of {} is summed over copies for the second time",
             quoted(piece_.parameters[p].parameter));
    owes_copies_[p] = false;
  }
  if (is_flat(from)) expect_owes_nothing(from);
}

void PieceCheck::expect_summed_over_holders(std::size_t p) {
  for (auto [owes, holders] :
       {std::pair(&owes_stages_, "stages that hold it"), {&owes_copies_, "copies of its experts"}})
    if ((*owes)[p]) {
      report(Rule::summed_over_holders, "the gradient of {} is not summed over the {}",
             quoted(piece_.parameters[p].parameter), holders);
      (*owes)[p] = false;  // reported once
    }
}

void PieceCheck::sum_packed(const Op& op, const PackedGradients& packing) {
  if (piece_.sets.empty()) return;
  for (const TensorId id : packing.gradients) {
    std::size_t p = 0;
    const bool known = is_gradient_of_parameter(id, p) && piece_.parameters[p].set < piece_.sets.size();
    const auto held = flats_.find(known ? piece_.sets[piece_.parameters[p].set].own_gradients : kNoTensor);
    if (held == flats_.end() || !held->second.contains(p)) {
      report(Rule::packed_gradients, "{} is packed, but is not the gradient of a parameter held here", quoted(id));
      continue;
    }
    MeshGroup& owes = held->second.at(p);
    if (!owes.contains(op.group))
      report(Rule::packed_gradients, "the gradient {} owes the sum over {}, the packed sum is taken over {}",
             quoted(id), words(mesh_, owes), words(mesh_, op.group));
    owes = owes.without(op.group);
  }
  const std::int64_t elements = packed_elements(mesh_, piece_, packing);
  if (elements != tensor(packing.buffer).elements())
    report(Rule::packed_gradients, "{} has {} elements, its gradients owe the sums of {}", quoted(packing.buffer),
           tensor(packing.buffer).elements(), elements);
}

}  // namespace orrery::proof
