#include "realrun/bench/cases.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "sim/program/work.h"
#include "strategies/read_scenario.h"

namespace orrery::bench {
namespace {

using enum OpKind;

constexpr float kDropout = 0.1f, kEpsilon = 1e-5f;

// Sizes by device: the CPU's kernels are written for clarity and are slow; a GPU's caches hold 50 MB and more.
const KernelSizes& sizes_of(DeviceKind device) {
  static const KernelSizes cpu{{{64, 512, 512}, {256, 512, 512}, {128, 1024, 256}, {16, 256, 256, 8}},
                               {{1, 128, 4, 1, 64}, {1, 256, 4, 1, 64}, {1, 128, 2, 2, 128}},
                               {{64, 8, 2, 512}},
                               2,
                               64,
                               512,
                               4096,
                               1 << 18};
  static const KernelSizes cuda{
      // Experts: Mixtral's with many rows and with few, and a part of DeepSeek-V3's.
      {{4096, 4096, 4096},
       {8192, 4096, 14336},
       {16, 4096, 4096},
       {1000, 1000, 1000},
       {2048, 4096, 14336, 8},
       {128, 4096, 14336, 8},
       {512, 7168, 2048, 32}},
      {{4, 2048, 32, 1, 64}, {2, 4096, 32, 1, 128}, {2, 4096, 8, 4, 128}, {1, 16384, 8, 1, 128}},
      {{8192, 8, 2, 4096}, {4096, 256, 8, 7168}},
      4,
      2048,
      4096,
      32768,
      1 << 27};
  return device == DeviceKind::cpu ? cpu : cuda;
}

class Builder {
 public:
  Builder(DeviceKind device, const KernelSizes& sizes, bool is_suite)
      : sizes_(sizes), is_cpu_(device == DeviceKind::cpu), is_suite_(is_suite) {}

  std::vector<KernelCase> build(const std::vector<Dtype>& dtypes, bool fp8) {
    for (const Dtype dtype : dtypes) {
      dtype_ = dtype;
      products();
      attentions();
    }
    dtype_ = dtypes.front();
    if (fp8) fp8_products();
    norms();
    elementwise();
    tokens();
    routing();
    optimizers();
    copies();
    return std::move(cases_);
  }
  std::vector<KernelCase> build_fp8(Dtype stored) {
    dtype_ = stored;
    fp8_products();
    return std::move(cases_);
  }

 private:
  // ---- one case

  KernelCase& begin(OpKind kind) {
    KernelCase& c = cases_.emplace_back();
    c.op.kind = kind;
    c.op.name = name_of(kind);
    c.op.compute_dtype = dtype_;
    reads_ = writes_ = 0;
    return c;
  }
  TensorId tensor(std::initializer_list<Dim> dims, Dtype dtype, Contents contents) {
    Tensor t;
    t.name = "operand";
    t.dtype = dtype;
    for (const Dim& d : dims) t.append(d);
    cases_.back().tensors.push_back(t);
    cases_.back().contents.push_back(contents);
    return static_cast<TensorId>(cases_.back().tensors.size() - 1);
  }
  TensorId read(std::initializer_list<Dim> dims, Contents contents = {}) { return read(dims, dtype_, contents); }
  TensorId read(std::initializer_list<Dim> dims, Dtype dtype, Contents contents = {}) {
    return cases_.back().op.reads[reads_++] = tensor(dims, dtype, contents);
  }
  void skip_read() { ++reads_; }
  TensorId write(std::initializer_list<Dim> dims) { return write(dims, dtype_); }
  TensorId write(std::initializer_list<Dim> dims, Dtype dtype) {
    return cases_.back().op.writes[writes_++] = tensor(dims, dtype, {Contents::Kind::constant, 0});
  }
  void update(TensorId id) { cases_.back().op.writes[writes_++] = id; }  // in place

  // "linear/bf16/4096x4096x4096"
  void name(std::string_view variant, const std::string& sizes) {
    KernelCase& c = cases_.back();
    const std::string kind = is_copy(c.op.kind) ? name_of(direction_of(c.op, c.tensors)) : name_of(c.op.kind);
    c.name = fmt::format("{}{}{}/{}/{}", kind, variant.empty() ? "" : "/", variant, name_of(dtype_), sizes);
  }

  // ---- matrix products

