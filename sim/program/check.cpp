#include "sim/program/check.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "sim/program/redistribute.h"
#include "sim/program/rewrite.h"
#include "sim/program/work.h"

namespace orrery {
namespace {

// The digits by name: "dp_shard x cp"; "nothing" for none.
std::string words(const Mesh& mesh, MeshGroup group) {
  std::string text;
  for (std::size_t d = mesh.digits().size(); d-- > 0;)
    if (group.contains(static_cast<int>(d))) text += (text.empty() ? "" : " x ") + std::string(mesh.digits()[d].name);
  return text.empty() ? "nothing" : text;
}

// "[- | cp x tp | -]": of each dimension what it is divided over, major to minor.
std::string words(const Mesh& mesh, const Tensor& t) {
  std::string text = "[";
  for (int d = 0; d < t.rank; ++d) {
    if (d > 0) text += " | ";
    for (int n = 0; n < t.over[d].count(); ++n)
      text += (n > 0 ? " x " : "") + std::string(mesh.digits()[static_cast<std::size_t>(t.over[d].digit(n))].name);
    if (t.over[d].empty()) text += "-";
    if (t.deal(d) != Deal::contiguous) text += std::string(" ") + name_of(t.deal(d));
  }
  return text + "]";
}

// How an op treats sums that its operands owe, and digits that divide an axis of its operands.
struct OpRule {
  std::uint8_t linear = 0;  // reads that may owe a sum, which the results then owe; all of one op owe the same
  bool product = false;     // of them one may owe, not both
  bool sums = false;        // sums over axes that a result lacks: it owes the sum over what divides them
  std::uint8_t constant = 0;  // results that do not depend on what may owe: every rank has them
};
OpRule rule_of(OpKind kind) {
  switch (kind) {
    case OpKind::linear:
    case OpKind::linear_input_gradient:
    case OpKind::bias_gradient:
    case OpKind::rotary_backward:
    case OpKind::attention_backward:
    case OpKind::norm_backward:
    case OpKind::pool_backward:
      return {.linear = 0b1, .sums = true};
    case OpKind::linear_weight_gradient:
    case OpKind::embedding_backward:
      return {.linear = 0b10, .sums = true};
    case OpKind::batched_matmul:
      return {.linear = 0b11, .product = true, .sums = true};
    case OpKind::multiply:
      return {.linear = 0b11, .product = true};
    case OpKind::embedding:
    case OpKind::cross_entropy:
      return {.sums = true};
    case OpKind::dropout:
      return {.linear = 0b1, .constant = 0b10};  // the mask
    case OpKind::softmax_backward:
    case OpKind::activation_backward:
    case OpKind::dropout_backward:
    case OpKind::cast:
    case OpKind::scale:
      return {.linear = 0b1};
    case OpKind::rotary:
    case OpKind::pool:
      return {.linear = 0b11};
    case OpKind::add:
      return {.linear = 0b111};
    default:
      return {};
  }
}

// Fused projections are divided by query heads, as what they are cut into is.
Axis divided_axis(Axis axis) { return axis == Axis::group_qkv ? Axis::group_heads : axis; }

// Whether an element of the results needs more than its own part of this dimension of an operand, and no sum of parts
// gives it: what is normalised, turned in pairs, scored by, or masked by positions that nobody hands the kernel.
bool mixes(const Op& op, std::size_t read, const Tensor& t, int dim) {
  const bool last = dim == t.rank - 1;
  switch (op.kind) {
    case OpKind::softmax:
      return last || ((op.causal || op.window > 0) && dim == t.rank - 2);
    case OpKind::softmax_backward:
      return last;
    case OpKind::norm_backward:
      return read < 2 && last;  // dy, x
    case OpKind::rotary:
    case OpKind::rotary_backward:
    case OpKind::attention:
    case OpKind::attention_backward:
      return t.axes[dim] == Axis::head_dim;
    default:
      return false;
  }
}

// Of these operands a rank takes, or gives, its part of the sequence that it has whole: ids of all tokens, tables of
// positions.
bool reads_part_of(OpKind kind, std::size_t i) {
  return (kind == OpKind::embedding && i == 0) || (kind == OpKind::add && i == 2);
}
bool writes_part_of(OpKind kind) { return kind == OpKind::bias_gradient; }

// Of whose elements no two ranks hold the same.
MeshGroup divided_without_rest(const Tensor& t) {
  MeshGroup group;
  for (int d = 0; d < t.rank; ++d)
    if (t.deal(d) != Deal::query_heads) group = group | t.over[d].group();
  return group;
}

// The stages that hold one parameter, and what they sum.
class Holders {
 public:
  explicit Holders(const Program& program) : operands_(program.stage_groups.size() + 1) {
    for (std::size_t s = 0; s < program.stages.size(); ++s)
      for (const Chunk& chunk : program.stages[s])
        for (const Run& run : chunk.runs)
          for (const ParameterGradient& p : program.pieces[run.piece].parameters) {
            if (p.tied == 0) continue;
            std::vector<std::uint16_t>& held = stages_[p.tied];
            if (held.empty() || held.back() != s) held.push_back(static_cast<std::uint16_t>(s));
          }
  }
  const std::vector<std::uint16_t>* of(const Piece& piece, std::size_t parameter) const {
    const auto held = stages_.find(piece.parameters[parameter].tied);
    return held == stages_.end() ? nullptr : &held->second;
  }
  // Of a parameter that this piece keeps.
  bool several(const Piece& piece, std::size_t parameter) const {
    const std::vector<std::uint16_t>* held = of(piece, parameter);
    return held != nullptr && held->size() > 1 && !piece.tensors[piece.parameters[parameter].parameter].shared;
  }
  // What another piece sums with it; null: this is the first.
  const Tensor* meet(std::uint8_t stages, const Tensor& operand) {
    return std::exchange(operands_[stages], &operand);
  }

