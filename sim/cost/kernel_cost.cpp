#include "sim/cost/kernel_cost.h"

#include <fmt/format.h>

#include <limits>

namespace orrery {
namespace {

// floor(x) for 0 <= x < 2^51, where x is not whole. Adding 1.5 * 2^52 leaves no bits for fractions and rounds to the
// nearest; for whole x, x - 0.5 would be an exact half. Without SSE 4.1 std::floor is a call, and a conversion to
// integers is slower.
double whole(double x) {
  constexpr double kNoFractions = 6755399441055744.0;
  return (x - 0.5) + kNoFractions - kNoFractions;
}

// How many `step`s cover `size`, both whole; `per_step` is 1 / step. The half keeps the quotient away from whole
// numbers, on the right side even after rounding.
double cover(double size, double step, double per_step) { return whole((size + step - 0.5) * per_step); }

// cuDNN's backwards in fp8 and MXFP8 skip nothing outside a window (results/calibration/README.md).
bool computes_outside_window(const AttentionShape& shape, Dtype dtype, bool backward) {
  return backward && shape.window > 0 && bits_of(dtype) < bits_of(Dtype::bf16);
}

bool within_factor_2(std::int64_t a, std::int64_t b) { return a <= 2 * b && b <= 2 * a; }

Dtype attention_dtype(const Op& op, std::span<const Tensor> tensors) {
  return tensors[op.reads[queries_operand(op.kind)]].dtype;
}

// Whether a bias is among the operands, for kinds with a curve of their own for that.
bool has_bias(const Op& op) {
  const OpTraits& traits = traits_of(op.kind);
  if (traits.bias_read >= 0) return op.reads[static_cast<std::size_t>(traits.bias_read)] != kNoTensor;
  return traits.bias_write >= 0 && op.writes[static_cast<std::size_t>(traits.bias_write)] != kNoTensor;
}

// The names of an op's curve and of its substitutes, in this order.
std::vector<std::string> names_of_curve(const Op& op) {
  std::vector<std::string> names{name_of(op.kind)};
  if (traits_of(op.kind).functions) names.insert(names.begin(), fmt::format("{}.{}", names[0], name_of(op.function)));
  if (has_bias(op)) names.insert(names.begin(), names.front() + "+bias");
  return names;
}

// A curve counts the time to load operands in steps of k. A curve taken from another type must be converted: a step of
// fp32 loads twice the bytes, and lasts many times as long without matrix units for it.
double latency_in_steps(const Device& device, Dtype dtype, const MatmulCurve& curve) {
  if (curve.measured || dtype != Dtype::fp32) return 1;
  const auto rate = [&](Dtype type) { return device.peak_flops_per_second[static_cast<std::size_t>(type)]; };
  const double half = std::max(rate(Dtype::fp16), rate(Dtype::bf16));
  if (half <= 0) return 1;
  const double bytes = static_cast<double>(bits_of(Dtype::fp32)) / static_cast<double>(bits_of(Dtype::bf16));
  return std::min(1.0, bytes * rate(Dtype::fp32) / half);
}

const MemoryCurve* find_curve(const Calibration& calibration, const Op& op) {
  if (calibration.memory_kinds.empty()) return nullptr;
  for (const std::string& name : names_of_curve(op))
    for (const MemoryCurve& curve : calibration.memory_kinds)
      if (curve.name == name) return &curve;
  return nullptr;
}

// Whether its cost follows from the bytes that it moves: a kernel, but neither a product nor attention.
constexpr bool is_memory_bound(OpKind k) { return is_computation(k) && !is_matmul(k) && !is_attention(k); }

// By kind: the slot of its first variant; one past the last kind: the number of all slots.
constexpr auto kFirstSlot = [] {
  std::array<int, kOpKinds + 1> first{};
  for (std::size_t k = 0; k < kOpKinds; ++k) first[k + 1] = first[k] + curves_of(op_traits::kTable[k]);
  return first;
}();

// An op for which KernelModel::memory_slot() returns `slot`.
Op op_of_slot(int slot) {
  Op op;
  const auto kind = std::upper_bound(kFirstSlot.begin(), kFirstSlot.end(), slot) - kFirstSlot.begin() - 1;
  op.kind = static_cast<OpKind>(kind);
  const int variant = slot - kFirstSlot[static_cast<std::size_t>(kind)];
  if (traits_of(op.kind).functions) op.function = static_cast<ActivationFunction>(variant / 2);
  if (variant % 2 == 1) op.reads = {0, 0, 0, 0, 0, 0}, op.writes = {0, 0, 0, 0};
  return op;
}

}  // namespace

std::size_t KernelModel::memory_slot(const Op& op) {
  static_assert(kFirstSlot.back() == kMemorySlots);
  const int function = traits_of(op.kind).functions ? 2 * static_cast<int>(op.function) : 0;
  return static_cast<std::size_t>(kFirstSlot[static_cast<std::size_t>(op.kind)] + function + (has_bias(op) ? 1 : 0));
}

std::string memory_curve_name(const Op& op) { return names_of_curve(op).front(); }

std::vector<std::string> memory_curve_names() {
  std::vector<std::string> names;
  for (int slot = 0; slot < kFirstSlot.back(); ++slot) {
    const Op op = op_of_slot(slot);
    if (!is_memory_bound(op.kind)) continue;
    for (const std::string& name : names_of_curve(op))
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

std::size_t KernelModel::matrix_index(Dtype dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  return index < kMatrixDtypes ? index : static_cast<std::size_t>(Dtype::fp32);
}

KernelModel::KernelModel(const Device& device, const Calibration& calibration)
    : device_(device), calibration_(calibration) {
  multiprocessors_ = static_cast<double>(std::max<std::int64_t>(device.multiprocessors, 1));
  per_multiprocessor_ = 1 / multiprocessors_;
  seconds_per_byte_ = 1 / (device.memory_bytes_per_second * calibration.memory_efficiency);
  kernel_fixed_seconds_ = calibration.kernel_fixed_seconds;
  for (int slot = 0; slot < kMemorySlots; ++slot) {
    const Op op = op_of_slot(slot);
    Memory& memory = memory_[static_cast<std::size_t>(slot)];
    memory.alone = seconds_per_byte_, memory.fixed_seconds = kernel_fixed_seconds_;
    if (const MemoryCurve* curve = find_curve(calibration, op)) {
      memory.alone = 1 / (device.memory_bytes_per_second * curve->efficiency);
      memory.fixed_seconds = curve->fixed_seconds;
    }
    memory.in_step = memory.alone * (traits_of(op.kind).of_update ? 1 : calibration.memory_bound_slowdown);
  }

  for (std::size_t i = 0; i < kMatrixDtypes; ++i) {
    const auto dtype = static_cast<Dtype>(i);
    // A device without units for the type multiplies in the type to which peak() falls back, with that type's curve.
    Dtype curve_dtype = dtype;
    if (device.peak_flops_per_second[i] <= 0)
      for (std::size_t j = 0; j < kMatrixDtypes; ++j)
        if (device.peak_flops_per_second[j] > 0 && device.peak_flops_per_second[j] == device.peak(dtype))
          curve_dtype = static_cast<Dtype>(j);
    const MatmulCurve& curve = calibration.matmul[static_cast<std::size_t>(curve_dtype)];
    const double peak = device.peak(dtype);
    const double latency = latency_in_steps(device, dtype, curve);

    Matmul& matmul = matmul_[i];
    for (const MatmulTile& tile : curve.tiles) {
      if (matmul.tile_count == kMostTiles) break;
      const auto tm = static_cast<double>(tile.m), tn = static_cast<double>(tile.n);
      const double operands = 1 + latency * curve.operand_cost * (1 / tm + 1 / tn);
      matmul.tiles[static_cast<std::size_t>(matmul.tile_count++)] = {
          tm, tn, 1 / tm, 1 / tn,
          2 * tm * tn * operands * multiprocessors_ * calibration.step_slowdown / (peak * curve.efficiency)};
    }
    matmul.half_k = latency * curve.half_k;
    matmul.split_k = latency * curve.split_k;
    if (curve.sustained_efficiency > 0 && curve.sustained_efficiency < curve.efficiency) {
      matmul.slow_down = curve.efficiency / curve.sustained_efficiency - 1;
      matmul.sustained_seconds = curve.sustained_seconds;
    }
    matmul.seconds_per_byte = 1 / (device.memory_bytes_per_second * curve.memory_efficiency);
    matmul.overlap_loss = curve.overlap_loss;
    matmul.fixed_seconds = curve.fixed_seconds;

    if (!calibration.grouped.empty()) {
      const GroupedCurve& grouped = calibration.grouped[static_cast<std::size_t>(curve_dtype)];
      matmul.group_slowdown = 1 / grouped.relative;
      matmul.group_seconds = grouped.group_seconds;
    }

    matmul.measured = curve.measured;
    matmul.curve_dtype = curve_dtype;
  }

  for (std::size_t i = 0; i < attention_.size(); ++i) {
    const Dtype dtype = i < kMatrixDtypes ? static_cast<Dtype>(i) : Dtype::mxfp8;
    const AttentionCurve& curve = calibration.attention_of(dtype);
    const bool narrow = bits_of(dtype) < bits_of(Dtype::bf16);
    const double peak = device.peak(!narrow ? dtype : curve.dtype == dtype ? Dtype::fp8 : Dtype::bf16);
    const auto backward = [](double its, double as_forward) { return its < 0 ? as_forward : its; };
    attention_[i] = {&curve,
                     peak,
                     {calibration.step_slowdown / (peak * curve.forward_efficiency),
                      calibration.step_slowdown / (peak * curve.backward_efficiency)},
                     {curve.forward_last_wave * multiprocessors_, curve.backward_last_wave * multiprocessors_},
                     {curve.half_head_dim, backward(curve.backward_half_head_dim, curve.half_head_dim)},
                     {curve.forward_least_head_dim, 0},
                     {curve.masked_share, backward(curve.backward_masked_share, curve.masked_share)},
                     {curve.forward_window_edge, curve.backward_window_edge}};
  }
}

KernelModel::Times KernelModel::matmul_times(const GemmShape& shape, Dtype dtype, bool grouped, double bytes) const {
  const Matmul& curve = matmul_[matrix_index(dtype)];
  const auto batch = static_cast<double>(shape.batch), m = static_cast<double>(shape.m),
             n = static_cast<double>(shape.n), k = static_cast<double>(shape.k);
  const double whole_k = k + curve.half_k;
  double compute = std::numeric_limits<double>::max();
  for (int i = 0; i < curve.tile_count; ++i) {
    const Tile& tile = curve.tiles[static_cast<std::size_t>(i)];
    const double tiles = batch * cover(m, tile.rows, tile.per_row) * cover(n, tile.columns, tile.per_column);
    const double waves = cover(tiles, multiprocessors_, per_multiprocessor_);
    double steps = waves * whole_k;
    if (2 * tiles <= multiprocessors_)
      steps = std::min(steps, k / whole((multiprocessors_ + 0.5) / tiles) + curve.half_k + curve.split_k);
    compute = std::min(compute, steps * tile.seconds_per_k);
  }
  if (curve.slow_down > 0) compute *= 1 + curve.slow_down * compute / (compute + curve.sustained_seconds);
  Times times{compute, bytes * curve.seconds_per_byte, curve.fixed_seconds, curve.overlap_loss};
  if (grouped) {
    times.compute *= curve.group_slowdown;
    times.fixed += (batch - 1) * curve.group_seconds;
  }
  return times;
}

KernelModel::Times KernelModel::attention_times(const AttentionShape& s, Dtype dtype, bool backward, double flops,
                                                double bytes) const {
  const Attention& attention = attention_of(dtype);
  const std::size_t way = backward ? 1 : 0;
  const double per_pair = flops_per_pair(s, backward);
  const auto head_dim = static_cast<double>(s.head_dim), queries = static_cast<double>(s.queries);
  const std::int64_t keys = s.window > 0 ? std::min(s.window, s.keys) : s.keys;
  const double rows = static_cast<double>(s.batch) * static_cast<double>(s.heads) * queries;
  const double edge = attention.edge_of_window(way, static_cast<double>(s.window), static_cast<double>(s.keys));
  const double idle_pairs =
      rows * (attention.curve->half_sequence + edge) +
      attention.idle_tiles[way] * std::min(static_cast<double>(kAttentionRows), queries) * static_cast<double>(keys);
  double executed = flops;
  if (const double share = attention.masked_share[way]; share > 0)
    executed += share * std::max(0.0, per_pair * rows * static_cast<double>(s.keys) - flops);
  return {(executed + per_pair * idle_pairs) * attention.seconds_per_flop[way] * attention.of_head_dim(way, head_dim),
          bytes * seconds_per_byte_, attention.curve->fixed_seconds};
}

KernelModel::Times KernelModel::document_times(const AttentionShape& s, Dtype dtype, bool backward,
                                               const DocumentPairs& pairs, double bytes) const {
  const Attention& attention = attention_of(dtype);
  const std::size_t way = backward ? 1 : 0;
  const double heads = static_cast<double>(s.batch) * static_cast<double>(s.heads);
  const double edge = attention.edge_of_window(way, static_cast<double>(s.window), pairs.longest);
  const double idle =
      heads * (pairs.idle_pairs + (pairs.queries + pairs.idle_queries) * (attention.curve->half_sequence + edge)) +
      attention.idle_tiles[way] * std::min(static_cast<double>(kAttentionRows), pairs.queries) * pairs.longest;
  const double masked = attention.masked_share[way] * std::max(0.0, pairs.rectangle - pairs.counted);
  return {flops_per_pair(s, backward) * (heads * (pairs.counted + masked) + idle) * attention.seconds_per_flop[way] *
              attention.of_head_dim(way, static_cast<double>(s.head_dim)),
          bytes * seconds_per_byte_, attention.curve->fixed_seconds};
}

bool KernelModel::near_measured(const GemmShape& shape, Dtype dtype, bool grouped) const {
  const Matmul& curve = matmul_[matrix_index(dtype)];
  grouped = grouped && shape.batch > 1;
  if (!curve.measured || (shape.batch > 1 && !grouped)) return false;
  // fp16 and bf16 run on the same units at the same rate, so measurements of one hold for the other.
  const auto units_of = [](Dtype type) { return type == Dtype::fp16 ? Dtype::bf16 : type; };
  return std::ranges::any_of(
      grouped ? calibration_.measured_groups : calibration_.measured_shapes, [&](const MeasuredShape& s) {
        // A product and its transpose are the same kernel.
        const auto near = [&](std::int64_t m, std::int64_t n) {
          return within_factor_2(m, s.m) && within_factor_2(n, s.n);
        };
        return units_of(s.dtype) == units_of(curve.curve_dtype) && within_factor_2(shape.k, s.k) &&
               (near(shape.m, shape.n) || near(shape.n, shape.m));
      });
}

bool KernelModel::near_measured(const AttentionShape& shape) const {
  return std::any_of(calibration_.measured_attention.begin(), calibration_.measured_attention.end(),
                     [&](const MeasuredAttention& m) {
                       return within_factor_2(shape.keys, m.sequence) && within_factor_2(shape.head_dim, m.head_dim);
                     });
}

bool KernelModel::near_measured(const Op& op, std::span<const Tensor> tensors) const {
  if (is_matmul(op.kind)) return near_measured(gemm_shape(op, tensors), op.compute_dtype, op.group_dims > 0);
  return !is_attention(op.kind) || near_measured(attention_shape(op, tensors));
}

KernelModel::Times KernelModel::times_of(const Op& op, std::span<const Tensor> tensors, const DocumentPairs* documents,
                                         double bytes, double& flops) const {
  if (is_matmul(op.kind)) {
    const GemmShape shape = gemm_shape(op, tensors);
    flops = 2.0 * static_cast<double>(shape.batch) * static_cast<double>(shape.m) * static_cast<double>(shape.n) *
            static_cast<double>(shape.k);
    return matmul_times(shape, op.compute_dtype, op.group_dims > 0, bytes);
  }
  if (is_attention(op.kind)) {
    const AttentionShape shape = attention_shape(op, tensors);
    const bool backward = op.kind == OpKind::attention_backward;
    const Dtype dtype = attention_dtype(op, tensors);
    if (documents == nullptr) {
      flops = orrery::flops(op, tensors);
      if (!computes_outside_window(shape, dtype, backward))
        return attention_times(shape, dtype, backward, flops, bytes);
      Op whole = op;
      whole.window = 0;
      return attention_times(attention_shape(whole, tensors), dtype, backward, orrery::flops(whole, tensors), bytes);
    }
    flops = flops_per_pair(shape, backward) * documents->counted * static_cast<double>(shape.batch) *
            static_cast<double>(shape.heads);
    return document_times(shape, dtype, backward, *documents, bytes);
  }
  const Memory& curve = memory_[memory_slot(op)];
  return {0, bytes * curve.seconds_per_byte(op), op.passes * curve.fixed_seconds};
}

KernelCost KernelModel::cost(const Op& op, std::span<const Tensor> tensors, const DocumentPairs* documents) const {
  KernelCost result;
  result.bytes = bytes(op, tensors);
  const Times times = times_of(op, tensors, documents, result.bytes, result.flops);
  result.seconds = times.seconds();
  result.bound = times.fixed > std::max(times.compute, times.memory) ? KernelCost::Bound::fixed
                 : times.compute > times.memory                      ? KernelCost::Bound::compute
                                                                     : KernelCost::Bound::memory;
  return result;
}

namespace {

std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }

std::string describe(const Residual& r) {
  if (r.points == 0) return "no measured points of its own";
  return fmt::format("{} points, median error {}, 90th percentile {}", r.points, percent(r.median),
                     percent(r.percentile_90));
}

std::string micro(double seconds) { return fmt::format("{:.2f} us", 1e6 * seconds); }

}  // namespace

std::string KernelModel::explain(const Op& op, std::span<const Tensor> tensors, const DocumentPairs* documents) const {
  const KernelCost total = cost(op, tensors, documents);
  double flops = 0;
  const Times t = times_of(op, tensors, documents, total.bytes, flops);
  std::string text = fmt::format("{} ({}) on {}: {}\n", op.name, name_of(op.kind), device_.name, micro(total.seconds));
  if (is_matmul(op.kind)) {
    const GemmShape shape = gemm_shape(op, tensors);
    const std::size_t index = matrix_index(op.compute_dtype);
    const MatmulCurve& curve = calibration_.matmul[index];
    const bool grouped = op.group_dims > 0 && !calibration_.grouped.empty();
    const double peak = device_.peak(op.compute_dtype);
    text += fmt::format("  {} x [{} x {}] . [{} x {}], {}: {:.4g} FLOP, {:.4g} bytes\n", shape.batch, shape.m, shape.k,
                        shape.k, shape.n, name_of(op.compute_dtype), total.flops, total.bytes);
    text += fmt::format(
        "  = fixed {} + max(compute {}, memory {}) + {} of the shorter\n"
        "  compute: waves of tiles over {} multiprocessors, {} of the {:.4g} FLOP/s peak for very large shapes,\n"
        "    {:.0f} steps of k before and after each tile, operand cost {:.3g} rows; this shape reaches {} of the "
        "peak\n",
        micro(curve.fixed_seconds), micro(t.compute), micro(t.memory), percent(curve.overlap_loss),
        device_.multiprocessors, percent(curve.efficiency), peak, curve.half_k, curve.operand_cost,
        percent(total.flops / (total.seconds * peak)));
    if (grouped) {
      const GroupedCurve& curve_of_groups = calibration_.grouped[index];
      text += fmt::format(
          "  {} groups: at {} of the rate of one batched product, and {} for every group but the first; curve: {}{}\n",
          shape.batch, percent(curve_of_groups.relative), micro(curve_of_groups.group_seconds),
          curve_of_groups.source.empty() ? "as products" : curve_of_groups.source,
          curve_of_groups.borrowed_from.empty()
              ? "; " + describe(curve_of_groups.residual)
              : fmt::format(" (of {}); {}", curve_of_groups.borrowed_from, describe(curve_of_groups.residual)));
    }
    if (matmul_[index].slow_down > 0)
      text += fmt::format("    power limit: {} of the peak where compute lasts much longer than {}\n",
                          percent(curve.sustained_efficiency), micro(curve.sustained_seconds));
    text += fmt::format("  memory: {} of {:.4g} bytes/s\n", percent(curve.memory_efficiency),
                        device_.memory_bytes_per_second);
    text += fmt::format("  curve: {}{}; {}\n", calibration_.source, curve.measured ? "" : " (taken from another dtype)",
                        describe(curve.residual));
  } else if (is_attention(op.kind)) {
    const AttentionShape s = attention_shape(op, tensors);
    const bool backward = op.kind == OpKind::attention_backward;
    const Dtype dtype = attention_dtype(op, tensors);
    const Attention& attention = attention_of(dtype);
    const AttentionCurve& curve = *attention.curve;
    const double peak = attention.peak;
    text += fmt::format("  {} x {} heads, {} queries, {} keys{}{}, head_dim {}, {}: {:.4g} FLOP, {:.4g} bytes\n",
                        s.batch, s.heads, s.queries, s.keys, s.causal ? ", causal" : "",
                        s.window > 0 ? fmt::format(", window {}", s.window) : "", s.head_dim, name_of(dtype),
                        total.flops, total.bytes);
    text += fmt::format(
        "  = fixed {} + max(compute {}, memory {})\n"
        "  compute: {} of the {:.4g} FLOP/s peak for very large shapes, half of it at {:.0f} keys and at head_dim "
        "{:.0f},\n"
        "    last wave {:.2f} of a tile; this shape reaches {} of the peak\n",
        micro(curve.fixed_seconds), micro(t.compute), micro(t.memory),
        percent(backward ? curve.backward_efficiency : curve.forward_efficiency), peak, curve.half_sequence,
        attention.half_head_dim[backward ? 1 : 0], backward ? curve.backward_last_wave : curve.forward_last_wave,
        percent(total.flops / (total.seconds * peak)));
    if (computes_outside_window(s, dtype, backward))
      text += "    computes what lies outside the window, too\n";
    else if (s.window > 0)
      text += fmt::format(
          "    the edge of the window costs each query {:.0f} keys more\n",
          attention.edge_of_window(backward ? 1 : 0, static_cast<double>(s.window),
                                   documents == nullptr ? static_cast<double>(s.keys) : documents->longest));
    if (const double least = attention.least_head_dim[backward ? 1 : 0]; static_cast<double>(s.head_dim) < least)
      text += fmt::format("    times {:.0f} / head_dim: a smaller head_dim does not shrink the softmax\n", least);
    if (documents != nullptr)
      text += fmt::format(
          "    within documents: {:.4g} pairs of a sequence and head, {:.4g} more in the tiles of {} queries that end "
          "with a document\n",
          documents->counted, documents->idle_pairs, kAttentionRows);
    if (const double share = attention.masked_share[backward ? 1 : 0]; share > 0)
      text += fmt::format("    {} of the masked pairs are computed anyway\n", percent(share));
    text += fmt::format("  curve: {}{}, {}; {}\n", curve.name,
                        calibration_.attention_borrowed_from.empty()
                            ? ""
                            : " of " + calibration_.attention_borrowed_from + " (relative to the peak)",
                        curve.source, describe(curve.residual));
  } else {
    const MemoryCurve* kind = find_curve(calibration_, op);
    text += fmt::format("  = fixed {} + {:.4g} bytes / ({} of {:.4g} bytes/s)\n", micro(t.fixed), total.bytes,
                        percent(kind != nullptr ? kind->efficiency : calibration_.memory_efficiency),
                        device_.memory_bytes_per_second);
    if (op.passes == 0) text += "  the kernel of the cast before it writes this result, too: nothing is read again\n";
    if (op.passes > 1) text += fmt::format("  {} kernels, each of which reads the operand\n", op.passes);
    text += fmt::format("  curve: {}{}; {}\n", kind != nullptr ? fmt::format("of the kind {}, ", kind->name) : "",
                        calibration_.memory_source,
                        describe(kind != nullptr ? kind->residual : calibration_.memory_residual));
  }
  const bool memory_bound = !is_matmul(op.kind) && !is_attention(op.kind);
  const bool in_update = op.phase == Phase::update || traits_of(op.kind).of_update;
  const double slowdown = !memory_bound ? calibration_.step_slowdown
                          : in_update   ? 1
                                        : calibration_.memory_bound_slowdown;
  if (slowdown != 1)
    text += fmt::format(
        "  {} times {:.3f}: kernels in a training step relative to kernels alone (results/calibration/steps.json)\n",
        memory_bound ? "memory" : "compute", slowdown);
  if (calibration_.measured) {
    text += fmt::format("  calibration: {}, {}\n", calibration_.name, calibration_.date);
  } else {
    text += fmt::format("  calibration: borrowed from {}, {}: {}\n", calibration_.borrowed_from, calibration_.date,
                        calibration_.note);
  }
  if (!near_measured(op, tensors)) text += "  no measured kernel lies within a factor of 2 in every dimension\n";
  return text;
}

}  // namespace orrery
