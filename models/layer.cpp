#include <cmath>

#include "models/builder.h"

namespace orrery {

void begin_position_table(Builder& b) {
  if (b.model.relative_buckets == 0) return;
  const Dim buckets{b.model.relative_buckets, Axis::none};
  const TensorId table = b.parameter("position_table", {buckets, b.groups(), b.heads()});
  const TensorId handed_on = b.activation("position_table", {buckets, b.groups(), b.heads()});
  b.emit(OpKind::cast, "position_table", {table}, {handed_on});
  b.piece.sides[kPositionTable].output = handed_on;
}

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
  const Tensor& values = b.piece.tensors[v];
  const Dim groups = b.groups(), heads = b.heads(), dim{values.sizes[values.rank - 1], Axis::head_dim};
  const std::initializer_list<Dim> matrix{b.batch(), groups, heads, b.sequence(), keys};
  const TensorId scores = scores_of(b, q, k, matrix, keys, causal, position_bias);
  // T5 too: its authors scale the initial values of the queries instead, which gives the same functions.
  const double scale = 1 / std::sqrt(static_cast<double>(b.head_dim().size));
  const TensorId probabilities = probabilities_of(b, scores, matrix, causal, scale);
  const TensorId rows = b.activation("attention_context", {b.batch(), groups, heads, b.sequence(), dim});
  b.emit(OpKind::batched_matmul, "attention_context", {probabilities, v}, {rows}).causal = causal;
  b.in_core_attention = false;
  return b.view("attention_context", rows, 0, {b.batch(), b.sequence(), groups, heads, dim});
}

// Stands for kernels that read and write all of x beside its fused one, here and in the backward: `count` copies move
// as many bytes as they do together. Real runs copy, and neither clamp nor scale.
TensorId copied(Builder& b, const char* name, TensorId x, int count) {
  for (int i = 0; i < count; ++i) x = b.cast(name, x, b.piece.tensors[x].dtype);
  return x;
}
// Megatron-LM's rope_utils.py: products with cosines and sines, halves turned and joined, a sum, and the rest of each
// head joined: 52 bytes an element of 16 bits in both passes, of which the fused kernel moves 8.
constexpr int kScaledRotaryCopies = 5;
// fused_bias_geglu.py (weighted_bias_quick_geglu_impl): two clamps of a half each, and one concatenation: 46 bytes an
// element.
constexpr int kClampCopies = 3;
// experts.py (_apply_bias): the bias times a row's weight, its sum with the row, and one concatenation: 12 bytes an
// element in the forward, and as many in the backward beside the bias's own gradient.
constexpr int kExpertBiasCopies = 3;

TensorId clamped(Builder& b, const char* name, TensorId inner) {
  return b.model.clamped_activation && !b.kernels.fused_clamps ? copied(b, name, inner, kClampCopies) : inner;
}

// Rotates the elements of each head from `begin` on.
TensorId rotate(Builder& b, TensorId x, std::int64_t begin = 0) {
  // Megatron-LM's kernels for latent attention scale as well (fusions/fused_mla_yarn_rope_apply.py).
  if (b.model.scaled_rotary && !b.kernels.fused_scaled_rotary && b.model.attention != AttentionKind::latent)
    x = copied(b, "rotary", x, kScaledRotaryCopies);
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
  const TensorId queries = rotate(b, q, b.model.nope_head_dim), keys_values = put_in(b, key, kv, b.model.nope_head_dim);
  TensorId context;
  if (b.kernels.flash_attention) {
    context = attend(b, queries, keys_values, causal, b.model.value_head_dim);
  } else {
    const Dim keys{b.sizes.sequence, Axis::key_sequence}, value_dim{b.model.value_head_dim, Axis::head_dim};
    const TensorId rows = b.view("query", queries, 0, {b.batch(), groups, one, b.sequence(), query_dim});
    const TensorId k = b.view("key", keys_values, 0, {b.batch(), groups, one, keys, query_dim});
    const TensorId v = b.view("value", keys_values, query_dim.size, {b.batch(), groups, one, keys, value_dim});
    context = attend_unfused(b, rows, k, v, keys, causal);
  }
  return b.linear("attention_output", context, {groups, one, {b.model.value_head_dim, Axis::head_dim}}, {b.hidden()},
                  false, bias);
}