 private:
  std::map<std::uint8_t, std::vector<std::uint16_t>> stages_;  // by ParameterGradient::tied, ascending
  std::vector<const Tensor*> operands_;                        // by Op::stages
};

// One piece through a step: forward, backward, weight gradients, update, and the next step's forward.
class PieceCheck {
 public:
  PieceCheck(const Program& program, const Piece& piece, MeshGroup norm_group, Holders& holders,
             std::vector<Violation>& found)
      : mesh_(program.mesh),
        program_(program),
        piece_(piece),
        norm_group_(norm_group),
        holders_(holders),
        found_(found),
        owed_(piece.tensors.size()),
        state_(piece.tensors.size()),
        contributed_(piece.parameters.size()) {
    for (std::size_t p = 0; p < piece.parameters.size(); ++p) {
      const TensorId gradient = piece.parameters[p].gradient;
      owes_stages_.push_back(gradient != kNoTensor && holders.several(piece, p));
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
  }

  void run() {
    for (const Tensor& t : piece_.tensors)
      for (int d = 0; d < t.rank; ++d)
        if (!deals_evenly(mesh_, t, d)) {
          report(Rule::sizes, "\"" + std::string(t.name) + "\" " + words(mesh_, t) +
                                  " has no whole blocks of its deal for every part");
          return;  // no rank's elements are known
        }
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
        report(Rule::pieces_fit, "the side gradient " + quoted(side.input_gradient) + " owes the sum over " +
                                     words(mesh_, owed(side.input_gradient)) + ", the piece before expects " +
                                     words(mesh_, owed_beside(side.input_gradient)));
    run(piece_.update, "update");
    for (const TensorId id : norms_)
      if (!owed(id).empty())
        report(Rule::norm_of_all, "the norm " + quoted(id) + " still owes the sum over " + words(mesh_, owed(id)));
    for (std::size_t p = 0; p < owes_stages_.size(); ++p) expect_summed_over_stages(p);
    for (const ParameterSet& set : piece_.sets) expect_divided(set);
    for (const ParameterGradient& p : piece_.parameters)
      if (p.set < piece_.sets.size() && !tensor(p.parameter).shared &&
          (p.gradient == kNoTensor) != piece_.sets[p.set].frozen())
        report(Rule::frozen_stays, quoted(p.parameter) + (p.gradient == kNoTensor ? " is frozen" : " is trained") +
                                       " and lies in a parameter set that is not");
    // What the next step reads.
    second_step_ = true;
    run(piece_.forward, "forward of the next step");
  }

  // What the ops that compute each parameter's gradient leave it owing.
  const std::vector<MeshGroup>& contributed() const { return contributed_; }

 private:
  struct State {
    bool written = false;         // all of it
    std::uint32_t block = 0;      // in which it, or a view of it, was written last
    std::uint32_t own_block = 0;  // in which it was written itself
    std::int64_t elements = 0;    // written there through views
    // Of keys, values, and gradients of them in a ring: how far from home they are. Of contexts and gradients: which
    // keys, by how far away these were, have been taken into account; empty: none that travel.
    std::int64_t travelled = 0;
    std::vector<bool> seen;
  };

  // ---- words ----
  std::string quoted(TensorId id) const { return std::string("\"") + piece_.tensors[id].name + "\""; }
  void report(Rule rule, const std::string& text) {
    if (second_step_ && rule != Rule::parameters_gathered) return;
    std::string where = std::string("piece \"") + piece_.name + "\"";
    if (op_ != nullptr) where += std::string(", ") + block_name_ + ", " + name_of(op_->kind) + " \"" + op_->name + "\"";
    found_.push_back({rule, where + ": " + text});
  }
  std::string layout(TensorId id) const { return quoted(id) + " " + words(mesh_, piece_.tensors[id]); }

  // ---- state ----
  const Tensor& tensor(TensorId id) const { return piece_.tensors[id]; }
  void given(TensorId id) {
    if (id != kNoTensor) state_[id].written = true, state_[id].block = serial_;
  }
  bool is_gradient_of_parameter(TensorId id, std::size_t& parameter) const {
    for (; id != kNoTensor; id = tensor(id).alias_of)
      if (const auto p = parameter_of_.find(id); p != parameter_of_.end()) {
        parameter = p->second;
        return true;
      }
    return false;
  }
  // What holds its values: itself, another view of the same part, or what it is a view of.
  TensorId written_as(TensorId id) const {
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
  MeshGroup owed(TensorId id) const {
    const TensorId as = written_as(id);
    if (as == kNoTensor) return {};
    return as == id ? owed_[id] : owed_[as].without(divided_without_rest(tensor(id)));
  }
  void write(TensorId id, MeshGroup owes) {
    // A view that cuts a part of what its base holds whole leaves the base owing the sum of all parts.
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
      // Gradients are added to what is there.
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
  // What a gradient of a tensor without a batch (a table of positions for all layers) owes between pieces.
  MeshGroup owed_beside(TensorId id) const {
    if (tensor(id).find(Axis::batch) >= 0) return {};
    for (const Tensor& t : piece_.tensors)
      if (const int d = t.find(Axis::batch); d >= 0) return t.over[d].group();
    return {};
  }
  void expect_settled(TensorId id, const char* what) {
    op_ = nullptr;
    if (id == kNoTensor) return;
    if (written_as(id) == kNoTensor)
      report(Rule::written_first, std::string("the ") + what + " " + quoted(id) + " is handed on before it is written");
    if (owed(id).empty()) return;
    report(Rule::pieces_fit, std::string("the ") + what + " " + quoted(id) + " owes the sum over " +
                                 words(mesh_, owed(id)) + "; what is handed on must owe nothing");
  }

  void run(const Block& block, const char* name) {
    block_name_ = name;
    block_ = &block;
    ++serial_;
    for (const Op& op : block.ops) {
      op_ = &op;
      step(op);
    }
    op_ = nullptr;
  }

  void step(const Op& op) {
    for (const TensorId id : op.reads)
      if (id != kNoTensor) expect_there(id);
    if (is_communication(op.kind)) {
      communicate(op);
    } else if (op.kind == OpKind::gradient_norm) {
      norm(op);
    } else if (is_optimizer(op.kind)) {
      optimize(op);
    } else if (is_flat(op.reads[0]) || (op.kind == OpKind::zero_fill && is_flat(op.writes[0]))) {
      elementwise_on_flat(op);
    } else {
      compute(op);
      if (op.kind == OpKind::copy) updated(op.writes[0]);  // parameters that the host has updated
    }
  }

  void expect_there(TensorId id) {
    const Tensor& t = tensor(id);
    const TensorId root = storage_of(piece_, id);
    if (t.category == Category::parameter || tensor(root).category == Category::parameter) {
      if (const auto stale = stale_.find(root);
          stale != stale_.end() && !stale->second.empty() &&
          t.divided_over().without(tensor(root).divided_over()) != stale->second) {
        report(Rule::parameters_gathered, quoted(id) + " has been updated in parts over " +
                                              words(mesh_, stale->second) + " and not gathered since");
        stale->second = {};  // said once
      }
      if (!laid_out_) return;
    }
    if (written_as(id) != kNoTensor || t.input != Input::none || tensor(root).input != Input::none) return;
    if (tensor(root).resident || tensor(root).shared || packings_.contains(id)) return;
    report(Rule::written_first, quoted(id) + " is read before anything has written it");
  }

  // ---- kernels ----
  void compute(const Op& op) {
    const OpRule rule = rule_of(op.kind);
    struct Divided {
      Axis axis;
      Division over;
      Deal deal;
      bool read, read_in_parts;  // in parts: without a rest that all ranks have
      TensorId first;
    };
    std::vector<Divided> axes;
    const auto meet = [&](TensorId id, bool part, bool read) {
      const Tensor& t = tensor(id);
      for (int d = 0; d < t.rank; ++d) {
        const Axis axis = divided_axis(t.axes[d]);
        if (axis == Axis::none) continue;
        const bool by_heads = t.deal(d) == Deal::query_heads;
        const Deal deal = by_heads ? Deal::contiguous : t.deal(d);  // of what is divided
        const auto known = std::find_if(axes.begin(), axes.end(), [&](const Divided& a) { return a.axis == axis; });
        if (known == axes.end()) {
          axes.push_back({axis, t.over[d], deal, read, read && !by_heads, id});
          continue;
        }
        known->read = known->read || read;
        known->read_in_parts = known->read_in_parts || (read && !by_heads);
        const bool alike =
            part && axis == Axis::sequence ? known->over.begins_with(t.over[d]) : known->over == t.over[d];
        if (alike && (known->deal == deal || t.over[d].empty())) continue;
        report(Rule::operands_agree,
               layout(id) + " and " + layout(known->first) + " are divided differently along " + "one axis");
        return false;
      }
      return true;
    };
    // Whoever takes part of an operand is compared with the others.
    bool agree = true;
    for (std::size_t i = 0; i < op.reads.size() && agree; ++i)
      for (int d = 0; op.reads[i] != kNoTensor && d < tensor(op.reads[i]).rank && agree; ++d) {
        const MeshGroup parts = tensor(op.reads[i]).over[d].group();
        if (parts.empty() || !mixes(op, i, tensor(op.reads[i]), d)) continue;
        report(Rule::whole_for_op, quoted(op.reads[i]) + " is divided over " + words(mesh_, parts) +
                                       " along a dimension that this op needs whole");
        agree = false;
      }
    for (const bool parts : {false, true}) {
      for (std::size_t i = 0; i < op.reads.size(); ++i)
        if (op.reads[i] != kNoTensor && reads_part_of(op.kind, i) == parts)
          agree = agree && meet(op.reads[i], parts, true);
      for (std::size_t i = 0; i < op.writes.size(); ++i)
        if (op.writes[i] != kNoTensor && writes_part_of(op.kind) == parts)
          agree = agree && meet(op.writes[i], parts, false);
    }
    if (!agree) {  // said once: what follows from it is not looked for
      for (const TensorId id : op.writes)
        if (id != kNoTensor) write(id, {});
      return;
    }

    MeshGroup passed;
    TensorId owing = kNoTensor;
    int owe = 0, may_owe = 0;
    for (std::size_t i = 0; i < op.reads.size(); ++i) {
      const TensorId id = op.reads[i];
      if (id == kNoTensor) continue;
      const MeshGroup owes = owed(id);
      const bool linear = (rule.linear >> i & 1u) != 0;
      if (linear) ++may_owe;
      if (owes.empty()) continue;
      if (!linear || (rule.product && owe > 0)) {
        report(Rule::owed_refused,
               quoted(id) + " owes the sum over " + words(mesh_, owes) + ", which has to be taken before this op");
        continue;
      }
      if (owe > 0 && owes != passed)
        report(Rule::owed_alike, quoted(id) + " owes the sum over " + words(mesh_, owes) + ", " + quoted(owing) +
                                     " over " + words(mesh_, passed));
      ++owe;
      passed = passed | owes;
      owing = id;
    }
    if (owe > 0 && owe < may_owe && !rule.product)
      report(Rule::owed_alike,
             quoted(owing) + " owes the sum over " + words(mesh_, passed) + ", what is put together with it does not");

    follow_ring(op);
    for (std::size_t w = 0; w < op.writes.size(); ++w) {
      const TensorId id = op.writes[w];
      if (id == kNoTensor) continue;
      const Tensor& t = tensor(id);
      MeshGroup summed;
      for (const Divided& a : axes) {
        if (a.over.empty() || !a.read) continue;
        MeshGroup here;  // what divides the result as well; the rest of one divided by heads is a sum over heads
        for (int d = 0; d < t.rank; ++d)
          if (divided_axis(t.axes[d]) == a.axis && (t.deal(d) != Deal::query_heads || !a.read_in_parts))
            here = here | t.over[d].group();
        summed = summed | a.over.group().without(here);
      }
      if (!summed.empty() && !rule.sums) {
        report(Rule::whole_for_op,
               quoted(id) + " is made of parts over " + words(mesh_, summed) + ", which this op needs whole");
        summed = {};
      }
      // A bias is added by every rank: to an owed sum as often as there are ranks.
      if (op.kind == OpKind::linear && op.reads[2] != kNoTensor && !(summed | passed).empty())
        report(Rule::owed_alike, quoted(op.reads[2]) + " is added on every rank to a part of the sum over " +
                                     words(mesh_, summed | passed));
      MeshGroup owes = summed;
      if ((rule.constant >> w & 1u) == 0) owes = owes | passed;
      if (const MeshGroup both = owes & divided_without_rest(t); !both.empty()) {
        report(Rule::owed_refused, quoted(id) + " is divided over " + words(mesh_, both) +
                                       ", over which it would owe a sum: the ranks have parts of different elements");
        owes = owes.without(both);
      }
      write(id, owes);
    }
  }

  // ---- rings ----
  static bool masks(const Op& op) { return op.causal || op.window > 0; }
  void follow_ring(const Op& op) {
    if (is_attention(op.kind)) {
      const std::size_t first = queries_operand(op.kind);
      const TensorId keys = op.reads[first + 1] != kNoTensor ? op.reads[first + 1] : op.reads[first];
      if (const int d = tensor(op.reads[first]).find(Axis::sequence); d >= 0 && masks(op))
        if (const std::int64_t parts = mesh_.size(tensor(op.reads[first]).over[d].group()); parts != op.parts)
          report(Rule::sizes, layout(op.reads[first]) + " has one of " + std::to_string(parts) +
                                  " parts of the positions, the op states " + std::to_string(op.parts));
      if (const int d = tensor(keys).find(Axis::sequence); d >= 0)
        if (const MeshGroup parts = tensor(keys).over[d].group().without(ring_group_);
            !parts.empty() && op.window != 1)  // a window of one is the query's own position
          report(Rule::whole_for_op, quoted(keys) + " has the keys of one part over " + words(mesh_, parts) +
                                         ", and no ring brings the others");
    }
    if (ring_group_.empty()) return;
    const std::int64_t ranks = mesh_.size(ring_group_);
    const auto seen_of = [&](TensorId id) -> std::vector<bool> {
      const TensorId as = written_as(id);
      return as == kNoTensor ? std::vector<bool>{} : state_[as].seen;
    };
    const auto united = [&](TensorId a, TensorId b) {
      std::vector<bool> x = seen_of(a), y = seen_of(b);
      if (x.empty() || y.empty()) return x.empty() ? y : x;
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (x[i] && y[i])
          report(Rule::sees_all_keys,
                 quoted(a) + " and " + quoted(b) + " have both met the keys of " + std::to_string(i) + " ranks before");
        x[i] = x[i] || y[i];
      }
      return x;
    };
    if (is_attention(op.kind)) {
      const bool backward = op.kind == OpKind::attention_backward;
      const TensorId q = op.reads[backward ? 3 : 0], kv = op.reads[backward ? 4 : 1];
      const TensorId keys = kv == kNoTensor ? q : storage_or_self(kv);
      const std::int64_t travelled = state_[keys].travelled % ranks;
      if (travelled != op.keys_before)
        report(Rule::sees_all_keys, quoted(keys) + " has the keys of " + std::to_string(travelled) +
                                        " ranks before, the op states " + std::to_string(op.keys_before));
      mask_ = &op;
      if (backward) expect_complete(op.reads[1]), expect_complete(op.reads[2]);
      std::vector<bool> seen(static_cast<std::size_t>(ranks));
      seen[static_cast<std::size_t>(travelled)] = true;
      for (const TensorId id : op.writes)
        if (id != kNoTensor) state_[id].seen = seen;
      if (backward && op.writes[1] != kNoTensor) state_[op.writes[1]].travelled = travelled;
      return;
    }
    if (op.kind == OpKind::merge_attention) {
      state_[op.writes[0]].seen = united(op.reads[0], op.reads[2]);
      state_[op.writes[1]].seen = united(op.reads[1], op.reads[3]);
      return;
    }
    if (op.kind == OpKind::add && op.reads[1] != kNoTensor && !seen_of(op.reads[0]).empty() &&
        !seen_of(op.reads[1]).empty() && op.reads[2] == kNoTensor) {
      const std::int64_t a = state_[op.reads[0]].travelled, b = state_[op.reads[1]].travelled;
      if (a != b)
        report(Rule::sees_all_keys, quoted(op.reads[0]) + " is of keys " + std::to_string(a) + " ranks from home, " +
                                        quoted(op.reads[1]) + " of keys " + std::to_string(b) + " from home");
      state_[op.writes[0]].seen = united(op.reads[0], op.reads[1]);
      state_[op.writes[0]].travelled = a;
      return;
    }
    for (const TensorId id : op.reads)
      if (id != kNoTensor) expect_complete(id);
    for (const TensorId id : op.writes)
      if (id != kNoTensor) state_[id].seen.clear(), state_[id].travelled = 0;
  }

  TensorId storage_or_self(TensorId id) const {
    const TensorId as = written_as(id);
    return as == kNoTensor ? id : as;
  }

  void expect_complete(TensorId id) {
    const TensorId as = written_as(id);
    if (as == kNoTensor || state_[as].seen.empty()) return;
    if (state_[as].travelled != 0)
      report(Rule::sees_all_keys, quoted(id) + " is still " + std::to_string(state_[as].travelled) +
                                      " ranks away from where its keys belong");
    for (std::size_t i = 0; i < state_[as].seen.size(); ++i)
      if (!state_[as].seen[i] && visible(static_cast<std::int64_t>(i)))
        report(Rule::sees_all_keys, quoted(id) + " lacks the keys of " + std::to_string(i) + " ranks before");
  }

  // Whether any rank's queries see keys of the rank `away` places before.
  bool visible(std::int64_t away) const {
    if (mask_ == nullptr) return true;
    Op op = *mask_;
    op.keys_before = static_cast<std::int32_t>(away);
    return attends(op, piece_.tensors);
  }

  // ---- collectives ----
  // The one dimension in which `divided` has the group's digits more than `whole`, as its minor ones.
  bool differs_by(const Tensor& divided, const Tensor& whole, MeshGroup group, int& dim) const {
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
  void expect_parts(const Tensor& part, const Tensor& whole, int dim, MeshGroup group) {
    const std::int64_t parts = part.sizes[dim] * mesh_.size(group);
    // Flat buffers are padded to a multiple of the smallest parts.
    std::int64_t multiple = mesh_.size(group);
    for (const ParameterSet& set : piece_.sets)
      if (set.over.states.contains(group)) multiple = std::max(multiple, mesh_.size(set.over.states));
    const bool padded = whole.rank == 1 && parts >= whole.sizes[0] && parts - whole.sizes[0] < multiple;
    bool rest = true;
    for (int d = 0; d < whole.rank; ++d) rest = rest && (d == dim || part.sizes[d] == whole.sizes[d]);
    if (rest && (parts == whole.sizes[dim] || padded)) return;
    report(Rule::sizes, "\"" + std::string(part.name) + "\" has " + std::to_string(part.elements()) + " elements, " +
                            std::to_string(mesh_.size(group)) + " parts of \"" + whole.name + "\" have " +
                            std::to_string(whole.elements()));
  }
  bool same_layout(const Tensor& a, const Tensor& b) const {
    return a.rank == b.rank && a.over == b.over && a.deals == b.deals;
  }

  bool is_flat(TensorId id) const { return id != kNoTensor && flats_.contains(id); }

  void communicate(const Op& op) {
    const TensorId from = op.reads[0], to = op.writes[0];
    if (from == kNoTensor || to == kNoTensor) return;
    if (op.stages != 0) return sum_over_stages(op, from, to);
    if (const auto packing = packings_.find(from); packing != packings_.end()) return sum_packed(op, *packing->second);
    if (from != to && state_[to].own_block == serial_)
      report(Rule::written_once, quoted(to) + " has been written in this block before");
    if (is_flat(from) && storage_of(piece_, from) == storage_of(piece_, to)) expect_last(op, from);
    switch (op.kind) {
      case OpKind::all_gather:
        return gather(op, from, to);
      case OpKind::reduce_scatter:
        return scatter(op, from, to);
      case OpKind::all_reduce:
        return reduce(op, from, to);
      case OpKind::all_to_all:
      case OpKind::redistribute:
        return exchange(op, from, to);
      case OpKind::ring_shift: {
        const Tensor &a = tensor(from), &b = tensor(to);
        const int d = a.find(Axis::sequence);
        if (op.group.empty() || d < 0 || !a.over[d].group().contains(op.group) || !same_layout(a, b))
          report(Rule::shifts, layout(from) + " is shifted over " + words(mesh_, op.group) + " into " + layout(to) +
                                   ": a ring is of the digits that divide the sequence, and changes no layout");
        const State source = state_[storage_or_self(from)];
        write(to, owed(from));
        state_[to].seen = source.seen;
        state_[to].travelled = (source.travelled + op.places) % mesh_.size(op.group);
        return;
      }
      default:
        return write(to, owed(from));
    }
  }

  void exchange(const Op& op, TensorId from, TensorId to) {
    const std::optional<Redistribution> needed = redistribution(mesh_, tensor(from), tensor(to));
    if (!needed || needed->group != op.group) {
      report(Rule::exchanges, layout(from) + " does not become " + layout(to) + " by an exchange over " +
                                  words(mesh_, op.group) +
                                  (needed ? ": what differs is over " + words(mesh_, needed->group)
                                          : ": they are not of one whole over the same digits"));
    } else if (op.factor != needed->share) {
      report(Rule::sizes, "of " + layout(from) + " a share of " + std::to_string(needed->share) + " becomes " +
                              layout(to) + ", the op moves " + std::to_string(op.factor));
    }
    write(to, owed(from));
  }

  void expect_last(const Op& op, TensorId id) {
    if (block_ == &piece_.update || op.when == When::last_micro_batch || program_.schedule.micro_batches == 1) return;
    report(Rule::last_micro_batch, quoted(id) + " is summed in place in every micro-batch, and added to in between");
  }

  // Parameters of whose gradients a tensor is: of a flat buffer all, or the one that a view of it is.
  std::vector<std::size_t> gradients_in(TensorId id) const {
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
  void sum_over_stages(const Op& op, TensorId from, TensorId to) {
    const auto wrong = [&](const std::string& text) { report(Rule::summed_over_holders, text); };
    if (op.stages > program_.stage_groups.size()) return wrong("is of a list of stages that there is not");
    const std::vector<std::uint16_t>& stages = program_.stage_groups[op.stages - 1u];
    const bool leads = block_ == &piece_.update && std::all_of(block_->ops.data(), &op, [](const Op& before) {
                         return is_communication(before.kind);
                       });
    if (op.kind != OpKind::all_reduce || !op.group.empty() || from != to || !leads)
      wrong("sums over stages are all-reduces in place, over lists of stages alone, behind the update's reductions");
    const std::vector<std::size_t> parameters = gradients_in(from);
    if (parameters.empty()) wrong(quoted(from) + " is no gradient");
    for (const std::size_t p : parameters) {
      const std::string of = "the gradient of " + quoted(piece_.parameters[p].parameter);
      const std::vector<std::uint16_t>* held = holders_.of(piece_, p);
      if (!owes_stages_[p]) {
        wrong(of + " owes no sum over stages");
      } else if (held == nullptr || *held != stages) {
        wrong(of + " is summed over other stages than those that hold it");
      }
      owes_stages_[p] = false;
    }
    if (const Tensor* other = holders_.meet(op.stages, tensor(from));
        other != nullptr && (other->elements() != tensor(from).elements() || other->over != tensor(from).over))
      wrong(layout(from) + " is summed with " + words(mesh_, *other) + " of " + std::to_string(other->elements()) +
            " elements of another stage");
  }
  void expect_summed_over_stages(std::size_t p) {
    if (!owes_stages_[p]) return;
    report(Rule::summed_over_holders, "the gradient of " + quoted(piece_.parameters[p].parameter) +
                                          " is not summed over the stages that hold it");
    owes_stages_[p] = false;  // said once
  }

  void gather(const Op& op, TensorId from, TensorId to) {
    const Tensor &part = tensor(from), &whole = tensor(to);
    int dim = 0;
    if (op.group.empty() ? !same_layout(part, whole) : !differs_by(part, whole, op.group, dim)) {
      report(Rule::gathers,
             layout(from) + " does not become " + layout(to) + " by gathering over " + words(mesh_, op.group));
    } else if (!op.group.empty()) {
      expect_parts(part, whole, dim, op.group);
    }
    const TensorId root = storage_of(piece_, to);
    if (tensor(root).category == Category::parameter || whole.category == Category::parameter) {
      const auto stale = stale_.find(root);
      if (stale != stale_.end()) stale->second = stale->second.without(op.group);
    }
    write(to, owed(from));
    if (is_flat(from)) flats_[to] = flats_.at(from);
  }

  void scatter(const Op& op, TensorId from, TensorId to) {
    const Tensor &part = tensor(to), &whole = tensor(from);
    int dim = 0;
    if (op.group.empty() ? !same_layout(part, whole) : !differs_by(part, whole, op.group, dim)) {
      report(Rule::scatters,
             layout(from) + " does not become " + layout(to) + " by scattering over " + words(mesh_, op.group));
    } else if (!op.group.empty()) {
      expect_parts(part, whole, dim, op.group);
    }
    take_sum(op, from, to, Rule::scatters);
  }

  void reduce(const Op& op, TensorId from, TensorId to) {
    if (!same_layout(tensor(from), tensor(to)) || tensor(from).elements() != tensor(to).elements())
      report(Rule::reduces, layout(from) + " and its sum " + layout(to) + " are laid out differently");
    if (norms_.erase(storage_of(piece_, from)) > 0) norms_.insert(storage_of(piece_, to));
    take_sum(op, from, to, Rule::reduces);
  }

  void take_sum(const Op& op, TensorId from, TensorId to, Rule rule) {
    if (is_flat(from)) {
      std::map<std::size_t, MeshGroup> sums = flats_.at(from);
      for (auto& [p, owes] : sums) {
        if (!owes.contains(op.group))
          report(rule, "the gradient of " + quoted(piece_.parameters[p].parameter) + " owes the sum over " +
                           words(mesh_, owes) + ", the sum is taken over " + words(mesh_, op.group));
        owes = owes.without(op.group);
      }
      write(to, {});
      flats_[to] = std::move(sums);
      return;
    }
    const MeshGroup owes = owed(from);
    if (!owes.contains(op.group))
      report(rule, quoted(from) + " owes the sum over " + words(mesh_, owes) + ", the sum is taken over " +
                       words(mesh_, op.group));
    write(to, owes.without(op.group));
  }

  void sum_packed(const Op& op, const PackedGradients& packing) {
    if (piece_.sets.empty()) return;
    for (const TensorId id : packing.gradients) {
      std::size_t p = 0;
      const bool known = is_gradient_of_parameter(id, p) && piece_.parameters[p].set < piece_.sets.size();
      const auto held = flats_.find(known ? piece_.sets[piece_.parameters[p].set].own_gradients : kNoTensor);
      if (held == flats_.end() || !held->second.contains(p)) {
        report(Rule::packed_gradients, quoted(id) + " is packed, but no gradient of a parameter held here");
        continue;
      }
      MeshGroup& owes = held->second.at(p);
      if (!owes.contains(op.group))
        report(Rule::packed_gradients, "the gradient " + quoted(id) + " owes the sum over " + words(mesh_, owes) +
                                           ", the packed sum is taken over " + words(mesh_, op.group));
      owes = owes.without(op.group);
    }
    const std::int64_t elements = packed_elements(mesh_, piece_, packing);
    if (elements != tensor(packing.buffer).elements())
      report(Rule::packed_gradients, quoted(packing.buffer) + " has " +
                                         std::to_string(tensor(packing.buffer).elements()) +
                                         " elements, its gradients " + "owe the sums of " + std::to_string(elements));
  }
  // What a set says of itself is what its tensors are.
  void expect_divided(const ParameterSet& set) {
    const auto expect = [&](TensorId id, MeshGroup group, const char* what) {
      if (id == kNoTensor || tensor(id).divided_over() == group) return;
      report(Rule::sets_divided, layout(id) + " are the " + what + " of a parameter set that divides them over " +
                                     words(mesh_, group));
    };
    expect(set.parameters, set.over.weights, "weights");
    expect(set.gradients, set.over.gradients, "gradients");
    expect(set.own_parameters, set.over.states, "weights that are updated");
    expect(set.own_gradients, set.over.states, "gradients that are updated with");
    expect(set.secondary, set.over.secondary, "second copy of the weights");
    if (set.own_parameters == kNoTensor || set.own_gradients == kNoTensor) return;
    if (tensor(set.own_parameters).over[0] != tensor(set.own_gradients).over[0])
      report(Rule::sets_divided, layout(set.own_parameters) + " are updated with " + layout(set.own_gradients) +
                                     ": parts of two orders");
  }

  // ---- the update ----
  void elementwise_on_flat(const Op& op) {
    if (op.kind == OpKind::zero_fill) {
      for (auto& [p, owes] : flats_.at(op.writes[0])) owes = {};
      return write(op.writes[0], {});
    }
    for (const TensorId id : op.reads)
      if (id != kNoTensor && !clips_by(op, id) && tensor(id).over[0] != tensor(op.reads[0]).over[0])
        report(Rule::operands_agree, layout(id) + " and " + layout(op.reads[0]) + " are shards of two kinds");
    for (const TensorId id : op.writes) {
      if (id == kNoTensor) continue;
      if (tensor(id).over[0] != tensor(op.reads[0]).over[0])
        report(Rule::operands_agree, layout(id) + " and " + layout(op.reads[0]) + " are shards of two kinds");
      write(id, {});
      if (id != op.reads[0]) flats_[id] = flats_.at(op.reads[0]);
    }
  }

  // A clip coefficient of a part of the norm would be another one on each rank.
  bool clips_by(const Op& op, TensorId id) {
    const int at = norm_operand(op.kind);
    if (at < 0 || op.reads[static_cast<std::size_t>(at)] != id) return false;
    if (!owed(id).empty())
      report(Rule::norm_of_all, "gradients are clipped by " + quoted(id) + ", which still owes the sum over " +
                                    words(mesh_, owed(id)));
    return true;
  }

  void expect_owes_nothing(TensorId id) {
    for (const auto& [p, owes] : flats_.at(id)) {
      expect_summed_over_stages(p);
      if (!owes.empty())
        report(Rule::gradient_meets_state, "the gradient of " + quoted(piece_.parameters[p].parameter) + " in " +
                                               quoted(id) + " still owes the sum over " + words(mesh_, owes));
    }
  }

  void norm(const Op& op) {
    if (is_flat(op.reads[0])) {
      expect_owes_nothing(op.reads[0]);
      write(op.writes[0], norm_group_);
    } else {  // of parts of itself
      norms_.erase(storage_of(piece_, op.reads[0]));
      write(op.writes[0], owed(op.reads[0]));
    }
    norms_.insert(storage_of(piece_, op.writes[0]));
  }

  void optimize(const Op& op) {
    if (is_flat(op.reads[0])) expect_owes_nothing(op.reads[0]);
    for (const auto ids : {std::span<const TensorId>(op.reads), std::span<const TensorId>(op.writes)})
      for (const TensorId id : ids) {
        if (id == kNoTensor || clips_by(op, id)) continue;
        if (tensor(id).over[0] != tensor(op.reads[0]).over[0] || tensor(id).sizes[0] != tensor(op.reads[0]).sizes[0])
          report(Rule::gradient_meets_state, "gradients " + layout(op.reads[0]) + " of " +
                                                 std::to_string(tensor(op.reads[0]).sizes[0]) + " elements meet " +
                                                 layout(id) + " of " + std::to_string(tensor(id).sizes[0]));
      }
    for (const TensorId id : op.writes)
      if (id != kNoTensor) updated(id);
  }
  // Parts of a parameter buffer are new, the rest of it is not.
  void updated(TensorId id) {
    write(id, {});
    if (tensor(id).category != Category::parameter) return;
    const TensorId root = storage_of(piece_, id);
    if (const ParameterSet* set = set_of(piece_, root); set != nullptr && set->frozen())
      report(Rule::frozen_stays, quoted(id) + " is updated, and has the parameters of a frozen set");
    stale_[root] = tensor(id).divided_over().without(tensor(root).divided_over());
  }

  const Mesh& mesh_;
  const Program& program_;
  const Piece& piece_;
  const MeshGroup norm_group_;
  Holders& holders_;
  std::vector<Violation>& found_;
  std::vector<MeshGroup> owed_;
  std::vector<State> state_;
  std::map<TensorId, std::size_t> parameter_of_;                // by gradient
  std::map<TensorId, std::map<std::size_t, MeshGroup>> flats_;  // owed by each parameter in a buffer of gradients
  std::map<TensorId, const PackedGradients*> packings_;
  std::set<TensorId> norms_;
  std::map<TensorId, MeshGroup> stale_;
  std::vector<MeshGroup> contributed_;  // by parameter
  std::vector<bool> owes_stages_;       // by parameter: the sum over the stages that hold it
  bool laid_out_ = false;               // without an optimizer parameters are there, but lie nowhere
  MeshGroup ring_group_;                // the digits that shifts go round
  const Op* mask_ = nullptr;
  const Op* op_ = nullptr;
  const Block* block_ = nullptr;
  const char* block_name_ = "";
  std::uint32_t serial_ = 0;
  bool second_step_ = false;
};

// Neighbouring pieces agree on what crosses between them.
class LineCheck {
 public:
  LineCheck(const Program& program, std::vector<Violation>& found) : program_(program), found_(found) {}

  void run() {
    std::vector<const Chunk*> chunks(program_.schedule.position.size());
    for (std::size_t s = 0; s < program_.stages.size(); ++s)
      for (std::size_t c = 0; c < program_.stages[s].size(); ++c)
        chunks.at(static_cast<std::size_t>(program_.schedule.position_of(s, c))) = &program_.stages[s][c];
    for (const Chunk* chunk : chunks)
      for (const Run& run : chunk->runs)
        for (std::int64_t i = 0; i < std::min<std::int64_t>(run.count, 2); ++i) pass(program_.pieces[run.piece]);
  }

 private:
  struct HandedOn {
    const Piece* piece = nullptr;
    TensorId forward = kNoTensor, backward = kNoTensor;
  };

  void pass(const Piece& piece) {
    meet(residual_, piece, piece.input, piece.input_gradient);
    residual_ = {&piece, piece.output, piece.output_gradient};
    for (std::size_t s = 0; s < kSideStreams; ++s) {
      const SideStream& side = piece.sides[s];
      if (side.input != kNoTensor) meet(sides_[s], piece, side.input, side.input_gradient);
      if (side.output != kNoTensor) sides_[s] = {&piece, side.output, side.output_gradient};
    }
  }

  void meet(const HandedOn& from, const Piece& to, TensorId forward, TensorId backward) {
    meet(from, from.forward, to, forward);
    meet(from, from.backward, to, backward);
    if (from.piece != nullptr && from.backward != kNoTensor && backward == kNoTensor)
      found_.push_back({Rule::pieces_fit, std::string("piece \"") + from.piece->name + "\" takes \"" +
                                              from.piece->tensors[from.backward].name +
                                              "\" for its backward, which piece \"" + to.name + "\" does not hand on"});
  }
  void meet(const HandedOn& from, TensorId handed_on, const Piece& to, TensorId taken) {
    if (from.piece == nullptr || handed_on == kNoTensor || taken == kNoTensor) return;
    const Tensor &a = from.piece->tensors[handed_on], &b = to.tensors[taken];
    if (a.elements() == b.elements() && a.over == b.over && a.deals == b.deals) return;
    found_.push_back({Rule::pieces_fit, std::string("piece \"") + to.name + "\" takes \"" + b.name + "\" " +
                                            words(program_.mesh, b) + " of " + std::to_string(b.elements()) +
                                            " elements, piece \"" + from.piece->name + "\" hands on \"" + a.name +
                                            "\" " + words(program_.mesh, a) + " of " + std::to_string(a.elements())});
  }

  const Program& program_;
  std::vector<Violation>& found_;
  HandedOn residual_;
  std::array<HandedOn, kSideStreams> sides_;
};

// All digits over which ranks hold different gradients: stages, parts of parameters, shards.
MeshGroup digits_of_gradients(const Program& program) {
  MeshGroup group = program.mesh.group(MeshAxis::pp);
  for (const Piece& piece : program.pieces) {
    for (const ParameterGradient& p : piece.parameters) group = group | piece.tensors[p.parameter].divided_over();
    for (const Block* block : {&piece.backward, &piece.weight_gradient, &piece.update})
      for (const Op& op : block->ops)
        if (op.kind == OpKind::gradient_norm) group = group | piece.tensors[op.reads[0]].divided_over();
  }
  return group;
}

}  // namespace

std::vector<Violation> check(const Program& program) {
  std::vector<Violation> found;
  const MeshGroup norm_group = digits_of_gradients(program);
  Holders holders(program);
  std::vector<std::vector<MeshGroup>> contributed(program.pieces.size());
  for (std::size_t p = 0; p < program.pieces.size(); ++p) {
    PieceCheck piece(program, program.pieces[p], norm_group, holders, found);
    piece.run();
    contributed[p] = piece.contributed();
  }
  // A parameter that lies in another piece of its stage is reduced there: it must owe what the other's ops leave.
  for (std::size_t p = 0; p < program.pieces.size(); ++p)
    for (std::size_t i = 0; i < program.pieces[p].parameters.size(); ++i) {
      const Piece& piece = program.pieces[p];
      const Tensor& t = piece.tensors[piece.parameters[i].parameter];
      if (!t.shared || piece.parameters[i].gradient == kNoTensor) continue;
      for (std::size_t q = 0; q < program.pieces.size(); ++q)
        for (std::size_t j = 0; j < program.pieces[q].parameters.size(); ++j) {
          const ParameterGradient& other = program.pieces[q].parameters[j];
          const Tensor& owner = program.pieces[q].tensors[other.parameter];
          if (owner.shared || other.gradient == kNoTensor || owner.axes != t.axes || owner.sizes != t.sizes) continue;
          if (contributed[p][i] != contributed[q][j])
            found.push_back({Rule::owed_alike, std::string("piece \"") + piece.name + "\": the gradient of \"" +
                                                   t.name + "\", which lies " + "in piece \"" + program.pieces[q].name +
                                                   "\", owes the sum over " + words(program.mesh, contributed[p][i]) +
                                                   ", there it owes " + words(program.mesh, contributed[q][j])});
        }
    }
  LineCheck(program, found).run();
  return found;
}

}  // namespace orrery