  void products() {
    for (const auto& [m, k, n, experts] : sizes_.products) {
      if (experts > 1) {
        products_of_experts({m, k, n, experts});
        continue;
      }
      const std::string sizes = fmt::format("{}x{}x{}", m, k, n);
      for (const bool transposed : {false, true}) {
        begin(linear).op.transposed_weight = transposed;
        read({{m, Axis::sequence}, {k}});
        transposed ? read({{n}, {k}}) : read({{k}, {n}});
        write({{m, Axis::sequence}, {n}});
        name(transposed ? "transposed" : "", sizes);
      }
      begin(linear);
      read({{m, Axis::sequence}, {k}});
      read({{k}, {n}});
      read({{n}});
      write({{m, Axis::sequence}, {n}});
      name("bias", sizes);

      begin(linear_input_gradient);
      read({{m, Axis::sequence}, {n}});
      read({{k}, {n}});
      write({{m, Axis::sequence}, {k}});
      name("", sizes);

      begin(linear_weight_gradient).op.accumulate = true;
      read({{m, Axis::sequence}, {k}});
      read({{m, Axis::sequence}, {n}});
      write({{k}, {n}}, Dtype::fp32);
      name("", sizes);
    }
    for (const KernelSizes::Attention& a : sizes_.attentions) {
      if (is_suite_ && a.sequence * a.sequence * a.groups > kMostScores) continue;
      const std::int64_t heads = a.groups * a.group_heads;
      for (const bool scores : {true, false}) {  // q k', then probabilities v
        begin(batched_matmul).op.transpose_b = scores;
        scores ? read({{a.batch}, {heads}, {a.sequence}, {a.head_dim}})
               : read({{a.batch}, {heads}, {a.sequence}, {a.sequence}});
        read({{a.batch}, {heads}, {a.sequence}, {a.head_dim}});
        scores ? write({{a.batch}, {heads}, {a.sequence}, {a.sequence}})
               : write({{a.batch}, {heads}, {a.sequence}, {a.head_dim}});
        name(scores ? "scores" : "context", attention_sizes(a));
      }
    }
  }

  void products_of_experts(const KernelSizes::Product& p) {
    const Dim experts{p.experts, Axis::experts}, slots{p.m, Axis::slots}, in{p.k}, out{p.n};
    for (const OpKind kind : {linear, linear_input_gradient, linear_weight_gradient}) {
      Op& op = begin(kind).op;
      op.group_dims = 1;
      op.accumulate = kind == linear_weight_gradient;
      read({experts, slots, kind == linear_input_gradient ? out : in});
      kind == linear_weight_gradient ? read({experts, slots, out}) : read({experts, in, out});
      if (kind == linear_weight_gradient) {
        write({experts, in, out}, Dtype::fp32);
      } else {
        write({experts, slots, kind == linear ? out : in});
      }
      name("experts", fmt::format("{}x{}x{}x{}", p.experts, p.m, p.k, p.n));
    }
  }

  void fp8_products() {
    const Dtype stored = dtype_;
    for (const auto& [m, k, n, experts] : sizes_.products) {
      if (experts > 1) continue;
      if (m % kFp8Multiple != 0 || k % kFp8Multiple != 0 || n % kFp8Multiple != 0) continue;
      KernelCase& c = begin(linear);
      c.op.compute_dtype = Dtype::fp8;
      read({{m, Axis::sequence}, {k}}, Dtype::fp8);
      read({{k}, {n}}, Dtype::fp8);
      write({{m, Axis::sequence}, {n}}, stored);
      dtype_ = Dtype::fp8;
      name("", fmt::format("{}x{}x{}", m, k, n));
      dtype_ = stored;
    }
  }

  // ---- attention

  static std::string attention_sizes(const KernelSizes::Attention& a) {
    return fmt::format("b{}_s{}_g{}x{}_d{}", a.batch, a.sequence, a.groups, a.group_heads, a.head_dim);
  }
  TensorId five(bool is_read, const KernelSizes::Attention& a, Dim parts) {
    const std::initializer_list<Dim> dims{{a.batch, Axis::batch},
                                          {a.sequence, Axis::sequence},
                                          {a.groups, Axis::groups},
                                          parts,
                                          {a.head_dim, Axis::head_dim}};
    return is_read ? read(dims) : write(dims);
  }
  TensorId log_sum_exp(bool is_read, const KernelSizes::Attention& a) {
    const std::initializer_list<Dim> dims{{a.batch, Axis::batch},
                                          {a.groups, Axis::groups},
                                          {a.group_heads, Axis::group_heads},
                                          {a.sequence, Axis::sequence}};
    // The log-sum-exp of normally distributed scores: probabilities come out near 1 / keys.
    const double usual = std::log(static_cast<double>(a.sequence)) + 0.5;
    return is_read ? read(dims, Dtype::fp32, {Contents::Kind::constant, usual}) : write(dims, Dtype::fp32);
  }

