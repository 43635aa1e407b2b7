// The CUDA kernels in every dtype against the CPU's, at sizes that fill several blocks and at odd ones, wherever their
// operands lie; with the same bits whatever order warps and blocks run in. That the CPU's are right is asked in
// kernels_test.cpp, and of the CUDA ones in fp32 there, too.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <random>

#include "realrun/cuda/host_numbers.h"
#include "tests/realrun/cuda_harness.h"

namespace orrery::cuda_test {
namespace {

using enum OpKind;
using Values = std::vector<float>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::array kDtypes{Dtype::fp32, Dtype::bf16, Dtype::fp16};

// Of a result of a few hundred additions of normal numbers; twice the rounding of the dtype.
double tolerance_of(Dtype dtype) { return dtype == Dtype::fp32 ? 3e-5 : dtype == Dtype::bf16 ? 1.6e-2 : 2e-3; }

Tensor shaped(std::initializer_list<Dim> dims, Dtype dtype) {
  Tensor t;
  t.name = "tensor";
  t.dtype = dtype;
  for (const Dim& d : dims) t.append(d);
  return t;
}

struct Given {
  Tensor tensor;
  Values values;
};

// Numbers that the dtype can hold.
Given normal(const Tensor& t, std::uint32_t seed, double scale = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> distribution(0, scale);
  Values values(static_cast<std::size_t>(t.elements()));
  for (float& v : values) v = static_cast<float>(distribution(generator));
  return {t, rounded(values, t.dtype)};
}
// The same, none of them near zero.
Given divisors(const Tensor& t, std::uint32_t seed) {
  Given given = normal(t, seed);
  for (float& v : given.values) v = std::copysign(0.5f + std::abs(v), v);
  return {t, rounded(given.values, t.dtype)};
}
Given ids(std::initializer_list<Dim> dims, std::uint32_t seed, std::int64_t below) {
  const Tensor t = shaped(dims, Dtype::int64);
  std::mt19937 generator(seed);
  Values values(static_cast<std::size_t>(t.elements()));
  for (float& v : values) v = static_cast<float>(generator() % static_cast<std::uint64_t>(below));
  return {t, values};
}
const Given kAbsent{};

Op op_of(OpKind kind) {
  Op op;
  op.kind = kind;
  op.name = "test";
  return op;
}

std::vector<Operand> buffers(std::vector<Given>& operands) {
  std::vector<Operand> b;
  for (Given& g : operands) b.push_back({g.values.empty() ? nullptr : g.values.data(), &g.tensor});
  return b;
}

// Results that begin as NaN.
std::vector<Given> poisoned(const std::vector<Tensor>& tensors) {
  std::vector<Given> out;
  for (const Tensor& t : tensors) out.push_back({t, Values(static_cast<std::size_t>(t.elements()), kNan)});
  return out;
}

std::vector<Values> on_cpu(const Op& op, std::vector<Given> reads, std::vector<Given> results,
                           const KernelContext& context) {
  cpu::run_kernel(op, buffers(reads), buffers(results), context);
  std::vector<Values> values;
  for (Given& r : results) values.push_back(std::move(r.values));
  return values;
}

std::vector<Values> on_cuda(const Op& op, std::vector<Given> reads, std::vector<Given> results,
                            const KernelContext& context, const Environment& environment = {}) {
  run(op, buffers(reads), buffers(results), context, environment);
  std::vector<Values> values;
  for (Given& r : results) values.push_back(std::move(r.values));
  return values;
}

bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Repeats a run in every order that the stand-in knows; on a device, in whatever order comes.
template <class Run>
void expect_same_bits_in_any_order(const std::vector<Values>& first, Run run_again) {
  for (int i = 0; i < 2; ++i) {
#ifndef ORRERY_ON_DEVICE
    stand_in::set_schedule(i == 0 ? stand_in::Schedule::reverse : stand_in::Schedule::shuffled);
#endif
    const std::vector<Values> again = run_again();
#ifndef ORRERY_ON_DEVICE
    stand_in::set_schedule(stand_in::Schedule::forward);
#endif
    for (std::size_t r = 0; r < first.size(); ++r)
      EXPECT_TRUE(same_bits(first[r], again[r])) << "result " << r << " depends on the order";
  }
}

void expect_near(const Values& actual, const Values& expected, double tolerance, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::isinf(expected[i])) {
      ASSERT_EQ(actual[i], expected[i]) << what << " element " << i;
    } else {
      ASSERT_NEAR(actual[i], expected[i], tolerance * (1 + std::abs(expected[i]))) << what << " element " << i;
    }
  }
}

// `results` hold what they begin as. Tolerances of fp32 results grow by `depth`.
void expect_as_cpu(const Op& op, const std::vector<Given>& reads, const std::vector<Given>& results,
                   const KernelContext& context = {}, double depth = 1) {
  const std::vector<Values> expected = on_cpu(op, reads, results, context);
  for (const Edge place : {Edge::start, Edge::end}) {
    const auto once = [&] { return on_cuda(op, reads, results, context, {place}); };
    const std::vector<Values> actual = once();
    for (std::size_t i = 0; i < results.size(); ++i)
      expect_near(actual[i], expected[i], depth * tolerance_of(results[i].tensor.dtype),
                  std::string(name_of(op.kind)) + " result " + std::to_string(i) + " in " +
                      name_of(results[i].tensor.dtype) + (place == Edge::end ? " at the end" : " at the start"));
    if (testing::Test::HasFatalFailure()) return;
    if (place == Edge::start) expect_same_bits_in_any_order(actual, once);
  }
}

// --- Attention

struct AttentionCase {
  std::int64_t batch, queries, keys, groups, heads, dim;
  bool fused, causal;
  std::int64_t window = 0;
  bool positions = false;
  std::int64_t value_dim = 0;  // latent attention's; 0: as dim
};

// Forward and backward; the backward gets what the CPU's forward wrote.
void expect_attention(const AttentionCase& c, Dtype dtype, std::uint32_t seed) {
  SCOPED_TRACE(std::string(name_of(dtype)) + ": " + std::to_string(c.queries) + " queries, " + std::to_string(c.keys) +
               " keys, head_dim " + std::to_string(c.dim) + ", of values " + std::to_string(c.value_dim) +
               (c.causal ? ", causal" : "") + ", window " + std::to_string(c.window) + (c.fused ? ", fused" : ""));
  Tensor context_tensor = shaped({{c.batch, Axis::batch},
                                  {c.queries, Axis::sequence},
                                  {c.groups, Axis::groups},
                                  {c.heads, Axis::group_heads},
                                  {c.dim, Axis::head_dim}},
                                 dtype);
  Tensor q = context_tensor, kv = context_tensor;
  if (c.value_dim > 0) {
    context_tensor.sizes[4] = c.value_dim;
    kv.sizes[4] = c.dim + c.value_dim;
  }
  if (c.fused) {
    q.sizes[3] = c.heads + 2;
    q.axes[3] = Axis::group_qkv;
  }
  kv.sizes[1] = c.keys;
  kv.sizes[3] = c.value_dim > 0 ? 1 : 2;
  const Tensor lse = shaped({{c.batch}, {c.groups}, {c.heads}, {c.queries}}, Dtype::fp32);
  Op op = op_of(attention);
  op.causal = c.causal;
  op.window = c.window;
  KernelContext context;
  std::vector<std::int64_t> query_positions, key_positions;
  if (c.positions) {  // in zigzag parts of a longer sequence; some queries see nothing
    for (std::int64_t i = 0; i < c.queries; ++i) query_positions.push_back(i < c.queries / 2 ? i : i + c.keys);
    for (std::int64_t j = 0; j < c.keys; ++j) key_positions.push_back(c.queries / 3 + (c.keys - 1 - j));
    context.query_positions = query_positions;
    if (!c.fused) context.key_positions = key_positions;
  }
  std::vector<Given> reads{normal(q, seed)};
  if (!c.fused) reads.push_back(normal(kv, seed + 1));
  expect_as_cpu(op, reads, poisoned({context_tensor, lse}), context);
  if (testing::Test::HasFatalFailure()) return;

  std::vector<Values> forward = on_cpu(op, reads, poisoned({context_tensor, lse}), context);
  op.kind = attention_backward;
  std::vector<Given> backward{
      normal(context_tensor, seed + 2), {context_tensor, rounded(forward[0], dtype)}, {lse, forward[1]}, reads[0]};
  std::vector<Tensor> gradients{q};
  if (!c.fused) {
    backward.push_back(reads[1]);
    Tensor longer = kv;
    longer.sizes[1] += 3;  // the gradient of keys that are not seen is zero
    gradients.push_back(longer);
  }
  constexpr double kSums = 4;  // of gradients over many queries
  expect_as_cpu(op, backward, poisoned(gradients), context, kSums);
}

