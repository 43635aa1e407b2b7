#include "sim/program/work.h"

#include <algorithm>

namespace orrery {
namespace {

std::int64_t product(const Tensor& t, int first, int last) {
  std::int64_t n = 1;
  for (int i = first; i < last; ++i) n *= t.sizes[i];
  return n;
}

// Pairs (query, key) that attention with this mask touches, over all heads: FlashAttention skips what is masked.
double attended_pairs(const AttentionShape& s) {
  const auto q = static_cast<double>(s.queries), k = static_cast<double>(s.keys);
  double pairs = q * k;
  // Queries align with the last keys, so query i sees k - q + i + 1 keys; the dense half-square is the field's usual count.
  if (s.causal) pairs = q * (k - q) + q * q / 2;
  if (s.window > 0) {
    const double w = static_cast<double>(s.window);
    // A causal window is still filling up during the first w positions.
    pairs = std::min(pairs, s.causal && q == k && w < q ? q * w - w * w / 2 : q * w);
  }
  return pairs * static_cast<double>(s.batch) * static_cast<double>(s.heads);
}

}  // namespace

GemmShape gemm_shape(const Op& op, std::span<const Tensor> tensors) {
  const auto tensor = [&](TensorId id) -> const Tensor& { return tensors[id]; };
  switch (op.kind) {
    case OpKind::linear:
    case OpKind::linear_input_gradient: {
      const Tensor& x = tensor(op.reads[0]);
      const Tensor& w = tensor(op.reads[1]);
      // The contracted dimensions trail x. For a forward they are w's k, for an input gradient w's n.
      const int contracted = op.kind == OpKind::linear ? op.inner_dims : w.rank - op.inner_dims;
      const std::int64_t k = product(x, x.rank - contracted, x.rank);
      return {1, product(x, 0, x.rank - contracted), w.elements() / k, k};
    }
    case OpKind::linear_weight_gradient: {
      const Tensor& x = tensor(op.reads[0]);
      const Tensor& dw = tensor(op.writes[0]);
      const std::int64_t tokens = product(x, 0, x.rank - op.inner_dims);
      const std::int64_t k = product(x, x.rank - op.inner_dims, x.rank);
      return {1, k, dw.elements() / k, tokens};
    }
    case OpKind::batched_matmul: {
      const Tensor& a = tensor(op.reads[0]);
      const Tensor& c = tensor(op.writes[0]);
      const int last = a.rank - 1;
      const std::int64_t k = op.transpose_a ? a.sizes[last - 1] : a.sizes[last];
      return {product(c, 0, c.rank - 2), c.sizes[c.rank - 2], c.sizes[c.rank - 1], k};
    }
    default:
      return {};
  }
}

AttentionShape attention_shape(const Op& op, std::span<const Tensor> tensors) {
  const bool backward = op.kind == OpKind::attention_backward;
  // q.., kv.. start at reads[0] forward and at reads[3] backward (after dcontext, context, log_sum_exp).
  const Tensor& q = tensors[op.reads[backward ? 3 : 0]];
  const Tensor& context = tensors[backward ? op.reads[1] : op.writes[0]];
  const TensorId kv_id = op.reads[backward ? 4 : 1];
  AttentionShape s;
  s.batch = context.sizes[0];
  s.queries = context.sizes[1];
  s.heads = context.sizes[2] * context.sizes[3];
  s.kv_heads = q.sizes[2];
  s.head_dim = q.sizes[4];
  s.value_head_dim = context.sizes[4];
  s.keys = kv_id == kNoTensor ? s.queries : tensors[kv_id].sizes[1];
  s.causal = op.causal;
  s.window = op.window;
  return s;
}

Direction direction_of(const Op& copy, std::span<const Tensor> tensors) {
  return {tensors[copy.reads[0]].place, tensors[copy.writes[0]].place};
}

std::string name_of(Direction direction) { return std::string("copy_to_") + name_of(direction.to); }

double flops(const Op& op, std::span<const Tensor> tensors) {
  if (is_matmul(op.kind)) {
    const GemmShape g = gemm_shape(op, tensors);
    return 2.0 * static_cast<double>(g.batch) * static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k);
  }
  if (is_attention(op.kind)) {
    const AttentionShape s = attention_shape(op, tensors);
    const double d = static_cast<double>(s.head_dim), dv = static_cast<double>(s.value_head_dim);
    // Forward: S = QK^T, O = PV. Backward: S again, dP = dO V^T, dV = P^T dO, dQ = dS K, dK = dS^T Q.
    const double per_pair = op.kind == OpKind::attention ? 2 * (d + dv) : 2 * (3 * d + 2 * dv);
    return per_pair * attended_pairs(s);
  }
  return 0;
}

double bytes(const Op& op, std::span<const Tensor> tensors) {
  const auto size = [&](TensorId id) { return static_cast<double>(tensors[id].bytes()); };
  const OpTraits& traits = traits_of(op.kind);
  switch (traits.moved) {
    case MovedBytes::operands: {
      double total = 0;
      for (TensorId id : op.reads)
        if (id != kNoTensor) total += size(id);
      const unsigned added = op.accumulate ? traits.accumulates : 0u;
      for (std::size_t i = 0; i < op.writes.size(); ++i)
        if (op.writes[i] != kNoTensor) total += size(op.writes[i]) * ((added >> i & 1u) != 0 ? 2 : 1);
      return total;
    }
    case MovedBytes::rows: {
      // Ids; as many rows of the table as the other operand has. What they are added to is read, too.
      const bool adds = traits.accumulates != 0;
      return size(op.reads[0]) + size(adds ? op.reads[1] : op.writes[0]) * (adds ? 3 : 2);
    }
    case MovedBytes::payload: {
      double largest = 0;
      for (TensorId id : op.reads)
        if (id != kNoTensor) largest = std::max(largest, size(id));
      for (TensorId id : op.writes)
        if (id != kNoTensor) largest = std::max(largest, size(id));
      return largest;
    }
    case MovedBytes::source:
      return size(op.reads[0]);
  }
  return 0;
}

}  // namespace orrery
