#include "models/layers.h"

#include <algorithm>

#include "sim/program/work.h"

namespace orrery {
namespace {

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// The sizes of one transformer layer: the model's own, or of one Swin stage.
struct LayerSizes {
  std::int64_t batch, sequence, key_sequence;
  std::int64_t hidden, groups, group_heads, head_dim, ffn;
};

// Writes one piece: tensors and ops in the order in which a framework issues them.
class Builder {
 public:
  Builder(const Model& model, const KernelChoices& kernels, const LayerSizes& sizes, Piece& piece)
      : model_(model), kernels_(kernels), s_(sizes), piece_(piece) {}

  TensorId tensor(const char* name, Category category, Dtype dtype, std::initializer_list<Dim> dims) {
    Tensor t;
    t.name = name;
    t.category = category;
    t.dtype = dtype;
    for (const Dim& d : dims) {
      t.sizes[t.rank] = d.size;
      t.axes[t.rank] = d.axis;
      ++t.rank;
    }
    return piece_.add(t);
  }
  TensorId activation(const char* name, std::initializer_list<Dim> dims) {
    return tensor(name, Category::activation, kernels_.activation, dims);
  }
  TensorId parameter(const char* name, std::initializer_list<Dim> dims) {
    return tensor(name, Category::parameter, kernels_.parameter, dims);
  }
  TensorId input(const char* name, Input input, Dtype dtype, std::initializer_list<Dim> dims) {
    const TensorId id = tensor(name, Category::activation, dtype, dims);
    piece_.tensors[id].input = input;
    return id;
  }
  TensorId view(const char* name, TensorId base, std::int64_t begin, std::initializer_list<Dim> dims) {
    const TensorId id = activation(name, dims);
    piece_.tensors[id].alias_of = base;
    piece_.tensors[id].alias_begin = begin;
    return id;
  }

  Op& emit(OpKind kind, const char* name, std::initializer_list<TensorId> reads,
           std::initializer_list<TensorId> writes) {
    Op op;
    op.kind = kind;
    op.name = name;
    std::copy(reads.begin(), reads.end(), op.reads.begin());
    std::copy(writes.begin(), writes.end(), op.writes.begin());
    op.compute_dtype = kernels_.activation;
    op.core_attention = in_core_attention_;
    if (traits_of(kind).random) op.draw = draws_++;
    piece_.forward.ops.push_back(op);
    return piece_.forward.ops.back();
  }

  Dim batch() const { return {s_.batch, Axis::batch}; }
  Dim sequence() const { return {s_.sequence, Axis::sequence}; }
  Dim hidden() const { return {s_.hidden, Axis::hidden}; }

  TensorId residual(const char* name) { return activation(name, {batch(), sequence(), hidden()}); }

  // Norm over the last dimension(s) of x; its output has x's shape.
  TensorId norm(const char* name, TensorId x, std::initializer_list<Dim> width) {
    const TensorId weight = parameter(name, width);
    const TensorId bias = model_.norm == NormKind::layernorm && model_.norm_bias ? parameter(name, width) : kNoTensor;
    return norm(name, x, width, weight, bias);
  }
  TensorId norm(const char* name, TensorId x, std::initializer_list<Dim> width, TensorId weight, TensorId bias) {
    // PyTorch has a kernel for LayerNorm; RMSNorm is composed of element-wise ones, in fp32 (the models' reference
    // code).
    if (casts_around() && model_.norm == NormKind::rmsnorm)
      return cast(name, norm_kernel(name, cast(name, x, Dtype::fp32), width, weight, bias), kernels_.activation);
    return norm_kernel(name, x, width, weight, bias);
  }
  TensorId norm_kernel(const char* name, TensorId x, std::initializer_list<Dim> width, TensorId weight, TensorId bias) {
    Tensor out = piece_.tensors[x];
    out.name = name;
    out.alias_of = kNoTensor;
    out.input = Input::none;
    const TensorId y = piece_.add(out);
    // Mean and reciprocal deviation (RMSNorm: only the latter) of each normalised vector.
    Tensor statistics = out;
    statistics.dtype = Dtype::fp32;
    statistics.rank = static_cast<std::uint8_t>(out.rank - static_cast<int>(width.size()));
    statistics.sizes[statistics.rank] = model_.norm == NormKind::layernorm ? 2 : 1;
    statistics.axes[statistics.rank] = Axis::none;
    ++statistics.rank;
    emit(OpKind::norm, name, {x, weight, bias}, {y, piece_.add(statistics)}).scalar = 1e-5f;
    return y;
  }

  // Without fused kernels, what is computed in fp32 is cast up and down by kernels of its own.
  bool casts_around() const { return !kernels_.fused_kernels && kernels_.activation != Dtype::fp32; }
  TensorId cast(const char* name, TensorId x, Dtype dtype) {
    Tensor t = piece_.tensors[x];
    t.name = name;
    t.dtype = dtype;
    t.alias_of = kNoTensor;
    t.input = Input::none;
    const TensorId y = piece_.add(t);
    emit(OpKind::cast, name, {x}, {y});
    return y;
  }

