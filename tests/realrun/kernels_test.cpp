#include "realrun/cpu/kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "realrun/random_draws.h"
#include "tests/realrun/kernel_devices.h"

namespace orrery::cpu {
namespace {

using enum OpKind;

Tensor absent() { return {}; }

Operand random_operand(std::initializer_list<Dim> dims, std::uint32_t seed) {
  const Tensor t = shaped(dims);
  return {t, random_values(t.elements(), seed)};
}

// --- Products

KERNEL_TEST(LinearKernel, IsTheSumOverInnerDimensions) {
  Op op = op_of(linear);
  op.inner_dims = 2;
  const Operand x = random_operand({{2}, {3}, {4}, {5}}, 1), w = random_operand({{4}, {5}, {2}, {7}}, 2),
                bias = random_operand({{2}, {7}}, 3);
  const Values y = call(op, {x, w, bias}, {plain({{2}, {3}, {2}, {7}})})[0];
  std::vector<double> expected;
  for (int t = 0; t < 6; ++t)
    for (int n = 0; n < 14; ++n) {
      double sum = bias.values[n];
      for (int k = 0; k < 20; ++k) sum += static_cast<double>(x.values[t * 20 + k]) * w.values[k * 14 + n];
      expected.push_back(sum);
    }
  expect_equal(y, expected);
}

KERNEL_TEST(LinearKernel, ATransposedWeightHasItsRowsPerOutput) {
  Op op = op_of(linear);
  op.transposed_weight = true;
  const Operand x = random_operand({{3}, {5}}, 1), w = random_operand({{7}, {5}}, 2);
  const Values y = call(op, {x, w}, {plain({{3}, {7}})})[0];
  std::vector<double> expected;
  for (int t = 0; t < 3; ++t)
    for (int n = 0; n < 7; ++n)
      expected.push_back(std::inner_product(&x.values[t * 5], &x.values[t * 5] + 5, &w.values[n * 5], 0.0));
  expect_equal(y, expected);
}

KERNEL_TEST(LinearKernel, DerivativesAreSlopes) {
  Op op = op_of(linear);
  op.inner_dims = 2;
  expect_derivative(
      machine_of(op, {parameter({{2}, {3}, {4}, {5}}), parameter({{4}, {5}, {2}, {3}}), parameter({{2}, {3}})},
                 {plain({{2}, {3}, {2}, {3}})}));
  op.inner_dims = 1;
  op.transposed_weight = true;
  expect_derivative(
      machine_of(op, {parameter({{2}, {3}, {5}}), parameter({{7}, {5}}), parameter({{7}})}, {plain({{2}, {3}, {7}})}));
}

KERNEL_TEST(LinearKernel, WeightGradientsAddUpOverMicroBatches) {
  Op op = op_of(linear_weight_gradient);
  const Operand x = random_operand({{3}, {5}}, 1), dy = random_operand({{3}, {7}}, 2);
  const Values once = call(op, {x, dy}, {plain({{5}, {7}})})[0];
  op.accumulate = true;
  Operand dw = random_operand({{5}, {7}}, 3);
  const Values before = dw.values;
  Operand x2 = x, dy2 = dy;
  const std::array<orrery::Operand, 2> reads{orrery::Operand{x2.values.data(), &x2.tensor},
                                             orrery::Operand{dy2.values.data(), &dy2.tensor}};
  const std::array<orrery::Operand, 1> writes{orrery::Operand{dw.values.data(), &dw.tensor}};
  kernel_runner()(op, reads, writes, {});
  for (std::size_t i = 0; i < once.size(); ++i) EXPECT_FLOAT_EQ(dw.values[i], before[i] + once[i]);
}

KERNEL_TEST(BatchedMatmulKernel, SharesKeysAmongGroupedQueries) {
  for (const bool ta : {false, true})
    for (const bool tb : {false, true}) {
      Op op = op_of(batched_matmul);
      op.transpose_a = ta;
      op.transpose_b = tb;
      const int m = 3, n = 4, k = 5;
      const Operand a = random_operand({{2}, {3}, {ta ? k : m}, {ta ? m : k}}, 1),
                    b = random_operand({{2}, {1}, {tb ? n : k}, {tb ? k : n}}, 2);
      const Values c = call(op, {a, b}, {plain({{2}, {3}, {m}, {n}})})[0];
      std::vector<double> expected;
      for (int p = 0; p < 6; ++p)
        for (int i = 0; i < m; ++i)
          for (int j = 0; j < n; ++j) {
            double sum = 0;
            for (int l = 0; l < k; ++l)
              sum += static_cast<double>(a.values[p * m * k + (ta ? l * m + i : i * k + l)]) *
                     b.values[p / 3 * n * k + (tb ? j * k + l : l * n + j)];
            expected.push_back(sum);
          }
      expect_equal(c, expected);
    }
}

KERNEL_TEST(BatchedMatmulKernel, ScalesTheProductAndAddsIt) {
  Op op = op_of(batched_matmul);
  Operand a = random_operand({{2}, {3}, {4}}, 1), b = random_operand({{2}, {4}, {5}}, 2),
          sum = random_operand({{2}, {3}, {5}}, 3);
  const Values product = call(op, {a, b}, {sum.tensor})[0], before = sum.values;
  op.scale = -2.5;
  const Values scaled = call(op, {a, b}, {sum.tensor})[0];
  op.accumulate = true;
  const std::array<orrery::Operand, 2> reads{orrery::Operand{a.values.data(), &a.tensor},
                                             orrery::Operand{b.values.data(), &b.tensor}};
  const std::array<orrery::Operand, 1> writes{orrery::Operand{sum.values.data(), &sum.tensor}};
  kernel_runner()(op, reads, writes, {});
  for (std::size_t i = 0; i < product.size(); ++i) {
    EXPECT_NEAR(scaled[i], -2.5 * product[i], 1e-5);
    EXPECT_NEAR(sum.values[i], before[i] - 2.5 * product[i], 1e-5);
  }
}

KERNEL_TEST(BatchedMatmulKernel, DerivativesAreSlopes) {
  Op op = op_of(batched_matmul);
  const Tensor q = parameter({{2}, {3}, {4}, {5}, {6}}), k = parameter({{2}, {3}, {1}, {7}, {6}}),
               v = parameter({{2}, {3}, {1}, {6}, {7}});
  const Tensor relative = parameter({{1}, {3}, {4}, {7}, {6}}), scores = plain({{2}, {3}, {4}, {5}, {7}});
  expect_derivative(machine_of(op, {q, v}, {scores}));
  op.transpose_b = true;
  expect_derivative(machine_of(op, {q, k}, {scores}));
  expect_derivative(machine_of(op, {q, relative}, {scores}));
}

// --- Attention

struct Heads {
  std::int64_t batch = 2, queries = 6, keys = 6, groups = 2, heads = 3, dim = 4;
  std::int64_t rows() const { return batch * queries * groups * heads; }
  Tensor fused() const {
    return parameter({{batch, Axis::batch},
                      {queries, Axis::sequence},
                      {groups, Axis::groups},
                      {heads + 2, Axis::group_qkv},
                      {dim, Axis::head_dim}});
  }
  Tensor q() const {
    return parameter({{batch, Axis::batch},
                      {queries, Axis::sequence},
                      {groups, Axis::groups},
                      {heads, Axis::group_heads},
                      {dim, Axis::head_dim}});
  }
  Tensor kv() const {
    return parameter(
        {{batch, Axis::batch}, {keys, Axis::sequence}, {groups, Axis::groups}, {2, Axis::none}, {dim, Axis::head_dim}});
  }
  Tensor context() const {
    Tensor t = q();
    t.category = Category::activation;
    return t;
  }
  Tensor lse() const {
    return plain({{batch, Axis::batch}, {groups, Axis::groups}, {heads, Axis::group_heads}, {queries, Axis::sequence}});
  }
};

using Visible = std::function<bool(std::int64_t query, std::int64_t key)>;

// Equation 1 in double, one score at a time. A row that sees nothing is zero, with a log-sum-exp of -infinity.
struct NaiveAttention {
  std::vector<double> context, lse;
};
NaiveAttention naive_attention(const Heads& s, const Values& q, const Values& kv, const Visible& visible) {
  NaiveAttention out;
  out.context.resize(static_cast<std::size_t>(s.rows() * s.dim));
  out.lse.resize(static_cast<std::size_t>(s.rows()));
  for (int b = 0; b < s.batch; ++b)
    for (int g = 0; g < s.groups; ++g)
      for (int h = 0; h < s.heads; ++h)
        for (int i = 0; i < s.queries; ++i) {
          const std::int64_t query = ((b * s.queries + i) * s.groups + g) * s.heads + h;
          const auto key = [&](std::int64_t j, int part) { return ((b * s.keys + j) * s.groups + g) * 2 + part; };
          double sum = 0;
          for (int j = 0; j < s.keys; ++j) {
            if (!visible(i, j)) continue;
            double score = 0;
            for (int d = 0; d < s.dim; ++d)
              score += static_cast<double>(q[query * s.dim + d]) * kv[key(j, 0) * s.dim + d];
            const double weight = std::exp(score / std::sqrt(static_cast<double>(s.dim)));
            sum += weight;
            for (int d = 0; d < s.dim; ++d) out.context[query * s.dim + d] += weight * kv[key(j, 1) * s.dim + d];
          }
          for (int d = 0; d < s.dim && sum > 0; ++d) out.context[query * s.dim + d] /= sum;
          out.lse[((b * s.groups + g) * s.heads + h) * s.queries + i] = std::log(sum);
        }
  return out;
}

// Queries, keys and values as one fused tensor.
Values fuse(const Heads& s, const Values& q, const Values& kv) {
  Values fused;
  for (int token = 0; token < s.batch * s.queries * s.groups; ++token) {
    fused.insert(fused.end(), &q[token * s.heads * s.dim], &q[token * s.heads * s.dim] + s.heads * s.dim);
    fused.insert(fused.end(), &kv[token * 2 * s.dim], &kv[token * 2 * s.dim] + 2 * s.dim);
  }
  return fused;
}

void expect_lse(const Values& actual, const std::vector<double>& expected) {
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::isinf(expected[i])) {
      EXPECT_EQ(actual[i], -std::numeric_limits<float>::infinity());
    } else {
      EXPECT_NEAR(actual[i], expected[i], 1e-5);
    }
  }
}