TEST(CudaAttention, IsTheCpusInEveryDtypeUnderEveryMask) {
  for (const Dtype dtype : kDtypes) {
    std::uint32_t seed = 1;
    for (const AttentionCase& c : {AttentionCase{2, 70, 70, 1, 2, 64, true, true},
                                   {1, 33, 150, 2, 1, 64, false, false},
                                   {1, 200, 200, 1, 1, 32, true, true, 20},
                                   {1, 70, 140, 1, 2, 40, false, false, 33},
                                   {1, 65, 129, 1, 2, 64, false, true, 0, true},
                                   {1, 96, 96, 1, 1, 64, true, true, 0, true},
                                   {1, 9, 7, 2, 3, 12, false, true}}) {
      // fp32 has kernels without tiles, and fp16 those of bf16.
      if (dtype == Dtype::bf16 || c.queries < 80) expect_attention(c, dtype, seed);
      ++seed;
    }
  }
}

TEST(CudaAttention, IsTheCpusAtEveryHeadDim) {
  for (const std::int64_t dim : {8, 96, 128, 136, 256})
    expect_attention({1, 67, 75, 1, 1, dim, false, true}, dim == 96 ? Dtype::fp16 : Dtype::bf16, 1);
  for (const std::int64_t dim : {128, 256}) expect_attention({1, 17, 20, 1, 2, dim, true, true}, Dtype::fp16, 2);
  expect_attention({1, 19, 35, 1, 1, 256, false, true}, Dtype::fp32, 3);
  expect_attention({1, 40, 150, 1, 2, 128, false, true}, Dtype::bf16, 4);
}

TEST(CudaAttention, IsTheCpusWithValuesNarrowerThanKeys) {
  const auto latent = [](std::int64_t dim, std::int64_t value_dim) {
    AttentionCase c{1, 67, 75, 2, 1, dim, false, true};
    c.value_dim = value_dim;
    return c;
  };
  for (const auto& [dim, value_dim] : {std::pair(192, 128), {136, 72}, {96, 64}, {40, 24}, {48, 64}, {200, 136}})
    expect_attention(latent(dim, value_dim), Dtype::bf16, 1);
  expect_attention(latent(192, 128), Dtype::fp16, 2);
  expect_attention(latent(192, 128), Dtype::fp32, 3);
  expect_attention(latent(12, 7), Dtype::bf16, 4);
}

#ifndef ORRERY_ON_DEVICE
TEST(CudaAttention, TensorCoresReadSharedMemoryWithoutBankConflicts) {
  stand_in::facts() = {};
  const auto expect_products = [](const AttentionCase& c) {
    const std::int64_t before = stand_in::facts().tensor_core_products;
    expect_attention(c, Dtype::bf16, 1);
    EXPECT_GT(stand_in::facts().tensor_core_products, before);
  };
  for (const std::int64_t dim : {64, 96, 128, 256}) expect_products({1, 64, 64, 1, 1, dim, true, true});
  AttentionCase latent{1, 64, 64, 1, 1, 192, false, true};
  latent.value_dim = 128;
  expect_products(latent);
  EXPECT_EQ(stand_in::facts().bank_conflicts, 0);
  stand_in::facts() = {};
  expect_attention({1, 64, 64, 1, 1, 64, true, true}, Dtype::fp32, 1);
  EXPECT_EQ(stand_in::facts().tensor_core_products, 0);
}
#endif

TEST(CudaAttention, HugeScoresDoNotOverflow) {
  const Tensor t = shaped({{1, Axis::batch}, {64, Axis::sequence}, {1}, {1}, {64}}, Dtype::bf16);
  Tensor kv = t;
  kv.sizes[3] = 2;
  Op op = op_of(attention);
  expect_as_cpu(op, {normal(t, 1, 30), normal(kv, 2, 30)}, poisoned({t, shaped({{1}, {1}, {1}, {64}}, Dtype::fp32)}),
                {}, 30);
}

TEST(CudaMergeAttention, IsTheCpusInEveryDtype) {
  for (const Dtype dtype : kDtypes)
    for (const std::int64_t dim : {5, 64}) {
      const Tensor t = shaped({{2}, {7}, {2}, {3}, {dim}}, dtype), lse = shaped({{2}, {2}, {3}, {7}}, Dtype::fp32);
      Given a = normal(lse, 2), b = normal(lse, 4);
      for (const std::size_t i : {0, 5, 9}) a.values[i] = -std::numeric_limits<float>::infinity();
      for (const std::size_t i : {3, 5}) b.values[i] = -std::numeric_limits<float>::infinity();
      expect_as_cpu(op_of(merge_attention), {normal(t, 1), a, normal(t, 3), b}, poisoned({t, lse}));
    }
}

TEST(CudaSoftmax, IsTheCpusInEveryDtype) {
  for (const Dtype dtype : kDtypes)
    for (const std::int64_t keys : {5, 64, 700})
      for (const bool causal : {false, true}) {
        const Tensor t = shaped({{2}, {9}, {keys}}, dtype);
        Op op = op_of(softmax);
        op.causal = causal;
        op.scale = 0.7;
        const Given scores = normal(t, 1, 2);
        expect_as_cpu(op, {scores}, poisoned({t}));
        const Values p = rounded(on_cpu(op, {scores}, poisoned({t}), {})[0], dtype);
        op.kind = softmax_backward;
        expect_as_cpu(op, {normal(t, 2), {t, p}}, poisoned({t}));
      }
}

TEST(CudaRotary, IsTheCpusFarIntoTheSequence) {
  std::vector<std::int64_t> positions{0, 1, 77, 4096, 131071, 1000003};
  for (const Dtype dtype : kDtypes)
    for (const std::int64_t dim : {6, 64, 128})
      for (const bool fused : {false, true}) {
        const Tensor t = shaped({{2, Axis::batch},
                                 {6, Axis::sequence},
                                 {2, Axis::groups},
                                 {3, fused ? Axis::group_qkv : Axis::group_heads},
                                 {dim, Axis::head_dim}},
                                dtype);
        for (const OpKind kind : {rotary, rotary_backward}) {
          KernelContext context;
          expect_as_cpu(op_of(kind), {normal(t, 1)}, poisoned({t}), context);
          context.query_positions = positions;
          expect_as_cpu(op_of(kind), {normal(t, 1)}, poisoned({t}), context);
        }
      }
}

