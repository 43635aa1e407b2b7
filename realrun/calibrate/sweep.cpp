#include "realrun/calibrate/sweep.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "sim/cost/kernel_cost.h"
#include "sim/program/work.h"

namespace orrery {
namespace {

using Fill = OperandFill::Kind;

// Halton 1960: the i-th number of a sequence that fills [0, 1) evenly, at any length.
double halton(std::int64_t i, std::int64_t base) {
  double value = 0, digit = 1;
  for (std::int64_t n = i + 1; n > 0; n /= base) {
    digit /= static_cast<double>(base);
    value += digit * static_cast<double>(n % base);
  }
  return value;
}

// Sizes as in models: a power of two, or 1.5 times one.
std::int64_t size_between(std::int64_t least, std::int64_t most, double at) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t power = 1; power <= most; power *= 2)
    for (const std::int64_t size : {power, power + power / 2})
      if (size >= least && size <= most && (sizes.empty() || size > sizes.back())) sizes.push_back(size);
  if (sizes.empty()) return least;
  return sizes[std::min(sizes.size() - 1, static_cast<std::size_t>(at * static_cast<double>(sizes.size())))];
}

Tensor tensor(const char* name, Dtype dtype, std::initializer_list<Dim> dims) {
  Tensor t;
  t.name = name;
  t.dtype = dtype;
  for (const Dim& dim : dims) t.append(dim);
  return t;
}

class PointBuilder {
 public:
  explicit PointBuilder(OpKind kind) {
    point_.op.kind = kind;
    point_.op.name = name_of(kind);
  }
  Op& op() { return point_.op; }
  TensorId add(Tensor t, OperandFill fill = {}) {
    point_.tensors.push_back(t);
    point_.fills.push_back(fill);
    return static_cast<TensorId>(point_.tensors.size() - 1);
  }
  TensorId read(Tensor t, OperandFill fill = {}) { return read(add(t, fill)); }
  TensorId read(TensorId id) { return point_.op.reads[reads_++] = id; }
  void skip_read() { ++reads_; }
  TensorId write(Tensor t, OperandFill fill = {}) { return write(add(t, fill)); }
  TensorId write(TensorId id) { return point_.op.writes[writes_++] = id; }
  void before(const Op& op) { point_.before.push_back(op); }
  KernelPoint done(std::string group, std::string id) {
    point_.group = std::move(group);
    point_.id = std::move(id);
    return std::move(point_);
  }

 private:
  KernelPoint point_;
  std::size_t reads_ = 0, writes_ = 0;
};

// A product of a linear layer for `tokens` tokens, from `k` to `n` features: the forward or one of the backwards.
KernelPoint product(OpKind kind, Dtype dtype, std::int64_t tokens, std::int64_t n, std::int64_t k, bool bias,
                    bool transposed) {
  PointBuilder b(kind);
  b.op().compute_dtype = dtype;
  b.op().transposed_weight = transposed;
  const Tensor x = tensor("x", dtype, {{1, Axis::batch}, {tokens, Axis::sequence}, {k, Axis::hidden}});
  const Tensor y = tensor("y", dtype, {{1, Axis::batch}, {tokens, Axis::sequence}, {n, Axis::ffn}});
  const Dim in{k, Axis::hidden}, out{n, Axis::ffn};
  Tensor w = transposed ? tensor("w", dtype, {out, in}) : tensor("w", dtype, {in, out});
  if (kind == OpKind::linear) {
    b.read(x);
    b.read(w);
    if (bias) b.read(tensor("bias", dtype, {out}));
    b.write(y);
  } else if (kind == OpKind::linear_input_gradient) {
    b.read(y);
    b.read(w);
    b.write(x);
  } else {
    b.read(x);
    b.read(y);
    w.dtype = Dtype::fp32;  // main gradients
    b.write(w, {Fill::constant, 0});
    b.op().accumulate = true;
  }
  return b.done(fmt::format("matmul {}", name_of(dtype)),
                fmt::format("{} {} {} x {} x {}{}{}", name_of(kind), name_of(dtype), tokens, n, k,
                            bias && kind == OpKind::linear ? " bias" : "", transposed ? " transposed" : ""));
}

