// Attention (Vaswani et al. 2017, arXiv 1706.03762, eq. 1), head by head, with a head's scores in memory. The backward
// is FlashAttention's (Dao et al. 2022, arXiv 2205.14135, algorithm 4), which recomputes the scores from log-sum-exps.
#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "realrun/cpu/kernel_call.h"

namespace orrery::cpu {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Rows = Eigen::Map<Matrix, 0, Eigen::OuterStride<>>;

constexpr float kMasked = -std::numeric_limits<float>::infinity();

// Tells which keys a query attends to.
class Mask : public AttentionWindow {
 public:
  // The keys of a fused QKV have the queries' positions.
  Mask(const Call& call, std::int64_t queries, std::int64_t keys, bool fused)
      : AttentionWindow{call.op.window, call.op.causal},
        query_positions_(call.context.query_positions),
        key_positions_(fused ? call.context.query_positions : call.context.key_positions),
        begins_(call.context.document_begins),
        shift_(keys - queries) {
    call.require(!call.op.documents.has_value() || (causal && !begins_.empty()),
                 "attention within documents takes a causal mask, and where documents begin");
    if (!call.op.documents.has_value()) begins_ = {};
    if (all()) return;
    const auto fits = [](std::span<const std::int64_t> positions, std::int64_t n) {
      return positions.empty() || static_cast<std::int64_t>(positions.size()) == n;
    };
    call.require(fits(query_positions_, queries) && fits(key_positions_, keys),
                 "there is not a position for every query or key");
  }

  // The range of queries that attend to any key, and of keys that any query attends to: only this part is computed.
  struct Rectangle {
    std::int64_t first_query = 0, queries = 0, first_key = 0, keys = 0;
  };
  Rectangle rectangle(std::int64_t queries, std::int64_t keys) const {
    if (all() || query_positions_.empty() || key_positions_.empty()) return {0, queries, 0, keys};
    const auto [q, q_count] = span_of(query_positions_, key_positions_, before(), after());
    const auto [k, k_count] = span_of(key_positions_, query_positions_, after(), before());
    return {q, q_count, k, k_count};
  }
  // Checks the documents of this many sequences, each with as many positions.
  void check_documents(const Call& call, std::int64_t sequences) {
    if (begins_.empty()) return;
    length_ = static_cast<std::int64_t>(begins_.size()) / sequences;
    const auto inside = [&](std::span<const std::int64_t> positions) {
      return std::ranges::all_of(positions, [&](std::int64_t p) { return p < length_; });
    };
    call.require(length_ * sequences == static_cast<std::int64_t>(begins_.size()) && inside(query_positions_) &&
                     inside(key_positions_),
                 "there is not a document for every position");
  }
  bool sees(std::int64_t sequence, std::int64_t query, std::int64_t key) const {
    const std::int64_t q =
        query_positions_.empty() ? query + shift_ : query_positions_[static_cast<std::size_t>(query)];
    const std::int64_t k = key_positions_.empty() ? key : key_positions_[static_cast<std::size_t>(key)];
    // Rows without a position.
    if ((q < 0 && !query_positions_.empty()) || (k < 0 && !key_positions_.empty())) return false;
    if (!begins_.empty() && k < begins_[static_cast<std::size_t>(sequence * length_ + q)]) return false;
    return AttentionWindow::sees(q, k);
  }

 private:
  // Range of elements with a partner from `before` positions before to `after` positions after them: returns the first
  // element and the number up to the last.
  static std::pair<std::int64_t, std::int64_t> span_of(std::span<const std::int64_t> these,
                                                       std::span<const std::int64_t> partners, std::int64_t before,
                                                       std::int64_t after) {
    std::vector<std::int64_t> sorted(partners.begin(), partners.end());
    std::sort(sorted.begin(), sorted.end());
    const auto has_partner = [&](std::int64_t at) {
      const auto nearest = std::lower_bound(sorted.begin(), sorted.end(), at - before);
      return nearest != sorted.end() && *nearest <= at + after;
    };
    const auto first = std::find_if(these.begin(), these.end(), has_partner);
    const auto last = std::find_if(these.rbegin(), these.rend(), has_partner).base();
    return {first - these.begin(), std::max<std::int64_t>(0, last - first)};
  }