  // y = x w (+ bias). `fused_bias` goes to the kernel that consumes y instead; then *bias_out receives it.
  TensorId linear(const char* name, TensorId x, std::initializer_list<Dim> in, std::initializer_list<Dim> out,
                  bool bias, TensorId* bias_out = nullptr) {
    Tensor w;
    w.name = name;
    w.category = Category::parameter;
    w.dtype = kernels_.parameter;
    for (const auto& dims : {in, out})
      for (const Dim& d : dims) {
        w.sizes[w.rank] = d.size;
        w.axes[w.rank] = d.axis;
        ++w.rank;
      }
    const TensorId weight = piece_.add(w);
    const TensorId b = bias ? parameter(name, out) : kNoTensor;
    const bool fused = bias_out != nullptr && kernels_.fused_kernels;
    if (bias_out != nullptr) *bias_out = fused ? b : kNoTensor;
    Tensor y = piece_.tensors[x];
    y.name = name;
    y.alias_of = kNoTensor;
    y.input = Input::none;
    y.category = Category::activation;
    y.dtype = kernels_.activation;
    y.rank = static_cast<std::uint8_t>(y.rank - static_cast<int>(in.size()));
    for (const Dim& d : out) {
      y.sizes[y.rank] = d.size;
      y.axes[y.rank] = d.axis;
      ++y.rank;
    }
    const TensorId result = piece_.add(y);
    emit(OpKind::linear, name, {x, weight, fused ? kNoTensor : b}, {result}).inner_dims =
        static_cast<std::uint8_t>(in.size());
    return result;
  }

  // residual + dropout(x + bias)
  TensorId add_residual(const char* name, TensorId x, TensorId residual_stream, TensorId bias) {
    const TensorId y = residual(name);
    if (model_.dropout == 0) {
      emit(OpKind::add, name, {x, residual_stream, bias}, {y});
      return y;
    }
    const TensorId mask = tensor(name, Category::activation, Dtype::uint8, {batch(), sequence(), hidden()});
    if (kernels_.fused_kernels) {
      emit(OpKind::dropout_add, name, {x, residual_stream, bias}, {y, mask}).scalar =
          static_cast<float>(model_.dropout);
      return y;
    }
    const TensorId dropped = residual(name);
    emit(OpKind::dropout, name, {x}, {dropped, mask}).scalar = static_cast<float>(model_.dropout);
    emit(OpKind::add, name, {dropped, residual_stream}, {y});
    return y;
  }

  // x plus the first rows of a table of positions.
  TensorId add_positions(TensorId x, TensorId table) {
    const TensorId rows = view("positions", table, 0, {sequence(), hidden()});
    piece_.tensors[rows].category = Category::parameter;
    const TensorId y = residual("positions");
    emit(OpKind::add, "positions", {x, kNoTensor, rows}, {y});
    return y;
  }

  // Context of attention over a fused QKV projection, [batch, sequence, groups, group_heads, head_dim].
  TensorId attend(TensorId q, TensorId kv, bool causal, std::int64_t value_dim, TensorId position_bias = kNoTensor) {
    const Dim groups{s_.groups, Axis::groups}, heads{s_.group_heads, Axis::group_heads}, dim{value_dim, Axis::head_dim};
    const TensorId context = activation("attention", {batch(), sequence(), groups, heads, dim});
    const TensorId lse = tensor("attention", Category::activation, Dtype::fp32, {batch(), groups, heads, sequence()});
    Op& op = emit(OpKind::attention, "attention", {q, kv, position_bias}, {context, lse});
    op.causal = causal;
    op.window = window_;
    return context;
  }

  Dim position_groups() const { return {s_.groups, Axis::groups}; }
  Dim position_heads() const { return {s_.group_heads, Axis::group_heads}; }

  // A stack's table of relative position biases, for all its layers (Raffel et al. 2019, arXiv 1910.10683,
  // section 2.1).
  void begin_position_table() {
    if (model_.relative_buckets == 0) return;
    const Dim buckets{model_.relative_buckets, Axis::none};
    const TensorId table = parameter("position_table", {buckets, position_groups(), position_heads()});
    const TensorId handed_on = activation("position_table", {buckets, position_groups(), position_heads()});
    emit(OpKind::cast, "position_table", {table}, {handed_on});
    piece_.sides[kPositionTable].output = handed_on;
  }
  void take_position_table() {
    if (model_.relative_buckets == 0) return;
    piece_.sides[kPositionTable].input =
        activation("position_table", {{model_.relative_buckets, Axis::none}, position_groups(), position_heads()});
  }
  // Looked up in each layer, as T5X does. A causal mask leaves the past, which then has all buckets.
  TensorId position_bias(bool causal) {
    const TensorId table = piece_.sides[kPositionTable].input;
    if (table == kNoTensor) return kNoTensor;
    const Dim queries{s_.sequence, Axis::none}, keys{s_.sequence, Axis::none};
    const TensorId ids = input(causal ? "past_buckets" : "buckets", causal ? Input::past_distances : Input::distances,
                               Dtype::int64, {queries, keys});
    const TensorId bias = activation("position_bias", {queries, keys, position_groups(), position_heads()});
    emit(OpKind::embedding, "position_bias", {ids, table}, {bias});
    return bias;
  }

