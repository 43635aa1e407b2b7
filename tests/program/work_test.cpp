// Do an op's FLOPs and bytes follow from its shapes, counted pair by pair and tensor by tensor?
#include "sim/program/work.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <tuple>
#include <vector>

namespace orrery {
namespace {

struct Maker {
  std::vector<Tensor> tensors;
  Op op;

  explicit Maker(OpKind kind) { op.kind = kind; }
  Maker& reads(std::size_t i, std::initializer_list<std::int64_t> sizes, Dtype dtype = Dtype::bf16) {
    op.reads[i] = add(sizes, dtype);
    return *this;
  }
  Maker& writes(std::size_t i, std::initializer_list<std::int64_t> sizes, Dtype dtype = Dtype::bf16) {
    op.writes[i] = add(sizes, dtype);
    return *this;
  }
  Maker& accumulates() {
    op.accumulate = true;
    return *this;
  }
  double moved() const { return bytes(op, tensors); }
  double executed() const { return flops(op, tensors); }

 private:
  TensorId add(std::initializer_list<std::int64_t> sizes, Dtype dtype) {
    Tensor t;
    t.rank = static_cast<std::uint8_t>(sizes.size());
    std::copy(sizes.begin(), sizes.end(), t.sizes.begin());
    t.dtype = dtype;
    tensors.push_back(t);
    return static_cast<TensorId>(tensors.size() - 1);
  }
};

constexpr std::int64_t kBatch = 2, kHeads = 3, kHeadDim = 5;

// Attention with queries and keys apart: context at writes[0].
Maker attention(std::int64_t queries, std::int64_t keys, bool causal, std::int64_t window) {
  Maker m(OpKind::attention);
  m.reads(0, {kBatch, queries, kHeads, 1, kHeadDim}).reads(1, {kBatch, keys, kHeads, 2, kHeadDim});
  m.writes(0, {kBatch, queries, kHeads, 1, kHeadDim});
  m.op.causal = causal;
  m.op.window = window;
  return m;
}

// Pairs of one head that the mask leaves. Queries align with the last keys. The field's dense half-square: a query
// whose mask is still filling up sees half of its own key. A window without a causal mask lies around the query.
double seen_pairs(std::int64_t queries, std::int64_t keys, bool causal, std::int64_t window) {
  double pairs = 0;
  for (std::int64_t q = 0; q < queries; ++q) {
    const std::int64_t at = keys - queries + q;
    const std::int64_t first = window == 0 ? 0 : causal ? at - window + 1 : at - (window - 1) / 2,
                       last = causal ? at : window == 0 ? keys - 1 : at + window / 2;
    const bool filling = window == 0 || at < window;
    pairs += static_cast<double>(std::min(last, keys - 1) - std::max<std::int64_t>(first, 0) + 1) -
             (causal && filling ? 0.5 : 0);
  }
  return pairs;
}

TEST(Flops, OfAttentionAreThoseOfThePairsThatItsMaskLeaves) {
  struct Mask {
    std::int64_t queries, keys;
    bool causal;
    std::int64_t window;
  };
  for (const Mask& m : {Mask{40, 40, false, 0}, Mask{40, 24, false, 0}, Mask{40, 40, true, 0}, Mask{24, 40, true, 0},
                        Mask{40, 40, true, 1}, Mask{40, 40, true, 7}, Mask{40, 40, true, 39}, Mask{40, 40, true, 40},
                        Mask{40, 40, true, 64}, Mask{40, 40, false, 16}}) {
    const double pairs = kBatch * kHeads * seen_pairs(m.queries, m.keys, m.causal, m.window);
    const Maker forward = attention(m.queries, m.keys, m.causal, m.window);
    EXPECT_DOUBLE_EQ(forward.executed(), 2 * 2 * kHeadDim * pairs) << m.queries << m.causal << m.window;
    // dcontext, context, log_sum_exp, q, kv: five products.
    Maker backward(OpKind::attention_backward);
    backward.reads(0, {kBatch, m.queries, kHeads, 1, kHeadDim}).reads(1, {kBatch, m.queries, kHeads, 1, kHeadDim});
    backward.reads(3, {kBatch, m.queries, kHeads, 1, kHeadDim}).reads(4, {kBatch, m.keys, kHeads, 2, kHeadDim});
    backward.op.causal = m.causal;
    backward.op.window = m.window;
    EXPECT_DOUBLE_EQ(backward.executed(), 5 * 2 * kHeadDim * pairs) << m.queries << m.causal << m.window;
  }
}

// A step of a ring over four ranks, dealt zigzag in eight blocks of four: rank 3 has blocks 3 and 4, and meets the keys
// of rank 2, blocks 2 and 5. Its eight queries all see the first, and none the second.
TEST(Flops, OfARingsStepAreThoseOfTheKeysThatItsQueriesSee) {
  Maker m = attention(8, 8, true, 0);
  for (Tensor& t : m.tensors) {
    t.over[1].append(MeshGroup::of_digit(0));
    t.set_deal(1, Deal::zigzag);
  }
  m.op.parts = 4;
  m.op.keys_before = 1;
  EXPECT_EQ(m.executed(), 2 * 2 * kHeadDim * kBatch * kHeads * 8.0 * 4);
  const AttentionShape shape = attention_shape(m.op, m.tensors);
  EXPECT_EQ(shape.keys, 4);
  EXPECT_FALSE(shape.causal) << "of keys that are seen all are";
  constexpr double kQueries = kBatch * 8 * kHeads * kHeadDim * 2;
  EXPECT_EQ(m.moved(), kQueries + kQueries + kQueries) << "half of the keys and values, queries, contexts";
}

// What a table of runs remembers is of what it is asked for, whatever of it is another one than before.
TEST(Flops, ATableRemembersPairsByAllThatTheyFollowFrom) {
  const auto deal_of = [](const DealTables& tables) {
    return tables.by_runs({{{12, 1}, {14, 4}, {28, 3}}, {{6, 6}, {13, 1}, {31, 1}}, {{20, 8}}, {{0, 6}, {18, 2}}}, 32,
                          4);
  };
  const DealTables kept;
  AttendedPairs first;
  for (int change = 0; change < 8; ++change) {
    Maker m = attention(8, 8, true, 0);
    m.op.parts = 4;
    m.op.keys_before = 1;
    for (Tensor& t : m.tensors) t.over[1].append(MeshGroup::of_digit(0));
    Tensor& kv = m.tensors[m.op.reads[1]];
    if (change == 1) m.op.keys_before = 2;
    if (change == 2) m.op.inner_parts = 2;
    if (change == 3) m.op.window = 5;
    if (change == 4) m.op.causal = false;
    if (change == 5) kv.over[1] = {};
    if (change == 6) kv.over[1] = {}, kv.sizes[1] = 32;
    if (change == 7) m.op.parts = 2;
    const auto pairs_by = [&](const DealTables& tables) {
      for (Tensor& t : m.tensors) t.deals = {}, t.table = nullptr, t.set_deal(1, deal_of(tables));
      return attended_pairs(m.op, m.tensors);
    };
    const AttendedPairs remembered = pairs_by(kept), anew = pairs_by(DealTables());
    EXPECT_EQ(remembered.seen, anew.seen) << change;
    EXPECT_EQ(remembered.counted, anew.counted) << change;
    EXPECT_EQ(remembered.keys, anew.keys) << change;
    if (change == 0) first = anew;
    EXPECT_EQ(std::tuple(anew.seen, anew.keys) == std::tuple(first.seen, first.keys), change == 0) << change;
  }
  EXPECT_EQ(kept.count(), 1u);
}

TEST(Bytes, AreEachTensorOnceAndTwiceWhatIsAddedTo) {
  // 7 tokens of 11 elements in bf16; sums in fp32.
  constexpr double kX = 7 * 11 * 2, kWidth = 11 * 2, kSum = 11 * 4, kStatistics = 7 * 2 * 4;
  const auto norm_backward = [] {
    return Maker(OpKind::norm_backward)
        .reads(0, {7, 11})
        .reads(1, {7, 11})
        .reads(2, {11})
        .reads(3, {7, 2}, Dtype::fp32)
        .writes(0, {7, 11})
        .writes(1, {11}, Dtype::fp32)
        .writes(2, {11}, Dtype::fp32);
  };
  EXPECT_EQ(norm_backward().moved(), 2 * kX + kWidth + kStatistics + kX + 2 * kSum);
  EXPECT_EQ(norm_backward().accumulates().moved(), 2 * kX + kWidth + kStatistics + kX + 2 * 2 * kSum)
      << "dx is written, the parameters' gradients are added to";
  const auto bias_gradient = [] { return Maker(OpKind::bias_gradient).reads(0, {7, 11}).writes(0, {11}, Dtype::fp32); };
  EXPECT_EQ(bias_gradient().moved(), kX + kSum);
  EXPECT_EQ(bias_gradient().accumulates().moved(), kX + 2 * kSum);
  EXPECT_EQ(Maker(OpKind::add).reads(0, {7, 11}).reads(1, {7, 11}).reads(2, {11}).writes(0, {7, 11}).moved(),
            3 * kX + kWidth);
}

// Whatever the table's height: only rows that are looked up move.
TEST(Bytes, OfAnEmbeddingAreItsRows) {
  constexpr double kIds = 7 * 8, kRows = 7 * 11 * 2;
  EXPECT_EQ(Maker(OpKind::embedding).reads(0, {7}, Dtype::int64).reads(1, {1000, 11}).writes(0, {7, 11}).moved(),
            kIds + kRows + kRows)
      << "rows read and written";
  EXPECT_EQ(Maker(OpKind::embedding_backward)
                .reads(0, {7}, Dtype::int64)
                .reads(1, {7, 11})
                .writes(0, {1000, 11}, Dtype::fp32)
                .accumulates()
                .moved(),
            kIds + kRows + 2 * kRows)
      << "gradients read, the table's rows read and written";
}

TEST(Bytes, OfACollectiveAreTheWholeBuffersAndOfACopyItsSource) {
  EXPECT_EQ(Maker(OpKind::all_gather).reads(0, {3}).writes(0, {12}).moved(), 24);
  EXPECT_EQ(Maker(OpKind::reduce_scatter).reads(0, {12}).writes(0, {3}).accumulates().moved(), 24);
  EXPECT_EQ(Maker(OpKind::all_reduce).reads(0, {12}).writes(0, {12}).moved(), 24);
  EXPECT_EQ(Maker(OpKind::copy).reads(0, {12}).writes(0, {12}).moved(), 24);
}

}  // namespace
}  // namespace orrery