KERNEL_TEST(AttentionKernel, IsTheSoftmaxAverageUnderEveryMask) {
  for (const std::int64_t keys : {6, 9})
    for (const bool causal : {false, true})
      for (const std::int64_t window : {0, 1, 2, 3}) {
        Heads s;
        s.keys = keys;
        Op op = op_of(attention);
        op.causal = causal;
        op.window = window;
        const Values q = random_values(s.q().elements(), 1), kv = random_values(s.kv().elements(), 2);
        const auto expected = naive_attention(s, q, kv, [&](std::int64_t i, std::int64_t j) {
          const std::int64_t behind = i + keys - s.queries - j;  // queries are the last positions
          if (causal) return behind >= 0 && (window == 0 || behind < window);
          const std::array<std::int64_t, 4> most_behind{keys, 0, 0, 1}, most_ahead{keys, 0, 1, 1};
          return behind <= most_behind[window] && -behind <= most_ahead[window];
        });
        const auto split = call(op, {{s.q(), q}, {s.kv(), kv}}, {s.context(), s.lse()});
        expect_equal(split[0], expected.context);
        expect_lse(split[1], expected.lse);
        if (keys != s.queries) continue;
        const auto fused = call(op, {{s.fused(), fuse(s, q, kv)}}, {s.context(), s.lse()});
        expect_equal(fused[0], expected.context);
        expect_lse(fused[1], expected.lse);
      }
}

KERNEL_TEST(AttentionKernel, DerivativesAreSlopesFusedAndSplit) {
  for (const bool causal : {false, true})
    for (const std::int64_t window : {0, 3}) {
      Heads s;
      Op op = op_of(attention);
      op.causal = causal;
      op.window = window;
      expect_derivative(machine_of(op, {s.fused()}, {s.context(), s.lse()}));
      s.keys = 8;
      expect_derivative(machine_of(op, {s.q(), s.kv()}, {s.context(), s.lse()}));
    }
}

KERNEL_TEST(AttentionKernel, ComparesPositionsInTheWholeSequence) {
  // Zigzag: this rank has the first and the last of four parts, and looks at the second and third.
  Heads s;
  s.queries = s.keys = 4;
  const std::array<std::int64_t, 4> queries{0, 1, 6, 7}, keys{2, 3, 4, 5};
  KernelContext context;
  context.query_positions = queries;
  context.key_positions = keys;
  Op op = op_of(attention);
  op.causal = true;
  const Values q = random_values(s.q().elements(), 1), kv = random_values(s.kv().elements(), 2);
  const auto expected =
      naive_attention(s, q, kv, [&](std::int64_t i, std::int64_t j) { return keys[j] <= queries[i]; });
  const auto actual = call(op, {{s.q(), q}, {s.kv(), kv}}, {s.context(), s.lse()}, context);
  expect_equal(actual[0], expected.context);
  expect_lse(actual[1], expected.lse);
  EXPECT_EQ(actual[0][0], 0);  // the first query sees no key
}

// Keys in two halves with a causal mask by position: the first queries see none of the second half.
struct Halves {
  Heads whole, half;
  std::array<std::int64_t, 6> queries{0, 1, 2, 3, 4, 5};
  std::array<std::array<std::int64_t, 3>, 2> keys{{{0, 1, 2}, {3, 4, 5}}};
  Values q, kv;
  std::array<Values, 2> kv_half;
  Op op = op_of(attention);

  Halves() {
    whole.batch = half.batch = 1;
    half.keys = 3;
    q = random_values(whole.q().elements(), 1);
    kv = random_values(whole.kv().elements(), 2);
    kv_half[0].assign(kv.begin(), kv.begin() + kv.size() / 2);
    kv_half[1].assign(kv.begin() + kv.size() / 2, kv.end());
    op.causal = true;
  }
  KernelContext context(std::size_t part) const {
    KernelContext c;
    c.query_positions = queries;
    c.key_positions = keys[part];
    return c;
  }
};

KERNEL_TEST(MergeAttentionKernel, TwoHalvesOfTheKeysAreAttentionOverAll) {
  const Halves h;
  const auto all = call(h.op, {{h.whole.q(), h.q}, {h.whole.kv(), h.kv}}, {h.whole.context(), h.whole.lse()});
  std::vector<Operand> parts;
  for (const std::size_t i : {0, 1}) {
    const auto part =
        call(h.op, {{h.half.q(), h.q}, {h.half.kv(), h.kv_half[i]}}, {h.half.context(), h.half.lse()}, h.context(i));
    parts.push_back({h.half.context(), part[0]});
    parts.push_back({h.half.lse(), part[1]});
  }
  const auto merged = call(op_of(merge_attention), parts, {h.whole.context(), h.whole.lse()});
  expect_equal(merged[0], {all[0].begin(), all[0].end()});
  expect_equal(merged[1], {all[1].begin(), all[1].end()});
}

KERNEL_TEST(MergeAttentionKernel, NothingAndNothingIsNothing) {
  const Heads s;
  const Operand context{s.context(), Values(s.rows() * s.dim, 0)},
      lse{s.lse(), Values(s.rows(), -std::numeric_limits<float>::infinity())};
  const auto merged = call(op_of(merge_attention), {context, lse, context, lse}, {s.context(), s.lse()});
  EXPECT_EQ(merged[0], context.values);
  EXPECT_EQ(merged[1], lse.values);
}

KERNEL_TEST(AttentionKernel, BackwardOverTwoHalvesOfTheKeysSumsToTheWhole) {
  const Halves h;
  const auto out = call(h.op, {{h.whole.q(), h.q}, {h.whole.kv(), h.kv}}, {h.whole.context(), h.whole.lse()});
  const Operand d{h.whole.context(), random_values(h.whole.context().elements(), 3)},
      context{h.whole.context(), out[0]}, lse{h.whole.lse(), out[1]};
  Op op = h.op;
  op.kind = attention_backward;
  const auto all = call(op, {d, context, lse, {h.whole.q(), h.q}, {h.whole.kv(), h.kv}}, {h.whole.q(), h.whole.kv()});
  const auto first = call(op, {d, context, lse, {h.half.q(), h.q}, {h.half.kv(), h.kv_half[0]}},
                          {h.half.q(), h.half.kv()}, h.context(0));
  const auto second = call(op, {d, context, lse, {h.half.q(), h.q}, {h.half.kv(), h.kv_half[1]}},
                           {h.half.q(), h.half.kv()}, h.context(1));
  std::vector<double> dq(h.q.size()), dkv(first[1].begin(), first[1].end());
  for (std::size_t i = 0; i < dq.size(); ++i) dq[i] = static_cast<double>(first[0][i]) + second[0][i];
  dkv.insert(dkv.end(), second[1].begin(), second[1].end());
  expect_equal(all[0], dq);
  expect_equal(all[1], dkv);
  // A step that sees the first keys only has no gradient for the others.
  const auto partial = call(op, {d, context, lse, {h.half.q(), h.q}, {h.half.kv(), h.kv_half[0]}},
                            {h.whole.q(), h.whole.kv()}, h.context(0));
  std::vector<double> padded(first[1].begin(), first[1].end());
  padded.resize(h.kv.size());
  expect_equal(partial[1], padded);
}

// Rows of positions [begin, end) of one sequence of [batch, sequence, ..].
Operand rows_of(const Operand& whole, std::int64_t sequence, std::int64_t begin, std::int64_t end) {
  Operand part{whole.tensor, {}};
  const std::int64_t length = whole.tensor.sizes[1], row = whole.tensor.elements() / whole.tensor.sizes[0] / length;
  part.tensor.sizes[0] = 1;
  part.tensor.sizes[1] = end - begin;
  const auto first = whole.values.begin() + (sequence * length + begin) * row;
  part.values.assign(first, first + (end - begin) * row);
  return part;
}
std::vector<double> doubles(const Values& values) { return {values.begin(), values.end()}; }

// Packed sequences of a batch, whose documents differ, with groups of queries that share keys; backward, too.
TEST(AttentionKernel, WithinDocumentsIsThatOfEachDocumentAlone) {
  const Heads s;
  const std::vector<std::vector<std::int64_t>> ends{{2, 6}, {1, 4, 6}};
  std::vector<std::int64_t> begins;
  for (const auto& of_sequence : ends) {
    std::int64_t begin = 0;
    for (const std::int64_t end : of_sequence) {
      begins.insert(begins.end(), static_cast<std::size_t>(end - begin), begin);
      begin = end;
    }
  }
  for (const std::int64_t window : {0, 2}) {
    Op op = op_of(attention);
    op.causal = true;
    op.window = window;
    Op alone = op, backward = op, backward_alone = op;
    backward.kind = backward_alone.kind = attention_backward;
    op.documents = backward.documents = TableIndex<DocumentLoad>(0);
    KernelContext kernel;
    kernel.document_begins = begins;
    const Operand q{s.q(), random_values(s.q().elements(), 1)}, kv{s.kv(), random_values(s.kv().elements(), 2)},
        d{s.context(), random_values(s.context().elements(), 3)};
    const auto out = call(op, {q, kv}, {s.context(), s.lse()}, kernel);
    const Operand context{s.context(), out[0]}, lse{s.lse(), out[1]};
    const auto gradients = call(backward, {d, context, lse, q, kv}, {s.q(), s.kv()}, kernel);
    const Operand dq{s.q(), gradients[0]}, dkv{s.kv(), gradients[1]};
    int documents = 0;
    for (std::int64_t b = 0; b < s.batch; ++b) {
      std::int64_t begin = 0;
      for (const std::int64_t end : ends[static_cast<std::size_t>(b)]) {
        const Operand one_q = rows_of(q, b, begin, end), one_kv = rows_of(kv, b, begin, end),
                      one_d = rows_of(d, b, begin, end);
        Tensor one_lse = s.lse();
        one_lse.sizes[0] = 1;
        one_lse.sizes[3] = end - begin;
        const auto expected = call(alone, {one_q, one_kv}, {one_d.tensor, one_lse});
        expect_equal(rows_of(context, b, begin, end).values, doubles(expected[0]));
        const auto slopes =
            call(backward_alone, {one_d, {one_d.tensor, expected[0]}, {one_lse, expected[1]}, one_q, one_kv},
                 {one_q.tensor, one_kv.tensor});
        expect_equal(rows_of(dq, b, begin, end).values, doubles(slopes[0]));
        expect_equal(rows_of(dkv, b, begin, end).values, doubles(slopes[1]));
        begin = end;
        ++documents;
      }
    }
    EXPECT_EQ(documents, 5);
    // One fused tensor has the same.
    const Heads fused = s;
    expect_equal(call(op, {{fused.fused(), fuse(s, q.values, kv.values)}}, {s.context(), s.lse()}, kernel)[0],
                 doubles(out[0]));
  }
}