  // The same as products with a stored score matrix.
  TensorId attend_unfused(TensorId q, TensorId k, TensorId v, Dim keys, bool causal,
                          TensorId position_bias = kNoTensor) {
    const Dim groups{s_.groups, Axis::groups}, heads{s_.group_heads, Axis::group_heads},
        dim{s_.head_dim, Axis::head_dim};
    const std::initializer_list<Dim> matrix{batch(), groups, heads, sequence(), keys};
    const TensorId scores = activation("attention_scores", matrix);
    in_core_attention_ = true;
    Op& product = emit(OpKind::batched_matmul, "attention_scores", {q, k}, {scores});
    product.transpose_b = true;
    product.causal = causal;
    TensorId biased = scores;
    if (position_bias != kNoTensor) {
      const TensorId rows =
          view("position_bias", position_bias, 0, {groups, heads, {s_.sequence, Axis::none}, {keys.size, Axis::none}});
      biased = activation("attention_bias", matrix);
      emit(OpKind::add, "attention_bias", {scores, kNoTensor, rows}, {biased});
    }
    if (model_.relative_projection) {  // Transformer-XL (Dai et al. 2019, arXiv 1901.02860): a second product, with
                                       // positions
      in_core_attention_ = false;
      const TensorId encodings = activation("relative_positions", {{1, Axis::none}, keys, hidden()});
      const TensorId r = linear("relative_key", encodings, {hidden()}, {groups, heads, dim}, false);
      const TensorId rows = view("relative_key", r, 0, {{1, Axis::none}, groups, heads, keys, dim});
      const TensorId relative = activation("attention_relative", matrix);
      emit(OpKind::batched_matmul, "attention_relative", {q, rows}, {relative}).transpose_b = true;
      biased = activation("attention_relative", matrix);
      emit(OpKind::add, "attention_relative", {scores, relative}, {biased});
      in_core_attention_ = true;
    }
    TensorId probabilities = activation("attention_softmax", matrix);
    if (kernels_.fused_kernels) {
      emit(OpKind::softmax, "attention_softmax", {biased}, {probabilities}).causal = causal;
    } else {  // scale and mask as a kernel of its own, then softmax
      const TensorId masked = activation("attention_mask", matrix);
      emit(OpKind::cast, "attention_mask", {biased}, {masked});
      emit(OpKind::softmax, "attention_softmax", {masked}, {probabilities}).causal = causal;
    }
    if (model_.dropout > 0) {
      const TensorId dropped = activation("attention_dropout", matrix);
      const TensorId mask = tensor("attention_dropout", Category::activation, Dtype::uint8, matrix);
      emit(OpKind::dropout, "attention_dropout", {probabilities}, {dropped, mask}).scalar =
          static_cast<float>(model_.dropout);
      probabilities = dropped;
    }
    const TensorId rows = activation("attention_context", {batch(), groups, heads, sequence(), dim});
    emit(OpKind::batched_matmul, "attention_context", {probabilities, v}, {rows}).causal = causal;
    in_core_attention_ = false;
    return view("attention_context", rows, 0, {batch(), sequence(), groups, heads, dim});
  }

  // Self attention from the normalised input to the output projection.
  TensorId self_attention(TensorId x, bool causal, TensorId* bias) {
    if (model_.attention == AttentionKind::latent) return latent_attention(x, causal, bias);
    const Dim groups{s_.groups, Axis::groups}, fused{s_.group_heads + 2, Axis::group_qkv},
        dim{s_.head_dim, Axis::head_dim};
    const Dim heads{s_.group_heads, Axis::group_heads};
    TensorId qkv = linear("qkv", x, {hidden()}, {groups, fused, dim}, model_.qkv_bias);
    if (model_.qk_norm) {
      const TensorId weight = model_.qk_norm_across_heads
                                  ? parameter("qk_norm", {groups, {s_.group_heads + 1, Axis::group_heads}, dim})
                                  : parameter("qk_norm", {{2, Axis::none}, dim});
      qkv = norm("qk_norm", qkv, {dim}, weight, kNoTensor);
    }
    if (model_.positions == Positions::rotary) qkv = rotate(qkv);
    const TensorId bias_of_positions = position_bias(causal);
    TensorId context;
    if (kernels_.flash_attention && !model_.relative_projection) {
      context = attend(qkv, kNoTensor, causal, s_.head_dim, bias_of_positions);
    } else {
      const Dim keys{s_.sequence, Axis::key_sequence}, one{1, Axis::none};
      const TensorId q = view("query", qkv, 0, {batch(), groups, heads, sequence(), dim});
      const TensorId k = view("key", qkv, s_.group_heads, {batch(), groups, one, keys, dim});
      const TensorId v = view("value", qkv, s_.group_heads + 1, {batch(), groups, one, keys, dim});
      context = attend_unfused(q, k, v, keys, causal, bias_of_positions);
    }
    return linear("attention_output", context, {groups, heads, dim}, {hidden()}, model_.output_bias, bias);
  }

  // Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, eq. 9-19): queries and keys/values are expanded from
  // low-rank latents; each head's key is a content part and a rotary part shared by the heads.
  TensorId latent_attention(TensorId x, bool causal, TensorId* bias) {
    const Dim groups{s_.groups, Axis::groups}, one{1, Axis::group_heads};
    const Dim query_dim{model_.nope_head_dim + model_.rope_head_dim, Axis::head_dim};
    const Dim kv_dim{model_.nope_head_dim + model_.value_head_dim, Axis::head_dim};
    TensorId q = x;
    if (model_.query_lora_rank > 0) {
      const Dim rank{model_.query_lora_rank, Axis::none};
      q = norm("query_latent", linear("query_latent", x, {hidden()}, {rank}, false), {rank});
      q = linear("query", q, {rank}, {groups, one, query_dim}, false);
    } else {
      q = linear("query", x, {hidden()}, {groups, one, query_dim}, false);
    }
    // One projection gives the key/value latent and the shared rotary key.
    const Dim joint{model_.kv_lora_rank + model_.rope_head_dim, Axis::none};
    const TensorId compressed = linear("kv_latent", x, {hidden()}, {joint}, false);
    const TensorId latent =
        norm("kv_latent", compressed, {joint}, parameter("kv_latent", {{model_.kv_lora_rank, Axis::none}}), kNoTensor);
    const Dim rank{model_.kv_lora_rank, Axis::none};
    const TensorId content = view("kv_latent", latent, 0, {batch(), sequence(), rank});
    const TensorId kv = linear("kv", content, {rank}, {groups, one, kv_dim}, false);
    const TensorId key =
        view("rotary_key", latent, model_.kv_lora_rank, {batch(), sequence(), {model_.rope_head_dim, Axis::none}});
    const TensorId context =
        attend(rotate(q, model_.nope_head_dim), put_in(key, kv, model_.nope_head_dim), causal, model_.value_head_dim);
    return linear("attention_output", context, {groups, one, {model_.value_head_dim, Axis::head_dim}}, {hidden()},
                  false, bias);
  }

  // Turns each head from `begin` on.
  TensorId rotate(TensorId x, std::int64_t begin = 0) {
    if (casts_around()) x = cast("rotary", x, Dtype::fp32);
    Tensor t = piece_.tensors[x];
    t.name = "rotary";
    const TensorId y = piece_.add(t);
    emit(OpKind::rotary, "rotary", {x}, {y}).rotary_begin = begin;
    return casts_around() ? cast("rotary", y, kernels_.activation) : y;
  }

  // Turns the key that all heads share, and puts it into the keys of each: one kernel in Megatron-LM, too.
  TensorId put_in(TensorId key, TensorId kv, std::int64_t begin) {
    Tensor t = piece_.tensors[kv];
    t.name = "rotary_key";
    t.sizes[t.rank - 1] += piece_.tensors[key].sizes[2];
    const TensorId whole = piece_.add(t);
    emit(OpKind::rotary, "rotary_key", {kv, key}, {whole}).rotary_begin = begin;
    return whole;
  }

  // Attention from the decoder's stream to the encoder's output.
  TensorId cross_attention(TensorId x, TensorId memory, TensorId* bias) {
    const Dim groups{s_.groups, Axis::groups}, heads{s_.group_heads, Axis::group_heads},
        dim{s_.head_dim, Axis::head_dim};
    const Dim keys{s_.key_sequence, Axis::key_sequence}, pair{2, Axis::none}, one{1, Axis::none};
    const TensorId q = linear("cross_query", x, {hidden()}, {groups, heads, dim}, model_.linear_bias);
    const TensorId kv = linear("cross_kv", memory, {hidden()}, {groups, pair, dim}, model_.linear_bias);
    TensorId context;
    if (kernels_.flash_attention) {
      context = attend(q, kv, false, s_.head_dim);
    } else {
      const TensorId rows = view("cross_query", q, 0, {batch(), groups, heads, sequence(), dim});
      const TensorId k = view("cross_key", kv, 0, {batch(), groups, one, keys, dim});
      const TensorId v = view("cross_value", kv, 1, {batch(), groups, one, keys, dim});
      context = attend_unfused(rows, k, v, keys, false);
    }
    return linear("cross_output", context, {groups, heads, dim}, {hidden()}, model_.linear_bias, bias);
  }