double flops_of(const KernelPoint& p) { return flops(p.op, p.tensors); }

void add_products(const SweepOptions& o, Dtype dtype, std::vector<KernelPoint>& points) {
  constexpr std::array kinds{OpKind::linear, OpKind::linear_input_gradient, OpKind::linear_weight_gradient};
  std::set<std::string> seen;
  // Draws shapes until there are enough within the limit; the number of draws is bounded, as there may be none.
  const std::int64_t most_draws = 20 * o.products;
  for (std::int64_t i = 0, made = 0; made < o.products && i < most_draws; ++i) {
    const std::int64_t tokens = size_between(o.least_tokens, o.most_tokens, halton(i, 2));
    const std::int64_t hidden = size_between(o.least_hidden, o.most_hidden, halton(i, 3));
    // Fused QKV, projection, up, down, head, and one with any aspect ratio.
    constexpr std::int64_t kLayers = 6;
    std::int64_t n = hidden, k = hidden;
    bool transposed = false;
    switch (i % kLayers) {
      case 0:
        n = 3 * hidden;
        break;
      case 1:
        break;
      case 2:
        n = 4 * hidden;
        break;
      case 3:
        k = 4 * hidden;
        break;
      case 4:
        n = size_between(o.most_vocabulary / 32, o.most_vocabulary, halton(i, 5));
        transposed = true;
        break;
      default:
        n = size_between(o.least_hidden, 4 * o.most_hidden, halton(i, 5));
        break;
    }
    KernelPoint p = product(kinds[static_cast<std::size_t>(i / kLayers) % kinds.size()], dtype, tokens, n, k,
                            i / (kLayers * static_cast<std::int64_t>(kinds.size())) % 2 == 0, transposed);
    if (flops_of(p) > o.most_flops || !seen.insert(p.id).second) continue;
    points.push_back(std::move(p));
    ++made;
  }
}

KernelPoint attention(bool backward, Dtype dtype, std::int64_t batch, std::int64_t sequence, std::int64_t heads,
                      std::int64_t head_dim, bool causal, bool fused) {
  PointBuilder b(backward ? OpKind::attention_backward : OpKind::attention);
  const auto heads_tensor = [&](const char* name, std::int64_t parts, Axis axis) {
    return tensor(name, dtype,
                  {{batch, Axis::batch},
                   {sequence, Axis::sequence},
                   {heads, Axis::groups},
                   {parts, axis},
                   {head_dim, Axis::head_dim}});
  };
  Op forward;
  forward.kind = OpKind::attention;
  forward.name = "attention";
  forward.causal = b.op().causal = causal;
  forward.compute_dtype = b.op().compute_dtype = dtype;
  const TensorId q = b.add(fused ? heads_tensor("qkv", 3, Axis::group_qkv) : heads_tensor("q", 1, Axis::group_heads));
  const TensorId kv = fused ? kNoTensor : b.add(heads_tensor("kv", 2, Axis::group_qkv));
  const TensorId context = b.add(heads_tensor("context", 1, Axis::group_heads));
  const TensorId lse =
      b.add(tensor("log_sum_exp", Dtype::fp32,
                   {{batch, Axis::batch}, {heads, Axis::groups}, {1, Axis::group_heads}, {sequence, Axis::sequence}}));
  forward.reads[0] = q;
  forward.reads[1] = kv;
  forward.writes[0] = context;
  forward.writes[1] = lse;
  if (backward) {
    b.before(forward);
    b.read(b.add(heads_tensor("dcontext", 1, Axis::group_heads)));
    b.read(context);
    b.read(lse);
    b.read(q);
    if (!fused) b.read(kv);
    b.write(fused ? heads_tensor("dqkv", 3, Axis::group_qkv) : heads_tensor("dq", 1, Axis::group_heads));
    if (!fused) b.write(heads_tensor("dkv", 2, Axis::group_qkv));
  } else {
    b.op().reads = forward.reads;
    b.op().writes = forward.writes;
  }
  return b.done(fmt::format("attention {}", name_of(dtype)),
                fmt::format("{} {} {} x {} x {} x {}{}{}", name_of(b.op().kind), name_of(dtype), batch, sequence, heads,
                            head_dim, causal ? " causal" : "", fused ? "" : " apart"));
}

