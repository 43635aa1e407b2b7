// The calls of cuBLASLt that a Program's matrix products become, without cuBLASLt: an emulator of cublasLtMatmul's
// semantics runs them in double, and what comes out is what the CPU kernels compute.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "realrun/cpu/kernels.h"
#include "realrun/cuda/matmul_plan.h"
#include "sim/program/work.h"
#include "strategies/lower.h"
#include "strategies/read_scenario.h"
#include "tests/realrun/kernel_harness.h"

namespace orrery::cuda {
namespace {

using cpu::random_values;
using cpu::shaped;
using cpu::Values;
using enum OpKind;

constexpr double kTolerance = 2e-5;  // fp32 sums of some tens of products of normal numbers

// Element (row, column) of matrix `batch`, as cublasLtMatrixLayout_t describes it (cuBLAS manual, "Data Layout":
// column-major, the leading dimension is the stride between columns). Outside the layout or the memory: a failure.
template <class Memory>
auto& element(Memory& memory, const BlasMatrix& m, std::int64_t offset, std::int64_t batch, std::int64_t row,
              std::int64_t column) {
  if (row < 0 || row >= m.rows || column < 0 || column >= m.columns || m.leading < m.rows || batch >= m.batch)
    throw std::out_of_range("outside the layout");
  return memory.at(static_cast<std::size_t>(offset + batch * m.batch_stride + column * m.leading + row));
}

// cublasLtMatmul (cuBLAS manual): D = op(A) op(B) + beta C, the bias broadcast over the columns of D (length: D's
// rows), of a batch so many elements apart (CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE); here C is D. The batch counts of
// all layouts agree.
void emulate(const BlasProduct& p, const BlasLaunch& launch, const Values& a, const Values& b, const Values* bias,
             std::int64_t bias_stride, float scale, Values& c) {
  if (p.a.batch != p.c.batch || p.b.batch != p.c.batch) throw std::out_of_range("batch counts differ");
  const auto expect_shape = [](const BlasMatrix& m, bool transposed, std::int64_t rows, std::int64_t columns) {
    if (m.rows != (transposed ? columns : rows) || m.columns != (transposed ? rows : columns))
      throw std::out_of_range("a layout does not fit the product");
  };
  expect_shape(p.a, p.transpose_a, p.m, p.k);
  expect_shape(p.b, p.transpose_b, p.k, p.n);
  expect_shape(p.c, false, p.m, p.n);
  for (std::int64_t batch = 0; batch < p.c.batch; ++batch)
    for (std::int64_t column = 0; column < p.n; ++column)
      for (std::int64_t row = 0; row < p.m; ++row) {
        double sum = 0;
        for (std::int64_t i = 0; i < p.k; ++i) {
          const double left = p.transpose_a ? element(a, p.a, launch.a_offset, batch, i, row)
                                            : element(a, p.a, launch.a_offset, batch, row, i);
          const double right = p.transpose_b ? element(b, p.b, launch.b_offset, batch, column, i)
                                             : element(b, p.b, launch.b_offset, batch, i, column);
          sum += left * right;
        }
        float& result = element(c, p.c, launch.c_offset, batch, row, column);
        sum *= scale;
        if (bias != nullptr) sum += bias->at(static_cast<std::size_t>(batch * bias_stride + row));
        result = static_cast<float>(launch.accumulate ? result + sum : sum);
      }
}

struct Result {
  Values expected, actual;
  MatmulPlan plan;
};

Result run(const Op& op, const std::vector<Tensor>& read_tensors, const Tensor& written, bool through_fp8 = false) {
  std::vector<Values> values;
  for (std::size_t i = 0; i < read_tensors.size(); ++i)
    values.push_back(random_values(read_tensors[i].elements(), static_cast<std::uint32_t>(i + 1)));
  Result r;
  const float before = std::numeric_limits<float>::quiet_NaN();
  r.expected.assign(static_cast<std::size_t>(written.elements()), before);
  if (op.accumulate) r.expected = random_values(written.elements(), 99);
  r.actual = r.expected;
  std::vector<Operand> buffers;
  std::vector<Operand> reads;
  for (std::size_t i = 0; i < values.size(); ++i) {
    buffers.push_back({values[i].data(), &read_tensors[i]});
    reads.push_back({values[i].data(), &read_tensors[i]});
  }
  const Operand result{r.expected.data(), &written};
  cpu::run_kernel(op, buffers, {&result, 1}, {});

  const Operand write{r.actual.data(), &written};
  r.plan = plan_matmul(op, reads, {&write, 1});
  BlasProduct product = r.plan.product;
  Values a = values[r.plan.a_read], b = values[r.plan.b_read];
  if (through_fp8) {  // both operands along k: transposes of what is stored
    const Fp8Plan fp8 = along_k(product);
    const auto transpose = [](Values& m, const BlasMatrix& layout) {
      Values t(m.size());
      for (std::int64_t row = 0; row < layout.rows; ++row)
        for (std::int64_t column = 0; column < layout.columns; ++column)
          t[static_cast<std::size_t>(row * layout.columns + column)] =
              m[static_cast<std::size_t>(column * layout.rows + row)];
      m = t;
    };
    if (fp8.copy_a) transpose(a, product.a);
    if (fp8.copy_b) transpose(b, product.b);
    product = fp8.product;
    EXPECT_TRUE(product.transpose_a && !product.transpose_b);
  }
  for (const BlasLaunch& launch : r.plan.launches)
    emulate(product, launch, a, b, r.plan.bias ? &values[2] : nullptr, r.plan.bias_stride, r.plan.scale, r.actual);
  return r;
}

void expect_equal(const Result& r, const std::string& what) {
  for (std::size_t i = 0; i < r.expected.size(); ++i)
    ASSERT_NEAR(r.actual[i], r.expected[i], kTolerance * (1 + std::abs(r.expected[i]))) << what << ", element " << i;
}

Op op_of(OpKind kind) {
  Op op;
  op.kind = kind;
  op.name = "test";
  return op;
}

// Tokens as [2, 3] or [6]; k as one or two dimensions; n as one or two.
TEST(CudaMatmul, LinearProductsAreTheCpusWhateverTheWeightsLayout) {
  for (const int inner_dims : {1, 2})
    for (const bool transposed : {false, true})
      for (const bool odd : {false, true})
        for (const bool fp8 : {false, true}) {
          const std::int64_t k1 = odd ? 5 : 4, k2 = inner_dims == 2 ? 3 : 1, n1 = odd ? 7 : 2, n2 = 2;
          const auto tensor = [&](bool is_k, bool tokens) {
            Tensor t;
            t.name = "tensor";
            const auto add = [&](std::int64_t size) { t.sizes[t.rank++] = size; };
            if (tokens) add(2), add(3);
            if (is_k) {
              add(k1);
              if (inner_dims == 2) add(k2);
            } else {
              add(n1), add(n2);
            }
            return t;
          };
          const Tensor x = tensor(true, true), y = tensor(false, true), k = tensor(true, false),
                       n = tensor(false, false);
          const auto joined = [](const Tensor& first, const Tensor& second) {
            Tensor t = first;
            for (int d = 0; d < second.rank; ++d) t.sizes[t.rank++] = second.sizes[d];
            return t;
          };
          const Tensor w = transposed ? joined(n, k) : joined(k, n);
          const std::string what = std::string(transposed ? "transposed" : "plain") + ", inner_dims " +
                                   std::to_string(inner_dims) + (odd ? ", odd" : "") + (fp8 ? ", fp8" : "");
          Op op = op_of(linear);
          op.inner_dims = static_cast<std::uint8_t>(inner_dims);
          op.transposed_weight = transposed;
          expect_equal(run(op, {x, w}, y, fp8), "linear, " + what);
          const Result with_bias = run(op, {x, w, n}, y, fp8);
          EXPECT_TRUE(with_bias.plan.bias);
          expect_equal(with_bias, "linear with bias, " + what);
          op.kind = linear_input_gradient;
          expect_equal(run(op, {y, w}, x, fp8), "input gradient, " + what);
          op.kind = linear_weight_gradient;
          expect_equal(run(op, {x, y}, w, fp8), "weight gradient, " + what);
          op.accumulate = true;
          const Result sum = run(op, {x, y}, w, fp8);
          EXPECT_TRUE(sum.plan.launches.at(0).accumulate);
          expect_equal(sum, "accumulated weight gradient, " + what);
        }
}

TEST(CudaMatmul, BatchedProductsAreTheCpusWhateverIsShared) {
  // Sizes of the batch dimensions of a, b and c: equal, shared keys of grouped queries, their gradient, one table for
  // all sequences, and its gradient.
  struct Batches {
    std::vector<std::int64_t> a, b, c;
  };
  const std::vector<Batches> all{
      {{}, {}, {}},
      {{4}, {4}, {4}},
      {{2, 3, 4}, {2, 3, 4}, {2, 3, 4}},
      {{2, 3, 4}, {2, 3, 1}, {2, 3, 4}},
      {{2, 3, 4}, {2, 3, 4}, {2, 3, 1}},
      {{2, 3, 4}, {1, 3, 4}, {2, 3, 4}},
      {{2, 3, 4}, {2, 3, 4}, {1, 3, 4}},
      {{2, 3, 4}, {2, 1, 4}, {2, 3, 4}},
      {{2, 3, 4}, {2, 3, 4}, {2, 1, 1}},
      {{1, 3}, {2, 1}, {2, 3}},
      {{2, 3}, {2, 1}, {1, 3}},
  };
  const auto tensor = [](const std::vector<std::int64_t>& batch, std::int64_t rows, std::int64_t columns) {
    Tensor t;
    t.name = "tensor";
    for (const std::int64_t size : batch) t.sizes[t.rank++] = size;
    t.sizes[t.rank++] = rows;
    t.sizes[t.rank++] = columns;
    return t;
  };
  for (const Batches& batches : all)
    for (const bool ta : {false, true})
      for (const bool tb : {false, true}) {
        const std::int64_t m = 3, n = 5, k = 7;
        Op op = op_of(batched_matmul);
        op.transpose_a = ta;
        op.transpose_b = tb;
        const Tensor a = tensor(batches.a, ta ? k : m, ta ? m : k), b = tensor(batches.b, tb ? n : k, tb ? k : n),
                     c = tensor(batches.c, m, n);
        std::string what = std::string(ta ? "a' " : "a ") + (tb ? "b', batch" : "b, batch");
        for (std::size_t d = 0; d < batches.a.size(); ++d)
          what += " " + std::to_string(batches.a[d]) + "/" + std::to_string(batches.b[d]) + "/" +
                  std::to_string(batches.c[d]);
        expect_equal(run(op, {a, b}, c), what);
        op.accumulate = true;
        op.scale = 0.5;
        expect_equal(run(op, {a, b}, c), what + ", scaled and added");
      }
}

TEST(CudaMatmul, ProductsOfExpertsAreOneLaunch) {
  for (const std::int64_t experts : {1, 3})
    for (const bool transposed : {false, true}) {
      Op op = op_of(linear);
      op.group_dims = 1;
      op.transposed_weight = transposed;
      const Tensor x = shaped({{experts}, {4}, {5}}), y = shaped({{experts}, {4}, {2}, {7}}),
                   bias = shaped({{experts}, {2}, {7}}),
                   w = transposed ? shaped({{experts}, {2}, {7}, {5}}) : shaped({{experts}, {5}, {2}, {7}});
      const auto expect_one_launch = [&](const Result& r, const char* what) {
        expect_equal(r, what);
        EXPECT_EQ(r.plan.launches.size(), 1u) << what;
        EXPECT_EQ(r.plan.product.c.batch, experts) << what;
      };
      expect_one_launch(run(op, {x, w}, y), "linear");
      expect_one_launch(run(op, {x, w, bias}, y), "linear with biases");
      op.kind = linear_input_gradient;
      expect_one_launch(run(op, {y, w}, x), "input gradient");
      op.kind = linear_weight_gradient;
      expect_one_launch(run(op, {x, y}, w), "weight gradient");
      op.accumulate = true;
      expect_one_launch(run(op, {x, y}, w), "accumulated weight gradient");
    }
}

TEST(CudaMatmul, GroupedQueriesAreOneLaunch) {
  Op op = op_of(batched_matmul);
  op.transpose_b = true;
  const Tensor q = shaped({{2}, {3}, {4}, {5}, {8}}), key = shaped({{2}, {3}, {1}, {7}, {8}}),
               scores = shaped({{2}, {3}, {4}, {5}, {7}});
  const Result forward = run(op, {q, key}, scores);
  EXPECT_EQ(forward.plan.launches.size(), 1u);
  EXPECT_EQ(forward.plan.product.n, 4 * 5) << "the heads of a group are rows of one product";
  op.transpose_b = false;
  op.transpose_a = true;
  const Result key_gradient = run(op, {scores, q}, key);
  EXPECT_EQ(key_gradient.plan.launches.size(), 1u);
  EXPECT_EQ(key_gradient.plan.product.k, 4 * 5) << "and are summed inside one product";
}

// GShard's einsums, of tokens [2, 3] and rows [4, 7].
TEST(CudaMatmul, ProductsWithMasksAreTheCpus) {
  const Tensor x = shaped({{2}, {3}, {5}}), mask = shaped({{2}, {3}, {4}, {7}}), rows = shaped({{4}, {7}, {5}});
  const auto expect = [](const Result& r, const char* what) {
    expect_equal(r, what);
    EXPECT_EQ(r.plan.launches.size(), 1u);
  };
  expect(run(op_of(mask_permute), {x, mask}, rows), "into rows");
  expect(run(op_of(mask_unpermute), {rows, mask}, x), "back");
  expect(run(op_of(mask_gradient), {x, rows}, mask), "the mask's gradient");
  EXPECT_THROW(run(op_of(mask_permute), {x, rows}, rows), std::logic_error);
}

// A router's logits are fp32, its operands and their gradients are not.
TEST(CudaMatmul, GradientsOfARouterAreRoundedToItsOperands) {
  const auto tensor = [](std::initializer_list<Dim> dims, Dtype dtype) {
    return shaped(dims, Category::activation, dtype);
  };
  const auto plan_of = [](OpKind kind, const Tensor& first, const Tensor& second, const Tensor& result) {
    float unused = 0;
    const std::array<Operand, 2> reads{{{&unused, &first}, {&unused, &second}}};
    const std::array<Operand, 1> writes{{{&unused, &result}}};
    const MatmulPlan plan = plan_matmul(op_of(kind), reads, writes);
    EXPECT_TRUE(dtypes_multiply(plan.product)) << name_of(kind);
    return plan;
  };
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32}) {
    const Tensor x = tensor({{6}, {16}}, dtype), w = tensor({{16}, {4}}, dtype),
                 logits = tensor({{6}, {4}}, Dtype::fp32);
    const MatmulPlan forward = plan_of(linear, x, w, logits);
    EXPECT_FALSE(forward.round_a || forward.round_b);
    const MatmulPlan dx = plan_of(linear_input_gradient, logits, w, x),
                     dw = plan_of(linear_weight_gradient, x, logits, w);
    EXPECT_EQ(dx.round_b, dtype != Dtype::fp32);
    EXPECT_EQ(dw.round_a, dtype != Dtype::fp32);
    EXPECT_FALSE(dx.round_a || dw.round_b);
    EXPECT_EQ(dx.product.b.dtype, dtype);
    EXPECT_EQ(dw.product.a.dtype, dtype);
  }
}