  TensorId mlp(TensorId x, TensorId* bias) {
    const Dim ffn{s_.ffn, Axis::ffn}, gate{2, Axis::none};
    TensorId inner_bias = kNoTensor;
    const TensorId inner = model_.gated() ? linear("fc1", x, {hidden()}, {gate, ffn}, model_.linear_bias, &inner_bias)
                                          : linear("fc1", x, {hidden()}, {ffn}, model_.linear_bias, &inner_bias);
    TensorId activated = activation("activation", {batch(), sequence(), ffn});
    if (model_.gated() && !kernels_.fused_kernels) {
      const TensorId opened = view("gate", inner, 0, {batch(), sequence(), ffn});
      const TensorId up = view("gate", inner, 1, {batch(), sequence(), ffn});
      emit(OpKind::activation, "activation", {opened}, {activated}).function = model_.activation;
      const TensorId product = activation("gate", {batch(), sequence(), ffn});
      emit(OpKind::multiply, "gate", {activated, up}, {product});
      activated = product;
    } else {
      emit(OpKind::activation, "activation", {inner, inner_bias}, {activated}).function = model_.activation;
    }
    return linear("fc2", activated, {ffn}, {hidden()}, model_.linear_bias, bias);
  }

  void attend_within(std::int64_t window) { window_ = window; }

  void finish() { differentiate(piece_, kernels_.gradient); }