void take_position_table(Builder& b) {
  if (b.model.relative_buckets == 0) return;
  b.piece.sides[kPositionTable].input =
      b.activation("position_table", {{b.model.relative_buckets, Axis::none}, b.groups(), b.heads()});
}

// Attention of a layer, from its normalised input to its output projection. With fused kernels the projection's bias is
// not added yet: *bias receives it, for the kernel that adds the residual.
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

// The same to the encoder's output `memory`.
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

// Applies the activation function to `inner`, which has the sizes of `dims`, or two such halves of a gated MLP.
TensorId activate(Builder& b, const char* name, const char* gate, TensorId inner, std::initializer_list<Dim> dims,
                  TensorId bias, TensorId weights) {
  const TensorId activated = b.activation(name, dims);
  if (!b.model.gated() || b.kernels.fused_kernels) {
    b.emit(OpKind::activation, name, {inner, bias, weights}, {activated}).function = b.model.activation;
    return activated;
  }
  const TensorId opened = b.view(gate, inner, 0, dims), up = b.view(gate, inner, 1, dims);
  b.emit(OpKind::activation, name, {opened}, {activated}).function = b.model.activation;
  const TensorId product = b.activation(gate, dims);
  b.emit(OpKind::multiply, gate, {activated, up}, {product});
  return product;
}

TensorId mlp(Builder& b, TensorId x, std::int64_t width, TensorId* bias) {
  const Dim ffn{width, Axis::ffn}, gate{2, Axis::none};
  TensorId inner_bias = kNoTensor;
  const TensorId inner = b.model.gated()
                             ? b.linear("fc1", x, {b.hidden()}, {gate, ffn}, b.model.linear_bias, &inner_bias)
                             : b.linear("fc1", x, {b.hidden()}, {ffn}, b.model.linear_bias, &inner_bias);
  const TensorId activated = activate(b, "activation", "gate", clamped(b, "clamp", inner),
                                      {b.batch(), b.sequence(), ffn}, inner_bias, kNoTensor);
  return b.linear("fc2", activated, {ffn}, {b.hidden()}, b.model.linear_bias, bias);
}

// The logits of a router, and what follows from them, are fp32 (Fedus et al. 2021, arXiv 2101.03961, section 2.4).
TensorId logits_of(Builder& b, const char* name, TensorId x, std::int64_t experts, bool bias) {
  const TensorId logits = b.linear(name, x, {b.hidden()}, {{experts, Axis::none}}, bias);
  b.piece.tensors[logits].dtype = Dtype::fp32;
  return logits;
}
struct Routed {
  TensorId weights = kNoTensor, choices = kNoTensor;
};
Routed route(Builder& b, const char* name, TensorId logits, const Router& router) {
  const bool by_expert = router.type == RouterType::expert_choice;
  const auto of_choices = [&](Dtype dtype) {
    return b.tensor(name, Category::activation, dtype,
                    {b.batch(), b.sequence(), {by_expert ? router.experts : router.choices, Axis::none}});
  };
  const Routed routed{of_choices(Dtype::fp32), of_choices(Dtype::int32)};
  b.emit(OpKind::route, name, {logits}, {routed.weights, routed.choices}).router = router;
  return routed;
}

// Routes by token ids, without weights. Choices lie as the states do, which may be divided over ranks.
Routed hash_route(Builder& b, const Router& router) {
  const auto of_tokens = {b.batch(), b.sequence(), Dim{1, Axis::none}};
  const TensorId ids = b.input("ids", Input::tokens, Dtype::int64, of_tokens);
  const Routed routed{kNoTensor, b.tensor("router", Category::activation, Dtype::int32, of_tokens)};
  b.emit(OpKind::hash_route, "router", {ids}, {routed.choices}).router = router;
  return routed;
}

// Shazeer et al. 2017, arXiv 1701.06538, eq. 4: normal noise with deviation softplus(x W_noise).
TensorId add_noise(Builder& b, TensorId logits, TensorId x) {
  const TensorId deviations = logits_of(b, "router_noise", x, b.model.experts, false);
  const auto like_logits = [&] { return b.piece.add(b.piece.tensors[deviations]); };
  const TensorId noisy = like_logits(), slopes = like_logits();
  b.emit(OpKind::add_noise, "router_noise", {logits, deviations}, {noisy, slopes});
  return noisy;
}

