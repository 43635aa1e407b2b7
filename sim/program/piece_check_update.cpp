#include <span>

#include "sim/program/piece_check.h"
#include "sim/program/rewrite.h"

namespace orrery::proof {

// A part of a flat buffer that no collective has produced: it owes what the buffer owes.
void PieceCheck::cut(TensorId id) {
  const TensorId base = id == kNoTensor ? kNoTensor : tensor(id).alias_of;
  if (!is_flat(base) || (is_flat(id) && !cuts_.contains(id)) || tensor(id).divided_over().empty()) return;
  if (std::size_t p = 0; is_gradient_of_parameter(id, p)) return;
  cuts_.insert(id);
  flats_[id] = flats_.at(base);
}

void PieceCheck::elementwise_on_flat(const Op& op) {
  if (op.kind == OpKind::zero_fill) {
    for (auto& [p, owes] : flats_.at(op.writes[0])) owes = {};
    return write(op.writes[0], {});
  }
  for (const TensorId id : op.reads)
    if (id != kNoTensor && !clips_by(op, id) && tensor(id).over[0] != tensor(op.reads[0]).over[0])
      report(Rule::operands_agree, "{} and {} are shards of two kinds, expected one", layout(id), layout(op.reads[0]));
  for (const TensorId id : op.writes) {
    if (id == kNoTensor) continue;
    if (tensor(id).over[0] != tensor(op.reads[0]).over[0])
      report(Rule::operands_agree, "{} and {} are shards of two kinds, expected one", layout(id), layout(op.reads[0]));
    write(id, {});
    if (id != op.reads[0]) flats_[id] = flats_.at(op.reads[0]);
  }
}

// A norm over a part of the gradients would give each rank another clip coefficient.
bool PieceCheck::clips_by(const Op& op, TensorId id) {
  const int at = norm_operand(op.kind);
  if (at < 0 || op.reads[static_cast<std::size_t>(at)] != id) return false;
  if (!owed(id).empty())
    report(Rule::norm_of_all, "gradients are clipped by {}, which still owes the sum over {}", quoted(id),
           words(mesh_, owed(id)));
  return true;
}

void PieceCheck::expect_owes_nothing(TensorId id) {
  for (const auto& [p, owes] : flats_.at(id)) {
    expect_summed_over_stages(p);
    if (!owes.empty())
      report(Rule::gradient_meets_state, "the gradient of {} in {} still owes the sum over {}",
             quoted(piece_.parameters[p].parameter), quoted(id), words(mesh_, owes));
  }
}

void PieceCheck::norm(const Op& op) {
  if (is_flat(op.reads[0])) {
    expect_owes_nothing(op.reads[0]);
    write(op.writes[0], norm_group_);
  } else {  // parts of the buffer itself
    norms_.erase(storage_of(piece_, op.reads[0]));
    write(op.writes[0], owed(op.reads[0]));
  }
  norms_.insert(storage_of(piece_, op.writes[0]));
}

void PieceCheck::optimize(const Op& op) {
  if (is_flat(op.reads[0])) expect_owes_nothing(op.reads[0]);
  for (const auto ids : {std::span<const TensorId>(op.reads), std::span<const TensorId>(op.writes)})
    for (const TensorId id : ids) {
      if (id == kNoTensor || clips_by(op, id)) continue;
      if (tensor(id).over[0] != tensor(op.reads[0]).over[0] || tensor(id).sizes[0] != tensor(op.reads[0]).sizes[0])
        report(Rule::gradient_meets_state, "gradients {} of {} elements meet {} of {}, expected the same",
               layout(op.reads[0]), tensor(op.reads[0]).sizes[0], layout(id), tensor(id).sizes[0]);
    }
  for (const TensorId id : op.writes)
    if (id != kNoTensor) updated(id);
}

void PieceCheck::expect_same_part(TensorId from, TensorId to) {
  if (tensor(from).over[0] == tensor(to).over[0] && tensor(from).sizes[0] == tensor(to).sizes[0]) return;
  report(Rule::operands_agree, "{} of {} elements becomes {} of {}, expected the same", layout(from),
         tensor(from).sizes[0], layout(to), tensor(to).sizes[0]);
}

// Only parts of a parameter buffer are updated; the rest of it is stale.
void PieceCheck::updated(TensorId id) {
  write(id, {});
  if (tensor(id).category != Category::parameter) return;
  const TensorId root = storage_of(piece_, id);
  if (const ParameterSet* set = set_of(piece_, root); set != nullptr && set->frozen())
    report(Rule::frozen_stays, "{} is updated, and has the parameters of a frozen set", quoted(id));
  stale_[root] = tensor(id).divided_over().without(tensor(root).divided_over());
}

// Checks that the groups of a parameter set are those of its tensors.
void PieceCheck::expect_divided(const ParameterSet& set) {
  const auto expect = [&](TensorId id, MeshGroup group, const char* what) {
    if (id == kNoTensor || tensor(id).divided_over() == group) return;
    report(Rule::sets_divided, "{} are the {} of a parameter set that divides them over {}", layout(id), what,
           words(mesh_, group));
  };
  expect(set.parameters, set.over.weights, "weights");
  expect(set.gradients, set.over.gradients, "gradients");
  expect(set.own_parameters, set.over.states, "weights that are updated");
  expect(set.own_gradients, set.over.states, "gradients that are updated with");
  expect(set.secondary, set.over.secondary, "second copy of the weights");
  if (set.own_parameters == kNoTensor || set.own_gradients == kNoTensor) return;
  if (tensor(set.own_parameters).over[0] != tensor(set.own_gradients).over[0])
    report(Rule::sets_divided, "{} are updated with {}: parts of two orders", layout(set.own_parameters),
           layout(set.own_gradients));
}

}  // namespace orrery::proof