  void attentions() {
    for (const KernelSizes::Attention& a : sizes_.attentions) {
      const Dim fused{a.group_heads + 2, Axis::group_qkv}, queries{a.group_heads, Axis::group_heads}, kv{2};
      for (const bool causal : {true, false}) {
        const std::string_view mask = causal ? "causal" : "full";
        begin(attention).op.causal = causal;
        five(true, a, fused);
        five(false, a, queries);
        log_sum_exp(false, a);
        name(mask, attention_sizes(a));

        begin(attention_backward).op.causal = causal;
        five(true, a, queries);
        five(true, a, queries);
        log_sum_exp(true, a);
        five(true, a, fused);
        five(false, a, fused);
        name(mask, attention_sizes(a));
      }
      // Separate keys, as under context parallelism and in cross attention.
      begin(attention);
      five(true, a, queries);
      five(true, a, kv);
      five(false, a, queries);
      log_sum_exp(false, a);
      name("apart", attention_sizes(a));

      begin(merge_attention);
      for (int part = 0; part < 2; ++part) {
        five(true, a, queries);
        log_sum_exp(true, a);
      }
      five(false, a, queries);
      log_sum_exp(false, a);
      name("", attention_sizes(a));

      for (const OpKind kind : {rotary, rotary_backward}) {
        begin(kind);
        five(true, a, fused);
        five(false, a, fused);
        name("", attention_sizes(a));
      }
      if (is_suite_ && a.sequence * a.sequence * a.groups > kMostScores) continue;
      for (const OpKind kind : {softmax, softmax_backward}) {
        KernelCase& c = begin(kind);
        c.op.causal = true;
        c.op.scale = 1 / std::sqrt(static_cast<double>(a.head_dim));
        const std::initializer_list<Dim> scores{{a.batch, Axis::batch},
                                                {a.groups, Axis::groups},
                                                {a.group_heads, Axis::group_heads},
                                                {a.sequence, Axis::sequence},
                                                {a.sequence, Axis::key_sequence}};
        read(scores);
        if (kind == softmax_backward) read(scores, {Contents::Kind::positive, 0});
        write(scores);
        name("", attention_sizes(a));
      }
    }
  }

  // ---- memory-bound kernels on [batch, sequence, hidden]

  std::string hidden_sizes() const { return fmt::format("{}x{}x{}", sizes_.batch, sizes_.sequence, sizes_.hidden); }
  TensorId read_hidden() {
    return read({{sizes_.batch, Axis::batch}, {sizes_.sequence, Axis::sequence}, {sizes_.hidden, Axis::hidden}});
  }
  TensorId write_hidden() {
    return write({{sizes_.batch, Axis::batch}, {sizes_.sequence, Axis::sequence}, {sizes_.hidden, Axis::hidden}});
  }
  TensorId read_mask() {
    return read({{sizes_.batch, Axis::batch}, {sizes_.sequence, Axis::sequence}, {sizes_.hidden, Axis::hidden}},
                Dtype::uint8, {Contents::Kind::indices, 2});
  }
  TensorId write_mask() {
    return write({{sizes_.batch, Axis::batch}, {sizes_.sequence, Axis::sequence}, {sizes_.hidden, Axis::hidden}},
                 Dtype::uint8);
  }
  TensorId row(bool is_read) {
    return is_read ? read({{sizes_.hidden, Axis::hidden}}) : write({{sizes_.hidden, Axis::hidden}});
  }

  void norms() {
    for (const bool centred : {true, false}) {
      const std::string_view variant = centred ? "layernorm" : "rmsnorm";
      const std::initializer_list<Dim> statistics{
          {sizes_.batch, Axis::batch}, {sizes_.sequence, Axis::sequence}, {centred ? 2 : 1}};
      begin(norm).op.epsilon = kEpsilon;
      read_hidden();
      row(true);
      if (centred) row(true);
      write_hidden();
      write(statistics, Dtype::fp32);
      name(variant, hidden_sizes());

      begin(norm_backward);
      read_hidden();
      read_hidden();
      row(true);
      read(statistics, Dtype::fp32, {Contents::Kind::constant, 1});
      write_hidden();
      row(false);
      if (centred) row(false);
      name(variant, hidden_sizes());
    }
  }