  std::span<const std::int64_t> query_positions_, key_positions_, begins_;
  std::int64_t length_ = 0;
  std::int64_t shift_;
};

// A tensor [batch, sequence, groups, parts, dim]. Some elements of one group of one sequence form a matrix [sequence,
// width].
struct HeadsTensor {
  Buffer buffer;
  std::int64_t size(int d) const { return buffer.tensor->sizes[d]; }
  // The matrix of the first `sequence` positions, `width` elements from `begin` of the group on.
  Rows columns(std::int64_t b, std::int64_t group, std::int64_t begin, std::int64_t width,
               std::int64_t sequence) const {
    const std::int64_t row = size(2) * size(3) * size(4);
    return {buffer.data + b * size(1) * row + group * size(3) * size(4) + begin, sequence, width,
            Eigen::OuterStride<>(row)};
  }
  Rows head(std::int64_t b, std::int64_t group, std::int64_t part, std::int64_t sequence) const {
    return columns(b, group, part * size(4), size(4), sequence);
  }
};

// [queries, keys, groups, heads], added to the scores of every sequence. No data: absent.
struct PositionBias {
  PositionBias(const Call& call, const AttentionSizes& s, const Operand& b)
      : data(Buffer(b).data), keys(s.keys), heads(s.groups * s.heads) {
    call.require(data == nullptr || elements(b) == s.queries * keys * heads,
                 "the position bias is not [queries, keys, groups, heads]");
  }
  float& at(std::int64_t query, std::int64_t key, std::int64_t head) const {
    return data[(query * keys + key) * heads + head];
  }
  float* data;
  std::int64_t keys, heads;
};

// Computes the scores of the rectangle's queries and keys.
void masked_scores(const Mask& mask, std::int64_t sequence, const Mask::Rectangle& r, const Rows& q, const Rows& k,
                   double scale, const PositionBias& bias, std::int64_t head, Matrix& scores) {
  scores.noalias() = q.middleRows(r.first_query, r.queries) * k.middleRows(r.first_key, r.keys).transpose();
  scores *= static_cast<float>(scale);
  if (bias.data != nullptr)
    for (Eigen::Index i = 0; i < scores.rows(); ++i)
      for (Eigen::Index j = 0; j < scores.cols(); ++j)
        scores(i, j) += bias.at(r.first_query + i, r.first_key + j, head);
  if (mask.all()) return;
  for (Eigen::Index i = 0; i < scores.rows(); ++i)
    for (Eigen::Index j = 0; j < scores.cols(); ++j)
      if (!mask.sees(sequence, r.first_query + i, r.first_key + j)) scores(i, j) = kMasked;
}

// Works in place and returns log(sum(exp)). A row with only masked scores becomes zeros.
double softmax_row(float* row, std::int64_t n) {
  const float maximum = *std::max_element(row, row + n);
  if (maximum == kMasked) {
    std::fill_n(row, n, 0.0f);
    return kMasked;
  }
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(row[i]) - maximum);
  for (std::int64_t i = 0; i < n; ++i)
    row[i] = static_cast<float>(std::exp(static_cast<double>(row[i]) - maximum) / sum);
  return maximum + std::log(sum);
}

template <class Visit>
void for_each_head(const AttentionSizes& s, Visit visit) {
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t g = 0; g < s.groups; ++g)
      for (std::int64_t h = 0; h < s.heads; ++h) visit(b, g, h, ((b * s.groups + g) * s.heads + h) * s.queries);
}

// Rotates the pairs (i, i + d/2) of d elements by position x base^(-2i/d): Su et al. 2021, eq. 15, with the pairs of
// GPT-NeoX and Llama.
class Rotation {
 public:
  Rotation(const Call& call, const RotaryShape& shape, double direction)
      : direction_(direction), width_(shape.turned), positions_(call.context.query_positions) {}

  // `add`: adds to the content of `out`, which must then not be `in`.
  void turn(std::int64_t token, const float* in, float* out, bool add = false) const {
    const auto position = static_cast<double>(positions_.empty() ? token : positions_[static_cast<std::size_t>(token)]);
    const std::int64_t half = width_ / 2;
    for (std::int64_t i = 0; i < half; ++i) {
      const double exponent = -2 * static_cast<double>(i) / static_cast<double>(width_);
      const double angle = direction_ * position * std::pow(kRotaryBase, exponent);
      const double cosine = std::cos(angle), sine = std::sin(angle), a = in[i], b = in[i + half];
      const double first = a * cosine - b * sine, second = b * cosine + a * sine;
      out[i] = static_cast<float>(add ? out[i] + first : first);
      out[i + half] = static_cast<float>(add ? out[i + half] + second : second);
    }
  }

 private:
  double direction_;
  std::int64_t width_;
  std::span<const std::int64_t> positions_;
};

// Rotates the elements of each query and key from rotary_begin on. The values of a fused QKV are copied.
void rotate(const Call& call, double direction) {
  const Buffer &x = call.read(0), &y = call.write(0);
  const RotaryShape s = rotary_shape(call);
  const Rotation rotation(call, s, direction);
  for (std::int64_t v = 0; v < x.elements() / s.width; ++v) {
    const float* in = x.data + v * s.width;
    float* out = y.data + v * s.width;
    const bool value = s.fused && v % s.heads == s.heads - 1;
    if (in != out) std::copy(in, in + (value ? s.width : s.begin), out);
    if (!value) rotation.turn(v / s.vectors % s.length, in + s.begin, out + s.begin);
  }
}

