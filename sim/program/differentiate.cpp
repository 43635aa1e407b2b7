// Reverse-mode differentiation of a piece, by the rules of op_traits.h; gradients keep the name of their tensor.
#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>

#include "sim/program/rewrite.h"

namespace orrery {
namespace {

class Differentiator {
 public:
  Differentiator(Piece& piece, Dtype gradient_dtype)
      : piece_(piece),
        gradient_dtype_(gradient_dtype),
        gradient_(piece.tensors.size(), kNoTensor),
        needs_(piece.tensors.size()) {}

  void run() {
    find_differentiable();
    if (piece_.output != kNoTensor) gradient_[piece_.output] = piece_.output_gradient = like(piece_.output);
    for (SideStream& side : piece_.sides)
      if (const TensorId on = handed_on(side); on != kNoTensor) gradient_[on] = side.output_gradient = like(on);
    // Indices, not iterators: rules append tensors, never forward ops.
    for (std::size_t i = piece_.forward.ops.size(); i-- > 0;) reverse(piece_.forward.ops[i]);
    if (piece_.input != kNoTensor) piece_.input_gradient = gradient_[piece_.input];
    for (SideStream& side : piece_.sides)
      if (side.input != kNoTensor) side.input_gradient = gradient_[side.input];
    for (std::size_t id = 0; id < gradient_.size(); ++id) {
      const Tensor& t = piece_.tensors[id];
      if (t.category == Category::parameter && t.alias_of == kNoTensor && gradient_[id] != kNoTensor)
        piece_.parameters.push_back({static_cast<TensorId>(id), gradient_[id]});
    }
    for (Op& op : piece_.backward.ops)
      for (std::size_t i = 0; traits_of(op.kind).accumulates >> i != 0; ++i)
        op.accumulate = op.accumulate || (accumulates(op.kind, i) && is_gradient_of_parameter(op.writes[i]));
  }

 private:
  static TensorId handed_on(const SideStream& side) { return side.output != kNoTensor ? side.output : side.input; }

  bool is_parameter(TensorId id) const { return piece_.tensors[id].category == Category::parameter; }
  // Gradients of parameters, to which all micro-batches add.
  bool is_gradient_of_parameter(TensorId id) const {
    return id != kNoTensor && piece_.tensors[id].category == Category::gradient;
  }

  // A tensor needs a gradient when a parameter or the piece's input leads to it: token ids and images do not.
  void find_differentiable() {
    for (std::size_t id = 0; id < piece_.tensors.size(); ++id) {
      const auto t = static_cast<TensorId>(id);
      needs_[id] = is_parameter(t) || t == piece_.input;
      for (const SideStream& side : piece_.sides) needs_[id] = needs_[id] || t == side.input;
    }
    const auto propagate_to_views = [&] {
      for (std::size_t id = 0; id < piece_.tensors.size(); ++id)
        if (TensorId base = piece_.tensors[id].alias_of; base != kNoTensor && needs_[base]) needs_[id] = true;
    };
    propagate_to_views();
    for (const Op& op : piece_.forward.ops) {
      bool any = false;
      for (TensorId id : op.reads) {
        if (id == kNoTensor) continue;
        const TensorId base = piece_.tensors[id].alias_of;
        any = any || needs_[id] || (base != kNoTensor && needs_[base]);
      }
      if (!any) continue;
      for (TensorId id : op.writes)
        if (id != kNoTensor) needs_[id] = true;
    }
    propagate_to_views();
  }

  // A new gradient tensor of the same shape.
  TensorId like(TensorId id) {
    const TensorId gradient = clone_tensor(piece_, id);
    Tensor& t = piece_.tensors[gradient];
    if (t.category == Category::parameter) {
      t.category = Category::gradient;
      t.dtype = gradient_dtype_;
    } else {
      t.category = Category::activation;
    }
    return gradient;
  }

  // The gradient tensor that a rule should write for `id`. For a view it is the matching view of its base's gradient.
  // All uses of a parameter add to its gradient, as all micro-batches do.
  TensorId target(TensorId id) {
    const TensorId base = piece_.tensors[id].alias_of;
    if (base == kNoTensor) return is_parameter(id) && gradient_[id] != kNoTensor ? gradient_[id] : like(id);
    if (gradient_[base] == kNoTensor) gradient_[base] = like(base);
    const TensorId view = piece_.add(piece_.tensors[id]);
    Tensor& t = piece_.tensors[view];
    t.alias_of = gradient_[base];
    t.dtype = piece_.tensors[gradient_[base]].dtype;
    t.category = piece_.tensors[gradient_[base]].category;
    return view;
  }

  // Adds a contribution to the gradient of `id`; sums fan-out.
  void contribute(TensorId id, TensorId gradient) {
    if (id == kNoTensor || !needs_[id]) return;
    if (piece_.tensors[id].alias_of != kNoTensor) return;  // written in place, into the base's gradient
    if (gradient_[id] == kNoTensor || gradient_[id] == gradient) {
      gradient_[id] = gradient;
      return;
    }
    const TensorId sum = like(id);
    piece_.backward.ops.push_back(
        computation(OpKind::add, "gradient_sum", Phase::input_gradient, {gradient_[id], gradient}, {sum}));
    gradient_[id] = sum;
  }