  const Model& model_;
  const KernelChoices& kernels_;
  const LayerSizes s_;
  Piece& piece_;
  std::int64_t window_ = 0;
  bool in_core_attention_ = false;
  std::uint8_t draws_ = 0;
};

Piece& next_piece(std::vector<Piece>& pieces, std::size_t& used, const char* name) {
  if (used == pieces.size()) pieces.emplace_back();
  Piece& piece = pieces[used++];
  piece.clear();
  piece.name = name;
  return piece;
}

enum class Role : std::uint8_t { encoder, decoder, decoder_with_memory };

// `window`: positions attended to; 0: all.
void build_layer(Piece& piece, const Model& model, const KernelChoices& kernels, const LayerSizes& sizes, Role role,
                 std::int64_t window) {
  piece.layers = 1;
  Builder b(model, kernels, sizes, piece);
  b.attend_within(window);
  const bool causal = role != Role::encoder;
  const TensorId x = piece.input = b.residual("input");
  if (role == Role::decoder_with_memory) {
    piece.sides[kEncoderOutput].input =
        b.activation("memory", {b.batch(), {sizes.key_sequence, Axis::sequence}, b.hidden()});
  }
  b.take_position_table();
  TensorId bias = kNoTensor;

  if (model.parallel_block) {  // PaLM (Chowdhery et al. 2022, section 2); GPT-NeoX
    const TensorId n = b.norm("input_norm", x, {b.hidden()});
    const TensorId attended = b.self_attention(n, causal, nullptr);
    TensorId mlp_bias = kNoTensor;
    const TensorId m = b.mlp(model.parallel_norms ? b.norm("mlp_norm", x, {b.hidden()}) : n, &mlp_bias);
    const TensorId sum = b.residual("parallel_sum");
    b.emit(OpKind::add, "parallel_sum", {attended, m}, {sum});
    piece.output = b.add_residual("residual", sum, x, mlp_bias);
    b.finish();
    return;
  }

  // Swin attends within windows: the tokens are regrouped before and after.
  const auto regroup = [&](const char* name, TensorId t) {
    if (model.kind != ModelKind::swin) return t;
    const TensorId out = b.residual(name);
    b.emit(OpKind::cast, name, {t}, {out});
    return out;
  };

  // x + f(norm(x)), norm(x + f(x)), x + norm(f(x)) or x + norm(f(norm(x))): where the norms sit differs by family.
  const auto norm_before = [&](const char* name, TensorId t) {
    return model.input_norm && !model.post_norm ? b.norm(name, t, {b.hidden()}) : t;
  };
  const auto norm_after = [&](const char* name, TensorId t) {
    return model.output_norm ? b.norm(name, t, {b.hidden()}) : t;
  };

  const TensorId n1 = norm_before("input_norm", x);
  // With a norm behind, the bias cannot wait for the residual addition.
  TensorId* const deferred = model.output_norm ? nullptr : &bias;
  const TensorId attended =
      regroup("window_reverse", b.self_attention(regroup("window_partition", n1), causal, deferred));
  TensorId r = b.add_residual("attention_residual", norm_after("attention_output_norm", attended), x, bias);
  if (model.post_norm) r = b.norm("attention_norm", r, {b.hidden()});

  if (role == Role::decoder_with_memory) {
    const TensorId nc = b.norm("cross_norm", r, {b.hidden()});
    const TensorId crossed = b.cross_attention(nc, piece.sides[kEncoderOutput].input, &bias);
    r = b.add_residual("cross_residual", crossed, r, bias);
  }

  bias = kNoTensor;
  const TensorId m = b.mlp(norm_before("mlp_norm", r), deferred);
  TensorId y = b.add_residual("mlp_residual", norm_after("mlp_output_norm", m), r, bias);
  if (model.post_norm) y = b.norm("output_norm", y, {b.hidden()});
  piece.output = y;
  b.finish();
}

// Tokens of `ids_name` as vectors: what enters a stack.
TensorId embed(Builder& b, const char* ids_name, Input tokens) {
  const Model& model = b.model_;
  const KernelChoices& kernels = b.kernels_;
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
    b.emit(OpKind::dropout, "embedding_dropout", {y}, {dropped, mask}).scalar = static_cast<float>(model.dropout);
    y = dropped;
  }
  return y;
}

void build_embedding(Piece& piece, const Model& model, const KernelChoices& kernels, const LayerSizes& sizes) {
  Builder b(model, kernels, sizes, piece);
  piece.output = embed(b, "ids", Input::tokens);
  b.begin_position_table();
  b.finish();
}

// Between the stacks: the encoder's output, normed, becomes the memory of all decoder layers; the decoder begins with
// its own tokens.
void build_decoder_embedding(Piece& piece, const Model& model, const KernelChoices& kernels, const LayerSizes& sizes) {
  Builder b(model, kernels, sizes, piece);
  piece.input = b.activation("input", {b.batch(), {sizes.key_sequence, Axis::sequence}, b.hidden()});
  piece.sides[kEncoderOutput].output = model.post_norm ? b.cast("memory", piece.input, kernels.activation)
                                                       : b.norm("final_norm", piece.input, {b.hidden()});
  piece.output = embed(b, "decoder_ids", Input::decoder_tokens);
  b.begin_position_table();
  b.finish();
}

// Patches of an image, projected (ViT, Swin); ViT: behind the class token (Dosovitskiy et al. 2020, arXiv 2010.11929,
// eq. 1).
void build_patch_embedding(Piece& piece, const Model& model, const KernelChoices& kernels, const LayerSizes& sizes) {
  Builder b(model, kernels, sizes, piece);
  const Dim pixels{model.channels * model.patch_size * model.patch_size, Axis::none};
  const bool class_token = model.kind == ModelKind::vit;
  const Dim length{sizes.sequence - (class_token ? 1 : 0), Axis::sequence};
  const TensorId patches = b.input("patches", Input::patches, kernels.activation, {b.batch(), length, pixels});
  TensorId y = b.linear("patch_embedding", patches, {pixels}, {b.hidden()}, true);
  if (!class_token) {
    y = b.norm("patch_norm", y, {b.hidden()});
  } else {
    const TensorId token = b.parameter("class_token", {b.hidden()}), whole = b.residual("class_token");
    b.emit(OpKind::pool, "class_token", {y, token}, {whole});
    y = b.add_positions(whole, b.parameter("positions", {{sizes.sequence, Axis::none}, b.hidden()}));
  }
  piece.output = y;
  b.finish();
}

// Swin: 2x2 neighbouring patches become one of twice the width.
void build_patch_merging(Piece& piece, const Model& model, const KernelChoices& kernels, const LayerSizes& from) {
  Builder b(model, kernels, from, piece);
  piece.input = b.residual("input");
  const Dim quarter{std::max<std::int64_t>(from.batch / 4, 1), Axis::batch};
  const Dim wide{4 * from.hidden, Axis::hidden}, out{2 * from.hidden, Axis::hidden};
  const TensorId gathered = b.activation("patch_merging", {quarter, b.sequence(), wide});
  b.emit(OpKind::pool, "patch_merging", {piece.input}, {gathered});
  const TensorId n = b.norm("patch_merging_norm", gathered, {wide});
  piece.output = b.linear("patch_merging", n, {wide}, {out}, false);
  b.finish();
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

void build_head(Piece& piece, const Model& model, const KernelChoices& kernels, const LayerSizes& sizes) {
  Builder b(model, kernels, sizes, piece);
  const TensorId x = piece.input = b.residual("input");
  const bool vision = model.kind == ModelKind::vit || model.kind == ModelKind::swin;
  if (model.pooler) build_pooler(b, x);
  TensorId y = model.post_norm ? x : b.norm("final_norm", x, {b.hidden()});
  Dim length = b.sequence(), rows = b.batch();
  if (vision) {  // one vector per image: the class token, or the mean over patches
    length = {1, Axis::none};
    rows.size = model.kind == ModelKind::swin
                    ? std::max<std::int64_t>(1, sizes.batch / std::max<std::int64_t>(1, sizes.key_sequence))
                    : rows.size;
    const TensorId pooled = b.activation("pool", {rows, length, b.hidden()});
    b.emit(OpKind::pool, "pool", {y}, {pooled});
    y = pooled;
  }
  if (model.kind == ModelKind::encoder) {  // BERT's masked-language-model head
    y = b.linear("head_transform", y, {b.hidden()}, {b.hidden()}, model.linear_bias);
    const TensorId activated = b.residual("head_activation");
    b.emit(OpKind::activation, "head_activation", {y}, {activated}).function = ActivationFunction::gelu;
    y = b.norm("head_norm", activated, {b.hidden()});
  }
  const std::int64_t outputs = vision ? model.classes : round_up(model.vocab, kernels.vocab_multiple);
  const Dim vocab{outputs, vision ? Axis::none : Axis::vocab};
  const TensorId table = b.parameter("head", {vocab, b.hidden()});
  const TensorId logits = b.activation("logits", {rows, length, vocab});
  const TensorId bias = model.head_bias || vision ? b.parameter("head_bias", {vocab}) : kNoTensor;
  b.emit(OpKind::linear, "logits", {y, table, bias}, {logits}).transposed_weight = true;
  // The loss is computed in fp32 (Korthikanti et al. 2022, section 4.3: 4 s b v bytes of logits are kept).
  TensorId exact = logits;
  if (kernels.activation != Dtype::fp32) {
    exact = b.tensor("logits_fp32", Category::activation, Dtype::fp32, {rows, length, vocab});
    b.emit(OpKind::cast, "logits_fp32", {logits}, {exact});
  }
  const TensorId targets = b.input("targets", Input::targets, Dtype::int64, {rows, length});
  const TensorId statistics = b.tensor("loss", Category::activation, Dtype::fp32, {{3, Axis::none}, rows, length});
  b.emit(OpKind::cross_entropy, "cross_entropy", {exact, targets}, {statistics});
  b.finish();
}

LayerSizes layer_sizes(const Model& model, std::int64_t batch, std::int64_t sequence, std::int64_t key_sequence) {
  const std::int64_t groups = model.attention == AttentionKind::latent ? model.heads : model.effective_kv_heads();
  return {batch, sequence, key_sequence, model.hidden, groups, model.heads / groups, model.head_dim, model.ffn};
}

std::int64_t sequence_length(const Model& model, const Workload& workload) {
  if (model.kind == ModelKind::vit || model.kind == ModelKind::swin) {
    const std::int64_t side = model.image_size / model.patch_size;
    return side * side + (model.kind == ModelKind::vit ? 1 : 0);
  }
  return workload.sequence_length > 0 ? workload.sequence_length : model.max_positions;
}

std::int64_t decoder_sequence_length(const Model& model, const Workload& workload) {
  return workload.decoder_sequence_length > 0 ? workload.decoder_sequence_length : sequence_length(model, workload);
}

void build_swin(const Model& model, std::int64_t micro_batch, const KernelChoices& kernels, std::size_t& used,
                ModelPieces& out) {
  const std::int64_t side = model.image_size / model.patch_size;
  const std::int64_t window = model.window * model.window;
  // Tokens are kept grouped by window: batch runs over images x windows.
  LayerSizes s{micro_batch * side * side / window, window, window, model.hidden, 0, 1, 0, 0};
  build_patch_embedding(next_piece(*out.pieces, used, "embedding"), model, kernels, s);
  out.runs.push_back({static_cast<std::uint16_t>(used - 1), 1});
  for (std::size_t stage = 0; stage < model.stage_layers.size(); ++stage) {
    if (stage > 0) {
      build_patch_merging(next_piece(*out.pieces, used, "patch_merging"), model, kernels, s);
      out.runs.push_back({static_cast<std::uint16_t>(used - 1), 1});
      s.batch = std::max<std::int64_t>(s.batch / 4, 1);
      s.hidden *= 2;
    }
    s.groups = model.stage_heads[stage];
    s.head_dim = s.hidden / s.groups;
    s.ffn = 4 * s.hidden;
    build_layer(next_piece(*out.pieces, used, "layer"), model, kernels, s, Role::encoder, 0);
    out.runs.push_back({static_cast<std::uint16_t>(used - 1), model.stage_layers[stage]});
  }
  s.key_sequence = std::max<std::int64_t>(1, s.batch / micro_batch);  // windows per image, for the pooling
  build_head(next_piece(*out.pieces, used, "head"), model, kernels, s);
  out.runs.push_back({static_cast<std::uint16_t>(used - 1), 1});
}

// The layers as runs: all alike, or windowed ones with every n-th attending to all (Gemma 3, arXiv 2503.19786).
template <class Build>
void add_layers(const Model& model, Build build, std::vector<Run>& runs) {
  const std::int64_t period = model.sliding_window > 0 ? model.full_attention_period : 0;
  const std::uint16_t usual = build(model.sliding_window);
  if (period == 0) {
    runs.push_back({usual, model.layers});
    return;
  }
  const std::uint16_t full = build(0);
  for (std::int64_t done = 0; done < model.layers; done += period) {
    const std::int64_t windowed = std::min(period - 1, model.layers - done);
    if (windowed > 0) runs.push_back({usual, windowed});
    if (done + windowed < model.layers) runs.push_back({full, 1});
  }
}

// Forward FLOPs of the matrix products of a piece. Attention is apart: with the mask halved, and in full.
struct ForwardFlops {
  double linear = 0, attention_masked = 0, attention_full = 0, attention_executed = 0;
};

ForwardFlops forward_flops(const Piece& piece) {
  ForwardFlops f;
  for (Op op : piece.forward.ops) {
    if (op.kind == OpKind::linear) {
      f.linear += flops(op, piece.tensors);
    } else if (op.kind == OpKind::batched_matmul) {
      const double full = flops(op, piece.tensors);
      f.attention_full += full;
      f.attention_executed += full;
      f.attention_masked += op.causal ? full / 2 : full;
    } else if (op.kind == OpKind::attention) {
      f.attention_masked += flops(op, piece.tensors);
      f.attention_executed += flops(op, piece.tensors);
      op.causal = false;
      f.attention_full += flops(op, piece.tensors);
    }
  }
  return f;
}

}  // namespace

void build_pieces(const Model& model, const Workload& workload, std::int64_t micro_batch, const KernelChoices& kernels,
                  ModelPieces& out) {
  out.runs.clear();
  out.tied_ends = model.tied_embeddings && model.vocab > 0;
  std::size_t used = 0;
  const auto add = [&](const char* name, std::int64_t count, auto&& build) {
    build(next_piece(*out.pieces, used, name));
    out.runs.push_back({static_cast<std::uint16_t>(used - 1), count});
  };

  if (model.kind == ModelKind::swin) {
    build_swin(model, micro_batch, kernels, used, out);
  } else {
    const std::int64_t length = sequence_length(model, workload);
    const LayerSizes s = layer_sizes(model, micro_batch, length, length);
    const bool vision = model.kind == ModelKind::vit;
    add("embedding", 1, [&](Piece& p) {
      if (vision) {
        build_patch_embedding(p, model, kernels, s);
      } else {
        build_embedding(p, model, kernels, s);
      }
    });
    const Role role = model.kind == ModelKind::decoder ? Role::decoder : Role::encoder;
    add_layers(
        model,
        [&](std::int64_t window) {
          build_layer(next_piece(*out.pieces, used, "layer"), model, kernels, s, role, window);
          return static_cast<std::uint16_t>(used - 1);
        },
        out.runs);
    LayerSizes last = s;
    if (model.kind == ModelKind::encoder_decoder) {
      last = layer_sizes(model, micro_batch, decoder_sequence_length(model, workload), length);
      add("decoder_embedding", 1, [&](Piece& p) { build_decoder_embedding(p, model, kernels, last); });
      add("decoder_layer", model.decoder_layers,
          [&](Piece& p) { build_layer(p, model, kernels, last, Role::decoder_with_memory, 0); });
    }
    last.key_sequence = 1;
    add("head", 1, [&](Piece& p) { build_head(p, model, kernels, last); });
  }
  out.pieces->resize(used);
}

ModelWork model_work(const Model& model, const Workload& workload, std::int64_t micro_batch, const ModelPieces& built) {
  ModelWork work;
  ForwardFlops total;
  for (const Run& run : built.runs) {
    const ForwardFlops f = forward_flops((*built.pieces)[run.piece]);
    const auto n = static_cast<double>(run.count);
    total.linear += n * f.linear;
    total.attention_masked += n * f.attention_masked;
    total.attention_full += n * f.attention_full;
    total.attention_executed += n * f.attention_executed;
  }
  // The backward computes two products for each of the forward's (Narayanan et al. 2021, appendix).
  const double micro_batches = static_cast<double>(workload.global_batch_size) / static_cast<double>(micro_batch);
  work.flops_per_step = 3 * micro_batches * (total.linear + total.attention_masked);
  work.executed_flops_per_step = 3 * micro_batches * (total.linear + total.attention_executed);
  work.flops_per_step_full_attention = 3 * micro_batches * (total.linear + total.attention_full);
  work.sequences_per_step = static_cast<double>(workload.global_batch_size);
  const std::int64_t length = model.kind == ModelKind::encoder_decoder ? decoder_sequence_length(model, workload)
                                                                       : sequence_length(model, workload);
  work.tokens_per_step = work.sequences_per_step * static_cast<double>(length);
  work.parameters = static_cast<double>(parameters(model));
  return work;
}

}  // namespace orrery