// Latent attention's: heads that turn from `content` elements on, and a key that all heads share.
TEST(CudaRotary, OfLatentHeadsIsTheCpus) {
  const std::vector<std::int64_t> positions{0, 1, 77, 4096, 131071, 1000003};
  for (const Dtype dtype : kDtypes)
    for (const auto& [content, turned, value] : {std::array<std::int64_t, 3>{128, 64, 128}, {8, 16, 24}, {5, 6, 3}}) {
      const auto heads = [&](std::int64_t width) {
        return shaped({{2, Axis::batch},
                       {6, Axis::sequence},
                       {11, Axis::groups},
                       {1, Axis::group_heads},
                       {width, Axis::head_dim}},
                      dtype);
      };
      const Tensor q = heads(content + turned), kv = heads(content + value), whole = heads(content + turned + value),
                   key = shaped({{2, Axis::batch}, {6, Axis::sequence}, {turned}}, dtype);
      for (const bool far : {false, true}) {
        KernelContext context;
        if (far) context.query_positions = positions;
        Op op = op_of(rotary);
        op.rotary_begin = content;
        expect_as_cpu(op, {normal(q, 1)}, poisoned({q}), context);
        expect_as_cpu(op, {normal(kv, 2), normal(key, 3)}, poisoned({whole}), context);
        op.kind = rotary_backward;
        expect_as_cpu(op, {normal(q, 1)}, poisoned({q}), context);
        expect_as_cpu(op, {normal(whole, 4)}, poisoned({kv, key}), context);
      }
    }
}

// --- Norms and sums over rows

TEST(CudaNorm, IsTheCpusInEveryDtypeAndWidth) {
  for (const Dtype dtype : kDtypes)
    for (const std::int64_t width : {8, 77, 640, 1000, 4104, 8200})
      for (const std::int64_t centred : {1, 2}) {
        if (width > 4000 && (dtype != Dtype::bf16 || centred != 2)) continue;
        const Tensor x = shaped({{width > 4000 ? 3 : 19}, {width}}, dtype), weight = shaped({{width}}, Dtype::fp32),
                     narrow = shaped({{width}}, dtype), statistics = shaped({{x.sizes[0]}, {centred}}, Dtype::fp32);
        Op op = op_of(norm);
        op.epsilon = 1e-3f;
        expect_as_cpu(op, {normal(x, 1, 3), normal(weight, 2), normal(narrow, 3)}, poisoned({x, statistics}));
        const Values stored_statistics =
            on_cpu(op, {normal(x, 1, 3), normal(weight, 2)}, poisoned({x, statistics}), {})[1];
        op.kind = norm_backward;
        const std::vector<Given> reads{
            normal(x, 4), normal(x, 1, 3), normal(weight, 2), {statistics, stored_statistics}};
        expect_as_cpu(op, reads, poisoned({x, weight, narrow}), {}, 4);
        expect_as_cpu(op, reads, poisoned({x}), {}, 4);  // of a frozen weight
        op.accumulate = true;
        std::vector<Given> results = poisoned({x});
        results.push_back(normal(weight, 5));
        results.push_back(normal(narrow, 6));
        expect_as_cpu(op, reads, results, {}, 4);
        if (::testing::Test::HasFatalFailure()) return;
      }
}

TEST(CudaNorm, OfAFusedQkvAndBehindALatentIsTheCpus) {
  for (const Dtype dtype : kDtypes)
    for (const std::int64_t dim : {6, 64}) {
      const Tensor x = shaped({{2, Axis::batch},
                               {37, Axis::sequence},
                               {2, Axis::groups},
                               {5, Axis::group_qkv},
                               {dim, Axis::head_dim}},
                              dtype),
                   statistics = shaped({{2}, {37}, {2}, {5}, {1}}, Dtype::fp32);
      for (const Tensor& weight : {shaped({{2}, {dim}}, dtype), shaped({{2}, {4}, {dim}}, dtype)}) {
        Op op = op_of(norm);
        op.epsilon = 1e-3f;
        const std::vector<Given> reads{normal(x, 1), normal(weight, 2)};
        expect_as_cpu(op, reads, poisoned({x, statistics}));
        const Values stored_statistics = on_cpu(op, reads, poisoned({x, statistics}), {})[1];
        op.kind = norm_backward;
        expect_as_cpu(op, {normal(x, 3), reads[0], reads[1], {statistics, stored_statistics}}, poisoned({x, weight}),
                      {}, 8);
      }
      const Tensor latent = shaped({{21}, {dim + 8}}, dtype), part = shaped({{dim}}, dtype),
                   one = shaped({{21}, {1}}, Dtype::fp32);
      Op op = op_of(norm);
      op.epsilon = 1e-3f;
      expect_as_cpu(op, {normal(latent, 1), normal(part, 2)}, poisoned({latent, one}));
      const Values stored_statistics = on_cpu(op, {normal(latent, 1), normal(part, 2)}, poisoned({latent, one}), {})[1];
      op.kind = norm_backward;
      expect_as_cpu(op, {normal(latent, 3), normal(latent, 1), normal(part, 2), {one, stored_statistics}},
                    poisoned({latent, part}), {}, 4);
    }
}

TEST(CudaBiasGradient, IsTheCpusInEveryDtypeAndAddsUp) {
  for (const Dtype dtype : kDtypes)
    for (const std::int64_t columns : {1, 13, 64, 520})
      for (const bool accumulate : {false, true}) {
        Op op = op_of(bias_gradient);
        op.accumulate = accumulate;
        const Tensor bias = shaped({{columns}}, dtype);
        const Given before = accumulate ? normal(bias, 2) : poisoned({bias})[0];
        expect_as_cpu(op, {normal(shaped({{3}, {67}, {columns}}, dtype), 1)}, {before}, {}, 8);
      }
}

// --- Element by element

TEST(CudaElementwise, ActivationsAreTheCpus) {
  using enum ActivationFunction;
  for (const Dtype dtype : kDtypes)
    for (const std::int64_t width : {5, 272})
      for (const ActivationFunction f : {gelu, relu, swiglu, geglu, quick_gelu, relu2})
        for (const bool gated : {false, true}) {
          if (gated && f != swiglu && f != geglu) continue;
          const Tensor y = shaped({{11}, {width}}, dtype), x = gated ? shaped({{11}, {2}, {width}}, dtype) : y,
                       bias = gated ? shaped({{2}, {width}}, dtype) : shaped({{width}}, dtype);
          Op op = op_of(activation);
          op.function = f;
          expect_as_cpu(op, {normal(x, 1, 2), normal(bias, 2)}, poisoned({y}));
          expect_as_cpu(op, {normal(x, 1, 2)}, poisoned({y}));
          op.kind = activation_backward;
          expect_as_cpu(op, {normal(y, 3), normal(x, 1, 2), normal(bias, 2)}, poisoned({x}));
          const Tensor weights = shaped({{11}}, Dtype::fp32);
          constexpr double kSums = 8;  // over a width
          expect_as_cpu(op, {normal(y, 3), normal(x, 1, 2), normal(bias, 2), normal(weights, 4)},
                        poisoned({x, weights}), {}, kSums);
          expect_as_cpu(op, {normal(y, 3), normal(x, 1, 2), Given{}, normal(weights, 4)}, poisoned({x, weights}), {},
                        kSums);
          op.kind = activation;
          expect_as_cpu(op, {normal(x, 1, 2), Given{}, normal(weights, 4)}, poisoned({y}));
        }
}

