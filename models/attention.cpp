#include "models/attention.h"

#include <cmath>

namespace orrery {
namespace {

// Returns the context of attention over a fused QKV projection, [batch, sequence, groups, group_heads, head_dim].
TensorId attend(Builder& b, TensorId q, TensorId kv, bool causal, std::int64_t value_dim,
                TensorId position_bias = kNoTensor) {
  const Dim groups = b.groups(), heads = b.heads(), dim{value_dim, Axis::head_dim};
  const TensorId context = b.activation("attention", {b.batch(), b.sequence(), groups, heads, dim});
  const TensorId lse =
      b.tensor("attention", Category::activation, Dtype::fp32, {b.batch(), groups, heads, b.sequence()});
  Op& op = b.emit(OpKind::attention, "attention", {q, kv, position_bias}, {context, lse});
  op.causal = causal;
  op.window = b.window;
  return context;
}

// The table is looked up in each layer, as in T5X. A causal mask leaves only the past, which then has all buckets.
TensorId position_bias(Builder& b, bool causal) {
  const TensorId table = b.piece.sides[kPositionTable].input;
  if (table == kNoTensor) return kNoTensor;
  const Dim queries{b.sizes.sequence, Axis::none}, keys{b.sizes.sequence, Axis::none};
  const TensorId ids = b.input(causal ? "past_buckets" : "buckets", causal ? Input::past_distances : Input::distances,
                               Dtype::int64, {queries, keys});
  const TensorId bias = b.activation("position_bias", {queries, keys, b.groups(), b.heads()});
  b.emit(OpKind::embedding, "position_bias", {ids, table}, {bias});
  return bias;
}

// Returns the scores of every query and key as a stored matrix, with the position bias added.
TensorId scores_of(Builder& b, TensorId q, TensorId k, std::initializer_list<Dim> matrix, Dim keys, bool causal,
                   TensorId position_bias) {
  const Dim groups = b.groups(), heads = b.heads();
  const TensorId scores = b.activation("attention_scores", matrix);
  b.in_core_attention = true;
  Op& product = b.emit(OpKind::batched_matmul, "attention_scores", {q, k}, {scores});
  product.transpose_b = true;
  product.causal = causal;
  TensorId biased = scores;
  if (position_bias != kNoTensor) {
    const TensorId rows = b.view("position_bias", position_bias, 0,
                                 {groups, heads, {b.sizes.sequence, Axis::none}, {keys.size, Axis::none}});
    biased = b.activation("attention_bias", matrix);
    b.emit(OpKind::add, "attention_bias", {scores, kNoTensor, rows}, {biased});
  }
  // Transformer-XL (Dai et al. 2019, arXiv 1901.02860): a second product, with positions.
  if (b.model.relative_projection) {
    b.in_core_attention = false;
    const Dim one{1, Axis::none};
    const TensorId encodings =
        b.input("relative_positions", Input::sinusoids, b.kernels.activation, {one, keys, b.hidden()});
    const TensorId r = b.linear("relative_key", encodings, {b.hidden()}, {groups, heads, b.head_dim()}, false);
    const TensorId rows = b.view("relative_key", r, 0, {one, groups, heads, keys, b.head_dim()});
    const TensorId relative = b.activation("attention_relative", matrix);
    b.emit(OpKind::batched_matmul, "attention_relative", {q, rows}, {relative}).transpose_b = true;
    biased = b.activation("attention_relative", matrix);
    b.emit(OpKind::add, "attention_relative", {scores, relative}, {biased});
    b.in_core_attention = true;
  }
  return biased;
}

// `scale`: of the scores.
TensorId probabilities_of(Builder& b, TensorId scores, std::initializer_list<Dim> matrix, bool causal, double scale) {
  const TensorId probabilities = b.activation("attention_softmax", matrix);
  TensorId masked = scores;
  if (!b.kernels.fused_kernels) {  // scale and mask in a separate kernel, then softmax
    masked = b.activation("attention_mask", matrix);
    b.emit(OpKind::cast, "attention_mask", {scores}, {masked});
  }
  Op& softmax = b.emit(OpKind::softmax, "attention_softmax", {masked}, {probabilities});
  softmax.causal = causal;
  softmax.scale = scale;
  if (b.model.dropout == 0) return probabilities;
  const TensorId dropped = b.activation("attention_dropout", matrix);
  const TensorId mask = b.tensor("attention_dropout", Category::activation, Dtype::uint8, matrix);
  b.emit(OpKind::dropout, "attention_dropout", {probabilities}, {dropped, mask}).probability =
      static_cast<float>(b.model.dropout);
  return dropped;
}

// The same as matrix products with a stored score matrix.
TensorId attend_unfused(Builder& b, TensorId q, TensorId k, TensorId v, Dim keys, bool causal,
                        TensorId position_bias = kNoTensor) {
  const Dim groups = b.groups(), heads = b.heads(), dim = b.head_dim();
  const std::initializer_list<Dim> matrix{b.batch(), groups, heads, b.sequence(), keys};
  const TensorId scores = scores_of(b, q, k, matrix, keys, causal, position_bias);
  // T5 too: its authors scale the initial values of the queries instead, which gives the same functions.
  const double scale = 1 / std::sqrt(static_cast<double>(dim.size));
  const TensorId probabilities = probabilities_of(b, scores, matrix, causal, scale);
  const TensorId rows = b.activation("attention_context", {b.batch(), groups, heads, b.sequence(), dim});
  b.emit(OpKind::batched_matmul, "attention_context", {probabilities, v}, {rows}).causal = causal;
  b.in_core_attention = false;
  return b.view("attention_context", rows, 0, {b.batch(), b.sequence(), groups, heads, dim});
}

// Rotates the elements of each head from `begin` on.
TensorId rotate(Builder& b, TensorId x, std::int64_t begin = 0) {
  if (b.casts_around()) x = b.cast("rotary", x, Dtype::fp32);
  Tensor t = b.piece.tensors[x];
  t.name = "rotary";
  const TensorId y = b.piece.add(t);
  b.emit(OpKind::rotary, "rotary", {x}, {y}).rotary_begin = begin;
  return b.casts_around() ? b.cast("rotary", y, b.kernels.activation) : y;
}

// Rotates the key that all heads share, and copies it into the keys of each head: one kernel in Megatron-LM, too.
TensorId put_in(Builder& b, TensorId key, TensorId kv, std::int64_t begin) {
  Tensor t = b.piece.tensors[kv];
  t.name = "rotary_key";
  t.sizes[t.rank - 1] += b.piece.tensors[key].sizes[2];
  const TensorId whole = b.piece.add(t);
  b.emit(OpKind::rotary, "rotary_key", {kv, key}, {whole}).rotary_begin = begin;
  return whole;
}

// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, eq. 9-19): queries and keys/values are expanded from
// low-rank latents; each head's key is a content part and a rotary part shared by the heads.
TensorId latent_attention(Builder& b, TensorId x, bool causal, TensorId* bias) {
  const Dim groups = b.groups(), one{1, Axis::group_heads};
  const Dim query_dim{b.model.nope_head_dim + b.model.rope_head_dim, Axis::head_dim};
  const Dim kv_dim{b.model.nope_head_dim + b.model.value_head_dim, Axis::head_dim};
  TensorId q = x;
  if (b.model.query_lora_rank > 0) {
    const Dim rank{b.model.query_lora_rank, Axis::none};
    q = b.norm("query_latent", b.linear("query_latent", x, {b.hidden()}, {rank}, false), {rank});
    q = b.linear("query", q, {rank}, {groups, one, query_dim}, false);
  } else {
    q = b.linear("query", x, {b.hidden()}, {groups, one, query_dim}, false);
  }
  // One projection gives the key/value latent and the shared rotary key.
  const Dim joint{b.model.kv_lora_rank + b.model.rope_head_dim, Axis::none};
  const TensorId compressed = b.linear("kv_latent", x, {b.hidden()}, {joint}, false);
  const TensorId latent = b.norm("kv_latent", compressed, {joint},
                                 b.parameter("kv_latent", {{b.model.kv_lora_rank, Axis::none}}), kNoTensor);
  const Dim rank{b.model.kv_lora_rank, Axis::none};
  const TensorId content = b.view("kv_latent", latent, 0, {b.batch(), b.sequence(), rank});
  const TensorId kv = b.linear("kv", content, {rank}, {groups, one, kv_dim}, false);
  const TensorId key = b.view("rotary_key", latent, b.model.kv_lora_rank,
                              {b.batch(), b.sequence(), {b.model.rope_head_dim, Axis::none}});
  const TensorId context = attend(b, rotate(b, q, b.model.nope_head_dim), put_in(b, key, kv, b.model.nope_head_dim),
                                  causal, b.model.value_head_dim);
  return b.linear("attention_output", context, {groups, one, {b.model.value_head_dim, Axis::head_dim}}, {b.hidden()},
                  false, bias);
}

}  // namespace

void begin_position_table(Builder& b) {
  if (b.model.relative_buckets == 0) return;
  const Dim buckets{b.model.relative_buckets, Axis::none};
  const TensorId table = b.parameter("position_table", {buckets, b.groups(), b.heads()});
  const TensorId handed_on = b.activation("position_table", {buckets, b.groups(), b.heads()});
  b.emit(OpKind::cast, "position_table", {table}, {handed_on});
  b.piece.sides[kPositionTable].output = handed_on;
}
void take_position_table(Builder& b) {
  if (b.model.relative_buckets == 0) return;
  b.piece.sides[kPositionTable].input =
      b.activation("position_table", {{b.model.relative_buckets, Axis::none}, b.groups(), b.heads()});
}
TensorId self_attention(Builder& b, TensorId x, bool causal, TensorId* bias) {
  if (b.model.attention == AttentionKind::latent) return latent_attention(b, x, causal, bias);
  const Dim groups = b.groups(), fused{b.sizes.group_heads + 2, Axis::group_qkv}, dim = b.head_dim();
  const Dim heads = b.heads();
  TensorId qkv = b.linear("qkv", x, {b.hidden()}, {groups, fused, dim}, b.model.qkv_bias);
  if (b.model.qk_norm) {
    const TensorId weight = b.model.qk_norm_across_heads
                                ? b.parameter("qk_norm", {groups, {b.sizes.group_heads + 1, Axis::group_heads}, dim})
                                : b.parameter("qk_norm", {{2, Axis::none}, dim});
    qkv = b.norm("qk_norm", qkv, {dim}, weight, kNoTensor);
  }
  if (b.model.positions == Positions::rotary) qkv = rotate(b, qkv);
  const TensorId bias_of_positions = position_bias(b, causal);
  TensorId context;
  if (b.kernels.flash_attention && !b.model.relative_projection) {
    context = attend(b, qkv, kNoTensor, causal, b.sizes.head_dim, bias_of_positions);
  } else {
    const Dim keys{b.sizes.sequence, Axis::key_sequence}, one{1, Axis::none};
    const TensorId q = b.view("query", qkv, 0, {b.batch(), groups, heads, b.sequence(), dim});
    const TensorId k = b.view("key", qkv, b.sizes.group_heads, {b.batch(), groups, one, keys, dim});
    const TensorId v = b.view("value", qkv, b.sizes.group_heads + 1, {b.batch(), groups, one, keys, dim});
    context = attend_unfused(b, q, k, v, keys, causal, bias_of_positions);
  }
  return b.linear("attention_output", context, {groups, heads, dim}, {b.hidden()}, b.model.output_bias, bias);
}

TensorId cross_attention(Builder& b, TensorId x, TensorId memory, TensorId* bias) {
  const Dim groups = b.groups(), heads = b.heads(), dim = b.head_dim();
  const Dim keys{b.sizes.key_sequence, Axis::key_sequence}, pair{2, Axis::none}, one{1, Axis::none};
  const TensorId q = b.linear("cross_query", x, {b.hidden()}, {groups, heads, dim}, b.model.linear_bias);
  const TensorId kv = b.linear("cross_kv", memory, {b.hidden()}, {groups, pair, dim}, b.model.linear_bias);
  TensorId context;
  if (b.kernels.flash_attention) {
    context = attend(b, q, kv, false, b.sizes.head_dim);
  } else {
    const TensorId rows = b.view("cross_query", q, 0, {b.batch(), groups, heads, b.sequence(), dim});
    const TensorId k = b.view("cross_key", kv, 0, {b.batch(), groups, one, keys, dim});
    const TensorId v = b.view("cross_value", kv, 1, {b.batch(), groups, one, keys, dim});
    context = attend_unfused(b, rows, k, v, keys, false);
  }
  return b.linear("cross_output", context, {groups, heads, dim}, {b.hidden()}, b.model.linear_bias, bias);
}

}  // namespace orrery