TEST(AttentionKernel, RefusesDocumentsThatAreNotOfItsPositions) {
  const Heads s;
  Op op = op_of(attention);
  op.documents = TableIndex<DocumentLoad>(0);
  const Operand q{s.q(), random_values(s.q().elements(), 1)}, kv{s.kv(), random_values(s.kv().elements(), 2)};
  std::vector<std::int64_t> begins(static_cast<std::size_t>(s.batch * s.queries), 0);
  KernelContext kernel;
  const auto run = [&] { return call(op, {q, kv}, {s.context(), s.lse()}, kernel); };
  kernel.document_begins = begins;
  EXPECT_THROW(run(), std::logic_error) << "no causal mask";
  op.causal = true;
  EXPECT_NO_THROW(run());
  kernel.document_begins = {};
  EXPECT_THROW(run(), std::logic_error);
  begins.pop_back();
  kernel.document_begins = begins;
  EXPECT_THROW(run(), std::logic_error);
}

KERNEL_TEST(SoftmaxKernel, WithProductsAroundItIsAttention) {
  Heads s;
  s.groups = s.heads = 1;  // [batch, sequence, 1, 1, dim] is [batch, 1, 1, sequence, dim]
  Operand q = random_operand({{2}, {1}, {1}, {6}, {4}}, 1), k = random_operand({{2}, {1}, {1}, {6}, {4}}, 2),
          v = random_operand({{2}, {1}, {1}, {6}, {4}}, 3);
  Op product = op_of(batched_matmul), normalise = op_of(softmax);
  product.transpose_b = true;
  normalise.causal = true;
  normalise.scale = 0.5;
  const Tensor scores = plain({{2}, {1}, {1}, {6}, {6}});
  const Values raw = call(product, {q, k}, {scores})[0];
  const Values probabilities = call(normalise, {{scores, raw}}, {scores})[0];
  product.transpose_b = false;
  const Values rows = call(product, {{scores, probabilities}, v}, {q.tensor})[0];
  Values kv;
  for (int t = 0; t < 12; ++t) {
    kv.insert(kv.end(), &k.values[t * 4], &k.values[t * 4] + 4);
    kv.insert(kv.end(), &v.values[t * 4], &v.values[t * 4] + 4);
  }
  expect_equal(rows, naive_attention(s, q.values, kv, [](std::int64_t i, std::int64_t j) { return j <= i; }).context);
}

KERNEL_TEST(SoftmaxKernel, DerivativesAreSlopes) {
  for (const bool causal : {false, true}) {
    Op op = op_of(softmax);
    op.causal = causal;
    op.scale = 0.7;
    Machine m = machine_of(op, {parameter({{2}, {3}, {4}, {5}})}, {plain({{2}, {3}, {4}, {5}})});
    expect_derivative(m);
  }
}

KERNEL_TEST(RotaryKernel, RotatesQueriesAndKeysAndLeavesValues) {
  const Heads s;
  const Operand x{s.fused(), random_values(s.fused().elements(), 1)};
  const Values y = call(op_of(rotary), {x}, {s.fused()})[0];
  const Values back = call(op_of(rotary_backward), {{s.fused(), y}}, {s.fused()})[0];
  expect_equal(back, {x.values.begin(), x.values.end()});
  bool moved = false;
  for (std::int64_t v = 0; v < s.fused().elements() / s.dim; ++v) {
    const float *a = &x.values[v * s.dim], *b = &y[v * s.dim];
    EXPECT_NEAR(std::inner_product(a, a + s.dim, a, 0.0), std::inner_product(b, b + s.dim, b, 0.0), 1e-5);
    if (v % (s.heads + 2) == s.heads + 1) {
      EXPECT_TRUE(std::equal(a, a + s.dim, b)) << "values pass";
    }
    moved = moved || !std::equal(a, a + s.dim, b);
  }
  EXPECT_TRUE(moved);
}

KERNEL_TEST(RotaryKernel, ScoresDependOnDistanceAlone) {
  const Tensor t =
      plain({{1, Axis::batch}, {2, Axis::sequence}, {1, Axis::groups}, {1, Axis::group_heads}, {8, Axis::head_dim}});
  const Operand x{t, random_values(16, 1)};
  const auto score = [&](std::int64_t first, std::int64_t second) {
    const std::array<std::int64_t, 2> positions{first, second};
    KernelContext context;
    context.query_positions = positions;
    const Values y = call(op_of(rotary), {x}, {t}, context)[0];
    return std::inner_product(y.begin(), y.begin() + 8, y.begin() + 8, 0.0);
  };
  EXPECT_NEAR(score(0, 3), score(17, 20), 1e-5);
  EXPECT_GT(std::abs(score(0, 3) - score(0, 4)), 1e-3);
}

KERNEL_TEST(RotaryKernel, TurnsTheFirstPairByItsPositionInRadians) {
  const Tensor t =
      plain({{1, Axis::batch}, {1, Axis::sequence}, {1, Axis::groups}, {1, Axis::group_heads}, {4, Axis::head_dim}});
  const std::array<std::int64_t, 1> positions{2};
  KernelContext context;
  context.query_positions = positions;
  const Values y = call(op_of(rotary), {{t, {1, 0, 0, 1}}}, {t}, context)[0];
  // Pairs (0, 2) and (1, 3), the second at 10000^(-1/2) of the speed.
  expect_equal(y, {std::cos(2.0), -std::sin(0.02), std::sin(2.0), std::cos(0.02)});
}

KERNEL_TEST(RotaryKernel, DerivativesAreSlopes) {
  const Heads s;
  expect_derivative(machine_of(op_of(rotary), {s.fused()}, {s.fused()}));
  expect_derivative(machine_of(op_of(rotary), {s.q()}, {s.q()}));
}

// --- Norms

std::vector<double> naive_norm(const Values& x, std::int64_t width, const Values& weight, const Values& bias,
                               bool centred, double epsilon) {
  std::vector<double> y;
  for (std::size_t begin = 0; begin < x.size(); begin += width) {
    double mean = 0, square = 0;
    for (int i = 0; i < width; ++i) {
      mean += centred ? x[begin + i] / static_cast<double>(width) : 0;
      square += static_cast<double>(x[begin + i]) * x[begin + i] / static_cast<double>(width);
    }
    for (int i = 0; i < width; ++i)
      y.push_back((x[begin + i] - mean) / std::sqrt(square - mean * mean + epsilon) * weight[i] +
                  (bias.empty() ? 0 : bias[i]));
  }
  return y;
}

KERNEL_TEST(NormKernel, IsLayerNormOrRmsNormByItsStatistics) {
  Op op = op_of(norm);
  op.epsilon = 1e-2f;
  const Operand x = random_operand({{2}, {3}, {8}}, 1), weight = random_operand({{8}}, 2),
                bias = random_operand({{8}}, 3);
  expect_equal(call(op, {x, weight, bias}, {x.tensor, plain({{2}, {3}, {2}})})[0],
               naive_norm(x.values, 8, weight.values, bias.values, true, 1e-2));
  expect_equal(call(op, {x, weight}, {x.tensor, plain({{2}, {3}, {1}})})[0],
               naive_norm(x.values, 8, weight.values, {}, false, 1e-2));
}

KERNEL_TEST(NormKernel, OfAFusedQkvLeavesValues) {
  Op op = op_of(norm);
  op.epsilon = 1e-5f;
  const Heads s;
  const Operand x{s.fused(), random_values(s.fused().elements(), 1)}, weight = random_operand({{2}, {4}}, 2);
  const Tensor statistics = plain({{2}, {6}, {2}, {5}, {1}});
  const Values y = call(op, {x, weight}, {s.fused(), statistics})[0];
  const Values query_weight(weight.values.begin(), weight.values.begin() + 4),
      key_weight(weight.values.begin() + 4, weight.values.end());
  const auto as_query = naive_norm(x.values, 4, query_weight, {}, false, 1e-5),
             as_key = naive_norm(x.values, 4, key_weight, {}, false, 1e-5);
  for (std::size_t i = 0; i < y.size(); ++i) {
    const std::size_t part = i / 4 % 5;
    EXPECT_NEAR(y[i], part == 4 ? x.values[i] : part == 3 ? as_key[i] : as_query[i], 1e-5);
  }
}

KERNEL_TEST(NormKernel, OfAFusedQkvMayHaveAWeightForEveryHead) {
  Op op = op_of(norm);
  const Heads s;
  const Operand x{s.fused(), random_values(s.fused().elements(), 1)}, weight = random_operand({{2}, {4}, {4}}, 2);
  const Values y = call(op, {x, weight}, {s.fused(), plain({{2}, {6}, {2}, {5}, {1}})})[0];
  for (int v = 0; v < s.fused().elements() / 4; ++v) {
    const int part = v % 5, group = v / 5 % 2;
    if (part == 4) continue;
    const Values head(&x.values[v * 4], &x.values[v * 4] + 4),
        w(&weight.values[(group * 4 + part) * 4], &weight.values[(group * 4 + part) * 4] + 4);
    expect_equal({&y[v * 4], &y[v * 4] + 4}, naive_norm(head, 4, w, {}, false, 0));
  }
}

KERNEL_TEST(NormKernel, BehindALatentLeavesTheRotaryKey) {
  Op op = op_of(norm);
  const Operand x = random_operand({{2}, {3}, {8}}, 1), weight = random_operand({{6}}, 2);
  const Values y = call(op, {x, weight}, {x.tensor, plain({{2}, {3}, {1}})})[0];
  for (int v = 0; v < 6; ++v) {
    const Values latent(&x.values[v * 8], &x.values[v * 8] + 6);
    expect_equal({&y[v * 8], &y[v * 8] + 6}, naive_norm(latent, 6, weight.values, {}, false, 0));
    EXPECT_EQ(y[v * 8 + 6], x.values[v * 8 + 6]);
    EXPECT_EQ(y[v * 8 + 7], x.values[v * 8 + 7]);
  }
}