void add_attention(const SweepOptions& o, Dtype dtype, std::vector<KernelPoint>& points) {
  constexpr std::array<std::int64_t, 4> kHeadDims{64, 32, 128, 96};
  for (const bool backward : {false, true}) {
    std::set<std::string> seen;
    const std::int64_t most_draws = 20 * o.attentions;
    for (std::int64_t i = 0, made = 0; made < o.attentions && i < most_draws; ++i) {
      const std::int64_t sequence = size_between(o.least_tokens, o.most_sequence, halton(i, 2));
      const std::int64_t heads = size_between(1, 16, halton(i, 3));
      const std::int64_t batch = size_between(1, std::max<std::int64_t>(1, o.most_tokens / sequence), halton(i, 5));
      const std::int64_t head_dim = kHeadDims[static_cast<std::size_t>(i) % kHeadDims.size()];
      // Most training uses causal attention with queries, keys and values in one tensor.
      KernelPoint p = attention(backward, dtype, batch, sequence, heads, head_dim, i % 3 != 2, i % 5 != 4);
      if (flops_of(p) > o.most_flops || !seen.insert(p.id).second) continue;
      points.push_back(std::move(p));
      ++made;
    }
  }
}

// The memory-bound kernels. Most of them work on `tokens` x `width` elements.
struct Size {
  std::int64_t tokens, width;
};
using Maker = KernelPoint (*)(const SweepOptions&, Dtype, Size, std::int64_t variant);

Tensor row_of(const char* name, Dtype dtype, std::int64_t width) {
  return tensor(name, dtype, {{width, Axis::hidden}});
}
Tensor rows(const char* name, Dtype dtype, Size s) {
  return tensor(name, dtype, {{1, Axis::batch}, {s.tokens, Axis::sequence}, {s.width, Axis::hidden}});
}

KernelPoint finish(PointBuilder& b, Size s, const std::string& what = {}) {
  const std::string name = memory_curve_name(b.op());
  return b.done("memory " + name, fmt::format("{} {} x {}{}", name, s.tokens, s.width, what));
}

KernelPoint norm(Dtype dtype, Size s, bool layer_norm, bool backward) {
  PointBuilder b(backward ? OpKind::norm_backward : OpKind::norm);
  b.op().scalar = 1e-5f;
  const Tensor statistics = tensor("statistics", Dtype::fp32,
                                   {{1, Axis::batch}, {s.tokens, Axis::sequence}, {layer_norm ? 2 : 1, Axis::none}});
  const Tensor weight = row_of("weight", dtype, s.width);
  if (backward) {
    b.read(rows("dy", dtype, s));
    b.read(rows("x", dtype, s));
    b.read(weight);
    b.read(statistics, {Fill::constant, 1});
    b.write(rows("dx", dtype, s));
    Tensor gradient = weight;
    gradient.dtype = Dtype::fp32;
    b.write(gradient, {Fill::constant, 0});
    if (layer_norm) b.write(gradient, {Fill::constant, 0});
    b.op().accumulate = true;
  } else {
    b.read(rows("x", dtype, s));
    b.read(weight);
    if (layer_norm) b.read(row_of("bias", dtype, s.width));
    b.write(rows("y", dtype, s));
    b.write(statistics);
  }
  return finish(b, s);
}