TEST(CudaMatmul, ShapesThatDoNotFitAreRefused) {
  Op op = op_of(linear);
  EXPECT_THROW(run(op, {shaped({{3}, {5}}), shaped({{4}, {7}})}, shaped({{3}, {7}})), std::logic_error);
  EXPECT_THROW(run(op, {shaped({{3}, {5}}), shaped({{5}, {7}}), shaped({{6}})}, shaped({{3}, {7}})), std::logic_error);
  op.kind = batched_matmul;
  EXPECT_THROW(run(op, {shaped({{2}, {3}, {5}}), shaped({{3}, {5}, {7}})}, shaped({{2}, {3}, {7}})), std::logic_error);
}

// What a GPU runs of whole models: every product of every bundled scenario has a plan of few launches, in dtypes that
// cuBLASLt multiplies.
TEST(CudaMatmul, EveryProductOfTheBundledScenariosHasAPlan) {
  std::size_t products = 0;
  for (const BundledDocument& bundled : bundled_scenarios()) {
    ScenarioSource source;
    const nlohmann::json document = load_scenario_document(bundled.name, {}, source);
    if (has_jobs(document)) continue;
    Program program;
    lower(read_scenario(document, source), program);
    for (const Piece& piece : program.pieces)
      for (const Block* block : {&piece.forward, &piece.backward, &piece.weight_gradient, &piece.update})
        for (const Op& op : block->ops) {
          if (!is_matmul(op.kind)) continue;
          float unused = 0;
          std::vector<Operand> reads, writes;
          for (const TensorId id : op.reads)
            if (id != kNoTensor) reads.push_back({&unused, &piece.tensors[id]});
          for (const TensorId id : op.writes)
            if (id != kNoTensor) writes.push_back({&unused, &piece.tensors[id]});
          SCOPED_TRACE(std::string(bundled.name) + ": " + op.name);
          MatmulPlan plan;
          ASSERT_NO_THROW(plan = plan_matmul(op, reads, writes));
          // What comes quantised by blocks no run takes yet (moe_fp8_dispatch).
          const auto by_blocks = [](const BlasMatrix& m) { return m.dtype == Dtype::fp8_blocks; };
          EXPECT_NE(dtypes_multiply(plan.product), by_blocks(plan.product.a) || by_blocks(plan.product.b))
              << name_of(plan.product.a.dtype) << " x " << name_of(plan.product.b.dtype) << " -> "
              << name_of(plan.product.c.dtype);
          const GemmShape shape = gemm_shape(op, piece.tensors);
          const BlasProduct& p = plan.product;
          EXPECT_EQ(p.m * p.n * p.k * p.c.batch * static_cast<std::int64_t>(plan.launches.size()),
                    shape.batch * shape.m * shape.n * shape.k);
          ++products;
        }
  }
  EXPECT_GT(products, 100u);
}

}  // namespace
}  // namespace orrery::cuda