TEST(CudaElementwise, DropoutDrawsWhatTheCpuDraws) {
  const std::array<std::int64_t, 4> zigzag{2, 3, 6, 7};
  for (const Dtype dtype : kDtypes)
    for (const std::int64_t width : {3, 24})
      for (const int part : {0, 1, 2}) {
        const Tensor t = shaped({{2, Axis::batch}, {4, Axis::sequence}, {width, Axis::hidden}}, dtype);
        Tensor mask = t;
        mask.dtype = Dtype::uint8;
        KernelContext context;
        context.seed = 0x123456789abcdef;
        context.dropout_stream = 0xfedcba987654321;
        if (part > 0) {
          context.part_begin = {1, 4, width};
          context.whole_sizes = {5, 8, 3 * width};
        }
        if (part > 1) context.query_positions = zigzag;
        const Tensor bias = shaped({{width}}, Dtype::fp32);
        Op op = op_of(dropout);
        op.probability = 0.3f;
        expect_as_cpu(op, {normal(t, 1)}, poisoned({t, mask}), context);
        op.kind = dropout_add;
        expect_as_cpu(op, {normal(t, 1), normal(t, 2), normal(bias, 3)}, poisoned({t, mask}), context);
        expect_as_cpu(op, {normal(t, 1), normal(t, 2)}, poisoned({t, mask}), context);
        const Values kept = on_cpu(op, {normal(t, 1), normal(t, 2)}, poisoned({t, mask}), context)[1];
        EXPECT_GT(std::accumulate(kept.begin(), kept.end(), 0.0), 0);
        op.kind = dropout_backward;
        expect_as_cpu(op, {normal(t, 4), {mask, kept}}, poisoned({t}), context);
      }
}

TEST(CudaElementwise, SumsProductsAndCastsAreTheCpus) {
  for (const Dtype dtype : kDtypes)
    for (const std::int64_t width : {7, 64}) {
      const Tensor t = shaped({{5}, {9}, {width}}, dtype), rows = shaped({{9}, {width}}, Dtype::fp32);
      const Given a = normal(t, 1), b = normal(t, 2), positions = normal(rows, 3);
      expect_as_cpu(op_of(add), {a, b, positions}, poisoned({t}));
      expect_as_cpu(op_of(add), {a, kAbsent, positions}, poisoned({t}));
      expect_as_cpu(op_of(add), {a, b}, poisoned({t}));
      expect_as_cpu(op_of(multiply), {a, b}, poisoned({t}));
      Op divide = op_of(multiply);
      divide.divides = true;
      expect_as_cpu(divide, {a, divisors(t, 2)}, poisoned({t}));
      for (const Dtype to : kDtypes) {
        Tensor other = t;
        other.dtype = to;
        expect_as_cpu(op_of(cast), {a}, poisoned({other}));
        Op adds = op_of(cast);
        adds.accumulate = true;
        expect_as_cpu(adds, {a}, {normal(other, 3)});
      }
      expect_as_cpu(op_of(zero_fill), {}, poisoned({t}));
    }
}

TEST(CudaElementwise, CastToFp8RoundsAndSaturates) {
  for (const std::int64_t n : {5, 4096}) {
    Tensor wide = shaped({{n}}, Dtype::bf16), narrow = shaped({{n}}, Dtype::fp8);
    Given x = normal(wide, 1, 20);
    x.values[0] = 1000;
    x.values[1] = -1e30f;
    x.values = rounded(x.values, Dtype::bf16);
    const Values y = on_cuda(op_of(cast), {x}, poisoned({narrow}), {})[0];
    EXPECT_EQ(y, rounded(x.values, Dtype::fp8));
    EXPECT_EQ(y[0], 448);
    EXPECT_EQ(y[1], -448);
    EXPECT_EQ(on_cuda(op_of(cast), {{narrow, y}}, poisoned({wide}), {})[0], y);
  }
}

TEST(CudaFp8, QuantisesByTheLargestAndTransposes) {
  for (const std::int64_t n : {5, 4096}) {
    const Given x = normal(shaped({{n}}, Dtype::bf16), 1, 20);
    const float largest = std::abs(*std::ranges::max_element(x.values, {}, [](float v) { return std::abs(v); }));
    std::vector<std::uint16_t> bits(x.values.size());
    cuda::from_floats(x.values.data(), bits.data(), Dtype::bf16, n);
    Memory wide(n * 2), narrow(n, Edge::end), scale(sizeof(cuda::Fp8Scale)), again(n * 4);
    wide.upload(bits.data());
    auto* const at = static_cast<cuda::Fp8Scale*>(scale.data());
    cuda::quantise(nullptr, 2, wide.data(), Dtype::bf16, narrow.data(), n, at);
    cuda::dequantise(nullptr, narrow.data(), at, again.data(), Dtype::fp32, n);
    const std::vector<unsigned char> bytes = again.download();
    Values y(x.values.size()), expected(x.values);
    std::memcpy(y.data(), bytes.data(), bytes.size());
    for (float& v : expected) v *= 448 / largest;
    expected = rounded(expected, Dtype::fp8);
    for (float& v : expected) v *= largest / 448;
    EXPECT_EQ(y, expected);
  }
  constexpr int kRows = 45, kColumns = 70;
  std::vector<unsigned char> from(kRows * kColumns), expected(from.size());
  for (int i = 0; i < kRows * kColumns; ++i) {
    from[static_cast<std::size_t>(i)] = static_cast<unsigned char>(i * 7);
    expected[static_cast<std::size_t>(i % kColumns * kRows + i / kColumns)] = static_cast<unsigned char>(i * 7);
  }
  Memory a(kRows * kColumns), b(kRows * kColumns, Edge::end);
  a.upload(from.data());
  cuda::transpose_bytes(nullptr, a.data(), b.data(), kRows, kColumns);
  EXPECT_EQ(b.download(), expected);
}

// --- Tokens

TEST(CudaEmbedding, IsTheCpusInEveryDtypeAndAddsUp) {
  for (const Dtype dtype : kDtypes)
    for (const std::int64_t width : {3, 64})
      for (const std::int64_t first : {0, 40}) {
        const Given tokens = ids({{2}, {300}}, 1, 170);
        const Tensor table = shaped({{130, Axis::vocab}, {width}}, dtype), y = shaped({{2}, {300}, {width}}, dtype);
        KernelContext context;
        context.first_vocabulary_row = first;
        expect_as_cpu(op_of(embedding), {tokens, normal(table, 2)}, poisoned({y}), context);
        Op op = op_of(embedding_backward);
        expect_as_cpu(op, {tokens, normal(y, 3)}, poisoned({table}), context, 4);
        op.accumulate = true;
        expect_as_cpu(op, {tokens, normal(y, 3)}, {normal(table, 4)}, context, 4);
      }
}

TEST(CudaEmbedding, OneTokenManyTimesIsASumInTheirOrder) {
  const Given tokens{shaped({{1000}}, Dtype::int64), Values(1000, 2)};
  expect_as_cpu(op_of(embedding_backward), {tokens, normal(shaped({{1000}, {8}}, Dtype::fp32), 1)},
                poisoned({shaped({{5, Axis::vocab}, {8}}, Dtype::fp32)}), {}, 8);
}

TEST(CudaEmbedding, IdsOutsideATableContributeNothing) {
  const Given tokens{shaped({{3}}, Dtype::int64), {1, 9, 0}};
  const Tensor table = shaped({{2}, {4}}, Dtype::fp32), y = shaped({{3}, {4}}, Dtype::fp32);
  const Values out = on_cuda(op_of(embedding), {tokens, {table, Values(8, 1)}}, poisoned({y}), {})[0];
  EXPECT_EQ(out, (Values{1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1}));
}

TEST(CudaCrossEntropy, IsTheCpusInEveryDtypeOfAPartOfTheVocabulary) {
  for (const Dtype dtype : kDtypes)
    for (const std::int64_t columns : {3, 72, 3000})
      for (const std::int64_t first : {0, 2}) {
        const Tensor logits = shaped({{7}, {columns, Axis::vocab}}, dtype),
                     statistics = shaped({{3}, {7}}, Dtype::fp32);
        const Given targets = ids({{7}}, 5, columns + 3), x = normal(logits, 1, 4);
        KernelContext context;
        context.first_vocabulary_row = first;
        Op op = op_of(cross_entropy);
        op.scale = 0.25;
        expect_as_cpu(op, {x, targets}, poisoned({statistics}), context, 4);
        const Values s = on_cpu(op, {x, targets}, poisoned({statistics}), context)[0];
        op.kind = cross_entropy_backward;
        expect_as_cpu(op, {x, targets, {statistics, s}}, poisoned({logits}), context);
      }
}