KernelPoint rotary(Dtype dtype, Size s, bool backward) {
  PointBuilder b(backward ? OpKind::rotary_backward : OpKind::rotary);
  constexpr std::int64_t kHeadDim = 64, kParts = 3;
  const std::int64_t heads = std::max<std::int64_t>(1, s.width / kHeadDim);
  const Tensor qkv = tensor("qkv", dtype,
                            {{1, Axis::batch},
                             {s.tokens, Axis::sequence},
                             {heads, Axis::groups},
                             {kParts, Axis::group_qkv},
                             {kHeadDim, Axis::head_dim}});
  b.read(qkv);
  b.write(qkv);
  return finish(b, {s.tokens, heads * kHeadDim});
}

KernelPoint activation(Dtype dtype, Size s, ActivationFunction function, bool bias, bool backward) {
  PointBuilder b(backward ? OpKind::activation_backward : OpKind::activation);
  b.op().function = function;
  const bool gated = function == ActivationFunction::swiglu || function == ActivationFunction::geglu;
  const auto inner = [&](const char* name) {
    return gated ? tensor(name, dtype,
                          {{1, Axis::batch}, {s.tokens, Axis::sequence}, {2, Axis::none}, {s.width, Axis::ffn}})
                 : rows(name, dtype, s);
  };
  if (backward) b.read(rows("dy", dtype, s));
  b.read(inner("x"));
  if (bias) b.read(row_of("bias", dtype, (gated ? 2 : 1) * s.width));
  b.write(backward ? inner("dx") : rows("y", dtype, s));
  return finish(b, s);
}

// Reads `reads` tensors of one shape and writes `writes`.
KernelPoint elementwise(OpKind kind, Dtype dtype, Size s, int reads, int writes, bool bias = false, int masks = 0) {
  PointBuilder b(kind);
  b.op().scalar = 0.1f;  // dropout
  const bool mask_is_read = kind == OpKind::dropout_backward;
  for (int i = 0; i < reads; ++i)
    b.read(mask_is_read && i == 1 ? rows("mask", Dtype::uint8, s) : rows("x", dtype, s),
           mask_is_read && i == 1 ? OperandFill{Fill::constant, 1} : OperandFill{});
  if (bias) b.read(row_of("bias", dtype, s.width));
  for (int i = 0; i < writes; ++i) b.write(rows("y", dtype, s));
  for (int i = 0; i < masks; ++i) b.write(rows("mask", Dtype::uint8, s));
  return finish(b, s);
}

KernelPoint embedding(const SweepOptions& o, Dtype dtype, Size s, std::int64_t variant, bool backward) {
  PointBuilder b(backward ? OpKind::embedding_backward : OpKind::embedding);
  const std::int64_t vocabulary = size_between(o.most_vocabulary / 32, o.most_vocabulary, halton(variant, 5));
  Tensor table = tensor("table", dtype, {{vocabulary, Axis::vocab}, {s.width, Axis::hidden}});
  b.read(tensor("ids", Dtype::int64, {{1, Axis::batch}, {s.tokens, Axis::sequence}}),
         {Fill::ids, static_cast<double>(vocabulary)});
  if (backward) {
    b.read(rows("dy", dtype, s));
    table.dtype = Dtype::fp32;
    b.write(table, {Fill::constant, 0});
    b.op().accumulate = true;
  } else {
    b.read(table);
    b.write(rows("y", dtype, s));
  }
  return finish(b, s, fmt::format(" of {}", vocabulary));
}