KERNEL_TEST(NormKernel, DerivativesAreSlopes) {
  Op op = op_of(norm);
  op.epsilon = 1e-2f;
  const Tensor x = parameter({{2}, {3}, {8}}), weight = parameter({{8}});
  expect_derivative(machine_of(op, {x, weight, weight}, {plain({{2}, {3}, {8}}), plain({{2}, {3}, {2}})}));
  expect_derivative(machine_of(op, {x, weight}, {plain({{2}, {3}, {8}}), plain({{2}, {3}, {1}})}));
  expect_derivative(machine_of(op, {x, parameter({{6}})}, {plain({{2}, {3}, {8}}), plain({{2}, {3}, {1}})}));
  const Heads s;
  const Tensor per_head = parameter({{2, Axis::groups}, {4, Axis::group_heads}, {4, Axis::head_dim}}),
               per_kind = parameter({{2}, {4}});
  for (const Tensor& w : {per_head, per_kind})
    expect_derivative(machine_of(op, {s.fused(), w}, {s.fused(), plain({{2}, {6}, {2}, {5}, {1}})}));
}

KERNEL_TEST(PoolKernel, AccumulatesTheGradientOfTheVectorBeforeEachSequenceOnly) {
  Op op = op_of(pool_backward);
  op.accumulate = true;
  const Tensor wide = plain({{2}, {3}, {4}}), rest = plain({{2}, {2}, {4}}), vector = plain({{4}});
  Values dy = random_values(24, 1), dx(16, NAN), token(4, 100);
  const std::array<orrery::Operand, 1> reads{orrery::Operand{dy.data(), &wide}};
  const std::array<orrery::Operand, 2> writes{orrery::Operand{dx.data(), &rest},
                                              orrery::Operand{token.data(), &vector}};
  kernel_runner()(op, reads, writes, {});
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(dx[i], dy[4 + i]);
    EXPECT_NEAR(token[i], 100 + dy[i] + dy[12 + i], 1e-4);
  }
}

KERNEL_TEST(NormKernel, AccumulatesTheGradientsOfItsParametersOnly) {
  Op op = op_of(norm_backward);
  op.accumulate = true;
  const Tensor wide = plain({{3}, {4}}), weight = plain({{4}}), statistics = plain({{3}, {1}});
  Values dy = random_values(12, 1), x = random_values(12, 2), w = random_values(4, 3), r{1, 1, 1}, dx(12, NAN),
         dw(4, 100);
  const std::array<orrery::Operand, 4> reads{orrery::Operand{dy.data(), &wide}, orrery::Operand{x.data(), &wide},
                                             orrery::Operand{w.data(), &weight},
                                             orrery::Operand{r.data(), &statistics}};
  const std::array<orrery::Operand, 2> writes{orrery::Operand{dx.data(), &wide}, orrery::Operand{dw.data(), &weight}};
  kernel_runner()(op, reads, writes, {});
  for (const float d : dx) EXPECT_FALSE(std::isnan(d));
  for (int i = 0; i < 4; ++i)
    EXPECT_NEAR(dw[i], 100 + dy[i] * x[i] + dy[4 + i] * x[4 + i] + dy[8 + i] * x[8 + i], 1e-4);
  // Of a frozen weight there is no gradient.
  Values alone(12, NAN);
  kernel_runner()(op, reads, std::array<orrery::Operand, 1>{orrery::Operand{alone.data(), &wide}}, {});
  EXPECT_EQ(alone, dx);
}

// --- Element by element

KERNEL_TEST(ActivationKernel, TakesTheTextbookValues) {
  const auto at = [](ActivationFunction f, float x) {
    Op op = op_of(activation);
    op.function = f;
    return call(op, {{plain({{1}}), {x}}}, {plain({{1}})})[0][0];
  };
  // x Phi(x) with Phi(1) = 0.8413447, Phi(-2) = 0.0227501; sigmoid(1) = 0.7310586, sigmoid(1.702) = 0.8457958.
  EXPECT_NEAR(at(ActivationFunction::gelu, 1), 0.8413447, 1e-6);
  EXPECT_NEAR(at(ActivationFunction::gelu, -2), -0.0455003, 1e-6);
  EXPECT_NEAR(at(ActivationFunction::geglu, 1), 0.8413447, 1e-6);
  EXPECT_NEAR(at(ActivationFunction::swiglu, 1), 0.7310586, 1e-6);
  EXPECT_NEAR(at(ActivationFunction::quick_gelu, 1), 0.8457958, 1e-6);
  EXPECT_EQ(at(ActivationFunction::relu, -3), 0);
  EXPECT_EQ(at(ActivationFunction::relu, 3), 3);
  EXPECT_EQ(at(ActivationFunction::relu2, -3), 0);
  EXPECT_EQ(at(ActivationFunction::relu2, 3), 9);
}

KERNEL_TEST(ActivationKernel, AGateMultipliesTheSecondHalf) {
  Op op = op_of(activation);
  op.function = ActivationFunction::swiglu;
  const Operand x = random_operand({{3}, {2}, {4}}, 1), bias = random_operand({{2}, {4}}, 2);
  const Values y = call(op, {x, bias}, {plain({{3}, {4}})})[0];
  std::vector<double> expected;
  for (int t = 0; t < 3; ++t)
    for (int i = 0; i < 4; ++i) {
      const double gate = x.values[t * 8 + i] + bias.values[i], up = x.values[t * 8 + 4 + i] + bias.values[4 + i];
      expected.push_back(gate / (1 + std::exp(-gate)) * up);
    }
  expect_equal(y, expected);
}

KERNEL_TEST(ActivationKernel, DerivativesAreSlopes) {
  using enum ActivationFunction;
  for (const ActivationFunction f : {gelu, relu, swiglu, geglu, quick_gelu, relu2}) {
    Op op = op_of(activation);
    op.function = f;
    // A kink within a step of the differences costs accuracy.
    const double tolerance = f == relu ? 2e-2 : 3e-3;
    expect_derivative(
        machine_of(op, {parameter({{4}, {5}}), parameter({{5}})}, {plain({{4}, {5}})}), [](Machine&) {}, tolerance);
    if (f == swiglu || f == geglu)
      expect_derivative(machine_of(op, {parameter({{3}, {2}, {5}}), parameter({{2}, {5}})}, {plain({{3}, {5}})}));
  }
}

KERNEL_TEST(DropoutKernel, KeepsTheExpectedShareAndScalesIt) {
  Op op = op_of(dropout);
  op.probability = 0.3f;
  const std::int64_t n = 20000;
  const Tensor t = plain({{n}});
  const auto out = call(op, {{t, Values(n, 1)}}, {t, t});
  const double share = std::accumulate(out[1].begin(), out[1].end(), 0.0) / static_cast<double>(n);
  EXPECT_NEAR(share, 0.7, 5 * std::sqrt(0.3 * 0.7 / static_cast<double>(n)));
  for (std::size_t i = 0; i < out[0].size(); ++i) EXPECT_FLOAT_EQ(out[0][i], out[1][i] / 0.7f);
}

KERNEL_TEST(DropoutKernel, StreamsAndSeedsDrawApart) {
  Op op = op_of(dropout);
  op.probability = 0.5f;
  const Tensor t = plain({{64}});
  const auto mask = [&](std::uint64_t seed, std::uint64_t stream) {
    KernelContext context;
    context.seed = seed;
    context.dropout_stream = stream;
    return call(op, {{t, Values(64, 1)}}, {t, t}, context)[1];
  };
  EXPECT_EQ(mask(1, 1), mask(1, 1));
  EXPECT_NE(mask(1, 1), mask(1, 2));
  EXPECT_NE(mask(1, 1), mask(2, 1));
}

KERNEL_TEST(DropoutKernel, DrawsForAPartWhatItDrawsForTheWhole) {
  Op op = op_of(dropout);
  op.probability = 0.5f;
  const Tensor whole = plain({{2, Axis::batch}, {8, Axis::sequence}, {6, Axis::hidden}});
  const Tensor part = plain({{1, Axis::batch}, {4, Axis::sequence}, {3, Axis::hidden}});
  const Values all = call(op, {{whole, Values(96, 1)}}, {whole, whole})[1];
  const std::array<std::int64_t, 4> zigzag{2, 3, 6, 7};
  for (const bool by_position : {false, true}) {
    KernelContext context;
    context.part_begin = {1, 4, 3};
    context.whole_sizes = {2, 8, 6};
    if (by_position) context.query_positions = zigzag;
    const Values mask = call(op, {{part, Values(12, 1)}}, {part, part}, context)[1];
    for (int s = 0; s < 4; ++s)
      for (int h = 0; h < 3; ++h) EXPECT_EQ(mask[s * 3 + h], all[(8 + (by_position ? zigzag[s] : 4 + s)) * 6 + 3 + h]);
  }
}