TEST(CudaPool, IsTheCpusInEveryDtype) {
  for (const Dtype dtype : kDtypes) {
    const Tensor x = shaped({{8}, {9}, {24}}, dtype), tokens = shaped({{8}, {1}, {24}}, dtype),
                 images = shaped({{2}, {1}, {24}}, dtype);
    KernelContext context;
    for (const bool mean : {false, true}) {
      context.pool_mean = mean;
      for (const Tensor& y : {tokens, images}) {
        expect_as_cpu(op_of(pool), {normal(x, 1)}, poisoned({y}), context);
        expect_as_cpu(op_of(pool_backward), {normal(y, 2)}, poisoned({x}), context);
      }
    }
    const Tensor vector = shaped({{24}}, dtype), longer = shaped({{8}, {10}, {24}}, dtype);
    expect_as_cpu(op_of(pool), {normal(x, 1), normal(vector, 2)}, poisoned({longer}));
    expect_as_cpu(op_of(pool_backward), {normal(longer, 3)}, poisoned({x, vector}));
    Op adds = op_of(pool_backward);
    adds.accumulate = true;
    expect_as_cpu(adds, {normal(longer, 3)}, {poisoned({x})[0], normal(vector, 4)});
  }
}

// --- Mixture of experts

Given choices_of(std::int64_t tokens, std::int64_t k, std::int64_t experts, std::uint32_t seed) {
  Given g = ids({{tokens, Axis::sequence}, {k}}, seed, experts);
  for (std::size_t i = 1; i < g.values.size(); ++i)  // a token's differ
    if (i % static_cast<std::size_t>(k) != 0)
      g.values[i] = static_cast<float>((static_cast<std::int64_t>(g.values[i - 1]) + 1) % experts);
  g.tensor.dtype = Dtype::int32;
  return g;
}

TEST(CudaRoute, IsTheCpusInEveryDtype) {
  for (const Dtype dtype : kDtypes)
    for (const RouterScore score :
         {RouterScore::softmax, RouterScore::softmax_of_top, RouterScore::sigmoid, RouterScore::sigmoid_of_top})
      for (const auto& [experts, k, groups] :
           {std::array<std::int64_t, 3>{8, 2, 0}, {64, 8, 8}, {1, 1, 0}, {70, 35, 0}})
        for (const bool biased : {false, true}) {
          Op op = op_of(route);
          op.router = {.score = score,
                       .groups = static_cast<std::uint16_t>(groups),
                       .best_groups = static_cast<std::uint16_t>(groups / 2),
                       .scale = 2.5f};
          const Tensor logits = shaped({{9, Axis::sequence}, {experts}}, dtype),
                       weights = shaped({{9, Axis::sequence}, {k}}, dtype),
                       choices = shaped({{9, Axis::sequence}, {k}}, Dtype::int32);
          std::vector<Given> reads{normal(logits, 1, 2)};
          if (biased) reads.push_back(normal(shaped({{experts}}, Dtype::fp32), 2, 0.3));
          expect_as_cpu(op, reads, poisoned({weights, choices}));
          if (biased) continue;
          const Values chosen = on_cpu(op, reads, poisoned({weights, choices}), {})[1];
          op.kind = route_backward;
          expect_as_cpu(op, {normal(weights, 3), reads[0], {choices, chosen}}, poisoned({logits}));
        }
}

// More experts than a block has room for side by side: fewer tokens to a block.
TEST(CudaRoute, HasRoomForThousandsOfExperts) {
  Op op = op_of(route);
  const Tensor logits = shaped({{2}, {9000}}, Dtype::fp32), weights = shaped({{2}, {2}}, Dtype::fp32),
               choices = shaped({{2}, {2}}, Dtype::int32);
  expect_as_cpu(op, {normal(logits, 1, 2)}, poisoned({weights, choices}));
}

// Some of the slots free, some tokens without one.
TEST(CudaPermute, IsTheCpusInEveryDtype) {
  for (const Dtype dtype : kDtypes)
    for (const auto& [tokens, experts, k, slots, width] :
         {std::array<std::int64_t, 5>{9, 4, 2, 3, 5}, {520, 3, 2, 30, 8}, {6, 4, 2, 5, 2056}}) {
      const Tensor x = shaped({{tokens, Axis::sequence}, {width}}, dtype),
                   rows = shaped({{experts, Axis::experts}, {slots, Axis::slots}, {width}}, dtype),
                   weights = shaped({{tokens, Axis::sequence}, {k}}, Dtype::fp32);
      const Given choices = choices_of(tokens, k, experts, 3);
      expect_as_cpu(op_of(permute), {normal(x, 1), choices}, poisoned({rows}));
      expect_as_cpu(op_of(unpermute), {normal(rows, 2), choices}, poisoned({x}));
      expect_as_cpu(op_of(unpermute), {normal(rows, 2), choices, normal(weights, 4)}, poisoned({x}));
      constexpr double kSums = 4;  // over a width
      expect_as_cpu(op_of(unpermute_backward), {normal(x, 1), normal(rows, 2), choices, normal(weights, 4)},
                    poisoned({rows, weights}), {}, kSums);
      const Tensor by_row = shaped({{experts, Axis::experts}, {slots, Axis::slots}}, Dtype::fp32);
      expect_as_cpu(op_of(permute_weights), {normal(weights, 4), choices}, poisoned({by_row}));
      expect_as_cpu(op_of(unpermute_weights), {normal(by_row, 5), choices}, poisoned({weights}));
    }
}

TEST(CudaSlotMask, IsTheCpusInEveryDtype) {
  for (const Dtype dtype : kDtypes)
    for (const std::int64_t slots : {5, 300}) {
      const Tensor mask = shaped({{520, Axis::sequence}, {3, Axis::experts}, {slots, Axis::slots}}, dtype),
                   weights = shaped({{520, Axis::sequence}, {2}}, Dtype::fp32);
      const Given choices = choices_of(520, 2, 3, 3);
      expect_as_cpu(op_of(slot_mask), {choices}, poisoned({mask}));
      expect_as_cpu(op_of(slot_mask), {choices, normal(weights, 4)}, poisoned({mask}));
      expect_as_cpu(op_of(slot_mask_backward), {normal(mask, 5), choices}, poisoned({weights}));
    }
}

// Of experts that ranks divide: those from the third on.
TEST(CudaPermute, OfSomeOfTheExpertsIsTheCpus) {
  KernelContext context;
  context.first_expert = 2;
  Tensor x = shaped({{520, Axis::sequence}, {8}}, Dtype::bf16),
         rows = shaped({{3, Axis::experts}, {300, Axis::slots}, {8}}, Dtype::bf16),
         weights = shaped({{520, Axis::sequence}, {2}}, Dtype::fp32),
         by_row = shaped({{3, Axis::experts}, {300, Axis::slots}}, Dtype::fp32);
  for (Tensor* t : {&rows, &by_row}) t->over[0].append(MeshGroup::of_digit(0));
  const Given choices = choices_of(520, 2, 6, 3);
  expect_as_cpu(op_of(permute), {normal(x, 1), choices}, poisoned({rows}), context);
  expect_as_cpu(op_of(unpermute), {normal(rows, 2), choices, normal(weights, 4)}, poisoned({x}), context);
  expect_as_cpu(op_of(unpermute_backward), {normal(x, 1), normal(rows, 2), choices, normal(weights, 4)},
                poisoned({rows, weights}), context, 4);
  expect_as_cpu(op_of(permute_weights), {normal(weights, 4), choices}, poisoned({by_row}), context);
  expect_as_cpu(op_of(unpermute_weights), {normal(by_row, 5), choices}, poisoned({weights}), context);
}

