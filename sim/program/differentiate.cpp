// Reverse-mode differentiation of a piece. One rule per op kind; gradients keep the name of their tensor.
#include <stdexcept>
#include <string>

#include "sim/program/piece.h"

namespace orrery {
namespace {

class Differentiator {
 public:
  Differentiator(Piece& piece, Dtype gradient_dtype) : piece_(piece), gradient_dtype_(gradient_dtype) {
    gradient_.reserve(2 * piece.tensors.size());
    needs_.reserve(2 * piece.tensors.size());
    gradient_.assign(piece.tensors.size(), kNoTensor);
    needs_.assign(piece.tensors.size(), false);
  }

  void run() {
    find_differentiable();
    if (piece_.output != kNoTensor) gradient_[piece_.output] = piece_.output_gradient = like(piece_.output);
    for (SideStream& side : piece_.sides)
      if (const TensorId on = handed_on(side); on != kNoTensor) gradient_[on] = side.output_gradient = like(on);
    // Indices, not iterators: rules append tensors, never forward ops.
    for (std::size_t i = piece_.forward.ops.size(); i-- > 0;) reverse(piece_.forward.ops[i]);
    if (piece_.input != kNoTensor) piece_.input_gradient = gradient_of(piece_.input);
    for (SideStream& side : piece_.sides)
      if (side.input != kNoTensor) side.input_gradient = gradient_of(side.input);
    for (std::size_t id = 0; id < piece_.tensors.size(); ++id) {
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

  TensorId add_tensor(const Tensor& t) {
    gradient_.push_back(kNoTensor);
    needs_.push_back(false);
    return piece_.add(t);
  }

  // A new gradient tensor of the same shape.
  TensorId like(TensorId id) {
    const TensorId gradient = add_tensor(piece_.tensors[id]);
    Tensor& t = piece_.tensors[gradient];
    t.resident = t.shared = t.lent = false;
    t.alias_of = kNoTensor;
    t.input = Input::none;
    if (t.category == Category::parameter) {
      t.category = Category::gradient;
      t.dtype = gradient_dtype_;
    } else {
      t.category = Category::activation;
    }
    return gradient;
  }

  TensorId gradient_of(TensorId id) const { return gradient_[id]; }

  // The gradient tensor that a rule should write for `id`. For a view it is the matching view of its base's gradient.
  // All uses of a parameter add to its gradient, as all micro-batches do.
  TensorId target(TensorId id) {
    const TensorId base = piece_.tensors[id].alias_of;
    if (base == kNoTensor) return is_parameter(id) && gradient_[id] != kNoTensor ? gradient_[id] : like(id);
    if (gradient_[base] == kNoTensor) gradient_[base] = like(base);
    const TensorId view = add_tensor(piece_.tensors[id]);
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
    Op& op = emit(OpKind::add, Phase::input_gradient, "gradient_sum");
    op.reads[0] = gradient_[id];
    op.reads[1] = gradient;
    op.writes[0] = sum;
    gradient_[id] = sum;
  }

  Op& emit(OpKind kind, Phase phase, const char* name) {
    Op& op = piece_.backward.ops.emplace_back();
    op.kind = kind;
    op.phase = phase;
    op.name = name;
    return op;
  }
  Op& emit_like(const Op& forward, OpKind kind, Phase phase) {
    Op& op = piece_.backward.ops.emplace_back(forward);
    op.kind = kind;
    op.phase = phase;
    op.reads.fill(kNoTensor);
    op.writes.fill(kNoTensor);
    return op;
  }

  void bias_gradient(const Op& forward, TensorId bias, TensorId dy) {
    if (bias == kNoTensor) return;
    const TensorId db = target(bias);
    Op& op = emit_like(forward, OpKind::bias_gradient, phase_of(bias));
    op.reads[0] = dy;
    op.writes[0] = db;
    contribute(bias, db);
  }

  // The phase of a bias's or table's gradient. If it is an activation, its gradient leads further back.
  Phase phase_of(TensorId id) const { return is_parameter(id) ? Phase::weight_gradient : Phase::input_gradient; }

  void reverse(const Op& op) {  // an op of the forward, which does not grow during this
    const TensorId dy = op.writes[0] == kNoTensor ? kNoTensor : gradient_[op.writes[0]];
    const OpTraits& traits = traits_of(op.kind);
    const bool is_loss = traits.derivative == Derivative::cross_entropy || traits.derivative == Derivative::router_loss;
    if (dy == kNoTensor && !is_loss) return;  // no op downstream needs it

    switch (traits.derivative) {
      case Derivative::linear: {
        if (needs_[op.reads[0]]) {
          const TensorId dx = target(op.reads[0]);
          Op& g = emit_like(op, traits.backward, Phase::input_gradient);
          g.reads[0] = dy;
          g.reads[1] = op.reads[1];
          g.writes[0] = dx;
          contribute(op.reads[0], dx);
        }
        const TensorId dw = target(op.reads[1]);
        Op& g = emit_like(op, OpKind::linear_weight_gradient, Phase::weight_gradient);
        g.reads[0] = op.reads[0];
        g.reads[1] = dy;
        g.writes[0] = dw;
        contribute(op.reads[1], dw);
        bias_gradient(op, op.reads[2], dy);
        break;
      }
      case Derivative::batched_matmul: {
        // c = a b or a bᵀ:  da = dc bᵀ or dc b;  db = aᵀ dc or dcᵀ a.
        const TensorId a = op.reads[0], b = op.reads[1];
        const TensorId da = target(a);
        Op& ga = emit_like(op, traits.backward, Phase::input_gradient);
        ga.reads = {dy, b, kNoTensor, kNoTensor, kNoTensor, kNoTensor};
        ga.transpose_b = !op.transpose_b;
        ga.writes[0] = da;
        contribute(a, da);
        const TensorId db = target(b);
        Op& gb = emit_like(op, traits.backward, Phase::input_gradient);
        gb.reads[0] = op.transpose_b ? dy : a;
        gb.reads[1] = op.transpose_b ? a : dy;
        gb.transpose_a = true;
        gb.transpose_b = false;
        gb.writes[0] = db;
        contribute(b, db);
        break;
      }
      case Derivative::attention: {
        const TensorId d0 = target(op.reads[0]);
        const TensorId d1 = op.reads[1] == kNoTensor ? kNoTensor : target(op.reads[1]);
        const TensorId dbias = op.reads[2] == kNoTensor ? kNoTensor : target(op.reads[2]);
        Op& g = emit_like(op, traits.backward, Phase::input_gradient);
        g.reads = {dy, op.writes[0], op.writes[1], op.reads[0], op.reads[1], op.reads[2]};
        g.writes = {d0, d1, dbias, kNoTensor};
        contribute(op.reads[0], d0);
        contribute(op.reads[1], d1);
        contribute(op.reads[2], dbias);
        break;
      }
      case Derivative::of_dy:
        unary(op, traits.backward, dy, kNoTensor);
        break;
      case Derivative::of_dy_or_two:
        one_or_two_inputs(op, traits.backward, dy);
        break;
      case Derivative::of_dy_and_y:
        unary(op, traits.backward, dy, op.writes[0]);
        break;
      case Derivative::of_dy_and_mask:
        unary(op, traits.backward, dy, op.writes[1]);
        break;
      case Derivative::norm: {
        const TensorId dx = target(op.reads[0]), dw = target(op.reads[1]);
        const TensorId db = op.reads[2] == kNoTensor ? kNoTensor : target(op.reads[2]);
        Op& g = emit_like(op, traits.backward, Phase::input_gradient);
        g.reads = {dy, op.reads[0], op.reads[1], op.writes[1], kNoTensor, kNoTensor};
        g.writes = {dx, dw, db, kNoTensor};
        contribute(op.reads[0], dx);
        contribute(op.reads[1], dw);
        contribute(op.reads[2], db);
        break;
      }
      case Derivative::activation: {
        const TensorId dx = target(op.reads[0]), weights = op.reads[2];
        const TensorId dweights = weights == kNoTensor ? kNoTensor : target(weights);
        Op& g = emit_like(op, traits.backward, Phase::input_gradient);
        g.reads = {dy, op.reads[0], op.reads[1], weights, kNoTensor, kNoTensor};
        g.writes = {dx, dweights, kNoTensor, kNoTensor};
        contribute(op.reads[0], dx);
        contribute(weights, dweights);
        bias_gradient(op, op.reads[1], dx);
        break;
      }
      case Derivative::dropout_add: {
        contribute(op.reads[1], dy);  // the residual's gradient is dy itself
        const TensorId dx = target(op.reads[0]);
        Op& g = emit_like(op, traits.backward, Phase::input_gradient);
        g.reads[0] = dy;
        g.reads[1] = op.writes[1];
        g.writes[0] = dx;
        contribute(op.reads[0], dx);
        bias_gradient(op, op.reads[2], dx);
        break;
      }
      case Derivative::add:
        contribute(op.reads[1], dy);
        contribute(op.reads[0], dy);
        bias_gradient(op, op.reads[2], dy);
        break;
      case Derivative::multiply:
        for (const int side : {0, 1}) {
          const TensorId d = target(op.reads[side]);
          Op& g = emit_like(op, traits.backward, Phase::input_gradient);
          g.reads[0] = dy;
          g.reads[1] = op.reads[1 - side];
          g.writes[0] = d;
          contribute(op.reads[side], d);
        }
        break;
      case Derivative::embedding: {
        const TensorId dt = target(op.reads[1]);
        Op& g = emit_like(op, traits.backward, phase_of(op.reads[1]));
        g.reads[0] = op.reads[0];
        g.reads[1] = dy;
        g.writes[0] = dt;
        contribute(op.reads[1], dt);
        break;
      }
      case Derivative::cross_entropy: {
        const TensorId dl = target(op.reads[0]);
        Op& g = emit_like(op, traits.backward, Phase::input_gradient);
        g.reads = {op.reads[0], op.reads[1], op.writes[0], kNoTensor, kNoTensor, kNoTensor};
        g.writes[0] = dl;
        contribute(op.reads[0], dl);
        break;
      }
      case Derivative::route: {
        const TensorId dl = target(op.reads[0]);
        Op& g = emit_like(op, traits.backward, Phase::input_gradient);
        g.reads = {dy, op.reads[0], op.writes[1], kNoTensor, kNoTensor, kNoTensor};
        g.writes[0] = dl;
        contribute(op.reads[0], dl);
        break;
      }
      case Derivative::permute: {
        const TensorId dx = target(op.reads[0]);
        Op& g = emit_like(op, traits.backward, Phase::input_gradient);
        g.reads = {dy, op.reads[1], kNoTensor, kNoTensor, kNoTensor, kNoTensor};
        g.writes[0] = dx;
        contribute(op.reads[0], dx);
        break;
      }
      case Derivative::unpermute: {
        const TensorId drows = target(op.reads[0]), weights = op.reads[2];
        const TensorId dweights = weights == kNoTensor ? kNoTensor : target(weights);
        Op& g = emit_like(op, weights == kNoTensor ? OpKind::permute : traits.backward, Phase::input_gradient);
        if (weights == kNoTensor)
          g.reads = {dy, op.reads[1], kNoTensor, kNoTensor, kNoTensor, kNoTensor};
        else
          g.reads = {dy, op.reads[0], op.reads[1], weights, kNoTensor, kNoTensor};
        g.writes = {drows, dweights, kNoTensor, kNoTensor};
        contribute(op.reads[0], drows);
        contribute(weights, dweights);
        break;
      }
      case Derivative::noise: {
        contribute(op.reads[0], dy);
        const TensorId dd = target(op.reads[1]);
        Op& g = emit(traits.backward, Phase::input_gradient, op.name);
        g.reads[0] = dy;
        g.reads[1] = op.writes[1];
        g.writes[0] = dd;
        contribute(op.reads[1], dd);
        break;
      }
      case Derivative::router_loss: {
        const TensorId dl = target(op.reads[0]);
        Op& g = emit_like(op, traits.backward, Phase::input_gradient);
        g.reads[0] = op.reads[0];
        g.reads[1] = op.reads[1];
        g.writes[0] = dl;
        contribute(op.reads[0], dl);
        break;
      }
      case Derivative::none:
        throw std::logic_error(std::string("differentiate: no rule for ") + traits.name + ": " + traits.why_none);
    }
  }

  // dx = f'(dy, saved)
  void unary(const Op& op, OpKind kind, TensorId dy, TensorId saved) {
    if (!needs_[op.reads[0]]) return;
    const TensorId dx = target(op.reads[0]);
    Op& g = emit_like(op, kind, Phase::input_gradient);
    g.reads[0] = dy;
    g.reads[1] = saved;
    g.writes[0] = dx;
    contribute(op.reads[0], dx);
  }
  // For an op that reads x, or x and a tensor that is put beside or into it (latent attention's shared key, a class
  // token).
  void one_or_two_inputs(const Op& op, OpKind kind, TensorId dy) {
    if (op.reads[1] == kNoTensor) return unary(op, kind, dy, kNoTensor);
    const TensorId d0 = target(op.reads[0]), d1 = target(op.reads[1]);
    Op& g = emit_like(op, kind, Phase::input_gradient);
    g.reads[0] = dy;
    g.writes = {d0, d1, kNoTensor, kNoTensor};
    contribute(op.reads[0], d0);
    contribute(op.reads[1], d1);
  }

  Piece& piece_;
  Dtype gradient_dtype_;
  std::vector<TensorId> gradient_;
  std::vector<std::uint8_t> needs_;  // by tensor: whether it needs a gradient
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
  for (Block* block : {&forward, &backward, &weight_gradient, &update}) block->ops.clear();
  input = output = input_gradient = output_gradient = kNoTensor;
  sides.fill({});
}

void differentiate(Piece& piece, Dtype gradient_dtype) { Differentiator(piece, gradient_dtype).run(); }

}  // namespace orrery