  void activations(OpKind kind) {
    struct Kind {
      ActivationFunction function;
      const char* name;
      bool gated;
    };
    const std::initializer_list<Dim> wide{
        {sizes_.batch, Axis::batch}, {sizes_.sequence, Axis::sequence}, {sizes_.hidden, Axis::ffn}};
    const std::initializer_list<Dim> gated{
        {sizes_.batch, Axis::batch}, {sizes_.sequence, Axis::sequence}, {2}, {sizes_.hidden, Axis::ffn}};
    for (const Kind& k :
         {Kind{ActivationFunction::gelu, "gelu", false}, Kind{ActivationFunction::relu, "relu", false},
          Kind{ActivationFunction::quick_gelu, "quick_gelu", false}, Kind{ActivationFunction::relu2, "relu2", false},
          Kind{ActivationFunction::swiglu, "swiglu", true}, Kind{ActivationFunction::geglu, "geglu", true}}) {
      begin(kind).op.function = k.function;
      if (kind == activation_backward) read(wide);
      read(k.gated ? gated : wide);
      if (k.function == ActivationFunction::gelu) read({{sizes_.hidden, Axis::ffn}});  // with the bias of the layer
      write(kind == activation_backward && k.gated ? gated : wide);
      name(k.name, hidden_sizes());
    }
    // For experts: times a weight per row.
    const std::initializer_list<Dim> rows{{sizes_.batch, Axis::batch}, {sizes_.sequence, Axis::sequence}};
    begin(kind).op.function = ActivationFunction::swiglu;
    if (kind == activation_backward) read(wide);
    read(gated);
    skip_read();
    read(rows, Dtype::fp32);
    write(kind == activation_backward ? gated : wide);
    if (kind == activation_backward) write(rows, Dtype::fp32);
    name("weighted_swiglu", hidden_sizes());
  }

  void elementwise() {
    activations(activation);
    activations(activation_backward);

    begin(dropout).op.probability = kDropout;
    read_hidden();
    write_hidden();
    write_mask();
    name("", hidden_sizes());

    begin(dropout_backward).op.probability = kDropout;
    read_hidden();
    read_mask();
    write_hidden();
    name("", hidden_sizes());

    begin(dropout_add).op.probability = kDropout;
    read_hidden();
    read_hidden();
    row(true);
    write_hidden();
    write_mask();
    name("bias", hidden_sizes());

    begin(add);
    read_hidden();
    read_hidden();
    write_hidden();
    name("", hidden_sizes());

    begin(add);
    read_hidden();
    skip_read();
    row(true);
    write_hidden();
    name("bias", hidden_sizes());

    begin(multiply);
    read_hidden();
    read_hidden();
    write_hidden();
    name("", hidden_sizes());

    begin(multiply);
    read_hidden();
    read({{sizes_.batch, Axis::batch}, {sizes_.sequence, Axis::sequence}, {1}}, Dtype::fp32);
    write_hidden();
    name("row", hidden_sizes());

    begin(bias_gradient);
    read_hidden();
    row(false);
    name("", hidden_sizes());

    begin(cast);
    read_hidden();
    write({{sizes_.batch, Axis::batch}, {sizes_.sequence, Axis::sequence}, {sizes_.hidden, Axis::hidden}},
          dtype_ == Dtype::fp32 ? Dtype::bf16 : Dtype::fp32);
    name(dtype_ == Dtype::fp32 ? "to_bf16" : "to_fp32", hidden_sizes());

    begin(zero_fill);
    write_hidden();
    name("", hidden_sizes());
  }