// Beyond a block's tile of tokens, with ties that only their order decides.
TEST(CudaRoute, OfExpertsThatChooseAndOfAnAuctionIsTheCpus) {
  for (const auto& [tokens, experts] : {std::pair{520, 6}, {300, 3}}) {
    const Tensor logits = shaped({{tokens, Axis::sequence}, {experts}}, Dtype::fp32),
                 all = shaped({{tokens, Axis::sequence}, {experts}}, Dtype::int32),
                 one = shaped({{tokens, Axis::sequence}, {1}}, Dtype::int32),
                 weight = shaped({{tokens, Axis::sequence}, {1}}, Dtype::fp32);
    Given coarse = normal(logits, 1);
    for (float& x : coarse.values) x = std::round(8 * x) / 8;
    Op op = op_of(route);
    op.router = {.type = RouterType::expert_choice, .score = RouterScore::sigmoid, .choices = 2};
    expect_as_cpu(op, {coarse}, poisoned({logits, all}), {}, 4);
    if (tokens > 300) continue;  // rounds take their time here
    op.router = {.type = RouterType::base, .score = RouterScore::sigmoid, .choices = 1};
    expect_as_cpu(op, {coarse}, poisoned({weight, one}), {}, 4);
  }
}

TEST(CudaAddNoise, IsTheCpusInEveryDtype) {
  KernelContext context;
  context.seed = 3;
  context.dropout_stream = 17;
  for (const Dtype dtype : kDtypes) {
    const Tensor logits = shaped({{2, Axis::batch}, {9, Axis::sequence}, {70}}, dtype);
    expect_as_cpu(op_of(add_noise), {normal(logits, 1), normal(logits, 2)}, poisoned({logits, logits}), context, 4);
  }
}

TEST(CudaRouterLoss, IsTheCpusInEveryDtype) {
  for (const Dtype dtype : kDtypes)
    for (const RouterScore score : {RouterScore::softmax, RouterScore::sigmoid_of_top})
      for (const std::int64_t experts : {4, 70})
        for (const bool by_sequence : {false, true}) {
          const Tensor logits = shaped({{2, Axis::batch}, {9, Axis::sequence}, {experts}}, dtype),
                       counts = shaped({{2, Axis::batch}, {experts}}, Dtype::fp32),
                       losses = shaped({{2, Axis::batch}, {9, Axis::sequence}, {2}}, Dtype::fp32);
          Given chosen = choices_of(18, 3, experts, 5);
          chosen.tensor = shaped({{2, Axis::batch}, {9, Axis::sequence}, {3}}, Dtype::int32);
          expect_as_cpu(op_of(expert_counts), {chosen}, poisoned({counts}));
          const Values counted = on_cpu(op_of(expert_counts), {chosen}, poisoned({counts}), {})[0];
          Op op = op_of(router_loss);
          op.router = {.score = score, .balance = 0.5f, .z = 0.1f, .by_sequence = by_sequence};
          op.scale = 0.25;
          for (const bool balance : {true, false}) {
            std::vector<Given> reads{normal(logits, 1, 2)};
            if (balance) reads.push_back({counts, counted});
            op.kind = router_loss;
            expect_as_cpu(op, reads, poisoned({losses}), {}, 4);
            op.kind = router_loss_backward;
            expect_as_cpu(op, reads, poisoned({logits}), {}, 4);
          }
        }
}

TEST(CudaMultiply, ByOneNumberOfARowIsTheCpus) {
  for (const Dtype dtype : kDtypes)
    for (const std::int64_t width : {1, 7, 24, 1040}) {
      const Tensor rows = shaped({{5}, {3}, {width}}, dtype), column = shaped({{5}, {3}, {1}}, Dtype::fp32);
      expect_as_cpu(op_of(multiply), {normal(rows, 1), normal(column, 2)}, poisoned({rows}));
      Op divide = op_of(multiply);
      divide.divides = true;
      expect_as_cpu(divide, {normal(rows, 1), divisors(column, 2)}, poisoned({rows}));
      expect_as_cpu(op_of(multiply), {normal(rows, 1), normal(rows, 2)}, poisoned({column}), {}, 4);
    }
}

TEST(CudaBiasGradient, OfExpertsIsTheCpus) {
  for (const Dtype dtype : kDtypes)
    for (const bool accumulate : {false, true}) {
      Op op = op_of(bias_gradient);
      op.group_dims = 1;
      op.accumulate = accumulate;
      const Tensor dy = shaped({{5}, {70}, {40}}, dtype), db = shaped({{5}, {40}}, Dtype::fp32);
      expect_as_cpu(op, {normal(dy, 1)}, accumulate ? std::vector{normal(db, 2)} : poisoned({db}), {}, 4);
    }
}

// --- Optimizers

// Of gradients whose norm is 8: halved, and clipped to 3.
const Given square{shaped({{1}}, Dtype::fp32), {64}};
Op scaling(OpKind kind, bool clips) {
  Op op = op_of(kind);
  op.scale = 0.5;
  if (clips) op.clip_limit = 3;
  return op;
}

TEST(CudaScale, IsTheCpusInEveryDtype) {
  for (const Dtype dtype : kDtypes)
    for (const std::int64_t n : {1, 1111, 4096}) {
      const Tensor x = shaped({{n}}, dtype);
      expect_as_cpu(scaling(scale, false), {normal(x, 1)}, poisoned({x}), {});
      expect_as_cpu(scaling(scale, true), {normal(x, 1), square}, poisoned({x}), {});
    }
}

TEST(CudaOptimizer, UpdatesAreTheCpusWhateverTheStatesAreStoredIn) {
  for (const Dtype dtype : kDtypes)
    for (const Dtype moments : {Dtype::fp32, Dtype::bf16})
      for (const bool master : {false, true}) {
        const std::int64_t n = 1111;
        const Tensor narrow = shaped({{n}}, dtype), wide = shaped({{n}}, Dtype::fp32), m = shaped({{n}}, moments);
        Given second = normal(m, 4);
        for (float& v : second.values) v = std::abs(v);
        KernelContext context;
        context.step = 7;
        context.weight_decay = 0.1;
        context.learning_rate = 0.01;
        for (const bool decoupled : {false, true}) {
          std::vector<Given> reads{normal(narrow, 1), normal(master ? wide : narrow, 2), normal(m, 3), second};
          for (Op op : {scaling(adam, false), scaling(adam, true)}) {
            op.decoupled_weight_decay = decoupled;
            if (op.clip_limit > 0) reads.push_back(square);
            expect_as_cpu(op, reads, poisoned(master ? std::vector{narrow, wide, m, m} : std::vector{narrow, m, m}),
                          context);
          }
        }
        for (const bool momentum : {false, true}) {
          std::vector<Given> reads{normal(narrow, 1), normal(master ? wide : narrow, 2)};
          std::vector<Tensor> results{narrow};
          if (master) results.push_back(wide);
          if (momentum) {
            reads.push_back(normal(m, 3));
            results.push_back(m);
          }
          expect_as_cpu(scaling(sgd, false), reads, poisoned(results), context);
          Op own = scaling(sgd, false);
          own.learning_rate = 0.7f;
          own.momentum = 0.6f;
          own.nesterov = momentum;
          own.clip_limit = 0.5f;
          expect_as_cpu(own, reads, poisoned(results), context);
          reads.resize(3);
          reads.push_back(square);
          expect_as_cpu(scaling(sgd, true), reads, poisoned(results), context);
          own.divides = true;  // by one plus a norm
          expect_as_cpu(own, reads, poisoned(results), context);
        }
      }
}