KERNEL_TEST(DropoutKernel, PhiloxGivesThePublishedWords) {
  // Random123's known answers (kat_vectors) for philox4x32 of 10 rounds.
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

KERNEL_TEST(DropoutKernel, DerivativesAreSlopes) {
  const Tensor x = parameter({{2}, {5}, {6}}), y = plain({{2}, {5}, {6}});
  Op op = op_of(dropout);
  op.probability = 0.4f;
  expect_derivative(machine_of(op, {x}, {y, y}));
  op.kind = dropout_add;
  expect_derivative(machine_of(op, {x, x, parameter({{6}})}, {y, y}));
}

KERNEL_TEST(DropoutAddKernel, AddsToTheResidualWhatIsKept) {
  Op op = op_of(dropout_add);
  op.probability = 0.25f;
  const Operand x = random_operand({{4}, {6}}, 1), residual = random_operand({{4}, {6}}, 2),
                bias = random_operand({{6}}, 3);
  const auto out = call(op, {x, residual, bias}, {x.tensor, x.tensor});
  std::vector<double> expected;
  for (int i = 0; i < 24; ++i)
    expected.push_back(residual.values[i] + out[1][i] * (x.values[i] + bias.values[i % 6]) / 0.75);
  expect_equal(out[0], expected);
}

KERNEL_TEST(AddKernel, RepeatsABiasAndRowsOfPositions) {
  const Operand a = random_operand({{2}, {3}, {4}}, 1), b = random_operand({{2}, {3}, {4}}, 2),
                positions = random_operand({{3}, {4}}, 3);
  const Values y = call(op_of(add), {a, b, positions}, {a.tensor})[0],
               rows_only = call(op_of(add), {a, {absent(), {}}, positions}, {a.tensor})[0];
  for (int i = 0; i < 24; ++i) {
    EXPECT_NEAR(y[i], a.values[i] + b.values[i] + positions.values[i % 12], 1e-6);
    EXPECT_NEAR(rows_only[i], a.values[i] + positions.values[i % 12], 1e-6);
  }
}

KERNEL_TEST(AddKernel, DerivativesAreSlopes) {
  const Tensor x = parameter({{2}, {3}, {4}});
  expect_derivative(machine_of(op_of(add), {x, x, parameter({{4}})}, {plain({{2}, {3}, {4}})}));
  expect_derivative(machine_of(op_of(add), {x, absent(), parameter({{3}, {4}})}, {plain({{2}, {3}, {4}})}));
}

KERNEL_TEST(MultiplyKernel, DerivativesAreSlopes) {
  const Tensor x = parameter({{2}, {3}});
  expect_derivative(machine_of(op_of(multiply), {x, x}, {plain({{2}, {3}})}));
  EXPECT_EQ(call(op_of(multiply), {{x, {1, 2, 3, 4, 5, 6}}, {x, {2, 2, 2, 3, 3, 3}}}, {x})[0],
            (Values{2, 4, 6, 12, 15, 18}));
}

KERNEL_TEST(MultiplyKernel, DividesByElementOrByOneNumberOfARow) {
  Op divide = op_of(multiply);
  divide.divides = true;
  const Operand a{plain({{2}, {3}}), {1, 2, 3, 4, 5, 6}};
  EXPECT_EQ(call(divide, {a, {a.tensor, {2, 2, 2, 4, -4, 4}}}, {a.tensor})[0], (Values{0.5, 1, 1.5, 1, -1.25, 1.5}));
  EXPECT_EQ(call(divide, {a, {plain({{2}, {1}}), {2, 8}}}, {a.tensor})[0], (Values{0.5, 1, 1.5, 0.5, 0.625, 0.75}));
}

KERNEL_TEST(CastKernel, RoundsToBf16OnRequest) {
  Tensor narrow = plain({{5}});
  narrow.dtype = Dtype::bf16;
  // bf16 has 8 significant bits: 1 + 2^-8 is a tie and goes to the even 1, 1 + 3 2^-8 to 1 + 2^-6.
  const Operand x{plain({{5}}), {1 + 0x1p-8f, 1 + 3 * 0x1p-8f, 1 + 0x1.1p-8f, -1 - 0x1.1p-8f, 3}};
  KernelContext context;
  EXPECT_EQ(call(op_of(cast), {x}, {narrow}, context)[0], x.values);
  context.round_to_bf16 = true;
  EXPECT_EQ(call(op_of(cast), {x}, {narrow}, context)[0], (Values{1, 1 + 0x1p-6f, 1 + 0x1p-7f, -1 - 0x1p-7f, 3}));
  EXPECT_EQ(call(op_of(cast), {x}, {x.tensor}, context)[0], x.values) << "fp32 stays";
}

KERNEL_TEST(CastKernel, DerivativesAreSlopes) {
  expect_derivative(machine_of(op_of(cast), {parameter({{2}, {3}})}, {plain({{2}, {3}})}));
}

KERNEL_TEST(ZeroFillKernel, ClearsEvenNaN) { EXPECT_EQ(call(op_of(zero_fill), {}, {plain({{3}})})[0], Values(3, 0)); }

// --- Tokens

KERNEL_TEST(EmbeddingKernel, LooksUpRowsAndLeavesOtherRanksTheirs) {
  const Operand ids{plain({{1}, {3}}), {2, 0, 5}}, table = [] {
    Operand t{plain({{4, Axis::vocab}, {2, Axis::hidden}}), {0, 1, 10, 11, 20, 21, 30, 31}};
    return t;
  }();
  const Tensor y = plain({{1}, {3}, {2}});
  EXPECT_EQ(call(op_of(embedding), {ids, table}, {y})[0], (Values{20, 21, 0, 1, 0, 0}));
  KernelContext context;
  context.first_vocabulary_row = 2;
  EXPECT_EQ(call(op_of(embedding), {ids, table}, {y}, context)[0], (Values{0, 1, 0, 0, 30, 31}));
  Operand segments = table;
  segments.tensor.axes[0] = Axis::none;
  EXPECT_THROW(call(op_of(embedding), {ids, segments}, {y}), std::logic_error);
}

KERNEL_TEST(EmbeddingKernel, DerivativesAreSlopes) {
  const Machine m =
      machine_of(op_of(embedding), {plain({{2}, {3}}), parameter({{4, Axis::vocab}, {5}})}, {plain({{2}, {3}, {5}})});
  expect_derivative(m, [](Machine& x) { x.values(0) = {0, 3, 3, 1, 0, 3}; });  // rows seen twice, and never
}

KERNEL_TEST(CrossEntropyKernel, IsLogSoftmaxOfTheTarget) {
  const Operand logits = random_operand({{2}, {3}, {7, Axis::vocab}}, 1),
                targets{plain({{2}, {3}}), {0, 6, 3, 2, 2, 5}};
  const Values s = call(op_of(cross_entropy), {logits, targets}, {plain({{3}, {2}, {3}})})[0];
  for (int t = 0; t < 6; ++t) {
    double sum = 0;
    for (int c = 0; c < 7; ++c) sum += std::exp(static_cast<double>(logits.values[t * 7 + c]));
    const double log_softmax = std::log(std::exp(logits.values[t * 7 + static_cast<int>(targets.values[t])]) / sum);
    EXPECT_NEAR(s[t] + std::log(s[6 + t]) - s[12 + t], -log_softmax, 1e-5);
  }
}

KERNEL_TEST(CrossEntropyKernel, LargeLogitsDoNotOverflow) {
  const Values s = call(op_of(cross_entropy), {{plain({{1}, {2, Axis::vocab}}), {1000, 999}}, {plain({{1}}), {1}}},
                        {plain({{3}, {1}})})[0];
  EXPECT_NEAR(s[0] + std::log(s[1]) - s[2], std::log(1 + std::exp(1.0)), 1e-4);
}

KERNEL_TEST(CrossEntropyKernel, TwoHalvesOfTheVocabularyCombineToTheWhole) {
  const Operand logits = random_operand({{4}, {6, Axis::vocab}}, 1), targets{plain({{4}}), {0, 5, 3, 2}};
  const Tensor statistics = plain({{3}, {4}});
  const Values whole = call(op_of(cross_entropy), {logits, targets}, {statistics})[0];
  const Values gradient =
      call(op_of(cross_entropy_backward), {logits, targets, {statistics, whole}}, {logits.tensor})[0];
  std::array<Operand, 2> parts;
  std::array<Values, 2> local;
  std::array<KernelContext, 2> contexts;
  for (int r = 0; r < 2; ++r) {
    parts[r].tensor = plain({{4}, {3, Axis::vocab}});
    for (int t = 0; t < 4; ++t)
      parts[r].values.insert(parts[r].values.end(), &logits.values[t * 6 + r * 3], &logits.values[t * 6 + r * 3] + 3);
    contexts[r].first_vocabulary_row = 3 * r;
    local[r] = call(op_of(cross_entropy), {parts[r], targets}, {statistics}, contexts[r])[0];
  }
  Values combined(12);
  for (int t = 0; t < 4; ++t) {
    combined[t] = std::max(local[0][t], local[1][t]);
    for (int r = 0; r < 2; ++r) {
      combined[4 + t] += local[r][4 + t] * std::exp(local[r][t] - combined[t]);
      combined[8 + t] += local[r][8 + t];
    }
  }
  expect_equal(combined, {whole.begin(), whole.end()});
  for (int r = 0; r < 2; ++r) {
    const Values d = call(op_of(cross_entropy_backward), {parts[r], targets, {statistics, combined}}, {parts[r].tensor},
                          contexts[r])[0];
    for (int t = 0; t < 4; ++t)
      for (int c = 0; c < 3; ++c) EXPECT_NEAR(d[t * 3 + c], gradient[t * 6 + r * 3 + c], 1e-6);
  }
}

KERNEL_TEST(CrossEntropyKernel, DerivativesAreSlopes) {
  const Machine m = machine_of(op_of(cross_entropy), {parameter({{2}, {3}, {7, Axis::vocab}}), plain({{2}, {3}})},
                               {plain({{3}, {2}, {3}})});
  expect_derivative(m, [](Machine& x) { x.values(1) = {0, 6, 3, 2, 2, 5}; });
}

KERNEL_TEST(CrossEntropyKernel, TheFactorScales) {
  const Operand logits = random_operand({{2}, {3, Axis::vocab}}, 1), targets{plain({{2}}), {0, 2}};
  const Tensor statistics = plain({{3}, {2}});
  const Values s = call(op_of(cross_entropy), {logits, targets}, {statistics})[0];
  Op op = op_of(cross_entropy_backward);
  const Values one = call(op, {logits, targets, {statistics, s}}, {logits.tensor})[0];
  op.scale = 0.5;
  const Values half = call(op, {logits, targets, {statistics, s}}, {logits.tensor})[0];
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_FLOAT_EQ(half[i], one[i] / 2);
}

KERNEL_TEST(PoolKernel, TakesTheFirstTokenOrTheMean) {
  const Operand x{plain({{2}, {3}, {2}}), {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}};
  const Tensor y = plain({{2}, {1}, {2}});
  EXPECT_EQ(call(op_of(pool), {x}, {y})[0], (Values{1, 2, 7, 8}));
  KernelContext context;
  context.pool_mean = true;
  EXPECT_EQ(call(op_of(pool), {x}, {y}, context)[0], (Values{3, 4, 9, 10}));
  EXPECT_EQ(call(op_of(pool), {x}, {plain({{1}, {1}, {2}})})[0], (Values{6, 7})) << "over the windows of an image";
}

KERNEL_TEST(PoolKernel, DerivativesAreSlopes) {
  const Tensor x = parameter({{8}, {9}, {2}});
  for (const bool mean : {false, true}) {
    Machine m = machine_of(op_of(pool), {x}, {plain({{8}, {1}, {2}})});
    m.context.pool_mean = mean;
    expect_derivative(m);
  }
  expect_derivative(machine_of(op_of(pool), {x}, {plain({{2}, {1}, {2}})}));
}

// --- Optimizers

KERNEL_TEST(GradientNormKernel, IsTheSumOfSquares) {
  EXPECT_EQ(call(op_of(gradient_norm), {{plain({{3}}), {1, -2, 3}}}, {plain({{1}})})[0][0], 14);
}

// Where the factor alone leaves the norm above the limit, it goes on until the limit.
KERNEL_TEST(ScaleKernel, MultipliesAndClipsTheNormOfWhatComesOut) {
  const Operand x{plain({{3}}), {1, -2, 3}};
  const auto norm = [](double n) { return Operand{plain({{1}}), {static_cast<float>(n * n)}}; };
  Op op = op_of(scale);
  op.scale = 0.5;
  EXPECT_EQ(call(op, {x}, {x.tensor})[0], (Values{0.5f, -1, 1.5f}));
  op.clip_limit = 3;
  EXPECT_EQ(call(op, {x, norm(5)}, {x.tensor})[0], (Values{0.5f, -1, 1.5f})) << "2.5 is not clipped";
  const Values clipped = call(op, {x, norm(12)}, {x.tensor})[0];
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(clipped[i], x.values[i] / 4, 1e-6) << "6 becomes 3";
  EXPECT_EQ(call(op, {x, norm(0)}, {x.tensor})[0], (Values{0.5f, -1, 1.5f}));
  op.clip_limit = 0;
  EXPECT_THROW(call(op, {x, norm(5)}, {x.tensor}), std::logic_error) << "clipped to nothing";
  op.clip_limit = 3;
  const Operand squares{plain({{2}}), {36, 0.25f * 0.25f}}, two{plain({{2}, {3}}), {1, -2, 3, 1, -2, 3}};
  EXPECT_THROW(call(op, {x, squares}, {x.tensor}), std::logic_error) << "two norms of three numbers";
  const Values each = call(op, {two, squares}, {two.tensor})[0];
  EXPECT_NEAR(each[2], 1.5, 1e-6) << "3 is not clipped";
  EXPECT_NEAR(each[5], 1.5, 1e-6);
  op.scale = 1000;
  const Values normed = call(op, {two, squares}, {two.tensor})[0];
  EXPECT_NEAR(normed[2], 3.0 * 3 / 6, 1e-5);
  EXPECT_NEAR(normed[5], 3.0 * 3 / 0.25, 1e-5);
}

KERNEL_TEST(ScaleKernel, MultipliesByTheRootOfASizeThatIsNotTooSmall) {
  const Operand x{plain({{2}, {3}}), {1, -2, 3, 1, -2, 3}}, sizes{plain({{2}}), {16, 0.01f}},
      norms{plain({{2}}), {36, 36}};
  Op op = op_of(scale);
  op.epsilon = 0.5f;
  const Values y = call(op, {x, {}, sizes}, {x.tensor})[0];
  for (std::size_t i = 0; i < 6; ++i) EXPECT_FLOAT_EQ(y[i], x.values[i] * (i < 3 ? 4.0f : 0.5f)) << i;
  op.clip_limit = 3;  // the norm of x, not of what comes out
  const Values clipped = call(op, {x, norms, sizes}, {x.tensor})[0];
  for (std::size_t i = 0; i < 6; ++i) EXPECT_NEAR(clipped[i], y[i] / 2, 1e-6) << i;
  EXPECT_THROW(call(op, {x, {plain({{1}}), {4}}, sizes}, {x.tensor}), std::logic_error) << "one norm, two sizes";
}

KERNEL_TEST(SquareSumsKernel, SumsPartsOrColumns) {
  const Operand x{plain({{2}, {2}, {3}}), {1, 2, 3, 4, 5, 6, -1, -2, -3, 0, 1, 2}};
  Op op = op_of(square_sums);
  op.scale = 0.5;
  EXPECT_EQ(call(op, {x}, {plain({{2}, {2}})})[0], (Values{7, 38.5f, 7, 2.5f}));
  EXPECT_EQ(call(op, {x}, {plain({{2}})})[0], (Values{45.5f, 9.5f}));
  EXPECT_EQ(call(op, {x}, {x.tensor})[0], (Values{0.5f, 2, 4.5f, 8, 12.5f, 18, 0.5f, 2, 4.5f, 0, 0.5f, 2}));
  op.transpose_a = true;
  EXPECT_EQ(call(op, {x}, {plain({{3}})})[0], (Values{9, 17, 29}));
  op.group_dims = 1;
  EXPECT_EQ(call(op, {x}, {plain({{2}, {3}})})[0], (Values{8.5f, 14.5f, 22.5f, 0.5f, 2.5f, 6.5f}));
  EXPECT_THROW(call(op, {x}, {plain({{5}})}), std::logic_error);
}

// The first step forgets what was before it, and later ones weigh less and less.
KERNEL_TEST(MovingMeanKernel, WeighsStepsByTheirNumber) {
  const Operand mean{plain({{2}}), {1, -3}}, x{plain({{2}}), {2, 5}};
  KernelContext context;
  for (const std::int64_t step : {1, 2, 100}) {
    context.step = step;
    const double weight = 1 / std::pow(static_cast<double>(step), 0.8);
    const Values y = call(op_of(moving_mean), {mean, x}, {x.tensor}, context)[0];
    for (std::size_t i = 0; i < 2; ++i)
      EXPECT_NEAR(y[i], mean.values[i] + weight * (x.values[i] - mean.values[i]), 1e-6) << step;
  }
}

KERNEL_TEST(FactoredUpdateKernel, DividesByTheRootOfTheProductOfTheFactors) {
  const Operand g{plain({{2}, {2}, {2}}), {1, -2, 3, 4, 5, 6, 7, 8}}, rows{plain({{2}, {2}}), {1, 4, 0, 9}},
      columns{plain({{2}, {2}}), {2, 8, 3, 0}}, sums{plain({{2}}), {2, 0}};
  KernelContext context;
  context.epsilon = 0.5;
  const Values y = call(op_of(factored_update), {g, rows, columns, sums}, {g.tensor}, context)[0];
  const Values roots{1, 2, 2, 4, 0.5f, 0.5f, 0.5f, 0.5f};  // a matrix without a gradient is divided by epsilon
  for (std::size_t i = 0; i < 8; ++i) EXPECT_FLOAT_EQ(y[i], g.values[i] / roots[i]) << i;
  const Operand squares{g.tensor, {4, 16, 0, 0.01f, 1, 1, 1, 1}};
  const Values whole = call(op_of(factored_update), {g, squares}, {g.tensor}, context)[0];
  for (std::size_t i = 0; i < 8; ++i)
    EXPECT_FLOAT_EQ(whole[i], g.values[i] / std::max(0.5f, std::sqrt(squares.values[i]))) << i;
  EXPECT_THROW(call(op_of(factored_update), {g, rows, columns, {plain({{1}}), {2}}}, {g.tensor}), std::logic_error);
}

// The optimizers' kernels scale as a pass before them would have.
KERNEL_TEST(ScaleKernel, IsWhatOptimizersFuse) {
  const Operand g = random_operand({{7}}, 1), w = random_operand({{7}}, 2), m = random_operand({{7}}, 3),
                norm{plain({{1}}), {64}};
  Operand v = random_operand({{7}}, 4);
  for (float& x : v.values) x = std::abs(x);
  Op scaling = op_of(scale);
  scaling.scale = 0.5;
  scaling.clip_limit = 3;
  const Operand scaled{g.tensor, call(scaling, {g, norm}, {g.tensor})[0]};
  for (const OpKind kind : {adam, sgd}) {
    Op fused = op_of(kind);
    fused.scale = 0.5;
    fused.clip_limit = 3;
    std::vector<Operand> reads{g, w, m};
    std::vector<Tensor> results{w.tensor, m.tensor};
    if (kind == adam) reads.push_back(v), results.push_back(v.tensor);
    reads.push_back(norm);
    const auto together = call(fused, reads, results);
    reads[0] = scaled;
    reads.pop_back();
    const auto apart = call(op_of(kind), reads, results);
    for (std::size_t r = 0; r < apart.size(); ++r)
      for (std::size_t i = 0; i < apart[r].size(); ++i)
        EXPECT_NEAR(together[r][i], apart[r][i], 1e-6 * (1 + std::abs(apart[r][i]))) << name_of(kind) << " " << r;
  }
}

// Buffers that live over several steps, updated in place.
class Training {
 public:
  Training(Op op, std::vector<std::size_t> reads, std::vector<std::size_t> writes)
      : op_(op), reads_(std::move(reads)), writes_(std::move(writes)) {}
  void step(const KernelContext& context) {
    std::vector<orrery::Operand> in, out;
    for (const std::size_t i : reads_) in.push_back({&state[i], &scalar_});
    for (const std::size_t i : writes_) out.push_back({&state[i], i == 1 ? &narrow_ : &scalar_});
    kernel_runner()(op_, in, out, context);
  }
  // Gradient, parameter, master, moments.
  std::array<float, 5> state{0, 0.7f, 0.7f, 0, 0};

 private:
  Op op_;
  std::vector<std::size_t> reads_, writes_;
  Tensor scalar_ = plain({{1}}), narrow_ = shaped({{1}}, Category::parameter, Dtype::bf16);
};

KERNEL_TEST(AdamKernel, FollowsTheFormulaOverSteps) {
  for (const bool decoupled : {true, false})
    for (const bool master : {true, false}) {
      Op op = op_of(adam);
      op.scale = 0.5;
      op.decoupled_weight_decay = decoupled;
      Training t(op, master ? std::vector<std::size_t>{0, 2, 3, 4} : std::vector<std::size_t>{0, 1, 3, 4},
                 master ? std::vector<std::size_t>{1, 2, 3, 4} : std::vector<std::size_t>{1, 3, 4});
      KernelContext c;
      c.learning_rate = 0.01;
      c.weight_decay = 0.1;
      c.epsilon = 0.01;
      double w = 0.7f, m = 0, v = 0;
      for (int step = 1; step <= 5; ++step) {
        const double given = std::sin(step);
        t.state[0] = static_cast<float>(given);
        c.step = step;
        t.step(c);
        const double g = given / 2 + (decoupled ? 0 : 0.1 * w);
        if (decoupled) w *= 1 - 0.01 * 0.1;
        m = 0.9 * m + 0.1 * g;
        v = 0.999 * v + 0.001 * g * g;
        w -= 0.01 * (m / (1 - std::pow(0.9, step))) / (std::sqrt(v / (1 - std::pow(0.999, step))) + 0.01);
        EXPECT_NEAR(t.state[1], w, 1e-6);
        if (master) {
          EXPECT_NEAR(t.state[2], w, 1e-6);
        }
        EXPECT_NEAR(t.state[3], m, 1e-6);
        EXPECT_NEAR(t.state[4], v, 1e-6);
      }
    }
}

KERNEL_TEST(AdamKernel, AMasterCopyKeepsWhatBf16Loses) {
  Training t(op_of(adam), {0, 2, 3, 4}, {1, 2, 3, 4});
  KernelContext c;
  c.round_to_bf16 = true;
  c.learning_rate = 1e-4;  // below bf16's spacing of 2^-8 at 0.7
  for (c.step = 1; c.step <= 20; ++c.step) {
    t.state[0] = 1;
    t.step(c);
  }
  EXPECT_NEAR(t.state[2], 0.7 - 20 * 1e-4, 1e-5);
  EXPECT_EQ(t.state[1] * 256, std::round(t.state[1] * 256));
}

KERNEL_TEST(SgdKernel, FollowsTheFormulaOverSteps) {
  for (const bool momentum : {true, false})
    for (const bool master : {true, false}) {
      std::vector<std::size_t> reads{0, master ? 2u : 1u}, writes{1};
      if (master) writes.push_back(2);
      if (momentum) {
        reads.push_back(3);
        writes.push_back(3);
      }
      Training t(op_of(sgd), reads, writes);
      KernelContext c;
      c.learning_rate = 0.1;
      c.weight_decay = 0.01;
      double w = 0.7f, v = 0;
      for (int step = 1; step <= 5; ++step) {
        t.state[0] = static_cast<float>(std::cos(step));
        t.step(c);
        v = (momentum ? 0.9 : 0) * v + std::cos(step) + 0.01 * w;
        w -= 0.1 * v;
        EXPECT_NEAR(t.state[1], w, 1e-6) << momentum << master;
        if (master) {
          EXPECT_NEAR(t.state[2], w, 1e-6);
        }
      }
    }
}

// Chen et al. 2023 (arXiv 2302.06675), algorithm 2. A mean of 0 takes no step.
KERNEL_TEST(SgdKernel, StepsBySigns) {
  Op op = op_of(sgd);
  op.sign = true;
  op.scale = 0.5;
  Training t(op, {0, 2, 3}, {1, 2, 3});
  KernelContext c;
  c.learning_rate = 0.1;
  c.weight_decay = 0.01;
  double w = 0.7f, m = 0;
  for (int step = 0; step < 6; ++step) {
    const double given = step == 0 ? 0 : 2 * std::cos(step);
    t.state[0] = static_cast<float>(given);
    t.step(c);
    const double g = 0.5 * given, mean = 0.9 * m + 0.1 * g;
    w -= 0.1 * ((mean > 0 ? 1 : mean < 0 ? -1 : 0) + 0.01 * w);
    m = 0.999 * m + 0.001 * g;
    EXPECT_NEAR(t.state[1], w, 1e-6);
    EXPECT_NEAR(t.state[2], w, 1e-6);
    EXPECT_NEAR(t.state[3], m, 1e-6);
  }
}

// An outer optimizer has rates of its own, and no weight decay: torch.optim.SGD with nesterov, and CO2's limit.
KERNEL_TEST(SgdKernel, OfItsOwnRateTakesNoneOfTheRuns) {
  for (const bool nesterov : {false, true})
    for (const float limit : {0.0f, 0.5f}) {
      Op op = op_of(sgd);
      op.learning_rate = 0.7f;
      op.momentum = 0.6f;
      op.nesterov = nesterov;
      op.clip_limit = limit;
      op.scale = 0.5;
      Training t(op, {0, 2, 3}, {1, 2, 3});
      KernelContext c;
      c.learning_rate = 0.1;
      c.weight_decay = 0.01;
      double w = 0.7f, v = 0;
      for (int step = 1; step <= 5; ++step) {
        t.state[0] = static_cast<float>(std::cos(step));
        t.step(c);
        const double g = 0.5 * std::cos(step);
        v = 0.6 * v + g;
        if (limit > 0) v = std::clamp(v, -0.5, 0.5);
        w -= 0.7 * (nesterov ? g + 0.6 * v : v);
        EXPECT_NEAR(t.state[1], w, 1e-6) << nesterov << limit;
        EXPECT_NEAR(t.state[2], w, 1e-6);
        EXPECT_NEAR(t.state[3], v, 1e-6);
      }
    }
}

// CO2's penalty: an sgd of its own rate divides its gradient by one plus rate times norm.
KERNEL_TEST(SgdKernel, DividesByOnePlusANorm) {
  Op op = op_of(sgd);
  op.learning_rate = 0.5, op.momentum = 0, op.divides = true;
  const Tensor t = plain({{2}});
  for (const auto& [square, penalty] : {std::pair(16.0f, 3.0f), {0.0f, 1.0f}, {std::nanf(""), 1.0f}}) {
    const std::vector<Values> out =
        call(op, {{t, {3, -6}}, {t, {1, 1}}, {t, {0, 0}}, {plain({{1}}), {square}}}, {t, t, t});
    EXPECT_FLOAT_EQ(out[0][0], 1 - 0.5f * 3 / penalty) << square;
    EXPECT_FLOAT_EQ(out[0][1], 1 + 0.5f * 6 / penalty) << square;
    EXPECT_FLOAT_EQ(out[2][1], -6 / penalty) << square;
  }
}

KERNEL_TEST(SubtractKernel, TakesTheSecondFromTheFirst) {
  const Operand a = random_operand({{2}, {57}}, 1), b = random_operand({{2}, {57}}, 2);
  const Values y = call(op_of(subtract), {a, b}, {a.tensor})[0];
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_FLOAT_EQ(y[i], a.values[i] - b.values[i]);
}

// --- Codes

Operand coded(Tensor t, Dtype dtype, Values values) {
  t.dtype = dtype;
  return {t, std::move(values)};
}
Tensor of_dtype(Tensor t, Dtype dtype) {
  t.dtype = dtype;
  return t;
}

KERNEL_TEST(QuantiserKernels, CodesAreWithinHalfAStepOfTheirNumbers) {
  const Operand x = random_operand({{1}, {53}}, 1);
  for (const Dtype dtype : {Dtype::int8, Dtype::int4, Dtype::fp8}) {
    const float largest = dtype == Dtype::int8 ? 127 : dtype == Dtype::int4 ? 7 : 448;
    // Two rows of 30 codes, seven and some beyond the numbers, in groups of eight.
    const auto written = call(op_of(quantise), {x}, {of_dtype(plain({{2}, {30}}), dtype), plain({{2}, {4}})});
    const Values &codes = written[0], &scales = written[1];
    for (int i = 0; i < 60; ++i) {
      const int group = i / 30 * 4 + i % 30 / 8;
      float most = 0;
      for (int j = 0; j < 53; ++j)
        if (j / 30 * 4 + j % 30 / 8 == group) most = std::max(most, std::abs(x.values[j]));
      EXPECT_FLOAT_EQ(scales[group], most / largest) << i;
      // The distance of codes here: e4m3 has a mantissa of three bits, and 2^-9 as its smallest number.
      const float step =
          dtype == Dtype::fp8 ? std::exp2(std::floor(std::log2(std::max(std::abs(codes[i]), 1.0f / 64))) - 3) : 1;
      EXPECT_EQ(codes[i] / step, std::nearbyint(codes[i] / step));
      EXPECT_LE(std::abs(codes[i]), largest);
      const float number = i < 53 ? x.values[i] : 0;
      EXPECT_LE(std::abs(codes[i] * scales[group] - number), scales[group] * step * 0.5001f) << i;
    }
    const Values y = call(op_of(dequantise),
                          {coded(plain({{2}, {30}}), dtype, codes), coded(plain({{2}, {4}}), Dtype::fp32, scales)},
                          {plain({{53}})})[0];
    for (int i = 0; i < 53; ++i) EXPECT_FLOAT_EQ(y[i], codes[i] * scales[i / 30 * 4 + i % 30 / 8]) << i;
  }
}

// A gradient that overflowed must not come back as a number.
KERNEL_TEST(QuantiserKernels, WhatIsNoNumberStaysSo) {
  Operand x = random_operand({{1}, {32}}, 1);
  x.values[11] = std::numeric_limits<float>::quiet_NaN();
  const auto written = call(op_of(quantise), {x}, {of_dtype(plain({{1}, {32}}), Dtype::int8), plain({{1}, {4}})});
  const Values y =
      call(op_of(dequantise),
           {coded(plain({{1}, {32}}), Dtype::int8, written[0]), coded(plain({{1}, {4}}), Dtype::fp32, written[1])},
           {plain({{32}})})[0];
  for (int i = 0; i < 32; ++i) EXPECT_EQ(std::isnan(y[i]), i / 8 == 1) << i;
}

// A sign stands for the root of the mean square of its group. Error feedback: what codes lose is added to the next.
KERNEL_TEST(QuantiserKernels, WhatCodesLoseIsFedBack) {
  const Operand x = random_operand({{1}, {53}}, 1);
  for (const Dtype dtype : {Dtype::int8, Dtype::int4, Dtype::fp8, Dtype::sign}) {
    Op op = op_of(quantise);
    op.scale = 0.5;
    Values sent(53), error(53);
    for (int step = 0; step < 3; ++step) {
      const auto written = call(op, {x, coded(plain({{53}}), Dtype::fp32, error)},
                                {of_dtype(plain({{2}, {30}}), dtype), plain({{2}, {4}}), plain({{53}})});
      for (int group = 0; dtype == Dtype::sign && group < 8; ++group) {
        double squares = 0;
        int members = 0;
        for (int i = 0; i < 60; ++i) {
          if (i / 30 * 4 + i % 30 / 8 != group) continue;
          ++members;
          EXPECT_EQ(std::abs(written[0][i]), 1);
          if (i < 53) squares += std::pow(0.5 * x.values[i] + error[i], 2);
        }
        EXPECT_NEAR(written[1][group], std::sqrt(squares / members), 1e-6) << group;
      }
      error = written[2];
      for (int i = 0; i < 53; ++i) sent[i] += written[0][i] * written[1][i / 30 * 4 + i % 30 / 8];
      for (int i = 0; i < 53; ++i)
        EXPECT_NEAR(sent[i] + error[i], 0.5 * x.values[i] * static_cast<float>(step + 1), 2e-6) << i;
    }
  }
}

// With a group for each number, codes lose nothing but a rounding.
KERNEL_TEST(QuantiserKernels, SumContributionsInTheirOrder) {
  const auto contributed = [](std::initializer_list<Dim> dims) {
    Tensor t = shaped(dims);
    t.axes[0] = Axis::contributions;
    return t;
  };
  Values codes, scales;
  for (int i = 0; i < 3 * 2 * 6; ++i) codes.push_back(static_cast<float>((i * 5) % 15 - 7));
  for (int i = 0; i < 3 * 2 * 3; ++i) scales.push_back(0.25f * static_cast<float>(i + 1));
  const Operand in = coded(contributed({{3}, {2}, {6}}), Dtype::int4, codes),
                by = coded(contributed({{3}, {2}, {3}}), Dtype::fp32, scales);
  std::vector<double> expected(12, 0.0);
  for (int p = 0; p < 3; ++p)
    for (int i = 0; i < 12; ++i) expected[i] += codes[p * 12 + i] * scales[p * 6 + i / 6 * 3 + i % 6 / 2];
  Op add = op_of(dequantise);
  expect_equal(call(add, {in, by}, {plain({{12}})})[0], expected);
  const auto again = call(op_of(requantise), {in, by}, {of_dtype(plain({{2}, {6}}), Dtype::int8), plain({{2}, {6}})});
  std::vector<double> back;
  for (int i = 0; i < 12; ++i) back.push_back(again[0][i] * again[1][i]);
  expect_equal(Values(back.begin(), back.end()), expected);
  EXPECT_THROW(call(op_of(requantise), {in, by}, {of_dtype(plain({{2}, {5}}), Dtype::int8), plain({{2}, {5}})}),
               std::logic_error)
      << "other numbers";
  EXPECT_THROW(call(op_of(dequantise), {in, by}, {plain({{13}})}), std::logic_error) << "more than there are";
}

// --- The largest of many numbers

KERNEL_TEST(SparseKernels, SendTheLargestAndKeepTheRest) {
  constexpr int kNumbers = 1903, kGroups = 3, kKept = 5, kGroup = 635;  // the last group has 633
  const Operand x = random_operand({{kNumbers}}, 1);
  Op op = op_of(sparsify);
  op.scale = 0.5;
  Values sent(kNumbers), error(kNumbers);
  for (int step = 0; step < 3; ++step) {
    Values own(kNumbers);
    for (int i = 0; i < kNumbers; ++i) own[i] = 0.5f * x.values[i] + error[i];
    const auto written =
        call(op, {x, coded(plain({{kNumbers}}), Dtype::fp32, error)},
             {plain({{kGroups}, {kKept}}), of_dtype(plain({{kGroups}, {kKept}}), Dtype::int32), plain({{kNumbers}})});
    error = written[2];
    for (int g = 0; g < kGroups; ++g) {
      const int end = std::min(kNumbers, (g + 1) * kGroup);
      float least = std::numeric_limits<float>::infinity();
      for (int k = g * kKept; k < (g + 1) * kKept; ++k) {
        const int i = g * kGroup + static_cast<int>(written[1][k]);
        if (k > g * kKept) {
          EXPECT_GT(written[1][k], written[1][k - 1]) << "in their order";
        }
        EXPECT_EQ(written[0][k], own[i]);
        EXPECT_EQ(error[i], 0);
        least = std::min(least, std::abs(own[i]));
        sent[i] += written[0][k];
      }
      for (int i = g * kGroup; i < end; ++i) EXPECT_LE(std::abs(error[i]), least);
    }
    for (int i = 0; i < kNumbers; ++i)
      EXPECT_NEAR(sent[i] + error[i], 0.5 * x.values[i] * static_cast<float>(step + 1), 2e-6) << i;
  }
}

KERNEL_TEST(SparseKernels, EqualNumbersShortGroupsAndWhatIsNoNumber) {
  const auto kept_of = [](Values values, int groups, int kept) {
    const auto n = static_cast<std::int64_t>(values.size());
    return call(op_of(sparsify), {coded(plain({{n}}), Dtype::fp32, std::move(values))},
                {plain({{groups}, {kept}}), of_dtype(plain({{groups}, {kept}}), Dtype::int32)});
  };
  auto written = kept_of({1, -2, 2, -2, 2, 0}, 1, 3);
  EXPECT_THAT(written[0], testing::ElementsAre(-2, 2, -2)) << "of equals the first";
  EXPECT_THAT(written[1], testing::ElementsAre(1, 2, 3));
  // Groups of two, three numbers; and of one, five numbers for eight groups.
  written = kept_of({3, 1, -5}, 2, 2);
  EXPECT_THAT(written[0], testing::ElementsAre(3, 1, -5, 0));
  EXPECT_THAT(written[1], testing::ElementsAre(0, 1, 0, 0));
  written = kept_of({0, 0, 0, 0, 7}, 8, 1);
  EXPECT_THAT(written[0], testing::ElementsAre(0, 0, 0, 0, 7, 0, 0, 0));
  written = kept_of({9, 1, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}, 1, 2);
  EXPECT_TRUE(std::isnan(written[0][0]));
  EXPECT_EQ(written[0][1], std::numeric_limits<float>::infinity());
  EXPECT_THROW(kept_of({1, 2, 3}, 2, 3), std::logic_error) << "more than a group has";
}

KERNEL_TEST(SparseKernels, ContributionsAreAdded) {
  Tensor t = shaped({{3}, {2}, {2}});
  t.axes[0] = Axis::contributions;
  // Two groups of three numbers; the last contribution has none in the second.
  const Values values{1, 2, 3, 4, 10, 20, 30, 40, 100, 200, 0, 0}, indices{0, 2, 1, 2, 0, 1, 0, 2, 1, 2, 0, 0};
  Op op = op_of(densify);
  op.scale = 0.5;
  const Values y = call(op, {coded(t, Dtype::fp32, values), coded(t, Dtype::int32, indices)}, {plain({{6}})})[0];
  EXPECT_THAT(y, testing::ElementsAre(5.5, 60, 101, 15, 1.5, 22));
}

// --- Orthonormal columns

double product_of(const Values& a, int i, const Values& b, int j, int rows) {
  double sum = 0;
  const int columns = static_cast<int>(a.size()) / rows;
  for (int r = 0; r < rows; ++r) sum += static_cast<double>(a[r * columns + i]) * b[r * columns + j];
  return sum;
}

KERNEL_TEST(OrthogonaliseKernel, ColumnsAreOrthonormalAndSpanWhatTheySpanned) {
  constexpr int kRows = 601, kColumns = 4;  // more rows than a block has threads
  Operand x = random_operand({{kRows}, {kColumns}}, 1);
  for (int r = 0; r < kRows; ++r) {
    float* const row = &x.values[r * kColumns];
    row[0] *= 1e-4f;
    row[2] = 3 * row[0] - 2 * row[1];  // depends on those before it
  }
  const Values y = call(op_of(orthogonalise), {x}, {plain({{kRows}, {kColumns}})})[0];
  for (int i = 0; i < kColumns; ++i)
    for (int j = 0; j < kColumns; ++j) EXPECT_NEAR(product_of(y, i, y, j, kRows), i == j ? 1 : 0, 1e-5) << i << j;
  for (int c = 0; c < kColumns; ++c) {
    double within = 0;
    for (int i = 0; i <= c; ++i) within += std::pow(product_of(y, i, x.values, c, kRows), 2);
    EXPECT_NEAR(within / product_of(x.values, c, x.values, c, kRows), 1, 1e-5) << c;
  }
  EXPECT_GT(product_of(y, 0, x.values, 0, kRows), 0) << "the first column keeps its direction";
}

KERNEL_TEST(OrthogonaliseKernel, ZerosGiveWayAndSurplusColumnsBecomeZero) {
  Operand x = random_operand({{2}, {3}}, 1);
  x.values.assign(6, 0.0f);
  const Values y = call(op_of(orthogonalise), {x}, {plain({{2}, {3}})})[0];
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 3; ++j) EXPECT_NEAR(product_of(y, i, y, j, 2), i == j && i < 2 ? 1 : 0, 1e-5) << i << j;
  x.values[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(call(op_of(orthogonalise), {x}, {plain({{2}, {3}})})[0][0])) << "what overflowed stays so";
}