  void tokens() {
    const std::int64_t b = sizes_.batch, s = sizes_.sequence, h = sizes_.hidden, v = sizes_.vocabulary;
    const Contents ids{Contents::Kind::indices, static_cast<double>(v)};
    const std::string table_sizes = fmt::format("{}x{}_v{}", b * s, h, v);

    begin(embedding);
    read({{b, Axis::batch}, {s, Axis::sequence}}, Dtype::int64, ids);
    read({{v, Axis::vocab}, {h, Axis::hidden}});
    write_hidden();
    name("", table_sizes);

    begin(embedding_backward).op.accumulate = true;  // otherwise it would clear the whole table first
    read({{b, Axis::batch}, {s, Axis::sequence}}, Dtype::int64, ids);
    read_hidden();
    write({{v, Axis::vocab}, {h, Axis::hidden}});
    name("", table_sizes);

    const std::string logit_sizes = fmt::format("{}x{}", b * s, v);
    const std::initializer_list<Dim> logits{{b, Axis::batch}, {s, Axis::sequence}, {v, Axis::vocab}};
    const std::initializer_list<Dim> statistics{{3}, {b, Axis::batch}, {s, Axis::sequence}};
    begin(cross_entropy);
    read(logits);
    read({{b, Axis::batch}, {s, Axis::sequence}}, Dtype::int64, ids);
    write(statistics, Dtype::fp32);
    name("", logit_sizes);

    begin(cross_entropy_backward).op.scale = 1 / static_cast<double>(b * s);
    read(logits);
    read({{b, Axis::batch}, {s, Axis::sequence}}, Dtype::int64, ids);
    read(statistics, Dtype::fp32, {Contents::Kind::constant, 4});  // near the largest of some thousand normal numbers
    write(logits);
    name("", logit_sizes);

    const std::initializer_list<Dim> pooled{{b, Axis::batch}, {1, Axis::sequence}, {h, Axis::hidden}};
    begin(pool).context.pool_mean = true;
    read_hidden();
    write(pooled);
    name("mean", hidden_sizes());

    begin(pool_backward).context.pool_mean = true;
    read(pooled);
    write_hidden();
    name("mean", hidden_sizes());
  }

  // ---- mixture of experts