KernelPoint cross_entropy(const SweepOptions& o, Dtype dtype, Size s, std::int64_t variant, bool backward) {
  PointBuilder b(backward ? OpKind::cross_entropy_backward : OpKind::cross_entropy);
  s.width = size_between(o.most_vocabulary / 32, o.most_vocabulary, halton(variant, 5));
  s.tokens =
      std::min<std::int64_t>(s.tokens, std::max<std::int64_t>(1, static_cast<std::int64_t>(o.most_elements) / s.width));
  const auto logits = [&](const char* name) {
    return tensor(name, dtype, {{1, Axis::batch}, {s.tokens, Axis::sequence}, {s.width, Axis::vocab}});
  };
  const Tensor statistics =
      tensor("statistics", Dtype::fp32, {{3, Axis::none}, {1, Axis::batch}, {s.tokens, Axis::sequence}});
  b.read(logits("logits"));
  b.read(tensor("targets", Dtype::int64, {{1, Axis::batch}, {s.tokens, Axis::sequence}}),
         {Fill::ids, static_cast<double>(s.width)});
  if (backward) b.read(statistics, {Fill::constant, 1});
  b.write(backward ? logits("dlogits") : statistics);
  return finish(b, s);
}

// On flat buffers: `width` is not a width here.
KernelPoint optimizer(OpKind kind, Dtype dtype, Size s, bool master) {
  PointBuilder b(kind);
  const std::int64_t n = s.tokens * s.width;
  const auto flat = [&](const char* name, Dtype type) { return tensor(name, type, {{n, Axis::none}}); };
  b.read(flat("gradient", Dtype::fp32));
  if (kind == OpKind::gradient_norm) {
    b.write(tensor("norm", Dtype::fp32, {{1, Axis::none}}));
    return finish(b, {1, n});
  }
  if (kind == OpKind::scale) {
    b.write(flat("scaled", Dtype::fp32));
    return finish(b, {1, n});
  }
  // Weights and moments are updated in place: fp32 masters if there are any, and then the parameters too.
  if (master) b.write(flat("parameter", dtype));
  b.write(b.read(flat("weight", master ? Dtype::fp32 : dtype)));
  b.write(b.read(flat("moment", Dtype::fp32), {Fill::constant, 1e-3}));
  if (kind == OpKind::adam) b.write(b.read(flat("second moment", Dtype::fp32), {Fill::constant, 1e-3}));
  return finish(b, {1, n}, master ? " master" : "");
}

KernelPoint softmax(Dtype dtype, Size s, bool backward) {
  PointBuilder b(backward ? OpKind::softmax_backward : OpKind::softmax);
  b.op().causal = true;
  const std::int64_t heads = std::max<std::int64_t>(1, s.width / s.tokens);
  const auto scores = [&](const char* name) {
    return tensor(
        name, dtype,
        {{1, Axis::batch}, {heads, Axis::groups}, {s.tokens, Axis::sequence}, {s.tokens, Axis::key_sequence}});
  };
  b.read(scores("scores"), {Fill::positive, 0});
  if (backward) b.read(scores("probabilities"), {Fill::constant, 1.0 / static_cast<double>(s.tokens)});
  b.write(scores("y"));
  return finish(b, {s.tokens, s.tokens}, fmt::format(" x {}", heads));
}

KernelPoint merge_attention(Dtype dtype, Size s) {
  PointBuilder b(OpKind::merge_attention);
  constexpr std::int64_t kHeadDim = 64;
  const std::int64_t heads = std::max<std::int64_t>(1, s.width / kHeadDim);
  const Tensor context = tensor("context", dtype,
                                {{1, Axis::batch},
                                 {s.tokens, Axis::sequence},
                                 {heads, Axis::groups},
                                 {1, Axis::group_heads},
                                 {kHeadDim, Axis::head_dim}});
  const Tensor lse =
      tensor("log_sum_exp", Dtype::fp32,
             {{1, Axis::batch}, {heads, Axis::groups}, {1, Axis::group_heads}, {s.tokens, Axis::sequence}});
  b.read(context);
  b.read(lse);
  b.read(context);
  b.read(lse);
  b.write(context);
  b.write(lse);
  return finish(b, {s.tokens, heads * kHeadDim});
}