  Op& emit(const Op& forward, OpKind kind, Phase phase) {
    Op& op = piece_.backward.ops.emplace_back(forward);
    op.kind = kind;
    op.phase = phase;
    op.reads.fill(kNoTensor);
    op.writes.fill(kNoTensor);
    return op;
  }

  // The phase of a weight's, bias's or table's gradient. If it is an activation, its gradient leads further back.
  Phase phase_of(TensorId id) const { return is_parameter(id) ? Phase::weight_gradient : Phase::input_gradient; }

  static TensorId read_by(const Op& forward, Source source, TensorId dy) {
    const auto behind = [&](Source first) {
      return static_cast<std::size_t>(source) - static_cast<std::size_t>(first);
    };
    if (source >= Source::write0) return forward.writes[behind(Source::write0)];
    if (source >= Source::read0) return forward.reads[behind(Source::read0)];
    return source == Source::dy ? dy : kNoTensor;
  }

  // Emits an op of a derivative. Returns the first gradient that it writes.
  TensorId emit(const Op& forward, const DerivativeOp& rule, TensorId dy) {
    std::array<TensorId, 4> of{}, gradients{kNoTensor, kNoTensor, kNoTensor, kNoTensor};  // by result of the op
    std::size_t results = 0;
    bool needed = false;
    for (std::size_t i = 0; rule.of >> i != 0; ++i) {
      if (!has_operand(rule.of, i)) continue;
      of[results++] = forward.reads[i];
      needed = needed || (forward.reads[i] != kNoTensor && needs_[forward.reads[i]]);
    }
    if (!needed) return kNoTensor;
    for (std::size_t i = 0; i < results; ++i)
      if (of[i] != kNoTensor) gradients[i] = target(of[i]);
    Op& op = emit(forward, rule.kind, rule.of_weights ? phase_of(of[0]) : Phase::input_gradient);
    for (std::size_t i = 0; i < op.reads.size() && rule.reads[i] != Source::none; ++i)
      op.reads[i] = read_by(forward, rule.reads[i], dy);
    op.writes = gradients;
    if (forward.kind == OpKind::batched_matmul) transpose(forward, has_operand(rule.of, 0), op);
    for (std::size_t i = 0; i < results; ++i) contribute(of[i], gradients[i]);
    return gradients[0];
  }

  // c = a b or a bᵀ:  da = dc bᵀ or dc b;  db = aᵀ dc or dcᵀ a.
  static void transpose(const Op& forward, bool of_a, Op& op) {
    op.transpose_a = !of_a;
    op.transpose_b = of_a && !forward.transpose_b;
    if (!of_a && forward.transpose_b) std::swap(op.reads[0], op.reads[1]);
  }

  // A loss has no gradient that comes from behind it.
  static bool is_loss(const Derivative& rule) {
    return rule.passes == 0 && rule.ops[0].kind != OpKind::end &&
           std::ranges::find(rule.ops[0].reads, Source::dy) == rule.ops[0].reads.end();
  }

  void reverse(const Op& op) {  // an op of the forward, which does not grow during this
    const OpTraits& traits = traits_of(op.kind);
    const Derivative& rule = traits.derivative;
    const TensorId dy = op.writes[0] == kNoTensor ? kNoTensor : gradient_[op.writes[0]];
    if (dy == kNoTensor && !is_loss(rule)) return;  // no op downstream needs it
    if (traits.why_none != nullptr)
      throw std::logic_error(std::string("differentiate: no rule for ") + traits.name + ": " + traits.why_none);
    for (int i = std::bit_width(rule.passes); i-- > 0;)
      if (has_operand(rule.passes, static_cast<std::size_t>(i))) contribute(op.reads[static_cast<std::size_t>(i)], dy);
    if (op.kind == OpKind::unpermute && op.reads[2] == kNoTensor) {  // without weights
      emit(op, {OpKind::permute, {Source::dy, Source::read1}, 0b1}, dy);
      return;
    }
    const TensorId dx = emit(op, rule.ops[0], dy);
    if (rule.ops[1].kind != OpKind::end) emit(op, rule.ops[1], dy);
    if (rule.bias < 0 || op.reads[static_cast<std::size_t>(rule.bias)] == kNoTensor) return;
    const TensorId bias = op.reads[static_cast<std::size_t>(rule.bias)], db = target(bias);
    Op& sum = emit(op, OpKind::bias_gradient, phase_of(bias));
    sum.reads[0] = rule.bias_of_dx ? dx : dy;
    sum.writes[0] = db;
    contribute(bias, db);
  }

  Piece& piece_;
  Dtype gradient_dtype_;
  // By tensor of the forward.
  std::vector<TensorId> gradient_;
  std::vector<std::uint8_t> needs_;  // whether it needs a gradient
};

}  // namespace

void Piece::clear() {
  name = "";
  layers = 0;
  plan = 0;
  variant_of = kNoPiece;
  tensors.clear();
  parameters.clear();
  sets.clear();
  packed.clear();
  tasks.clear();
  for (Block* block : {&forward, &backward, &weight_gradient, &update}) block->ops.clear();
  input = output = input_gradient = output_gradient = kNoTensor;
  sides.fill({});
}

void differentiate(Piece& piece, Dtype gradient_dtype) { Differentiator(piece, gradient_dtype).run(); }

}  // namespace orrery
