// The CPU kernels of latent attention (DeepSeek-V2, arXiv 2405.04434, eq. 14 to 18).
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <vector>

#include "realrun/cpu/kernels.h"
#include "tests/realrun/kernel_harness.h"

namespace orrery::cpu {
namespace {

using enum OpKind;

// Heads of three elements of content and (queries and keys) four that turn; values of two.
struct LatentHeads {
  static constexpr std::int64_t kBatch = 2, kSequence = 3, kHeads = 2, kContent = 3, kTurned = 4, kValue = 2;
  static Tensor of(std::int64_t width, std::int64_t heads = kHeads) {
    return shaped({{kBatch, Axis::batch},
                   {kSequence, Axis::sequence},
                   {heads, Axis::groups},
                   {1, Axis::group_heads},
                   {width, Axis::head_dim}},
                  Category::parameter);
  }
  Tensor q = of(kContent + kTurned), kv = of(kContent + kValue), whole = of(kContent + kTurned + kValue),
         context = of(kValue);
  Tensor key = shaped({{kBatch, Axis::batch}, {kSequence, Axis::sequence}, {kTurned}}, Category::parameter);
  Tensor lse = shaped({{kBatch}, {kHeads}, {1}, {kSequence}});
  Op rotation = op_of(rotary);
  LatentHeads() { rotation.rotary_begin = kContent; }
};

TEST(LatentKernels, TurnsQueriesFromTheirRotaryPartOn) {
  const LatentHeads s;
  const Operand q{s.q, random_values(s.q.elements(), 1)};
  const Values y = call(s.rotation, {q}, {s.q})[0];
  constexpr std::int64_t kWidth = LatentHeads::kContent + LatentHeads::kTurned;
  Values tails, expected;
  for (std::int64_t v = 0; v < s.q.elements() / kWidth; ++v) {
    const float *in = &q.values[v * kWidth], *out = &y[v * kWidth];
    EXPECT_TRUE(std::equal(in, in + LatentHeads::kContent, out)) << "content passes";
    tails.insert(tails.end(), in + LatentHeads::kContent, in + kWidth);
    expected.insert(expected.end(), out + LatentHeads::kContent, out + kWidth);
  }
  const Tensor tail = LatentHeads::of(LatentHeads::kTurned);
  expect_equal(call(op_of(rotary), {{tail, tails}}, {tail})[0], {expected.begin(), expected.end()});
  expect_derivative(machine_of(s.rotation, {s.q}, {s.q}));
}

TEST(LatentKernels, PutsTheKeyThatHeadsShareIntoEach) {
  const LatentHeads s;
  const Operand kv{s.kv, random_values(s.kv.elements(), 1)}, key{s.key, random_values(s.key.elements(), 2)};
  const Values y = call(s.rotation, {kv, key}, {s.whole})[0];
  const Tensor one_head = LatentHeads::of(LatentHeads::kTurned, 1);
  const Values turned = call(op_of(rotary), {{one_head, key.values}}, {one_head})[0];
  std::vector<double> expected;
  for (std::int64_t v = 0; v < LatentHeads::kBatch * LatentHeads::kSequence * LatentHeads::kHeads; ++v) {
    const float* in = &kv.values[v * (LatentHeads::kContent + LatentHeads::kValue)];
    const float* shared = &turned[v / LatentHeads::kHeads * LatentHeads::kTurned];
    expected.insert(expected.end(), in, in + LatentHeads::kContent);
    expected.insert(expected.end(), shared, shared + LatentHeads::kTurned);
    expected.insert(expected.end(), in + LatentHeads::kContent, in + LatentHeads::kContent + LatentHeads::kValue);
  }
  expect_equal(y, expected);
  expect_derivative(machine_of(s.rotation, {s.kv, s.key}, {s.whole}));
  EXPECT_THROW(call(s.rotation, {kv, key}, {s.q}), std::logic_error);
}

TEST(LatentKernels, AttentionTakesValuesNarrowerThanKeys) {
  const LatentHeads s;
  Op op = op_of(attention);
  op.causal = true;
  const Operand q{s.q, random_values(s.q.elements(), 1)}, kv{s.whole, random_values(s.whole.elements(), 2)};
  // The same with values as wide as keys, of which all but the first elements are zero.
  constexpr std::int64_t kKey = LatentHeads::kContent + LatentHeads::kTurned, kValue = LatentHeads::kValue;
  Tensor wide = s.whole;
  wide.sizes[3] = 2;
  wide.sizes[4] = kKey;
  Values padded;
  for (std::int64_t v = 0; v < s.whole.elements() / (kKey + kValue); ++v) {
    padded.insert(padded.end(), &kv.values[v * (kKey + kValue)], &kv.values[v * (kKey + kValue)] + kKey + kValue);
    padded.insert(padded.end(), kKey - kValue, 0.0f);
  }
  const auto narrow = call(op, {q, kv}, {s.context, s.lse}), full = call(op, {q, {wide, padded}}, {s.q, s.lse});
  std::vector<double> expected;
  for (std::int64_t v = 0; v < s.context.elements() / kValue; ++v)
    expected.insert(expected.end(), &full[0][v * kKey], &full[0][v * kKey] + kValue);
  expect_equal(narrow[0], expected);
  expect_equal(narrow[1], {full[1].begin(), full[1].end()});
  expect_derivative(machine_of(op, {s.q, s.whole}, {s.context, s.lse}));
}

}  // namespace
}  // namespace orrery::cpu