// Losses of the router: for load balance (Fedus et al. 2021, eq. 4; by sequence: DeepSeek-V3, arXiv 2412.19437, eq. 17
// to 20; over all ranks' tokens: Qiu et al. 2025, arXiv 2501.11873) and for the size of logits (Zoph et al. 2022, arXiv
// 2202.08906, eq. 5).
void add_losses(Builder& b, TensorId logits, const Routed& routed, Router router) {
  const Model& model = b.model;
  if (model.aux_loss == 0 && model.z_loss == 0) return;
  router.balance = static_cast<float>(model.aux_loss);
  router.z = static_cast<float>(model.z_loss);
  router.by_sequence = model.load_balancing == LoadBalancing::seq_aux_loss;
  TensorId counts = kNoTensor;
  if (model.aux_loss > 0) {
    const bool global = model.load_balancing == LoadBalancing::global_aux_loss;
    counts = b.tensor("expert_counts", Category::activation, Dtype::fp32,
                      {global ? Dim{1, Axis::none} : b.batch(), {model.experts, Axis::none}});
    b.emit(OpKind::expert_counts, "expert_counts", {routed.choices}, {counts});
  }
  const TensorId losses =
      b.tensor("router_loss", Category::activation, Dtype::fp32, {b.batch(), b.sequence(), {2, Axis::none}});
  b.emit(OpKind::router_loss, "router_loss", {logits, counts}, {losses}).router = router;
}

Routed routed_tokens(Builder& b, TensorId x) {
  const Model& model = b.model;
  const Router router{.type = model.router_type,
                      .score = model.router_score,
                      .groups = static_cast<std::uint16_t>(model.router_groups),
                      .best_groups = static_cast<std::uint16_t>(model.router_best_groups),
                      .scale = static_cast<float>(model.router_scale),
                      .experts = static_cast<std::uint16_t>(model.experts),
                      .choices = static_cast<std::uint16_t>(model.experts_per_token)};
  if (router.type == RouterType::hash) return hash_route(b, router);
  TensorId logits = logits_of(b, "router", x, model.experts, model.router_bias);
  if (model.router_noise) logits = add_noise(b, logits, x);
  const Routed routed = route(b, "router", logits, router);
  add_losses(b, logits, routed, router);
  return routed;
}

// The MLP of every expert on the rows in its slots. `weights`: a weight per row, unless weights are applied later.
TensorId expert_mlp(Builder& b, TensorId rows, TensorId weights) {
  const Dim experts{b.model.placed_experts(), Axis::experts}, slots{b.piece.tensors[rows].sizes[1], Axis::slots};
  const Dim ffn{b.model.expert_ffn, Axis::expert_ffn}, gate{2, Axis::none};
  const TensorId inner = b.model.gated()
                             ? b.expert_linear("expert_fc1", rows, {b.hidden()}, {gate, ffn}, b.model.expert_bias)
                             : b.expert_linear("expert_fc1", rows, {b.hidden()}, {ffn}, b.model.expert_bias);
  const TensorId activated = activate(b, "expert_activation", "expert_gate", clamped(b, "expert_clamp", inner),
                                      {experts, slots, ffn}, kNoTensor, weights);
  const TensorId outputs = b.expert_linear("expert_fc2", activated, {ffn}, {b.hidden()}, b.model.expert_bias);
  const bool adds = b.model.expert_bias && !b.kernels.fused_expert_biases;
  return adds ? copied(b, "expert_bias", outputs, kExpertBiasCopies) : outputs;
}