KernelPoint pool(Dtype dtype, Size s, bool backward) {
  PointBuilder b(backward ? OpKind::pool_backward : OpKind::pool);
  constexpr std::int64_t kEach = 16;  // tokens per sequence
  const std::int64_t sequences = std::max<std::int64_t>(1, s.tokens / kEach);
  const auto whole = [&](const char* name) {
    return tensor(name, dtype, {{sequences, Axis::batch}, {kEach, Axis::sequence}, {s.width, Axis::hidden}});
  };
  const auto pooled = [&](const char* name) {
    return tensor(name, dtype, {{sequences, Axis::batch}, {1, Axis::sequence}, {s.width, Axis::hidden}});
  };
  b.read(backward ? pooled("dy") : whole("x"));
  b.write(backward ? whole("dx") : pooled("y"));
  return finish(b, {sequences * kEach, s.width});
}

KernelPoint bias_gradient(Dtype dtype, Size s) {
  PointBuilder b(OpKind::bias_gradient);
  b.read(rows("dy", dtype, s));
  b.write(row_of("dbias", Dtype::fp32, s.width), {Fill::constant, 0});
  b.op().accumulate = true;
  return finish(b, s);
}

const std::vector<Maker>& memory_makers() {
  using O = const SweepOptions&;
  using A = ActivationFunction;
  static const std::vector<Maker> makers{
      [](O, Dtype d, Size s, std::int64_t) { return norm(d, s, true, false); },
      [](O, Dtype d, Size s, std::int64_t) { return norm(d, s, true, true); },
      [](O, Dtype d, Size s, std::int64_t) { return norm(d, s, false, false); },
      [](O, Dtype d, Size s, std::int64_t) { return norm(d, s, false, true); },
      [](O, Dtype d, Size s, std::int64_t) { return rotary(d, s, false); },
      [](O, Dtype d, Size s, std::int64_t) { return rotary(d, s, true); },
      [](O, Dtype d, Size s, std::int64_t) { return activation(d, s, A::gelu, false, false); },
      [](O, Dtype d, Size s, std::int64_t) { return activation(d, s, A::gelu, false, true); },
      [](O, Dtype d, Size s, std::int64_t) { return activation(d, s, A::gelu, true, false); },
      [](O, Dtype d, Size s, std::int64_t) { return activation(d, s, A::gelu, true, true); },
      [](O, Dtype d, Size s, std::int64_t) { return activation(d, s, A::swiglu, false, false); },
      [](O, Dtype d, Size s, std::int64_t) { return activation(d, s, A::swiglu, false, true); },
      [](O, Dtype d, Size s, std::int64_t) { return activation(d, s, A::geglu, false, false); },
      [](O, Dtype d, Size s, std::int64_t) { return activation(d, s, A::geglu, false, true); },
      [](O, Dtype d, Size s, std::int64_t) { return activation(d, s, A::relu, false, false); },
      [](O, Dtype d, Size s, std::int64_t) { return activation(d, s, A::relu, false, true); },
      [](O, Dtype d, Size s, std::int64_t) { return activation(d, s, A::relu, true, false); },
      [](O, Dtype d, Size s, std::int64_t) { return activation(d, s, A::relu, true, true); },
      [](O, Dtype d, Size s, std::int64_t) { return activation(d, s, A::relu2, false, false); },
      [](O, Dtype d, Size s, std::int64_t) { return activation(d, s, A::relu2, false, true); },
      [](O, Dtype d, Size s, std::int64_t) { return activation(d, s, A::quick_gelu, false, false); },
      [](O, Dtype d, Size s, std::int64_t) { return activation(d, s, A::quick_gelu, false, true); },
      [](O, Dtype d, Size s, std::int64_t) { return elementwise(OpKind::dropout, d, s, 1, 1, false, 1); },
      [](O, Dtype d, Size s, std::int64_t) { return elementwise(OpKind::dropout_backward, d, s, 2, 1); },
      [](O, Dtype d, Size s, std::int64_t) { return elementwise(OpKind::dropout_add, d, s, 2, 1, false, 1); },
      [](O, Dtype d, Size s, std::int64_t) { return elementwise(OpKind::dropout_add, d, s, 2, 1, true, 1); },
      [](O, Dtype d, Size s, std::int64_t) { return elementwise(OpKind::add, d, s, 2, 1); },
      [](O, Dtype d, Size s, std::int64_t) { return elementwise(OpKind::add, d, s, 2, 1, true); },
      [](O, Dtype d, Size s, std::int64_t) { return elementwise(OpKind::multiply, d, s, 2, 1); },
      [](O, Dtype d, Size s, std::int64_t) { return elementwise(OpKind::cast, d, s, 1, 1); },
      [](O, Dtype d, Size s, std::int64_t) { return elementwise(OpKind::zero_fill, d, s, 0, 1); },
      [](O, Dtype d, Size s, std::int64_t) { return bias_gradient(d, s); },
      [](O o, Dtype d, Size s, std::int64_t v) { return embedding(o, d, s, v, false); },
      [](O o, Dtype d, Size s, std::int64_t v) { return embedding(o, d, s, v, true); },
      [](O o, Dtype d, Size s, std::int64_t v) { return cross_entropy(o, d, s, v, false); },
      [](O o, Dtype d, Size s, std::int64_t v) { return cross_entropy(o, d, s, v, true); },
      [](O, Dtype d, Size s, std::int64_t) { return softmax(d, s, false); },
      [](O, Dtype d, Size s, std::int64_t) { return softmax(d, s, true); },
      [](O, Dtype d, Size s, std::int64_t) { return merge_attention(d, s); },
      [](O, Dtype d, Size s, std::int64_t) { return pool(d, s, false); },
      [](O, Dtype d, Size s, std::int64_t) { return pool(d, s, true); },
      [](O, Dtype d, Size s, std::int64_t) { return optimizer(OpKind::gradient_norm, d, s, false); },
      [](O, Dtype d, Size s, std::int64_t) { return optimizer(OpKind::scale, d, s, false); },
      [](O, Dtype d, Size s, std::int64_t v) { return optimizer(OpKind::adam, d, s, d != Dtype::fp32 && v % 2 == 1); },
      [](O, Dtype d, Size s, std::int64_t v) { return optimizer(OpKind::sgd, d, s, d != Dtype::fp32 && v % 2 == 1); },
  };
  return makers;
}