void put_in_shared_key(const Call& call) {
  const Buffer &kv = call.read(0), &key = call.read(1), &whole = call.write(0);
  const RotaryShape s = rotary_shape(call);
  const Rotation rotation(call, s, 1);
  for (std::int64_t v = 0; v < s.batch * s.length * s.vectors; ++v) {
    const float* in = kv.data + v * s.width;
    float* out = whole.data + v * (s.width + s.turned);
    const std::int64_t token = v / s.vectors;
    std::copy(in, in + s.begin, out);
    rotation.turn(token % s.length, key.data + token * s.turned, out + s.begin);
    std::copy(in + s.begin, in + s.width, out + s.begin + s.turned);
  }
}

void put_in_shared_key_backward(const Call& call) {
  const Buffer &whole = call.read(0), &kv = call.write(0), &key = call.write(1);
  const RotaryShape s = rotary_shape(call);
  const Rotation rotation(call, s, -1);
  std::ranges::fill(key.span(), 0.0f);
  for (std::int64_t v = 0; v < s.batch * s.length * s.vectors; ++v) {
    const float* in = whole.data + v * (s.width + s.turned);
    float* out = kv.data + v * s.width;
    const std::int64_t token = v / s.vectors;
    std::copy(in, in + s.begin, out);
    rotation.turn(token % s.length, in + s.begin, key.data + token * s.turned, /*add=*/true);
    std::copy(in + s.begin + s.turned, in + s.width + s.turned, out + s.begin);
  }
}

}  // namespace

void attention(const Call& call) {
  const AttentionSizes s = attention_sizes(call);
  const Buffer lse(*s.lse);
  Mask mask(call, s.queries, s.keys, s.fused);
  mask.check_documents(call, s.batch);
  const PositionBias bias(call, s, call.has_read(2) ? call.reads[2] : Operand{});
  const HeadsTensor q{*s.q}, kv{*s.kv}, context{*s.context};
  const Mask::Rectangle r = mask.rectangle(s.queries, s.keys);
  Matrix scores;
  for_each_head(s, [&](std::int64_t b, std::int64_t g, std::int64_t h, std::int64_t row) {
    std::fill_n(lse.data + row, s.queries, kMasked);
    context.head(b, g, h, s.queries).setZero();
    if (r.queries == 0) return;
    masked_scores(mask, b, r, q.head(b, g, h, s.queries), kv.columns(b, g, s.key_begin, s.key_width, s.keys), s.scale,
                  bias, g * s.heads + h, scores);
    for (std::int64_t i = 0; i < r.queries; ++i)
      lse.data[row + r.first_query + i] = static_cast<float>(softmax_row(scores.data() + i * r.keys, r.keys));
    context.head(b, g, h, s.queries).middleRows(r.first_query, r.queries).noalias() =
        scores * kv.columns(b, g, s.value_begin, s.value_width, s.keys).middleRows(r.first_key, r.keys);
  });
}