TEST(CudaOptimizer, DifferencesAreTheCpus) {
  for (const Dtype dtype : kDtypes)
    for (const std::int64_t n : {1, 1111}) {
      const Tensor narrow = shaped({{n}}, dtype), wide = shaped({{n}}, Dtype::fp32);
      expect_as_cpu(op_of(subtract), {normal(wide, 1), normal(narrow, 2)}, poisoned({narrow}), {});
    }
}

Given squares_of(const Tensor& t, unsigned seed) {
  Given x = normal(t, seed);
  for (float& v : x.values) v = v * v;
  return x;
}

// Few long sums and many short ones, of whole vectors and not, in groups and not.
TEST(CudaOptimizer, SumsOfSquaresAreTheCpus) {
  for (const Dtype dtype : kDtypes)
    for (const auto& [groups, rows, columns] : {std::tuple(1, 3, 20008), {2, 700, 24}, {3, 41, 301}, {1, 1, 1}}) {
      const Given x = normal(shaped({{groups}, {rows}, {columns}}, dtype), 1);
      Op op = op_of(square_sums);
      op.scale = 0.5;
      op.group_dims = 1;
      const auto single = [](std::initializer_list<Dim> dims) { return poisoned({shaped(dims, Dtype::fp32)}); };
      expect_as_cpu(op, {x}, single({{groups}, {rows}}), {}, static_cast<double>(columns));
      expect_as_cpu(op, {x}, single({{groups}}), {}, static_cast<double>(rows) * columns);
      op.transpose_a = true;
      expect_as_cpu(op, {x}, single({{groups}, {columns}}), {}, static_cast<double>(rows));
    }
}

TEST(CudaOptimizer, FactoredMomentsAreTheCpus) {
  KernelContext context;
  context.step = 3;
  context.epsilon = 1e-3;
  for (const Dtype dtype : kDtypes)
    for (const auto& [rows, columns] : {std::pair(7, 24), {5, 33}}) {
      const Tensor matrices = shaped({{2}, {rows}, {columns}}, dtype),
                   wide = shaped({{2}, {rows}, {columns}}, Dtype::fp32);
      const Given g = normal(matrices, 1), row = squares_of(shaped({{2}, {rows}}, Dtype::fp32), 2),
                  column = squares_of(shaped({{2}, {columns}}, Dtype::fp32), 3);
      expect_as_cpu(op_of(moving_mean), {row, squares_of(row.tensor, 4)}, poisoned({row.tensor}), context);
      Given sums = squares_of(shaped({{2}}, Dtype::fp32), 5);
      expect_as_cpu(op_of(factored_update), {g, row, column, sums}, poisoned({wide}), context, 4);
      sums.values[1] = 0;
      expect_as_cpu(op_of(factored_update), {g, row, column, sums}, poisoned({wide}), context, 4000);
      expect_as_cpu(op_of(factored_update), {g, squares_of(wide, 6)}, poisoned({wide}), context, 4);
      Op step = scaling(scale, true);
      step.epsilon = 0.3f;
      expect_as_cpu(step, {g, sums, squares_of(sums.tensor, 7)}, poisoned({matrices}), context);
    }
}

TEST(CudaOptimizer, TheNormIsTheSumOfSquaresOverManyBlocks) {
  for (const Dtype dtype : kDtypes)
    for (const std::int64_t n : {1, 100, 100003}) {
      const Given x = normal(shaped({{n}}, dtype), 1);
      double sum = 0;
      for (const float v : x.values) sum += static_cast<double>(v) * v;
      const Values norm = on_cuda(op_of(gradient_norm), {x}, poisoned({shaped({{1}}, Dtype::fp32)}), {})[0];
      EXPECT_NEAR(norm[0], sum, 1e-6 * sum);
    }
}

// --- What a Backend needs