  void routing() {
    for (const KernelSizes::Routing& r : sizes_.routings) {
      const Dim tokens{r.tokens, Axis::sequence}, experts{r.experts}, k{r.choices}, hidden{r.hidden, Axis::hidden};
      const Dim of_experts{r.experts, Axis::experts},
          slots{(r.tokens * r.choices + r.experts - 1) / r.experts, Axis::slots};
      const Contents chosen{Contents::Kind::indices, static_cast<double>(r.experts)};
      const std::string scores = fmt::format("{}x{}_k{}", r.tokens, r.experts, r.choices),
                        rows = fmt::format("{}x{}_e{}_k{}", r.tokens, r.hidden, r.experts, r.choices);
      const auto read_choices = [&] { return read({tokens, k}, Dtype::int32, chosen); };

      constexpr std::int64_t kGroups = 8;  // DeepSeek-V3's
      for (const bool groups : {false, true}) {
        if (groups && (r.experts % kGroups != 0 || r.choices > r.experts / 2)) continue;
        Op& op = begin(route).op;
        op.router.score = groups ? RouterScore::sigmoid_of_top : RouterScore::softmax_of_top;
        if (groups) op.router.groups = kGroups, op.router.best_groups = kGroups / 2;
        read({tokens, experts}, Dtype::fp32);
        write({tokens, k}, Dtype::fp32);
        write({tokens, k}, Dtype::int32);
        name(groups ? "groups" : "", scores);
      }
      begin(route_backward).op.router.score = RouterScore::softmax_of_top;
      read({tokens, k}, Dtype::fp32);
      read({tokens, experts}, Dtype::fp32);
      read_choices();
      write({tokens, experts}, Dtype::fp32);
      name("", scores);

      // Experts choose: a place for each choice.
      begin(route).op.router = {.type = RouterType::expert_choice, .choices = static_cast<std::uint16_t>(r.choices)};
      read({tokens, experts}, Dtype::fp32);
      write({tokens, experts}, Dtype::fp32);
      write({tokens, experts}, Dtype::int32);
      name("expert_choice", scores);
      begin(route).op.router = {.type = RouterType::base, .score = RouterScore::sigmoid, .choices = 1};
      read({tokens, experts}, Dtype::fp32);
      write({tokens, {1}}, Dtype::fp32);
      write({tokens, {1}}, Dtype::int32);
      name("base", fmt::format("{}x{}_k1", r.tokens, r.experts));
      begin(hash_route).op.router = {.type = RouterType::hash, .experts = static_cast<std::uint16_t>(r.experts)};
      read({tokens, {1}}, Dtype::int32, {Contents::Kind::indices, 1 << 15});
      write({tokens, {1}}, Dtype::int32);
      name("", fmt::format("{}x{}_k1", r.tokens, r.experts));

      // The dense-to-sparse gate in the middle of its schedule: noise on all logits, as many choices as experts.
      const Router gumbel{.gumbel_temperature = 0.7f, .threshold = 0.001f};
      const std::string dense = fmt::format("{}x{}", r.tokens, r.experts);
      begin(route).op.router = gumbel;
      read({tokens, experts}, Dtype::fp32);
      write({tokens, experts}, Dtype::fp32);
      write({tokens, experts}, Dtype::int32);
      name("gumbel", dense);
      begin(route_backward).op.router = gumbel;
      read({tokens, experts}, Dtype::fp32);
      read({tokens, experts}, Dtype::fp32);
      read({tokens, experts}, Dtype::int32, chosen);
      write({tokens, experts}, Dtype::fp32);
      name("gumbel", dense);

      begin(permute);
      read({tokens, hidden});
      read_choices();
      write({of_experts, slots, hidden});
      name("", rows);

      begin(unpermute);
      read({of_experts, slots, hidden});
      read_choices();
      read({tokens, k}, Dtype::fp32);
      write({tokens, hidden});
      name("", rows);

      begin(unpermute_backward);
      read({tokens, hidden});
      read({of_experts, slots, hidden});
      read_choices();
      read({tokens, k}, Dtype::fp32);
      write({of_experts, slots, hidden});
      write({tokens, k}, Dtype::fp32);
      name("", rows);

      for (const OpKind kind : {permute_weights, unpermute_weights}) {
        const std::initializer_list<Dim> by_token{tokens, k}, by_row{of_experts, slots};
        begin(kind);
        read(kind == permute_weights ? by_token : by_row, Dtype::fp32);
        read_choices();
        write(kind == permute_weights ? by_row : by_token, Dtype::fp32);
        name("", scores);
      }

      begin(slot_mask);
      read_choices();
      read({tokens, k}, Dtype::fp32);
      write({tokens, of_experts, slots});
      name("", scores);

      begin(slot_mask_backward);
      read({tokens, of_experts, slots});
      read_choices();
      write({tokens, k}, Dtype::fp32);
      name("", scores);

      begin(mask_permute);
      read({tokens, hidden});
      read({tokens, of_experts, slots});
      write({of_experts, slots, hidden});
      name("", rows);

      begin(mask_unpermute);
      read({of_experts, slots, hidden});
      read({tokens, of_experts, slots});
      write({tokens, hidden});
      name("", rows);

      begin(mask_gradient);
      read({tokens, hidden});
      read({of_experts, slots, hidden});
      write({tokens, of_experts, slots});
      name("", rows);

      const Dim one{1, Axis::batch};
      begin(add_noise);
      read({one, tokens, experts}, Dtype::fp32);
      read({one, tokens, experts}, Dtype::fp32);
      write({one, tokens, experts}, Dtype::fp32);
      write({one, tokens, experts}, Dtype::fp32);
      name("", scores);

      begin(expert_counts);
      read({one, tokens, k}, Dtype::int32, chosen);
      write({one, experts}, Dtype::fp32);
      name("", scores);

      for (const OpKind kind : {router_loss, router_loss_backward}) {
        Op& op = begin(kind).op;
        op.router.balance = op.router.z = 1;
        read({one, tokens, experts}, Dtype::fp32);
        read({one, experts}, Dtype::fp32, {Contents::Kind::positive, 0});
        kind == router_loss ? write({one, tokens, {2}}, Dtype::fp32) : write({one, tokens, experts}, Dtype::fp32);
        name("", scores);
      }
    }
  }

  // ---- flat buffers

