// The CPU kernels of position biases (T5, arXiv 1910.10683, section 2.1), which the GPU has not yet, and of class
// tokens (ViT, arXiv 2010.11929, eq. 1).
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "realrun/cpu/kernels.h"
#include "realrun/layout.h"
#include "tests/realrun/cuda_harness.h"
#include "tests/realrun/kernel_harness.h"

namespace orrery::cpu {
namespace {

using enum OpKind;

// Two sequences; two groups of two query heads, of four elements.
struct BiasedAttention {
  static constexpr std::int64_t kBatch = 2, kQueries = 3, kKeys = 5, kGroups = 2, kHeads = 2, kDim = 4;
  static Tensor of(std::int64_t length, std::int64_t parts, Axis axis) {
    return shaped({{kBatch, Axis::batch},
                   {length, Axis::sequence},
                   {kGroups, Axis::groups},
                   {parts, axis},
                   {kDim, Axis::head_dim}},
                  Category::parameter);
  }
  Tensor q = of(kQueries, kHeads, Axis::group_heads), kv = of(kKeys, 2, Axis::none), context = q;
  Tensor fused = of(kQueries, kHeads + 2, Axis::group_qkv);
  Tensor bias =
      shaped({{kQueries}, {kKeys}, {kGroups, Axis::groups}, {kHeads, Axis::group_heads}}, Category::parameter);
  Tensor own_bias =
      shaped({{kQueries}, {kQueries}, {kGroups, Axis::groups}, {kHeads, Axis::group_heads}}, Category::parameter);
  Tensor lse = shaped({{kBatch}, {kGroups}, {kHeads}, {kQueries}});
};

// A bias that is large for one key, and alike for all sequences, leaves that key's value alone.
TEST(PositionKernels, AttentionFollowsItsBias) {
  const BiasedAttention s;
  const Operand q{s.q, random_values(s.q.elements(), 1)}, kv{s.kv, random_values(s.kv.elements(), 2)};
  Values bias(static_cast<std::size_t>(s.bias.elements()), 0.0f);
  const auto chosen = [](std::int64_t query, std::int64_t head) { return (query + head) % BiasedAttention::kKeys; };
  constexpr std::int64_t kAll = BiasedAttention::kGroups * BiasedAttention::kHeads;
  for (std::int64_t i = 0; i < BiasedAttention::kQueries; ++i)
    for (std::int64_t h = 0; h < kAll; ++h)
      bias[static_cast<std::size_t>((i * BiasedAttention::kKeys + chosen(i, h)) * kAll + h)] = 200;
  const Values context = call(op_of(attention), {q, kv, {s.bias, bias}}, {s.context, s.lse})[0];
  std::vector<double> expected;
  for (std::int64_t b = 0; b < BiasedAttention::kBatch; ++b)
    for (std::int64_t i = 0; i < BiasedAttention::kQueries; ++i)
      for (std::int64_t h = 0; h < kAll; ++h) {
        const std::int64_t token = b * BiasedAttention::kKeys + chosen(i, h), group = h / BiasedAttention::kHeads;
        const float* value = &kv.values[((token * BiasedAttention::kGroups + group) * 2 + 1) * BiasedAttention::kDim];
        expected.insert(expected.end(), value, value + BiasedAttention::kDim);
      }
  expect_equal(context, expected);
}

TEST(PositionKernels, AttentionsBackwardIsItsDerivative) {
  const BiasedAttention s;
  Op op = op_of(attention);
  expect_derivative(machine_of(op, {s.q, s.kv, s.bias}, {s.context, s.lse}));
  op.causal = true;
  expect_derivative(machine_of(op, {s.fused, Tensor{}, s.own_bias}, {s.context, s.lse}));
}

TEST(PositionKernels, AVectorComesBeforeEachSequence) {
  const Tensor x = shaped({{2, Axis::batch}, {3, Axis::sequence}, {4, Axis::hidden}}, Category::parameter),
               token = shaped({{4, Axis::hidden}}, Category::parameter),
               y = shaped({{2, Axis::batch}, {4, Axis::sequence}, {4, Axis::hidden}});
  const Operand patches{x, random_values(x.elements(), 1)}, vector{token, random_values(4, 2)};
  std::vector<double> expected;
  for (std::size_t b = 0; b < 2; ++b) {
    expected.insert(expected.end(), vector.values.begin(), vector.values.end());
    expected.insert(expected.end(), &patches.values[b * 12], &patches.values[b * 12] + 12);
  }
  expect_equal(call(op_of(pool), {patches, vector}, {y})[0], expected);
  expect_derivative(machine_of(op_of(pool), {x, token}, {y}));
  EXPECT_THROW(call(op_of(pool), {patches, vector}, {x}), std::logic_error);
}

TEST(PositionKernels, ATableMayHaveRowsOfSeveralDimensions) {
  const Tensor ids = shaped({{2}, {3}}, Category::activation, Dtype::int64),
               table = shaped({{4}, {2, Axis::groups}, {3, Axis::group_heads}}, Category::parameter),
               y = shaped({{2}, {3}, {2, Axis::groups}, {3, Axis::group_heads}});
  const Values rows{3, 0, 1, 1, 2, 3};
  const Operand values{table, random_values(table.elements(), 1)};
  std::vector<double> expected;
  for (const float row : rows) {
    const float* at = &values.values[static_cast<std::size_t>(row) * 6];
    expected.insert(expected.end(), at, at + 6);
  }
  expect_equal(call(op_of(embedding), {{ids, rows}, values}, {y})[0], expected);
}

// T5's table of 32: transformers' T5Attention._relative_position_bucket for the same distances.
TEST(PositionKernels, BucketsAreT5s) {
  using realrun::position_bucket;
  const std::vector<std::int64_t> distances{-200, -128, -64, -20, -16, -15, -8, -7, -1, 0, 1, 7, 8, 15, 16, 64, 200};
  std::vector<std::int64_t> both, past;
  for (const std::int64_t d : distances) {
    both.push_back(position_bucket(d, false, 32));
    past.push_back(position_bucket(d, true, 32));
  }
  EXPECT_EQ(both, (std::vector<std::int64_t>{15, 15, 14, 10, 10, 9, 8, 7, 1, 0, 17, 23, 24, 25, 26, 30, 31}));
  EXPECT_EQ(past, (std::vector<std::int64_t>{31, 31, 26, 17, 16, 15, 8, 7, 1, 0, 0, 0, 0, 0, 0, 0, 0}));
}

// Not as something else, and not in silence.
TEST(PositionKernels, AreRefusedOnTheGpu) {
  const BiasedAttention s;
  const Tensor table = shaped({{4}, {2}, {3}}), rows = shaped({{2}, {3}, {2}, {3}}),
               ids = shaped({{2}, {3}}, Category::activation, Dtype::int64);
  const auto refused = [](const Op& op, const std::vector<Tensor>& reads, const std::vector<Tensor>& writes) {
    std::vector<Values> values;
    const auto buffers = [&](const std::vector<Tensor>& tensors) {
      std::vector<orrery::Operand> list;
      for (const Tensor& t : tensors) {
        values.emplace_back(static_cast<std::size_t>(t.elements()), 0.0f);
        list.push_back({values.back().data(), &t});
      }
      return list;
    };
    const std::vector<orrery::Operand> in = buffers(reads), out = buffers(writes);
    EXPECT_THROW(cuda_test::run(op, in, out, {}), std::logic_error) << name_of(op.kind);
  };
  refused(op_of(attention), {s.q, s.kv, s.bias}, {s.context, s.lse});
  refused(op_of(attention_backward), {s.context, s.context, s.lse, s.q, s.kv, s.bias}, {s.q, s.kv, s.bias});
  refused(op_of(embedding), {ids, table}, {rows});
  refused(op_of(embedding_backward), {ids, rows}, {table});
}

}  // namespace
}  // namespace orrery::cpu
