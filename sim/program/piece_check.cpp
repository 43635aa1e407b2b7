#include "sim/program/piece_check.h"

#include <array>
#include <cmath>
#include <span>

#include "sim/program/redistribute.h"
#include "sim/program/rewrite.h"

namespace orrery::proof {

std::string words(const Mesh& mesh, MeshGroup group) {
  std::string text;
  for (std::size_t d = mesh.digits().size(); d-- > 0;)
    if (group.contains(static_cast<int>(d))) text += (text.empty() ? "" : " x ") + std::string(mesh.digits()[d].name);
  return text.empty() ? "nothing" : text;
}

std::string words(const Mesh& mesh, const Tensor& t, int dim) {
  const Division over = t.over[dim];
  std::string text;
  for (int n = 0; n < over.count(); ++n)
    text += (n > 0 ? " x " : "") + std::string(mesh.digits()[static_cast<std::size_t>(over.digit(n))].name);
  if (over.empty()) text = "nothing";
  if (t.deal(dim) != Deal::contiguous) text += std::string(" ") + name_of(t.deal(dim));
  return text;
}

std::string words(const Mesh& mesh, const Tensor& t) {
  std::string text = "[";
  for (int d = 0; d < t.rank; ++d)
    text += (d > 0 ? " | " : "") + (t.over[d].empty() ? std::string("-") : words(mesh, t, d));
  return text + "]";
}

MeshGroup divided_without_rest(const Tensor& t) {
  MeshGroup group;
  for (int d = 0; d < t.rank; ++d)
    if (t.deal(d) != Deal::query_heads) group = group | t.over[d].group();
  return group;
}

Holders::Holders(const Program& program) : operands_(program.stage_groups.size()) {
  for (std::size_t s = 0; s < program.stages.size(); ++s)
    for (const Chunk& chunk : program.stages[s])
      for (const PieceRun& run : chunk.runs)
        for (const ParameterGradient& p : program.pieces[run.piece].parameters) {
          if (p.tied == 0) continue;
          std::vector<std::uint16_t>& held = stages_[p.tied];
          if (held.empty() || held.back() != s) held.push_back(static_cast<std::uint16_t>(s));
        }
}

const std::vector<std::uint16_t>* Holders::of(const Piece& piece, std::size_t parameter) const {
  const auto held = stages_.find(piece.parameters[parameter].tied);
  return held == stages_.end() ? nullptr : &held->second;
}

bool Holders::several(const Piece& piece, std::size_t parameter) const {
  const std::vector<std::uint16_t>* held = of(piece, parameter);
  return held != nullptr && held->size() > 1 && !piece.tensors[piece.parameters[parameter].parameter].shared;
}

PieceCheck::PieceCheck(const Program& program, const Piece& piece, MeshGroup norm_group, Holders& holders,
                       std::vector<Violation>& found)
    : mesh_(program.mesh),
      program_(program),
      piece_(piece),
      norm_group_(norm_group),
      workers_(program.mesh.group(MeshAxis::worker)),
      holders_(holders),
      found_(found),
      owed_(piece.tensors.size()),
      state_(piece.tensors.size()),
      contributed_(piece.parameters.size()) {
  const bool copies = program.has_copies();
  for (std::size_t p = 0; p < piece.parameters.size(); ++p) {
    const TensorId gradient = piece.parameters[p].gradient;
    owes_stages_.push_back(gradient != kNoTensor && holders.several(piece, p));
    owes_copies_.push_back(gradient != kNoTensor && copies &&
                           tensor(piece.parameters[p].parameter).find(Axis::experts) >= 0);
    if (gradient == kNoTensor) continue;
    parameter_of_[gradient] = p;
    flats_[storage_of(piece, gradient)].emplace(p, MeshGroup{});
  }
  for (const PackedGradients& packing : piece.packed) packings_[packing.buffer] = &packing;
  for (const Op& op : piece.update.ops) laid_out_ = laid_out_ || is_optimizer(op.kind);
  for (const ParameterSet& set : piece.sets) laid_out_ = laid_out_ || set.frozen();
  for (const Block* block : {&piece.forward, &piece.backward})
    for (const Op& op : block->ops)
      if (op.kind == OpKind::ring_shift) ring_group_ = ring_group_ | op.group;
  for (const Block* block : {&piece.forward, &piece.backward})
    for (const Op& op : block->ops)
      if (op.kind == OpKind::ring_shift) inner_ranks_ = std::max(inner_ranks_, ranks_within(op.group));
}

void PieceCheck::run() {
  for (const Tensor& t : piece_.tensors)
    for (int d = 0; d < t.rank; ++d)
      if (!deals_evenly(mesh_, t, d)) {
        report(Rule::sizes, "\"{}\" {} has no whole blocks of its deal for every part", t.name, words(mesh_, t));
        return;  // the elements of each rank are unknown
      }
  expect_pieces();
  if (program_.begin > 0) run(piece_.tasks[program_.begin - 1u], "begin");
  given(piece_.input);
  for (const SideStream& side : piece_.sides) given(side.input);
  run(piece_.forward, "forward");
  expect_settled(piece_.output, "output");
  for (const SideStream& side : piece_.sides) expect_settled(side.output, "output");
  given(piece_.output_gradient);
  for (const SideStream& side : piece_.sides) {
    given(side.output_gradient);
    if (side.output_gradient != kNoTensor) owed_[side.output_gradient] = owed_beside(side.output_gradient);
  }
  run(piece_.backward, "backward");
  run(piece_.weight_gradient, "weight gradient");
  expect_settled(piece_.input_gradient, "input gradient");
  for (const SideStream& side : piece_.sides)
    if (side.input_gradient != kNoTensor && owed(side.input_gradient) != owed_beside(side.input_gradient))
      report(Rule::pieces_fit, "the side gradient {} owes the sum over {}, the piece before expects {}",
             quoted(side.input_gradient), words(mesh_, owed(side.input_gradient)),
             words(mesh_, owed_beside(side.input_gradient)));
  run(piece_.update, "update");
  for (const Task& task : program_.tasks)
    if (task.block > 0) run(piece_.tasks[task.block - 1u], task.name);
  for (const TensorId id : norms_)
    if (!owed(id).empty())
      report(Rule::norm_of_all, "the norm {} still owes the sum over {}", quoted(id), words(mesh_, owed(id)));
  for (std::size_t p = 0; p < owes_stages_.size(); ++p) expect_summed_over_holders(p);
  for (const ParameterSet& set : piece_.sets) expect_divided(set);
  for (const ParameterGradient& p : piece_.parameters)
    if (p.set < piece_.sets.size() && !tensor(p.parameter).shared &&
        (p.gradient == kNoTensor) != piece_.sets[p.set].frozen())
      report(Rule::frozen_stays, "{}{} and lies in a parameter set that is not", quoted(p.parameter),
             p.gradient == kNoTensor ? " is frozen" : " is trained");
  // The tensors that the next step reads.
  second_step_ = true;
  run(piece_.forward, "forward of the next step");
}

std::string PieceCheck::layout_with(TensorId id, int dim, Division over) const {
  Tensor t = tensor(id);
  t.over[dim] = over;
  return quoted(id) + " " + words(mesh_, t);
}

void PieceCheck::add(Rule rule, const std::string& text) {
  if (second_step_ && rule != Rule::parameters_gathered) return;
  std::string where = std::string("piece \"") + piece_.name + "\"";
  if (op_ != nullptr) where += std::string(", ") + block_name_ + ", " + name_of(op_->kind) + " \"" + op_->name + "\"";
  found_.push_back({rule, where + ": " + text});
}

void PieceCheck::given(TensorId id) {
  if (id != kNoTensor) state_[id].written = true, state_[id].block = serial_;
}

bool PieceCheck::is_gradient_of_parameter(TensorId id, std::size_t& parameter) const {
  for (; id != kNoTensor; id = tensor(id).alias_of)
    if (const auto p = parameter_of_.find(id); p != parameter_of_.end()) {
      parameter = p->second;
      return true;
    }
  return false;
}

// The tensor that holds the values of `id`: itself, another view of the same part, or a tensor that it is a view of.
TensorId PieceCheck::written_as(TensorId id) const {
  for (; id != kNoTensor; id = tensor(id).alias_of) {
    if (state_[id].written) return id;
    const Tensor& t = tensor(id);
    if (t.alias_of == kNoTensor) continue;
    for (std::size_t other = 0; other < piece_.tensors.size(); ++other) {
      const Tensor& o = piece_.tensors[other];
      if (state_[other].written && o.alias_of == t.alias_of && o.alias_begin == t.alias_begin &&
          o.elements() == t.elements())
        return static_cast<TensorId>(other);
    }
  }
  return kNoTensor;
}

TensorId PieceCheck::storage_or_self(TensorId id) const {
  const TensorId as = written_as(id);
  return as == kNoTensor ? id : as;
}

MeshGroup PieceCheck::owed(TensorId id) const {
  const TensorId as = written_as(id);
  if (as == kNoTensor) return {};
  return as == id ? owed_[id] : owed_[as].without(divided_without_rest(tensor(id)));
}

void PieceCheck::write(TensorId id, MeshGroup owes) {
  // A view that is a rank's part of a base which every rank holds whole leaves the base owing the sum of all parts.
  MeshGroup base_owes = owes;
  owed_[id] = owes;
  const bool again = state_[id].own_block == serial_;
  state_[id].written = true, state_[id].block = state_[id].own_block = serial_;
  std::int64_t elements = again ? 0 : tensor(id).elements();
  for (TensorId view = id, base = tensor(id).alias_of; base != kNoTensor; view = base, base = tensor(base).alias_of) {
    State& state = state_[base];
    base_owes = base_owes | tensor(view).divided_over().without(tensor(base).divided_over());
    owed_[base] = state.block == serial_ ? owed_[base] | base_owes : base_owes;
    if (state.block != serial_) state.elements = 0;
    state.block = serial_;
    state.elements += elements;
    // Gradients are added to the present values.
    const bool whole = state.elements >= tensor(base).elements() || tensor(base).category == Category::gradient;
    state.written = state.written || whole;
  }
  std::size_t p = 0;
  if (is_gradient_of_parameter(id, p)) {
    MeshGroup& sum = flats_.at(storage_of(piece_, piece_.parameters[p].gradient)).at(p);
    for (TensorId at = id; at != piece_.parameters[p].gradient; at = tensor(at).alias_of)
      owes = owes | tensor(at).divided_over().without(tensor(tensor(at).alias_of).divided_over());
    sum = sum | owes;
    contributed_[p] = contributed_[p] | owes;
  }
}

// The sum that a gradient of a tensor without a batch (a table of positions for all layers) owes between pieces.
MeshGroup PieceCheck::owed_beside(TensorId id) const {
  if (tensor(id).find(Axis::batch) >= 0) return {};
  for (const Tensor& t : piece_.tensors)
    if (const int d = t.find(Axis::batch); d >= 0) return t.over[d].group().without(workers_);
  return {};
}

void PieceCheck::expect_settled(TensorId id, const char* what) {
  op_ = nullptr;
  if (id == kNoTensor) return;
  if (written_as(id) == kNoTensor)
    report(Rule::written_first, "the {} {} is handed on before it is written", what, quoted(id));
  if (owed(id).empty()) return;
  report(Rule::pieces_fit, "the {} {} owes the sum over {}; what is handed on must owe nothing", what, quoted(id),
         words(mesh_, owed(id)));
}

// Checks that the pieces of an op that is done in pieces add up to exactly one op.
void PieceCheck::expect_pieces() {
  const std::array blocks{&piece_.forward, &piece_.backward, &piece_.weight_gradient, &piece_.update};
  const auto same = [](const Op& a, const Op& b) {
    return a.kind == b.kind && a.group == b.group && a.reads == b.reads && a.writes == b.writes;
  };
  for (const Block* of_piece : blocks)
    for (const Op& op : of_piece->ops) {
      if (!op.is_part && op.covers == Covers::own) continue;
      double done = 0;
      std::size_t whole = 0;
      for (const Block* block : blocks)
        for (const Op& other : block->ops) {
          if (!same(op, other)) continue;
          done += other.is_part ? other.share : 0;
          whole += !other.is_part && other.covers == Covers::last ? 1 : 0;
        }
      constexpr double kRounding = 1e-9;
      if (whole == 1 && std::abs(done - 1) < kRounding) continue;
      op_ = &op;
      report(Rule::sizes, "its pieces do {} of {} such ops", std::to_string(done), whole);
      return;
    }
}

void PieceCheck::run(const Block& block, const char* name) {
  block_name_ = name;
  block_ = &block;
  ++serial_;
  for (const Op& op : block.ops) {
    if (op.is_part) continue;
    op_ = &op;
    step(op);
  }
  op_ = nullptr;
}

void PieceCheck::step(const Op& op) {
  for (const TensorId id : op.reads) {
    if (id == kNoTensor) continue;
    expect_there(id);
    if (const auto made = by_turns_.find(storage_of(piece_, id)); made != by_turns_.end() && op.turns.empty())
      if (!made->second.empty()) write(id, owed(id) | made->second);
  }
  if (traits_of(op.kind).of_update || op.kind == OpKind::scale) cut(op.reads[0]);
  if (is_communication(op.kind)) {
    communicate(op);
  } else if (op.kind == OpKind::gradient_norm) {
    norm(op);
  } else if (is_optimizer(op.kind)) {
    optimize(op);
  } else if (is_quantiser(op.kind)) {
    quantiser(op);
  } else if (op.kind == OpKind::sparsify || op.kind == OpKind::densify) {
    sparse(op);
  } else if (is_flat(op.reads[0]) || (op.kind == OpKind::zero_fill && is_flat(op.writes[0]))) {
    elementwise_on_flat(op);
  } else {
    compute(op);
    const bool cast = op.kind == OpKind::cast && op.phase == Phase::update;
    if (cast || op.kind == OpKind::subtract || op.divides) expect_same_part(op.reads[0], op.writes[0]);
    if (op.kind == OpKind::subtract) expect_same_part(op.reads[1], op.writes[0]);
    // Parameters that the host has updated, or that are cast from the optimizer's copy.
    if (cast || op.kind == OpKind::copy) updated(op.writes[0]);
  }
  if (op.kind == OpKind::zero_fill) by_turns_.try_emplace(storage_of(piece_, op.writes[0]));
  if (!op.turns.empty())
    for (const TensorId id : op.writes)
      if (id != kNoTensor && by_turns_.contains(storage_of(piece_, id))) by_turns_[storage_of(piece_, id)] = op.turns;
  if (!workers_.empty()) follow_common(op);
}

// Workers have the same means, and the same of what each of them hands to all. All begin with the same parameters, and
// so with the same values of whatever `begin` makes of them.
void PieceCheck::follow_common(const Op& op) {
  const auto is_common = [&](TensorId id) {
    return tensor(storage_of(piece_, id)).common || common_.contains(id) || common_.contains(storage_of(piece_, id));
  };
  const bool begins = program_.begin > 0 && block_ == &piece_.tasks[program_.begin - 1u];
  const bool all = (op.group.contains(workers_) && op.reduction == Reduction::mean) ||
                   (op.group == workers_ && op.kind == OpKind::all_gather) || begins ||
                   std::ranges::all_of(op.reads, [&](TensorId id) { return id == kNoTensor || is_common(id); });
  for (std::size_t i = 0; i < op.writes.size(); ++i) {
    const TensorId id = op.writes[i];
    if (id == kNoTensor) continue;
    const TensorId root = storage_of(piece_, id);
    const bool adds = op.accumulate && accumulates(op.kind, i);
    if (tensor(root).common && !all)
      report(Rule::common_to_workers, "{} is the same for all workers, and written from what is not: no mean over {}",
             quoted(id), words(mesh_, workers_));
    if (!all || (adds && !is_common(id))) {
      std::erase_if(common_, [&](TensorId other) { return storage_of(piece_, other) == root; });
      continue;
    }
    // A storage is common once views that make it up are.
    common_.insert(id);
    std::int64_t elements = 0;
    for (const TensorId other : common_)
      if (storage_of(piece_, other) == root) elements += tensor(other).elements();
    if (elements >= tensor(root).elements()) common_.insert(root);
  }
}

void PieceCheck::expect_there(TensorId id) {
  const Tensor& t = tensor(id);
  const TensorId root = storage_of(piece_, id);
  if (t.category == Category::parameter || tensor(root).category == Category::parameter) {
    // The updates have reached the part that is divided as they were, and every view of that part.
    const auto lies_in_part = [&](MeshGroup over) {
      for (TensorId view = id; view != root; view = tensor(view).alias_of)
        if (tensor(view).divided_over().without(tensor(root).divided_over()) == over) return true;
      return over.empty();
    };
    if (const auto stale = stale_.find(root); stale != stale_.end() && !lies_in_part(stale->second)) {
      report(Rule::parameters_gathered, "{} has been updated in parts over {} and not gathered since", quoted(id),
             words(mesh_, stale->second));
      stale->second = {};  // reported once
    }
    if (!laid_out_) return;
  }
  if (written_as(id) != kNoTensor || t.input != Input::none || tensor(root).input != Input::none) return;
  if (tensor(root).resident || tensor(root).shared || packings_.contains(id)) return;
  report(Rule::written_first, "{} is read before anything has written it", layout(id));
}

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
  const bool keeps_sums = traits_of(op.kind).linear == 0b1;  // of its one operand
  for (const TensorId id : op.reads) {
    if (id == kNoTensor || clips_by(op, id)) continue;
    if (is_flat(id) && !keeps_sums) expect_owes_nothing(id);
    if (!is_flat(id) && !owed(id).empty())
      report(Rule::owed_refused, "{} owes the sum over {}, which has to be taken before this op", layout(id),
             words(mesh_, owed(id)));
    if (tensor(id).over[0] != tensor(op.reads[0]).over[0])
      report(Rule::operands_agree, "{} and {} are shards of two kinds, expected one", layout(id), layout(op.reads[0]));
    if (tensor(id).elements() != tensor(op.reads[0]).elements())
      report(Rule::sizes, "{} has {} elements, {} has {}", layout(id), tensor(id).elements(), layout(op.reads[0]),
             tensor(op.reads[0]).elements());
  }
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
    expect_summed_over_holders(p);
    if (!owes.empty())
      report(Rule::gradient_meets_state, "the gradient of {} in {} still owes the sum over {}",
             quoted(piece_.parameters[p].parameter), quoted(id), words(mesh_, owes));
  }
}

void PieceCheck::norm(const Op& op) {
  if (is_flat(op.reads[0])) {
    expect_owes_nothing(op.reads[0]);
    write(op.writes[0], norm_group_);
  } else if (norms_.erase(storage_of(piece_, op.reads[0])) > 0 || block_ == &piece_.update) {  // of other norms
    write(op.writes[0], owed(op.reads[0]));
  } else {  // in a task, of what lies as parameters do
    write(op.writes[0], norm_group_ | tensor(op.reads[0]).divided_over());
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
    if (id != kNoTensor) write(id, {}), updated(id);
}

void PieceCheck::expect_same_part(TensorId from, TensorId to) {
  if (tensor(from).over[0] == tensor(to).over[0] && tensor(from).sizes[0] == tensor(to).sizes[0]) return;
  report(Rule::operands_agree, "{} of {} elements becomes {} of {}, expected the same", layout(from),
         tensor(from).sizes[0], layout(to), tensor(to).sizes[0]);
}

// Only parts of a parameter buffer are updated; the rest of it is stale.
void PieceCheck::updated(TensorId id) {
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
