#include "sim/program/work.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sim/program/load.h"

namespace orrery {
namespace {

std::int64_t product(const Tensor& t, int first, int last) {
  std::int64_t n = 1;
  for (int i = first; i < last; ++i) n *= t.sizes[i];
  return n;
}

std::int64_t floor_of(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

// The positions of a part of a sequence, `count` of them.
struct Dealt {
  Deal deal = Deal::contiguous;
  std::int64_t parts = 1, part = 0, count = 0, first = 0;  // first: first position in the sequence
  std::int64_t begin = 0, end = kNoEnd;
  static constexpr std::int64_t kNoEnd = std::numeric_limits<std::int64_t>::max();
  template <class Visit>
  void for_each_run(Visit&& visit) const {
    for_each_run_of_part(deal, parts, part, parts * count, count, [&](const IndexRange& run) {
      if (run.is_empty_rows()) return;
      const IndexRange of_part{first + run.begin, run.count, run.apart};
      if (end == kNoEnd) return visit(of_part);
      const auto up_to = [&](std::int64_t position) {  // how many of them lie before it
        return std::clamp<std::int64_t>(floor_of(position - of_part.begin - 1, run.apart) + 1, 0, run.count);
      };
      const std::int64_t from = up_to(begin), to = up_to(end);
      if (from < to) visit(of_part.slice(from, to - from));
    });
  }
};

// The pairs with query - key <= most. REQUIRES: the distance between keys is that between queries, or a divisor of it.
std::int64_t pairs_up_to(std::int64_t most, const IndexRange& queries, const IndexRange& keys) {
  const std::int64_t z = floor_of(most - (queries.begin - keys.begin), keys.apart), r = queries.apart / keys.apart,
                     n = keys.count;
  // Query i pairs with n + z - r i keys.
  // The first query that lacks some keys.
  const std::int64_t first = std::clamp<std::int64_t>(floor_of(z, r) + 1, 0, queries.count),
                     // The first query that pairs with none.
      last = std::clamp<std::int64_t>(floor_of(z + n - 1, r) + 1, first, queries.count);
  return first * n + (last - first) * (2 * (n + z) - r * (first + last - 1)) / 2;
}

AttendedPairs pairs_of(bool causal, std::int64_t window, const Dealt& queries, const Dealt& keys) {
  AttendedPairs p;
  if (!causal && window == 0) {
    p.keys = keys.count;
    p.seen = queries.count * p.keys;
    p.counted = static_cast<double>(p.seen);
    return p;
  }
  std::int64_t own = 0, behind = 0;
  keys.for_each_run([&](const IndexRange& k) {
    const std::int64_t before = p.seen;
    queries.for_each_run([&](const IndexRange& q) {
      const auto up_to = [&](std::int64_t most) { return pairs_up_to(most, q, k); };
      const auto at = [&](std::int64_t distance) { return up_to(distance) - up_to(distance - 1); };
      if (!causal) {  // as many positions around the query as the window has
        p.seen += up_to((window - 1) / 2) - up_to(-(window / 2) - 1);
        return;
      }
      p.seen += (window > 0 ? up_to(window - 1) : q.count * k.count) - up_to(-1);
      own += at(0);
      if (window > 0) behind += at(window);
    });
    if (p.seen > before) p.keys += k.count;
  });
  p.counted = static_cast<double>(p.seen) + static_cast<double>(behind - own) / 2;
  return p;
}

const Tensor& queries_of(const Op& op, std::span<const Tensor> tensors) {
  return tensors[op.reads[queries_operand(op.kind)]];
}
const Tensor& keys_of(const Op& op, std::span<const Tensor> tensors) {
  const std::size_t first = queries_operand(op.kind);
  return tensors[op.reads[first + 1] == kNoTensor ? op.reads[first] : op.reads[first + 1]];
}
Dealt queries_of_part(const Op& op, const Tensor& q, std::int64_t part) {
  return {.deal = q.deal(1), .parts = op.parts, .part = part, .count = q.sizes[1]};
}
// The keys of all ranks together.
Dealt all_keys(const Op& op, const Tensor& kv) {
  if (op.parts == 1 || kv.over[1].empty()) return {.count = kv.sizes[1]};
  if (is_table_of_runs(kv.deal(1))) return {.count = kv.table->whole};
  return {.count = kv.sizes[1] * op.parts};
}
// The keys that the op reads for the queries of part `part`.
Dealt keys_of_part(const Op& op, const Tensor& kv, std::int64_t part) {
  if (op.parts == 1 || kv.over[1].empty()) return {.count = kv.sizes[1]};
  return {.deal = kv.deal(1), .parts = op.parts, .part = op.part_of_keys(part), .count = kv.sizes[1]};
}

AttendedPairs pairs_of_busiest(const Op& op, std::span<const Tensor> tensors) {
  const Tensor& q = queries_of(op, tensors);
  std::int64_t busiest = op.parts - 1;  // no rank's queries have more keys before them than the last one's
  if (op.parts > 1 && (op.window > 0 || q.deal(1).table != nullptr)) {
    const Dealt all = all_keys(op, keys_of(op, tensors));
    double most = 0;
    for (std::int64_t part = op.parts; part-- > 0;)
      if (const double own = pairs_of(op.causal, op.window, queries_of_part(op, q, part), all).counted; own > most) {
        most = own;
        busiest = part;
      }
  }
  return attended_pairs(op, tensors, busiest);
}

}  // namespace

GemmShape gemm_shape(const Op& op, std::span<const Tensor> tensors) {
  const auto tensor = [&](TensorId id) -> const Tensor& { return tensors[id]; };
  switch (op.kind) {
    case OpKind::linear:
    case OpKind::linear_input_gradient: {
      const Tensor& x = tensor(op.reads[0]);
      const Tensor& w = tensor(op.reads[1]);
      // The contracted dimensions are the last ones of x: in the forward those of w's k, for an input gradient those of
      // w's n.
      const int contracted = op.kind == OpKind::linear ? op.inner_dims : w.rank - op.group_dims - op.inner_dims;
      const std::int64_t k = product(x, x.rank - contracted, x.rank), groups = product(x, 0, op.group_dims);
      return {groups, product(x, op.group_dims, x.rank - contracted), w.elements() / (groups * k), k};
    }
    case OpKind::linear_weight_gradient: {
      const Tensor& x = tensor(op.reads[0]);
      const Tensor& dw = tensor(op.writes[0]);
      const std::int64_t tokens = product(x, op.group_dims, x.rank - op.inner_dims);
      const std::int64_t k = product(x, x.rank - op.inner_dims, x.rank), groups = product(x, 0, op.group_dims);
      return {groups, k, dw.elements() / (groups * k), tokens};
    }
    case OpKind::mask_permute:
    case OpKind::mask_unpermute:
    case OpKind::mask_gradient: {
      const bool permutes = op.kind == OpKind::mask_permute, gradient = op.kind == OpKind::mask_gradient;
      const Tensor& rows = tensor(permutes ? op.writes[0] : op.reads[gradient ? 1 : 0]);
      const Tensor& x = tensor(permutes || gradient ? op.reads[0] : op.writes[0]);
      const std::int64_t width = rows.sizes[rows.rank - 1], all = rows.elements() / width,
                         tokens = x.elements() / width;
      if (permutes) return {1, all, width, tokens};
      return gradient ? GemmShape{1, tokens, all, width} : GemmShape{1, tokens, width, all};
    }
    case OpKind::batched_matmul: {
      const Tensor& a = tensor(op.reads[0]);
      const Tensor& c = tensor(op.writes[0]);
      const int last = a.rank - 1;
      const std::int64_t k = op.transpose_a ? a.sizes[last - 1] : a.sizes[last];
      const std::int64_t batch = product(c, 0, c.rank - 2);
      // The gradients of keys and values are sums over the queries that share them.
      const std::int64_t summed = std::max<std::int64_t>(1, product(a, 0, a.rank - 2) / batch);
      return {batch, c.sizes[c.rank - 2], c.sizes[c.rank - 1], k * summed};
    }
    default:
      return {};
  }
}

AttentionShape attention_shape(const Op& op, std::span<const Tensor> tensors) {
  const bool backward = op.kind == OpKind::attention_backward;
  const Tensor& q = queries_of(op, tensors);
  const Tensor& context = tensors[backward ? op.reads[1] : op.writes[0]];
  AttentionShape s;
  s.batch = context.sizes[0];
  s.queries = context.sizes[1];
  s.heads = context.sizes[2] * context.sizes[3];
  s.kv_heads = q.sizes[2];
  s.head_dim = q.sizes[4];
  s.value_head_dim = context.sizes[4];
  s.keys = keys_of(op, tensors).sizes[1];
  s.causal = op.causal;
  s.window = op.window;
  if (op.keys_before > 0 && (op.causal || op.window > 0)) {
    s.keys = std::max<std::int64_t>(1, (std::llround(attended_pairs(op, tensors).counted) + s.queries / 2) / s.queries);
    s.causal = false;
    s.window = 0;
  }
  return s;
}

AttendedPairs attended_pairs(const Op& op, std::span<const Tensor> tensors, std::int64_t part) {
  const Tensor &q = queries_of(op, tensors), &kv = keys_of(op, tensors);
  Dealt queries = queries_of_part(op, q, part);
  if (op.parts == 1) queries = {.count = q.sizes[1], .first = kv.sizes[1] - q.sizes[1]};  // the last ones align
  return pairs_of(op.causal, op.window, queries, keys_of_part(op, kv, part));
}

// For tables of runs, which may have hundreds of parts, the table remembers the pairs.
AttendedPairs attended_pairs(const Op& op, std::span<const Tensor> tensors) {
  const Tensor &q = queries_of(op, tensors), &kv = keys_of(op, tensors);
  const bool gathered = kv.over[1].empty();
  if (op.parts == 1 || !is_table_of_runs(q.deal(1)) || (!gathered && kv.deal(1) != q.deal(1)))
    return pairs_of_busiest(op, tensors);
  return q.table->attended.of(
      {gathered, q.sizes[1], kv.sizes[1], op.parts, op.keys_before, op.inner_parts, op.window, op.causal},
      [&] { return pairs_of_busiest(op, tensors); });
}

void DocumentPairs::add(const DocumentPairs& other, double times) {
  counted += times * other.counted;
  rectangle += times * other.rectangle;
  queries += times * other.queries;
  idle_queries += times * other.idle_queries;
  idle_pairs += times * other.idle_pairs;
  longest += times * other.longest;
}

DocumentPairs document_pairs(const Op& op, std::span<const Tensor> tensors, std::int64_t part,
                             std::span<const std::int64_t> ends, std::int64_t tile) {
  const Tensor& kv = keys_of(op, tensors);
  Dealt queries = queries_of_part(op, queries_of(op, tensors), part), keys = keys_of_part(op, kv, part);
  DocumentPairs sum;
  for_each_document(ends, [&](std::int64_t begin, std::int64_t end) {
    queries.begin = keys.begin = begin;
    queries.end = keys.end = end;
    std::int64_t n = 0, first = end;  // number of keys; first key
    AttendedPairs pairs;
    if (op.parts == 1 && op.window == 0) {
      n = pairs.keys = end - queries.begin;
      pairs.seen = n * (n + 1) / 2;
      pairs.counted = static_cast<double>(n) * static_cast<double>(n) / 2;
    } else {
      pairs = pairs_of(op.causal, op.window, queries, keys);
      if (pairs.seen == 0) return;
      keys.for_each_run([&](const IndexRange& run) { first = std::min(first, run.begin); });
      queries.begin = first;  // queries before it see no key
      queries.for_each_run([&](const IndexRange& run) { n += run.count; });
    }
    const auto of_document = static_cast<double>(n), seen = static_cast<double>(pairs.keys);
    const auto idle = static_cast<double>((n + tile - 1) / tile * tile - n);
    sum.counted += pairs.counted;
    sum.rectangle += of_document * seen;
    sum.queries += of_document;
    sum.idle_queries += idle;
    sum.idle_pairs += idle * seen;
    sum.longest = std::max(sum.longest, seen);
  });
  return sum;
}

double document_pairs_of_part(const Op& op, std::span<const Tensor> tensors, std::int64_t part,
                              std::span<const std::int64_t> ends) {
  const Tensor& kv = keys_of(op, tensors);
  Dealt queries = queries_of_part(op, queries_of(op, tensors), part);
  Dealt keys = all_keys(op, kv);
  double sum = 0;
  for_each_document(ends, [&](std::int64_t begin, std::int64_t end) {
    queries.begin = keys.begin = begin;
    queries.end = keys.end = end;
    sum += pairs_of(op.causal, op.window, queries, keys).counted;
  });
  return sum;
}

double flops_per_pair(const AttentionShape& s, bool backward) {
  const auto d = static_cast<double>(s.head_dim), dv = static_cast<double>(s.value_head_dim);
  // Forward: S = QK^T, O = PV. Backward: S again, dP = dO V^T, dV = P^T dO, dQ = dS K, dK = dS^T Q.
  return backward ? 2 * (3 * d + 2 * dv) : 2 * (d + dv);
}

bool attends(const Op& op, std::span<const Tensor> tensors) {
  for (std::int64_t part = op.parts; part-- > 0;)
    if (attended_pairs(op, tensors, part).seen > 0) return true;
  return false;
}

Direction direction_of(const Op& copy, std::span<const Tensor> tensors) {
  return {tensors[copy.reads[0]].place, tensors[copy.writes[0]].place};
}

std::string name_of(Direction direction) { return std::string("copy_to_") + name_of(direction.to); }

double flops(const Op& op, std::span<const Tensor> tensors) {
  if (is_matmul(op.kind)) {
    const GemmShape g = gemm_shape(op, tensors);
    return 2.0 * static_cast<double>(g.batch) * static_cast<double>(g.m) * static_cast<double>(g.n) *
           static_cast<double>(g.k);
  }
  if (is_attention(op.kind)) {
    const AttentionShape s = attention_shape(op, tensors);
    const double per_pair = flops_per_pair(s, op.kind == OpKind::attention_backward);
    const double pairs = attended_pairs(op, tensors).counted;  // of one head
    return per_pair * pairs * static_cast<double>(s.batch) * static_cast<double>(s.heads);
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
        if (id != kNoTensor) total += op.passes * size(id);
      if (op.keys_before > 0) {  // of keys that came round a ring, only those that are seen
        const TensorId keys = op.reads[queries_operand(op.kind) + 1];
        const auto seen = static_cast<double>(attended_pairs(op, tensors).keys),
                   all = static_cast<double>(tensors[keys].sizes[1]);
        total -= size(keys) * (1 - seen / all);
      }
      const unsigned added = op.accumulate ? traits.accumulates : 0u;
      for (std::size_t i = 0; i < op.writes.size(); ++i)
        if (op.writes[i] != kNoTensor) total += size(op.writes[i]) * ((added >> i & 1u) != 0 ? 2 : 1);
      return total;
    }
    case MovedBytes::rows: {
      // Ids; as many rows of the table as the other operand has. An operand that is added to is also read.
      const bool adds = traits.accumulates != 0;
      return size(op.reads[0]) + size(adds ? op.reads[1] : op.writes[0]) * (adds ? 3 : 2);
    }
    case MovedBytes::payload: {
      double largest = 0;
      if (op.kind == OpKind::redistribute) {  // of unequal rows the mean: that of a rank's own tokens
        const Tensor &from = tensors[op.reads[0]], &to = tensors[op.writes[0]];
        if (from.load != to.load) return size(!from.load.has_value() ? op.reads[0] : op.writes[0]) * op.share;
      }
      for (TensorId id : op.reads)
        if (id != kNoTensor) largest = std::max(largest, size(id));
      for (TensorId id : op.writes)
        if (id != kNoTensor) largest = std::max(largest, size(id));
      return largest * op.share;
    }
    case MovedBytes::source:
      return size(op.reads[0]);
  }
  return 0;
}

}  // namespace orrery