// --- What cannot be run

KERNEL_TEST(Kernels, WhatMovesDataIsNoKernel) {
  const Operand x = random_operand({{4}}, 1);
  for (int kind = 0; kind < kOpKinds; ++kind) {
    const auto k = static_cast<OpKind>(kind);
    if (is_communication(k) || k == OpKind::copy) {
      EXPECT_THROW(call(op_of(k), {x}, {x.tensor}), std::logic_error) << name_of(k);
    }
  }
  EXPECT_THROW(call(op_of(static_cast<OpKind>(kOpKinds)), {x}, {x.tensor}), std::logic_error);
}

KERNEL_TEST(Kernels, MissingOperandsAreRefused) {
  // Each with neither operands nor results: none may pass as a kernel that does nothing.
  for (int kind = 0; kind < kOpKinds; ++kind)
    EXPECT_THROW(call(op_of(static_cast<OpKind>(kind)), {}, {}), std::logic_error)
        << name_of(static_cast<OpKind>(kind));
}

KERNEL_TEST(Kernels, ShapesThatDoNotFitAreRefused) {
  const Operand x = random_operand({{3}, {5}}, 1), w = random_operand({{4}, {2}}, 2), y = random_operand({{3}, {2}}, 3);
  EXPECT_THROW(call(op_of(linear), {x, w}, {y.tensor}), std::logic_error);
  EXPECT_THROW(call(op_of(add), {x, y}, {x.tensor}), std::logic_error);
  EXPECT_THROW(call(op_of(norm), {x, random_operand({{6}}, 4)}, {x.tensor, plain({{3}, {1}})}), std::logic_error);
  // Latent attention: keys without their rotary part.
  const Operand q = random_operand({{1}, {3}, {2}, {1}, {6}}, 1), kv = random_operand({{1}, {3}, {2}, {1}, {8}}, 2);
  EXPECT_THROW(call(op_of(attention), {q, kv}, {plain({{1}, {3}, {2}, {1}, {4}}), plain({{1}, {2}, {1}, {3}})}),
               std::logic_error);
}

}  // namespace
}  // namespace orrery::cpu