void add_memory_bound(const SweepOptions& o, std::vector<KernelPoint>& points) {
  for (const Maker& make : memory_makers()) {
    std::set<std::string> seen;
    const std::int64_t most_draws = 20 * o.of_a_kind;
    for (std::int64_t i = 0, made = 0; made < o.of_a_kind && i < most_draws; ++i) {
      // The second point measures fixed time only.
      const Size size{made == 1 ? 1 : size_between(o.least_tokens, o.most_tokens, halton(i, 2)),
                      made == 1 ? o.least_hidden : size_between(o.least_hidden, 4 * o.most_hidden, halton(i, 3))};
      KernelPoint p = make(o, o.dtypes.front(), size, i);
      double largest = 0;
      for (const Tensor& t : p.tensors)
        if (t.find(Axis::vocab) != 0) largest = std::max(largest, static_cast<double>(t.elements()));
      if (largest > o.most_elements || !seen.insert(p.id).second) continue;
      points.push_back(std::move(p));
      ++made;
    }
  }
}

// Copies between the memories of the host and its device.
void add_copies(const SweepOptions& o, std::span<const std::int64_t> kilobytes, std::vector<KernelPoint>& points) {
  for (const bool up : {true, false})
    for (const std::int64_t size : kilobytes) {
      PointBuilder b(OpKind::copy);
      b.op().stream = up ? Stream::host_to_device : Stream::device_to_host;
      const Tensor bytes = tensor("bytes", Dtype::fp32, {{size * 1024 / bytes_of(Dtype::fp32, 1), Axis::none}});
      if (static_cast<double>(bytes.elements()) > 16 * o.most_elements) continue;
      Tensor on_host = bytes;
      on_host.place = Place::host;
      b.read(up ? on_host : bytes);
      b.write(up ? bytes : on_host);
      const std::string way = name_of(Direction{Place::device, up ? Place::device : Place::host});
      points.push_back(b.done(fmt::format("copy {}", way), fmt::format("{} {} KiB", way, size)));
    }
}

}  // namespace