template <class T>
std::vector<T> of_bytes(const std::vector<unsigned char>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// A storage of a dtype, part of which is a slice.
class Slices : public testing::TestWithParam<Dtype> {
 protected:
  static constexpr std::int64_t kCount = 200;
  Dtype dtype = GetParam();
  std::vector<unsigned char> initial = [this] {
    Values values(kCount);
    std::iota(values.begin(), values.end(), 0.0f);
    for (float& v : values) v = static_cast<float>(static_cast<int>(v) % 100);
    return stored(values, dtype);
  }();
  Memory base{kCount * bytes_of(dtype, 1)};
  void SetUp() override { base.upload(initial.data()); }
  Values now() { return numbers(base.download(), dtype); }

  // Dense ones, aligned and not, and index lists of runs of 8, 3 and 1.
  template <class Use>
  void for_each_slice(Use use) {
    for (const auto& [offset, n] : {std::pair{0, 200}, std::pair{16, 64}, std::pair{3, 50}, std::pair{7, 1}}) {
      std::vector<std::int64_t> index(static_cast<std::size_t>(n));
      std::iota(index.begin(), index.end(), offset);
      SetUp();
      use(cuda::DeviceSlice{base.data(), dtype, offset, n}, index);
    }
    for (const std::int64_t run : {16, 3, 1}) {
      std::vector<std::int64_t> index;
      for (std::int64_t r = 4; r >= 0; --r)
        for (std::int64_t i = 0; i < run; ++i) index.push_back(2 * r * run + i);
      const cuda::IndexPlan plan = cuda::plan_index(index);
      EXPECT_EQ(plan.run, run);
      Memory starts(static_cast<std::int64_t>(plan.starts.size() * sizeof(std::int64_t)));
      starts.upload(plan.starts.data());
      SetUp();
      use(cuda::DeviceSlice{base.data(), dtype, 0, static_cast<std::int64_t>(index.size()),
                            static_cast<const std::int64_t*>(starts.data()), plan.run, plan.alignment},
          index);
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Cuda, Slices,
                         testing::Values(Dtype::fp32, Dtype::bf16, Dtype::fp16, Dtype::fp8, Dtype::int64, Dtype::int32,
                                         Dtype::uint8),
                         [](const auto& i) { return std::string(name_of(i.param)); });

TEST_P(Slices, GatherScatterAndAddTouchTheirElementsOnly) {
  for (const Edge place : {Edge::start, Edge::end})
    for_each_slice([&](const cuda::DeviceSlice& s, const std::vector<std::int64_t>& index) {
      const Values before = now();
      Memory dense(static_cast<std::int64_t>(index.size()) * bytes_of(dtype, 1), place);
      cuda::gather(nullptr, s, dense.data());
      const Values gathered = numbers(dense.download(), dtype);
      for (std::size_t i = 0; i < index.size(); ++i) EXPECT_EQ(gathered[i], before[static_cast<std::size_t>(index[i])]);
      cuda::scatter(nullptr, dense.data(), s, true);
      Values expected = before;
      for (const std::int64_t e : index) expected[static_cast<std::size_t>(e)] *= 2;
      EXPECT_EQ(now(), rounded(expected, dtype));
      Values fresh(index.size());
      for (std::size_t i = 0; i < fresh.size(); ++i) fresh[i] = static_cast<float>(i % 50);
      fresh = rounded(fresh, dtype);
      dense.upload(stored(fresh, dtype).data());
      cuda::scatter(nullptr, dense.data(), s, false);
      expected = rounded(expected, dtype);
      for (std::size_t i = 0; i < index.size(); ++i) expected[static_cast<std::size_t>(index[i])] = fresh[i];
      EXPECT_EQ(now(), expected);
    });
}

TEST_P(Slices, FillAndFindNan) {
  Memory flag(sizeof(std::int32_t));
  const auto found = [&](const cuda::DeviceSlice& s) {
    const std::int32_t zero = 0;
    flag.upload(&zero);
    cuda::find_nan(nullptr, s, static_cast<std::int32_t*>(flag.data()));
    return of_bytes<std::int32_t>(flag.download())[0] == 1;
  };
  for_each_slice([&](const cuda::DeviceSlice& s, const std::vector<std::int64_t>& index) {
    Values expected = now();
    cuda::fill(nullptr, s, 3);
    for (const std::int64_t e : index) expected[static_cast<std::size_t>(e)] = 3;
    EXPECT_EQ(now(), expected);
    EXPECT_FALSE(found(s));
    cuda::fill(nullptr, s, kNan);
    if (bytes_of(dtype, 1) == 8 || dtype == Dtype::int32 || dtype == Dtype::uint8) {
      EXPECT_FALSE(found(s));
      const auto bytes = base.download();
      const auto at = static_cast<std::size_t>(index[0]);
      if (dtype == Dtype::int64) {
        EXPECT_EQ(of_bytes<std::int64_t>(bytes)[at], std::numeric_limits<std::int64_t>::max());
      } else if (dtype == Dtype::int32) {
        EXPECT_EQ(of_bytes<std::int32_t>(bytes)[at], std::numeric_limits<std::int32_t>::max());
      } else {
        EXPECT_EQ(bytes[at], 255);
      }
      return;
    }
    EXPECT_TRUE(found(s));
    const Values values = now();
    for (std::int64_t e = 0; e < kCount; ++e)
      EXPECT_EQ(std::isnan(values[static_cast<std::size_t>(e)]), std::ranges::find(index, e) != index.end());
  });
}

TEST(CudaIndexPlan, FindsTheLongestRunsThatDivideTheList) {
  const auto plan = [](const std::vector<std::int64_t>& index) { return cuda::plan_index(index); };
  EXPECT_EQ(plan({8, 9, 10, 11, 0, 1, 2, 3}).run, 4);
  EXPECT_EQ(plan({8, 9, 10, 11, 0, 1, 2, 3}).alignment, 4);
  EXPECT_EQ(plan({8, 9, 10, 11, 0, 1, 2, 3}).starts, (std::vector<std::int64_t>{8, 0}));
  EXPECT_EQ(plan({6, 7, 8, 9, 0, 1}).run, 2);
  EXPECT_EQ(plan({1, 2, 9, 10}).alignment, 1);
  EXPECT_EQ(plan({5, 6, 8}).run, 1);
  EXPECT_EQ(plan({4, 5, 6}).run, 3);
  EXPECT_TRUE(plan({}).starts.empty());
}

TEST(CudaMemory, ConvertsBetweenAllDtypes) {
  for (const Dtype from : {Dtype::fp32, Dtype::bf16, Dtype::fp16, Dtype::fp8, Dtype::int64, Dtype::int32, Dtype::uint8})
    for (const Dtype to : {Dtype::fp32, Dtype::bf16, Dtype::fp16, Dtype::fp8, Dtype::int64, Dtype::int32, Dtype::uint8})
      for (const std::int64_t n : {64, 77}) {
        Values values(static_cast<std::size_t>(n));
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 120);
        values = rounded(values, from);
        Memory a(n * bytes_of(from, 1), Edge::end), b(n * bytes_of(to, 1), Edge::end);
        a.upload(stored(values, from).data());
        cuda::convert(nullptr, a.data(), from, b.data(), to, n);
        EXPECT_EQ(numbers(b.download(), to), rounded(values, to)) << name_of(from) << " to " << name_of(to);
      }
}

TEST(CudaMemory, SumsPartsInTheirOrderAndInFp32) {
  for (const Dtype dtype : kDtypes)
    for (const std::int64_t n : {64, 501})
      for (const int count : {1, 2, 19}) {
        std::vector<std::unique_ptr<Memory>> memory;
        std::vector<const void*> parts;
        Values expected(static_cast<std::size_t>(n), 0);
        for (int p = 0; p < count; ++p) {
          const Given x = normal(shaped({{n}}, dtype), static_cast<std::uint32_t>(p));
          for (std::size_t i = 0; i < expected.size(); ++i)
            expected[i] = p == 0 ? x.values[i] : expected[i] + x.values[i];
          memory.push_back(std::make_unique<Memory>(n * bytes_of(dtype, 1), Edge::end));
          memory.back()->upload(stored(x.values, dtype).data());
          parts.push_back(memory.back()->data());
        }
        cuda::sum(nullptr, parts, memory[0]->data(), n, dtype);  // into one of them
        EXPECT_TRUE(same_bits(numbers(memory[0]->download(), dtype), rounded(expected, dtype)));
      }
}

TEST(CudaMemory, MergesStatisticsOfADividedVocabulary) {
  const std::int64_t tokens = 301;
  std::vector<std::unique_ptr<Memory>> memory;
  std::vector<const void*> parts;
  std::vector<Values> values;
  for (std::uint32_t p = 0; p < 3; ++p) {
    values.push_back(normal(shaped({{3 * tokens}}, Dtype::fp32), p, 5).values);
    for (std::int64_t t = 0; t < tokens; ++t)
      values[p][static_cast<std::size_t>(tokens + t)] = 1 + static_cast<float>(t % 7);
    memory.push_back(std::make_unique<Memory>(3 * tokens * 4));
    memory.back()->upload(values.back().data());
    parts.push_back(memory.back()->data());
  }
  Memory to(3 * tokens * 4);
  cuda::merge_statistics(nullptr, parts, to.data(), tokens);
  const Values merged = numbers(to.download(), Dtype::fp32);
  for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); ++t) {
    double log_sum = 0, target = 0;
    for (const Values& v : values) {
      log_sum += v[tokens + t] * std::exp(static_cast<double>(v[t]));
      target += v[2 * tokens + t];
    }
    EXPECT_NEAR(merged[t] + std::log(merged[tokens + t]), std::log(log_sum), 1e-4);
    EXPECT_NEAR(merged[2 * tokens + t], target, 1e-4);
  }
}

// --- What cannot be run

TEST(CudaKernels, WhatDoesNotFitIsRefused) {
  const Tensor x = shaped({{3}, {4}}, Dtype::fp32), mask = shaped({{3}, {4}}, Dtype::uint8);
  EXPECT_THROW(on_cuda(op_of(linear), {normal(x, 1)}, poisoned({x}), {}), std::logic_error);
  EXPECT_THROW(on_cuda(op_of(add), {{mask, Values(12, 1)}}, poisoned({x}), {}), std::logic_error);
  EXPECT_THROW(on_cuda(op_of(dropout), {normal(x, 1)}, poisoned({x, x}), {}), std::logic_error) << "a mask of floats";
  Op op = op_of(add);
  op.accumulate = true;
  EXPECT_THROW(on_cuda(op, {normal(x, 1)}, poisoned({x}), {}), std::logic_error);
  const Tensor heads = shaped({{1, Axis::batch}, {4, Axis::sequence}, {1}, {1}, {264}}, Dtype::bf16);
  Tensor kv = heads;
  kv.sizes[3] = 2;
  EXPECT_THROW(
      on_cuda(op_of(attention), {normal(heads, 1), normal(kv, 1)}, poisoned({heads, shaped({{4}}, Dtype::fp32)}), {}),
      std::logic_error);
  const Tensor row = shaped({{2}, {cuda::kMaxNormWidth + 8}}, Dtype::bf16),
               weight = shaped({{cuda::kMaxNormWidth + 8}}, Dtype::bf16);
  EXPECT_THROW(
      on_cuda(op_of(norm), {normal(row, 1), normal(weight, 1)}, poisoned({row, shaped({{2}, {1}}, Dtype::fp32)}), {}),
      std::logic_error);
}

}  // namespace
}  // namespace orrery::cuda_test
