#include "realrun/calibrate/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "sim/cost/kernel_cost.h"
#include "sim/program/work.h"

namespace orrery {
namespace {

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

// A product of a linear layer for `tokens` tokens, from `k` to `n` features: the forward or one of the backwards.
KernelPoint product(OpKind kind, Dtype dtype, std::int64_t tokens, std::int64_t n, std::int64_t k, bool bias,
                    bool transposed) {
  const bool forward = kind == OpKind::linear, of_weight = kind == OpKind::linear_weight_gradient;
  const std::string weight = transposed ? "nk" : "kn";
  bias = bias && forward;
  StandAloneOp op = stand_alone_op(
      kind, of_weight ? "mk mn" : fmt::format("{} {}{}", forward ? "mk" : "mn", weight, bias ? " n" : ""),
      of_weight ? weight + ":fp32"
      : forward ? "mn"
                : "mk",
      {{"m", tokens}, {"n", n}, {"k", k}}, dtype);
  op.op.transposed_weight = transposed;
  op.op.accumulate = of_weight;  // into main gradients
  return {std::move(op),
          fmt::format("{} {} {} x {} x {}{}{}", name_of(kind), name_of(dtype), tokens, n, k, bias ? " bias" : "",
                      transposed ? " transposed" : ""),
          fmt::format("matmul {}", name_of(dtype))};
}

bool has_too_many_flops(const SweepOptions& o, const KernelPoint& p) { return flops(p.op, p.tensors) > o.most_flops; }
bool has_too_large_tensors(const SweepOptions& o, const KernelPoint& p) {
  return std::ranges::any_of(p.tensors, [&](const Tensor& t) {
    return t.find(Axis::vocab) != 0 && static_cast<double>(t.elements()) > o.most_elements;
  });
}

// Adds `count` different points that are not too_large, of which draw(i, made) is the i-th. The number of draws is
// bounded, as there may not be enough.
template <class Draw>
void add_drawn(const SweepOptions& o, std::int64_t count, std::vector<KernelPoint>& points,
               bool (*too_large)(const SweepOptions&, const KernelPoint&), Draw draw) {
  std::set<std::string> seen;
  const std::int64_t most_draws = 20 * count;
  for (std::int64_t i = 0, made = 0; made < count && i < most_draws; ++i) {
    KernelPoint p = draw(i, made);
    if (too_large(o, p) || !seen.insert(p.id).second) continue;
    points.push_back(std::move(p));
    ++made;
  }
}

void add_products(const SweepOptions& o, Dtype dtype, std::vector<KernelPoint>& points) {
  constexpr std::array kinds{OpKind::linear, OpKind::linear_input_gradient, OpKind::linear_weight_gradient};
  add_drawn(o, o.products, points, has_too_many_flops, [&](std::int64_t i, std::int64_t) {
    const std::int64_t tokens = size_between(o.least_tokens, o.most_tokens, halton(i, 2));
    const std::int64_t hidden = size_between(o.least_hidden, o.most_hidden, halton(i, 3));
    // Widths n and k of a layer's products: fused QKV, projection, up, down. Then a head, and one with any aspect
    // ratio.
    constexpr std::array<std::array<std::int64_t, 2>, 4> kWidths{{{3, 1}, {1, 1}, {4, 1}, {1, 4}}};
    constexpr auto kLayers = std::int64_t{kWidths.size()} + 2;
    const auto layer = static_cast<std::size_t>(i % kLayers);
    const bool transposed = layer == kWidths.size();
    std::int64_t n = 0, k = hidden;
    if (layer < kWidths.size())
      n = kWidths[layer][0] * hidden, k = kWidths[layer][1] * hidden;
    else if (transposed)
      n = size_between(o.most_vocabulary / 32, o.most_vocabulary, halton(i, 5));
    else
      n = size_between(o.least_hidden, 4 * o.most_hidden, halton(i, 5));
    return product(kinds[static_cast<std::size_t>(i / kLayers) % kinds.size()], dtype, tokens, n, k,
                   i / (kLayers * static_cast<std::int64_t>(kinds.size())) % 2 == 0, transposed);
  });
}

KernelPoint attention(bool backward, Dtype dtype, std::int64_t batch, std::int64_t sequence, std::int64_t heads,
                      std::int64_t head_dim, bool causal, bool fused) {
  const OpKind kind = backward ? OpKind::attention_backward : OpKind::attention;
  const std::string inputs = fused ? "fused" : "queries kv";
  StandAloneOp op =
      stand_alone_op(kind, backward ? "queries queries lse " + inputs : inputs, backward ? inputs : "queries lse",
                     {{"batch", batch}, {"sequence", sequence}, {"groups", heads}, {"head_dim", head_dim}}, dtype);
  op.op.causal = causal;
  return {std::move(op),
          fmt::format("{} {} {} x {} x {} x {}{}{}", name_of(kind), name_of(dtype), batch, sequence, heads, head_dim,
                      causal ? " causal" : "", fused ? "" : " apart"),
          fmt::format("attention {}", name_of(dtype))};
}

void add_attention(const SweepOptions& o, Dtype dtype, std::vector<KernelPoint>& points) {
  constexpr std::array<std::int64_t, 4> kHeadDims{64, 32, 128, 96};
  for (const bool backward : {false, true})
    add_drawn(o, o.attentions, points, has_too_many_flops, [&](std::int64_t i, std::int64_t) {
      const std::int64_t sequence = size_between(o.least_tokens, o.most_sequence, halton(i, 2));
      const std::int64_t heads = size_between(1, 16, halton(i, 3));
      const std::int64_t batch = size_between(1, std::max<std::int64_t>(1, o.most_tokens / sequence), halton(i, 5));
      const std::int64_t head_dim = kHeadDims[static_cast<std::size_t>(i) % kHeadDims.size()];
      // Most training uses causal attention with queries, keys and values in one tensor.
      return attention(backward, dtype, batch, sequence, heads, head_dim, i % 3 != 2, i % 5 != 4);
    });
}

// The sizes that a kind of memory-bound kernels takes from a number of tokens and a width.
enum class Layout : std::uint8_t { rows, heads, squares, table, logits, pooled, flat };

struct MemoryKind {
  OpKind kind;
  const char *reads, *writes;
  Layout layout = Layout::rows;
  ActivationFunction function = {};
};

const std::vector<MemoryKind>& memory_kinds() {
  using enum OpKind;
  using enum ActivationFunction;
  static const std::vector<MemoryKind> kinds{
      {norm, "x row row", "x layer_statistics"},
      {norm_backward, "x x row layer_statistics", "x row:fp32 row:fp32"},
      {norm, "x row", "x rms_statistics"},
      {norm_backward, "x x row rms_statistics", "x row:fp32"},
      {rotary, "fused", "fused", Layout::heads},
      {rotary_backward, "fused", "fused", Layout::heads},
      {activation, "wide", "wide", Layout::rows, gelu},
      {activation_backward, "wide wide", "wide", Layout::rows, gelu},
      {activation, "wide ffn_row", "wide", Layout::rows, gelu},
      {activation_backward, "wide wide ffn_row", "wide", Layout::rows, gelu},
      {activation, "gated", "wide", Layout::rows, swiglu},
      {activation_backward, "wide gated", "gated", Layout::rows, swiglu},
      {activation, "gated", "wide", Layout::rows, geglu},
      {activation_backward, "wide gated", "gated", Layout::rows, geglu},
      {activation, "wide", "wide", Layout::rows, relu},
      {activation_backward, "wide wide", "wide", Layout::rows, relu},
      {activation, "wide ffn_row", "wide", Layout::rows, relu},
      {activation_backward, "wide wide ffn_row", "wide", Layout::rows, relu},
      {activation, "wide", "wide", Layout::rows, relu2},
      {activation_backward, "wide wide", "wide", Layout::rows, relu2},
      {activation, "wide", "wide", Layout::rows, quick_gelu},
      {activation_backward, "wide wide", "wide", Layout::rows, quick_gelu},
      {dropout, "x", "x mask"},
      {dropout_backward, "x mask", "x"},
      {dropout_add, "x x", "x mask"},
      {dropout_add, "x x row", "x mask"},
      {add, "x x", "x"},
      {add, "x x row", "x"},
      {multiply, "x x", "x"},
      {cast, "x", "x"},
      {zero_fill, "", "x"},
      {quantise, "x", "codes code_scales"},
      {dequantise, "codes code_scales", "x"},
      {requantise, "codes code_scales", "codes code_scales"},
      {bias_gradient, "x", "row:fp32"},
      {embedding, "ids table", "x", Layout::table},
      {embedding_backward, "ids x", "table:fp32", Layout::table},
      {cross_entropy, "logits ids", "logit_statistics", Layout::logits},
      {cross_entropy_backward, "logits ids logit_statistics", "logits", Layout::logits},
      {softmax, "attention_scores", "attention_scores", Layout::squares},
      {softmax_backward, "attention_scores probabilities", "attention_scores", Layout::squares},
      {merge_attention, "queries lse queries lse", "queries lse", Layout::heads},
      {pool, "x", "pooled", Layout::pooled},
      {pool_backward, "pooled", "x", Layout::pooled},
      {gradient_norm, "flat:fp32", "norm", Layout::flat},
      {scale, "flat:fp32", "flat:fp32", Layout::flat},
      {subtract, "flat:fp32 flat", "flat", Layout::flat},
      {adam, "flat:fp32 flat moment moment", "=1 =2 =3", Layout::flat},
      {sgd, "flat:fp32 flat moment", "=1 =2", Layout::flat},
  };
  return kinds;
}

// `tokens` x `width` elements in most layouts. The variant draws what else a size has.
KernelPoint memory_point(const SweepOptions& o, MemoryKind kind, std::int64_t tokens, std::int64_t width,
                         std::int64_t variant) {
  constexpr std::int64_t kHeadDim = 64, kPooled = 16;  // kPooled: tokens of a sequence
  const Dtype dtype = o.dtypes.front();
  const std::int64_t vocabulary = size_between(o.most_vocabulary / 32, o.most_vocabulary, halton(variant, 5));
  Sizes sizes{{"sequence", tokens}, {"hidden", width}};
  std::string more;  // of the id
  switch (kind.layout) {
    case Layout::rows:
      break;
    case Layout::heads:
      sizes["groups"] = std::max<std::int64_t>(1, width / kHeadDim);
      sizes["head_dim"] = kHeadDim;
      width = sizes["groups"] * kHeadDim;
      break;
    case Layout::squares:
      sizes["groups"] = std::max<std::int64_t>(1, width / tokens);
      more = fmt::format(" x {}", sizes["groups"]);
      width = tokens;
      break;
    case Layout::table:
      sizes["vocab"] = vocabulary;
      more = fmt::format(" of {}", vocabulary);
      break;
    case Layout::logits:
      width = sizes["vocab"] = vocabulary;
      tokens = std::min(tokens, std::max<std::int64_t>(1, static_cast<std::int64_t>(o.most_elements) / width));
      sizes["sequence"] = tokens;
      break;
    case Layout::pooled:
      sizes["batch"] = std::max<std::int64_t>(1, tokens / kPooled);
      sizes["sequence"] = kPooled;
      tokens = sizes["batch"] * kPooled;
      break;
    case Layout::flat:
      width = sizes["elements"] = tokens * width;
      tokens = 1;
      // Every other one has fp32 masters, and then writes the parameters too.
      if (dtype == Dtype::fp32 || variant % 2 == 0) break;
      if (kind.kind == OpKind::adam) kind.reads = "flat:fp32 flat:fp32 moment moment", kind.writes = "flat =1 =2 =3";
      if (kind.kind == OpKind::sgd) kind.reads = "flat:fp32 flat:fp32 moment", kind.writes = "flat =1 =2";
      if (kind.kind == OpKind::adam || kind.kind == OpKind::sgd) more = " master";
      break;
  }
  StandAloneOp op = stand_alone_op(kind.kind, kind.reads, kind.writes, sizes, dtype);
  op.op.function = kind.function;
  op.op.causal = kind.layout == Layout::squares;
  const std::string name = memory_curve_name(op.op);
  if (name.starts_with("norm")) op.op.epsilon = 1e-5f;
  if (name.starts_with("dropout")) op.op.probability = 0.1f;
  op.op.accumulate = kind.kind == OpKind::norm_backward || kind.kind == OpKind::embedding_backward ||
                     kind.kind == OpKind::bias_gradient;
  return {std::move(op), fmt::format("{} {} x {}{}", name, tokens, width, more), "memory " + name};
}

void add_memory_bound(const SweepOptions& o, std::vector<KernelPoint>& points) {
  for (const MemoryKind& kind : memory_kinds())
    add_drawn(o, o.of_a_kind, points, has_too_large_tensors, [&](std::int64_t i, std::int64_t made) {
      if (made == 1) return memory_point(o, kind, 1, o.least_hidden, i);  // measures fixed time only
      return memory_point(o, kind, size_between(o.least_tokens, o.most_tokens, halton(i, 2)),
                          size_between(o.least_hidden, 4 * o.most_hidden, halton(i, 3)), i);
    });
}

// Copies between the memories of the host and its device.
void add_copies(const SweepOptions& o, std::span<const std::int64_t> kilobytes, std::vector<KernelPoint>& points) {
  for (const bool up : {true, false})
    for (const std::int64_t size : kilobytes) {
      StandAloneOp op = stand_alone_op(OpKind::copy, "flat:fp32", "flat:fp32",
                                       {{"elements", size * 1024 / bytes_of(Dtype::fp32, 1)}}, Dtype::fp32);
      op.op.stream = up ? Stream::host_to_device : Stream::device_to_host;
      op.tensors[up ? op.op.reads[0] : op.op.writes[0]].place = Place::host;
      if (static_cast<double>(op.tensors[0].elements()) > 16 * o.most_elements) continue;
      const std::string way = name_of(Direction{Place::device, up ? Place::device : Place::host});
      points.push_back({std::move(op), fmt::format("{} {} KiB", way, size), fmt::format("copy {}", way)});
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
  std::erase_if(points, [&](const KernelPoint& p) { return has_too_many_flops(options, p); });
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