// Shazeer et al. 2017, arXiv 1701.06538; shared experts: DeepSeekMoE, arXiv 2401.06066.
TensorId expert_block(Builder& b, TensorId x) {
  TensorId shared = kNoTensor;
  if (b.model.shared_expert_ffn > 0) {
    shared = mlp(b, x, b.model.shared_expert_ffn, nullptr);
    if (b.model.shared_expert_gate) {
      const TensorId gate = route(b, "shared_expert_gate", logits_of(b, "shared_expert_gate", x, 1, false),
                                  {.score = RouterScore::sigmoid, .experts = 1, .choices = 1})
                                .weights;
      const TensorId gated = b.residual("shared_expert_gate");
      b.emit(OpKind::multiply, "shared_expert_gate", {shared, gate}, {gated});
      shared = gated;
    }
  }
  const auto [weights, chosen] = routed_tokens(b, x);
  const std::int64_t assignments = b.sizes.batch * b.sizes.sequence * b.model.experts_per_token;
  const Dim experts{b.model.placed_experts(), Axis::experts},
      slots{(assignments + experts.size - 1) / experts.size, Axis::slots};
  const TensorId rows = b.activation("permute", {experts, slots, b.hidden()});
  b.emit(OpKind::permute, "permute", {x, chosen}, {rows});
  // Weights are applied after the second product if it adds a bias, which is weighted too.
  const bool early =
      b.kernels.weighs_activations && b.kernels.fused_kernels && !b.model.expert_bias && weights != kNoTensor;
  TensorId by_row = kNoTensor;
  if (early) {
    by_row = b.tensor("permute_weights", Category::activation, Dtype::fp32, {experts, slots});
    b.emit(OpKind::permute_weights, "permute_weights", {weights, chosen}, {by_row});
  }
  const TensorId outputs = expert_mlp(b, rows, by_row);
  const TensorId y = b.residual("unpermute");
  b.emit(OpKind::unpermute, "unpermute", {outputs, chosen, early ? kNoTensor : weights}, {y});
  if (shared == kNoTensor) return y;
  const TensorId sum = b.residual("shared_experts");
  b.emit(OpKind::add, "shared_experts", {y, shared}, {sum});
  return sum;
}

// PaLM (Chowdhery et al. 2022, section 2); GPT-NeoX.
TensorId parallel_block(Builder& b, TensorId x, bool causal) {
  const TensorId n = b.norm("input_norm", x, {b.hidden()});
  const TensorId attended = self_attention(b, n, causal, nullptr);
  TensorId mlp_bias = kNoTensor;
  const TensorId m = mlp(b, b.model.parallel_norms ? b.norm("mlp_norm", x, {b.hidden()}) : n, b.sizes.ffn, &mlp_bias);
  const TensorId sum = b.residual("parallel_sum");
  b.emit(OpKind::add, "parallel_sum", {attended, m}, {sum});
  return b.add_residual("residual", sum, x, mlp_bias);
}

// Attention, then the MLP or the experts; between them cross attention, if any.
TensorId serial_block(Builder& b, TensorId x, LayerRole role, bool experts) {
  const bool causal = role != LayerRole::encoder;
  TensorId bias = kNoTensor;

  // Swin attends within windows: the tokens are regrouped before and after.
  const auto regroup = [&](const char* name, TensorId t) {
    if (b.model.kind != ModelKind::swin) return t;
    const TensorId out = b.residual(name);
    b.emit(OpKind::cast, name, {t}, {out});
    return out;
  };

  // x + f(norm(x)), norm(x + f(x)), x + norm(f(x)) or x + norm(f(norm(x))): the place of the norms differs by family.
  const auto norm_before = [&](const char* name, TensorId t) {
    return b.model.input_norm && !b.model.post_norm ? b.norm(name, t, {b.hidden()}) : t;
  };
  const auto norm_after = [&](const char* name, TensorId t) {
    return b.model.output_norm ? b.norm(name, t, {b.hidden()}) : t;
  };

  const TensorId n1 = norm_before("input_norm", x);
  // If a norm follows, the bias cannot be added together with the residual.
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
  const TensorId n2 = norm_before("mlp_norm", r);
  const TensorId m = experts ? expert_block(b, n2) : mlp(b, n2, b.sizes.ffn, deferred);
  TensorId y = b.add_residual("mlp_residual", norm_after("mlp_output_norm", m), r, bias);
  if (b.model.post_norm) y = b.norm("output_norm", y, {b.hidden()});
  return y;
}

}  // namespace

void build_layer(Builder& b, LayerRole role, std::int64_t window, bool experts) {
  b.piece.layers = 1;
  b.window = window;
  const TensorId x = b.piece.input = b.residual("input");
  if (role == LayerRole::decoder_with_memory) {
    b.piece.sides[kEncoderOutput].input =
        b.activation("memory", {b.batch(), {b.sizes.key_sequence, Axis::sequence}, b.hidden()});
  }
  take_position_table(b);
  b.piece.output =
      b.model.parallel_block ? parallel_block(b, x, role != LayerRole::encoder) : serial_block(b, x, role, experts);
  b.finish();
}

}  // namespace orrery