void attention_backward(const Call& call) {
  const AttentionSizes s = attention_sizes(call);
  const Buffer lse(*s.lse);
  const auto same_sizes = [](const Buffer& a, const Buffer& b) {
    return a.tensor->rank == b.tensor->rank && a.tensor->sizes == b.tensor->sizes;
  };
  call.require(same_sizes(call.read(0), call.read(1)), "the context's gradient does not fit the context");
  call.require(same_sizes(call.read(3), call.write(0)), "the gradient of the queries does not fit the queries");
  const Buffer key_gradient = call.write(s.fused ? 0 : 1);  // zero for keys that a ring step does not use
  std::ranges::fill(key_gradient.span(), 0.0f);
  const PositionBias bias(call, s, call.has_read(5) ? call.reads[5] : Operand{}),
      dbias(call, s, call.has_write(2) ? call.writes[2] : Operand{});
  if (dbias.data != nullptr) std::ranges::fill(call.write(2).span(), 0.0f);
  Mask mask(call, s.queries, s.keys, s.fused);
  mask.check_documents(call, s.batch);
  const HeadsTensor q{*s.q}, kv{*s.kv}, context{*s.context}, dcontext{call.read(0)};
  const HeadsTensor dq{call.write(0)}, dkv{key_gradient};
  const Mask::Rectangle r = mask.rectangle(s.queries, s.keys);
  Matrix p, ds;
  for_each_head(s, [&](std::int64_t b, std::int64_t g, std::int64_t h, std::int64_t row) {
    dq.head(b, g, h, s.queries).setZero();
    if (r.queries == 0) return;
    const Rows queries = q.head(b, g, h, s.queries), keys = kv.columns(b, g, s.key_begin, s.key_width, s.keys);
    const auto d_out = dcontext.head(b, g, h, s.queries).middleRows(r.first_query, r.queries),
               out = context.head(b, g, h, s.queries).middleRows(r.first_query, r.queries);
    const std::int64_t head = g * s.heads + h;
    masked_scores(mask, b, r, queries, keys, s.scale, bias, head, p);
    const float* const log_sum_exp = lse.data + row + r.first_query;
    for (std::int64_t i = 0; i < r.queries; ++i)
      for (std::int64_t j = 0; j < r.keys; ++j) p(i, j) = p(i, j) == kMasked ? 0 : std::exp(p(i, j) - log_sum_exp[i]);
    dkv.columns(b, g, s.value_begin, s.value_width, s.keys).middleRows(r.first_key, r.keys).noalias() +=
        p.transpose() * d_out;
    ds.noalias() =
        d_out * kv.columns(b, g, s.value_begin, s.value_width, s.keys).middleRows(r.first_key, r.keys).transpose();
    for (std::int64_t i = 0; i < r.queries; ++i) {
      const float delta = d_out.row(i).dot(out.row(i));
      for (std::int64_t j = 0; j < r.keys; ++j) {
        const float score_gradient = p(i, j) * (ds(i, j) - delta);
        if (dbias.data != nullptr) dbias.at(r.first_query + i, r.first_key + j, head) += score_gradient;
        ds(i, j) = score_gradient * static_cast<float>(s.scale);
      }
    }
    dq.head(b, g, h, s.queries).middleRows(r.first_query, r.queries).noalias() =
        ds * keys.middleRows(r.first_key, r.keys);
    dkv.columns(b, g, s.key_begin, s.key_width, s.keys).middleRows(r.first_key, r.keys).noalias() +=
        ds.transpose() * queries.middleRows(r.first_query, r.queries);
  });
}

// Merges two contexts over different keys into the context over all keys. Each is weighted by the share of its keys in
// the sum of exponentials (Milakov & Gimelshein 2018, arXiv 1805.02867; Liu et al. 2023, arXiv 2310.01889).
void merge_attention(const Call& call) {
  const Buffer &context = call.write(0), &lse = call.write(1);
  const auto [batch, sequence, heads, width] = merge_shape(call);
  for (std::int64_t v = 0; v < context.elements() / width; ++v) {
    // Contexts are [batch, sequence, heads], log-sum-exps [batch, heads, sequence].
    const std::int64_t head = v % heads, position = v / heads % sequence, b = v / (heads * sequence);
    const std::int64_t at = (b * heads + head) * sequence + position;
    const double first = call.read(1).data[at], second = call.read(3).data[at], larger = std::max(first, second);
    const bool nothing = larger == static_cast<double>(kMasked);
    const double w1 = nothing ? 0 : std::exp(first - larger), w2 = nothing ? 0 : std::exp(second - larger);
    for (std::int64_t i = v * width; i < (v + 1) * width; ++i)
      context.data[i] =
          nothing ? 0 : static_cast<float>((w1 * call.read(0).data[i] + w2 * call.read(2).data[i]) / (w1 + w2));
    lse.data[at] = static_cast<float>(nothing ? larger : larger + std::log(w1 + w2));
  }
}

void softmax(const Call& call) {
  const Buffer &scores = call.read(0), &y = call.write(0);
  const Tensor& t = *scores.tensor;
  const std::int64_t keys = t.sizes[t.rank - 1], queries = t.sizes[t.rank - 2];
  const Mask mask(call, queries, keys, false);
  for (std::int64_t r = 0; r < t.elements() / keys; ++r) {
    float* const row = y.data + r * keys;
    for (std::int64_t k = 0; k < keys; ++k)
      row[k] = mask.sees(0, r % queries, k) ? static_cast<float>(call.op.scale * scores.data[r * keys + k]) : kMasked;
    softmax_row(row, keys);
  }
}

// ds = scale p (dp - sum(dp p)); masked elements have p = 0.
void softmax_backward(const Call& call) {
  const Buffer &dp = call.read(0), &p = call.read(1), &ds = call.write(0);
  const std::int64_t keys = last_size(p);
  for (std::int64_t r = 0; r < p.elements(); r += keys) {
    double sum = 0;
    for (std::int64_t i = r; i < r + keys; ++i) sum += static_cast<double>(dp.data[i]) * p.data[i];
    for (std::int64_t i = r; i < r + keys; ++i)
      ds.data[i] = static_cast<float>(call.op.scale * p.data[i] * (dp.data[i] - sum));
  }
}

void rotary(const Call& call) { shares_key(call) ? put_in_shared_key(call) : rotate(call, 1); }
void rotary_backward(const Call& call) { shares_key(call) ? put_in_shared_key_backward(call) : rotate(call, -1); }

}  // namespace orrery::cpu