  void optimizers() {
    const std::int64_t n = sizes_.elements;
    const std::string sizes = fmt::format("{}", n);
    // Also 10% more, which no vector width divides: compare must detect this difference (prove_compare.sh).
    std::vector<std::int64_t> lengths{n};
    if (is_suite_) lengths.push_back(n + n / 10);
    for (const std::int64_t elements : lengths) {
      begin(gradient_norm);
      read({{elements}}, Dtype::fp32);
      write({{1}}, Dtype::fp32);
      name("", fmt::format("{}", elements));
    }

    for (const bool clips : {false, true}) {
      begin(scale).op.clip_limit = 1;
      const TensorId gradients = read({{n}}, Dtype::fp32);
      if (clips) read({{1}}, Dtype::fp32, {Contents::Kind::constant, 4});
      update(gradients);
      name(clips ? "clip" : "plain", sizes);
    }

    // Mixed precision with fp32 master weights (Micikevicius et al. 2018), and all in fp32.
    for (const bool master : {true, false}) {
      begin(adam);
      read({{n}}, Dtype::fp32);
      const TensorId weights = read({{n}}, Dtype::fp32), mean = read({{n}}, Dtype::fp32),
                     square = read({{n}}, Dtype::fp32, {Contents::Kind::positive, 0});
      if (master) write({{n}}, is_cpu_ ? Dtype::fp32 : Dtype::bf16);
      for (const TensorId id : {weights, mean, square}) update(id);
      name(master ? "master" : "plain", sizes);

      begin(sgd);
      read({{n}}, Dtype::fp32);
      const TensorId sgd_weights = read({{n}}, Dtype::fp32), momentum = read({{n}}, Dtype::fp32);
      if (master) write({{n}}, is_cpu_ ? Dtype::fp32 : Dtype::bf16);
      for (const TensorId id : {sgd_weights, momentum}) update(id);
      name(master ? "master" : "plain", sizes);
    }
  }

  void copies() {
    const std::int64_t n = sizes_.elements;
    for (const bool down : {true, false}) {
      KernelCase& c = begin(copy);
      c.op.stream = down ? Stream::device_to_host : Stream::host_to_device;
      const TensorId from = read({{n}});
      const TensorId to = write({{n}});
      c.tensors[down ? to : from].place = Place::host;
      name("", fmt::format("{}", n));
    }
  }

  static constexpr std::int64_t kMostScores = std::int64_t{1}
                                              << 28;  // of one sequence: stored scores are for short ones
  static constexpr std::int64_t kFp8Multiple = 16;    // cuBLAS manual, "cublasLtMatmul", fp8

  const KernelSizes& sizes_;
  const bool is_cpu_, is_suite_;
  Dtype dtype_ = Dtype::fp32;
  std::size_t reads_ = 0, writes_ = 0;
  std::vector<KernelCase> cases_;
};

}  // namespace

std::vector<Dtype> kernel_dtypes(DeviceKind device) {
  if (device == DeviceKind::cpu) return {Dtype::fp32};
  return {Dtype::bf16, Dtype::fp16, Dtype::fp32};
}

std::vector<KernelCase> kernel_cases(DeviceKind device, bool fp8) {
  return Builder(device, sizes_of(device), /*is_suite=*/true).build(kernel_dtypes(device), fp8);
}

std::vector<KernelCase> kernel_cases_of(DeviceKind device, const KernelSizes& sizes, Dtype dtype) {
  Builder builder(device, sizes, /*is_suite=*/false);
  return dtype == Dtype::fp8 ? builder.build_fp8(kernel_dtypes(device).front()) : builder.build({dtype}, false);
}

std::vector<StepCase> step_cases(DeviceKind device) {
  using nlohmann::json;
  json base = json::parse(device == DeviceKind::cpu ? R"({
    "model": {"layers": 4, "hidden": 64, "heads": 4, "vocab": 512, "max_positions": 32, "dropout": 0},
    "cluster": {"node": "dgx-h100", "nodes": 1},
    "workload": {"sequence_length": 32, "global_batch_size": 4},
    "plan": {"precision": "fp32", "data_parallel": 1, "micro_batch_size": 1}})"
                                                    : R"({
    "model": {"layers": 12, "hidden": 1024, "heads": 16, "vocab": 32768, "max_positions": 1024, "dropout": 0},
    "cluster": {"node": "dgx-h200", "nodes": 1},
    "workload": {"sequence_length": 1024, "global_batch_size": 16},
    "plan": {"precision": "bf16", "data_parallel": 1, "micro_batch_size": 4}})");
  std::vector<std::pair<const char*, json>> layouts{{"one_rank", json::object()}};
  if (device == DeviceKind::cpu) {
    layouts.emplace_back("tensor_parallel_2", json{{"tensor_parallel", 2}});
    layouts.emplace_back("data_parallel_2_zero_1", json{{"data_parallel", 2}, {"zero_stage", 1}});
    layouts.emplace_back("pipeline_2", json{{"pipeline_parallel", 2}});
  }
  std::vector<StepCase> cases;
  for (const auto& [name, plan] : layouts) {
    json document = base;
    document["plan"].merge_patch(plan);
    cases.push_back({std::string("step/") + name, read_scenario(document, {"step/" + std::string(name), {}})});
  }
  return cases;
}

}  // namespace orrery::bench