SweepOptions cpu_sweep() { return {}; }

SweepOptions gpu_sweep(std::vector<Dtype> dtypes) {
  SweepOptions o;
  o.dtypes = std::move(dtypes);
  o.least_hidden = 256, o.most_hidden = 12288;
  o.least_tokens = 128, o.most_tokens = 16384;
  o.most_vocabulary = 131072;
  o.most_sequence = 16384;
  o.most_flops = 2e13;
  o.most_elements = 3e8;
  o.products = 200;
  o.overlap_sequences = {32768, 65536, 131072, 262144};  // at these lengths MEMO and FPDT copy during attention
  return o;
}

std::vector<KernelPoint> sweep(const SweepOptions& options) {
  std::vector<KernelPoint> points;
  for (const Dtype dtype : options.dtypes) {
    add_products(options, dtype, points);
    add_attention(options, dtype, points);
  }
  add_memory_bound(options, points);
  constexpr std::array<std::int64_t, 7> kKilobytes{4, 64, 1024, 4096, 16384, 65536, 262144};
  add_copies(options, kKilobytes, points);

  // The fraction of its group that is measured before a point.
  std::map<std::string, std::int64_t> sizes, numbers;
  const auto group_of = [](const KernelPoint& p) {
    return p.group + (p.op.kind == OpKind::attention_backward ? " backward" : "");
  };
  for (const KernelPoint& p : points) ++sizes[group_of(p)];
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const std::int64_t number = numbers[group_of(points[i])]++;
    points[i].held_out = number % options.held_out_every == options.held_out_every - 1;
    order.emplace_back((static_cast<double>(number) + 0.5) / static_cast<double>(sizes[group_of(points[i])]), i);
  }
  std::sort(order.begin(), order.end());
  std::vector<KernelPoint> sorted;
  for (const auto& [key, i] : order) sorted.push_back(std::move(points[i]));
  return sorted;
}

std::vector<KernelPoint> overlap_products(const SweepOptions& options) {
  const auto at = [&](OpKind kind, double share) {
    const std::int64_t tokens = size_between(options.least_tokens, options.most_tokens, share);
    const std::int64_t hidden = size_between(options.least_hidden, options.most_hidden, share);
    return product(kind, options.dtypes.front(), tokens, 4 * hidden, hidden, /*bias=*/false, /*transposed=*/false);
  };
  // Sizes in the upper half of the sweep's range.
  std::vector<KernelPoint> points{at(OpKind::linear, 0.5), at(OpKind::linear_input_gradient, 0.65),
                                  at(OpKind::linear_weight_gradient, 0.8)};
  std::erase_if(points, [&](const KernelPoint& p) { return flops_of(p) > options.most_flops; });
  return points;
}

std::vector<KernelPoint> overlap_attentions(const SweepOptions& options) {
  constexpr std::int64_t kHeads = 2, kHeadDim = 128;  // enough blocks of queries to fill a device several times
  std::vector<KernelPoint> points;
  for (const std::int64_t sequence : options.overlap_sequences)
    for (const bool backward : {false, true})
      points.push_back(attention(backward, options.dtypes.front(), 1, sequence, kHeads, kHeadDim, /*causal=*/true,
                                 /*fused=*/false));
  return points;
}

std::vector<KernelPoint> overlap_copies(const SweepOptions& options) {
  constexpr std::array<std::int64_t, 2> kKilobytes{16384, 65536};  // long enough to run at the link's full rate
  std::vector<KernelPoint> points;
  add_copies(options, kKilobytes, points);
  return points;
}

}  // namespace orrery
