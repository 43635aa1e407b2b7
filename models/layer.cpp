#include "models/layer.h"

#include "models/attention.h"

namespace orrery {
namespace {

TensorId mlp(Builder& b, TensorId x, TensorId* bias) {
  const Dim ffn{b.sizes.ffn, Axis::ffn}, gate{2, Axis::none};
  TensorId inner_bias = kNoTensor;
  const TensorId inner = b.model.gated()
                             ? b.linear("fc1", x, {b.hidden()}, {gate, ffn}, b.model.linear_bias, &inner_bias)
                             : b.linear("fc1", x, {b.hidden()}, {ffn}, b.model.linear_bias, &inner_bias);
  TensorId activated = b.activation("activation", {b.batch(), b.sequence(), ffn});
  if (b.model.gated() && !b.kernels.fused_kernels) {
    const TensorId opened = b.view("gate", inner, 0, {b.batch(), b.sequence(), ffn});
    const TensorId up = b.view("gate", inner, 1, {b.batch(), b.sequence(), ffn});
    b.emit(OpKind::activation, "activation", {opened}, {activated}).function = b.model.activation;
    const TensorId product = b.activation("gate", {b.batch(), b.sequence(), ffn});
    b.emit(OpKind::multiply, "gate", {activated, up}, {product});
    activated = product;
  } else {
    b.emit(OpKind::activation, "activation", {inner, inner_bias}, {activated}).function = b.model.activation;
  }
  return b.linear("fc2", activated, {ffn}, {b.hidden()}, b.model.linear_bias, bias);
}

// PaLM (Chowdhery et al. 2022, section 2); GPT-NeoX.
TensorId parallel_block(Builder& b, TensorId x, bool causal) {
  const TensorId n = b.norm("input_norm", x, {b.hidden()});
  const TensorId attended = self_attention(b, n, causal, nullptr);
  TensorId mlp_bias = kNoTensor;
  const TensorId m = mlp(b, b.model.parallel_norms ? b.norm("mlp_norm", x, {b.hidden()}) : n, &mlp_bias);
  const TensorId sum = b.residual("parallel_sum");
  b.emit(OpKind::add, "parallel_sum", {attended, m}, {sum});
  return b.add_residual("residual", sum, x, mlp_bias);
}

// Attention, then the MLP; between them what attends to an encoder.
TensorId serial_block(Builder& b, TensorId x, LayerRole role) {
  const bool causal = role != LayerRole::encoder;
  TensorId bias = kNoTensor;

  // Swin attends within windows: the tokens are regrouped before and after.
  const auto regroup = [&](const char* name, TensorId t) {
    if (b.model.kind != ModelKind::swin) return t;
    const TensorId out = b.residual(name);
    b.emit(OpKind::cast, name, {t}, {out});
    return out;
  };

  // x + f(norm(x)), norm(x + f(x)), x + norm(f(x)) or x + norm(f(norm(x))): where the norms sit differs by family.
  const auto norm_before = [&](const char* name, TensorId t) {
    return b.model.input_norm && !b.model.post_norm ? b.norm(name, t, {b.hidden()}) : t;
  };
  const auto norm_after = [&](const char* name, TensorId t) {
    return b.model.output_norm ? b.norm(name, t, {b.hidden()}) : t;
  };

  const TensorId n1 = norm_before("input_norm", x);
  // With a norm behind, the bias cannot wait for the residual addition.
  TensorId* const deferred = b.model.output_norm ? nullptr : &bias;
  const TensorId attended =
      regroup("window_reverse", self_attention(b, regroup("window_partition", n1), causal, deferred));
  TensorId r = b.add_residual("attention_residual", norm_after("attention_output_norm", attended), x, bias);
  if (b.model.post_norm) r = b.norm("attention_norm", r, {b.hidden()});

  if (role == LayerRole::decoder_with_memory) {
    const TensorId nc = b.norm("cross_norm", r, {b.hidden()});
    const TensorId crossed = cross_attention(b, nc, b.piece.sides[kEncoderOutput].input, &bias);
    r = b.add_residual("cross_residual", crossed, r, bias);
  }

  bias = kNoTensor;
  const TensorId m = mlp(b, norm_before("mlp_norm", r), deferred);
  TensorId y = b.add_residual("mlp_residual", norm_after("mlp_output_norm", m), r, bias);
  if (b.model.post_norm) y = b.norm("output_norm", y, {b.hidden()});
  return y;
}

}  // namespace

void build_layer(Piece& piece, const Model& model, const KernelChoices& kernels, const LayerSizes& sizes,
                 LayerRole role, std::int64_t window) {
  piece.layers = 1;
  Builder b(model, kernels, sizes, piece);
  b.window = window;
  const TensorId x = piece.input = b.residual("input");
  if (role == LayerRole::decoder_with_memory) {
    piece.sides[kEncoderOutput].input =
        b.activation("memory", {b.batch(), {sizes.key_sequence, Axis::sequence}, b.hidden()});
  }
  take_position_table(b);
  piece.output = model.parallel_block ? parallel_block(b, x, role != LayerRole::encoder) : serial_block(b, x, role);
  b.finish();
}

}  // namespace orrery
