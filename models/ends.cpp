#include <algorithm>
#include <vector>

#include "models/builder.h"

namespace orrery {
namespace {

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Embeds the tokens of `ids_name`: the input of a stack.
TensorId embed(Builder& b, const char* ids_name, Input tokens) {
  const Model& model = b.model;
  const KernelChoices& kernels = b.kernels;
  const Dim vocab{round_up(model.vocab, kernels.vocab_multiple), Axis::vocab};
  const TensorId ids = b.input(ids_name, tokens, Dtype::int64, {b.batch(), b.sequence()});
  const TensorId table = b.parameter("embedding", {vocab, b.hidden()});
  TensorId y = b.residual("embedding");
  b.emit(OpKind::embedding, "embedding", {ids, table}, {y});
  if (model.positions == Positions::learned) {
    const TensorId rows =
        b.parameter("positions", {{model.max_positions + model.extra_positions, Axis::none}, b.hidden()});
    y = b.add_positions(y, rows);
  }
  if (model.token_types > 0) {
    const TensorId segments = b.input("token_types", Input::token_types, Dtype::int64, {b.batch(), b.sequence()});
    const TensorId types = b.parameter("token_types", {{model.token_types, Axis::none}, b.hidden()});
    const TensorId looked_up = b.residual("token_types"), sum = b.residual("token_types");
    b.emit(OpKind::embedding, "token_types", {segments, types}, {looked_up});
    b.emit(OpKind::add, "token_types", {y, looked_up}, {sum});
    y = sum;
  }
  if (model.embedding_norm) y = b.norm("embedding_norm", y, {b.hidden()});
  if (model.dropout > 0) {
    const TensorId dropped = b.residual("embedding_dropout");
    const TensorId mask =
        b.tensor("embedding_dropout", Category::activation, Dtype::uint8, {b.batch(), b.sequence(), b.hidden()});
    b.emit(OpKind::dropout, "embedding_dropout", {y}, {dropped, mask}).probability = static_cast<float>(model.dropout);
    y = dropped;
  }
  return y;
}

// BERT's next-sentence classifier on the first token (Devlin et al. 2018, section 3.1).
void build_pooler(Builder& b, TensorId x) {
  const Dim one{1, Axis::none}, classes{2, Axis::none};
  const TensorId first = b.activation("pooler", {b.batch(), one, b.hidden()});
  b.emit(OpKind::pool, "pooler", {x}, {first});
  const TensorId transformed = b.linear("pooler", first, {b.hidden()}, {b.hidden()}, true);
  const TensorId activated = b.activation("pooler", {b.batch(), one, b.hidden()});
  b.emit(OpKind::activation, "pooler", {transformed}, {activated}).function = ActivationFunction::gelu;
  const TensorId logits = b.linear("next_sentence", activated, {b.hidden()}, {classes}, true);
  const TensorId targets = b.input("next_sentence", Input::next_sentence, Dtype::int64, {b.batch(), one});
  const TensorId statistics =
      b.tensor("next_sentence", Category::activation, Dtype::fp32, {{3, Axis::none}, b.batch(), one});
  b.emit(OpKind::cross_entropy, "next_sentence", {logits, targets}, {statistics});
}

// PyTorch's cross_entropy first computes the loss's gradient with respect to each log-probability (zero except for the
// targets), and then that with respect to the logits; both are separate fp32 tensors.
void keep_gradient_of_log_probabilities(Piece& piece, TensorId statistics) {
  auto& ops = piece.backward.ops;
  const auto loss = std::ranges::find_if(
      ops, [&](const Op& op) { return op.kind == OpKind::cross_entropy_backward && op.reads[2] == statistics; });
  const TensorId logits = loss->writes[0];
  const auto log_softmax = std::find_if(loss, ops.end(), [&](const Op& op) { return op.reads[0] == logits; });
  Tensor zeros = piece.tensors[logits];
  zeros.name = "loss_gradient";
  Op fill;
  fill.kind = OpKind::zero_fill;
  fill.name = "loss_gradient";
  fill.phase = Phase::input_gradient;
  fill.writes[0] = piece.add(zeros);
  log_softmax->kind = OpKind::add;
  log_softmax->reads[1] = fill.writes[0];
  ops.insert(loss, fill);
}

// Returns the loss of `logits`, as statistics: in fp32 (Korthikanti et al. 2022, section 4.3: 4 s b v bytes of logits
// are kept), or, fused, from the logits in their own dtype.
TensorId build_loss(Builder& b, TensorId logits, Input of, Dim rows, Dim length) {
  const bool unfused = b.kernels.loss == LossKernels::unfused;
  TensorId exact = logits;
  if (b.kernels.activation != Dtype::fp32 && b.kernels.loss != LossKernels::fused)
    exact = b.cast("logits_fp32", logits, Dtype::fp32);
  // PyTorch's allocator does not return memory, and what follows is too large for the space of 16-bit logits.
  if (unfused && exact != logits) b.piece.tensors[logits].resident = true;
  // As large as a log-softmax, and it lives as long. It has the logits' values, from which the loss is the same.
  if (unfused) exact = b.cast("log_softmax", exact, Dtype::fp32);
  const TensorId targets = b.input("targets", of, Dtype::int64, {rows, length});
  const TensorId statistics = b.tensor("loss", Category::activation, Dtype::fp32, {{3, Axis::none}, rows, length});
  b.emit(OpKind::cross_entropy, "cross_entropy", {exact, targets}, {statistics});
  return statistics;
}

}  // namespace

void build_embedding(Builder& b) {
  b.piece.output = embed(b, "ids", Input::tokens);
  begin_position_table(b);
  b.finish();
}

void build_decoder_embedding(Builder& b) {
  b.piece.input = b.activation("input", {b.batch(), {b.sizes.key_sequence, Axis::sequence}, b.hidden()});
  b.piece.sides[kEncoderOutput].output = b.model.post_norm ? b.cast("memory", b.piece.input, b.kernels.activation)
                                                           : b.norm("final_norm", b.piece.input, {b.hidden()});
  b.piece.output = embed(b, "decoder_ids", Input::decoder_tokens);
  begin_position_table(b);
  b.finish();
}

void build_prediction_embedding(Builder& b) {
  b.piece.input = b.residual("input");
  const TensorId last = b.piece.sides[kLastState].output = b.norm("final_norm", b.piece.input, {b.hidden()});
  const TensorId state = b.norm("mtp_hidden_norm", last, {b.hidden()});
  // The module predicts the tokens after those that the model has read.
  const TensorId next = b.norm("mtp_embedding_norm", embed(b, "next_ids", Input::targets), {b.hidden()});
  // A projection of both side by side, as two products.
  const TensorId of_state = b.linear("mtp_projection", state, {b.hidden()}, {b.hidden()}, false);
  const TensorId of_next = b.linear("mtp_projection", next, {b.hidden()}, {b.hidden()}, false);
  b.piece.output = b.residual("mtp_projection");
  b.emit(OpKind::add, "mtp_projection", {of_state, of_next}, {b.piece.output});
  b.finish();
}

void build_patch_embedding(Builder& b) {
  const Dim pixels{b.model.channels * b.model.patch_size * b.model.patch_size, Axis::none};
  const bool class_token = b.model.kind == ModelKind::vit;
  const Dim length{b.sizes.sequence - (class_token ? 1 : 0), Axis::sequence};
  const TensorId patches = b.input("patches", Input::patches, b.kernels.activation, {b.batch(), length, pixels});
  TensorId y = b.linear("patch_embedding", patches, {pixels}, {b.hidden()}, true);
  if (!class_token) {
    y = b.norm("patch_norm", y, {b.hidden()});
  } else {
    const TensorId token = b.parameter("class_token", {b.hidden()}), whole = b.residual("class_token");
    b.emit(OpKind::pool, "class_token", {y, token}, {whole});
    y = b.add_positions(whole, b.parameter("positions", {{b.sizes.sequence, Axis::none}, b.hidden()}));
  }
  b.piece.output = y;
  b.finish();
}

void build_head(Builder& b) {
  const TensorId x = b.piece.input = b.residual("input");
  const bool vision = b.model.vision();
  if (b.model.pooler) build_pooler(b, x);
  const bool predicts_more = b.model.mtp_num_layers > 0;
  TensorId y = b.model.post_norm ? x : b.norm(predicts_more ? "mtp_final_norm" : "final_norm", x, {b.hidden()});
  Dim length = b.sequence(), rows = b.batch();
  if (vision) {  // one vector per image: the class token, or the mean over patches
    length = {1, Axis::none};
    rows.size = b.model.kind == ModelKind::swin
                    ? std::max<std::int64_t>(1, b.sizes.batch / std::max<std::int64_t>(1, b.sizes.key_sequence))
                    : rows.size;
    const TensorId pooled = b.activation("pool", {rows, length, b.hidden()});
    b.emit(OpKind::pool, "pool", {y}, {pooled});
    y = pooled;
  }
  if (b.model.kind == ModelKind::encoder) {  // BERT's masked-language-model head
    y = b.linear("head_transform", y, {b.hidden()}, {b.hidden()}, b.model.linear_bias);
    const TensorId activated = b.residual("head_activation");
    b.emit(OpKind::activation, "head_activation", {y}, {activated}).function = ActivationFunction::gelu;
    y = b.norm("head_norm", activated, {b.hidden()});
  }
  const std::int64_t outputs = vision ? b.model.classes : round_up(b.model.vocab, b.kernels.vocab_multiple);
  const Dim vocab{outputs, vision ? Axis::none : Axis::vocab};
  const TensorId table = b.parameter("head", {vocab, b.hidden()});
  const TensorId bias = b.model.head_bias || vision ? b.parameter("head_bias", {vocab}) : kNoTensor;
  const auto predict = [&](const char* name, TensorId state, Input targets) {
    const TensorId logits = b.activation(name, {rows, length, vocab});
    b.emit(OpKind::linear, name, {state, table, bias}, {logits}).transposed_weight = true;
    return build_loss(b, logits, targets, rows, length);
  };
  std::vector<TensorId> losses;
  if (predicts_more) {
    losses.push_back(predict("logits", b.piece.sides[kLastState].input = b.residual("last_state"), Input::targets));
    losses.push_back(predict("mtp_logits", y, Input::next_targets));
  } else {
    losses.push_back(predict("logits", y, Input::targets));
  }
  b.finish();
  if (b.kernels.loss == LossKernels::unfused)
    for (const TensorId loss : losses) keep_gradient_of_log_probabilities(b.piece, loss);
}

}  // namespace orrery
