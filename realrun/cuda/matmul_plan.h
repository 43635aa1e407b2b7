// Maps a matrix product of a Program to calls of cublasLtMatmul. It is host code, so that the mapping is tested without
// a GPU (tests/realrun/cuda_matmul_test.cpp compares it, through an emulator of cuBLASLt's semantics, with the CPU
// kernels).
//
// Programs are row-major and cuBLASLt is column-major: a row-major [r, c] is a column-major c x r. So C = L R is
// computed as C' = R' L': cuBLASLt's A is the right operand, its B the left one, and its m our number of columns.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "realrun/kernel.h"
#include "sim/program/op.h"
#include "sim/program/tensor.h"

namespace orrery::cuda {

// cublasLtMatrixLayout_t: column-major, `batch` matrices at `batch_stride` elements (0: one matrix for all).
struct BlasMatrix {
  Dtype dtype = Dtype::bf16;
  std::int64_t rows = 0, columns = 0, leading = 0;
  std::int32_t batch = 1;
  std::int64_t batch_stride = 0;

  bool operator==(const BlasMatrix&) const = default;
};

// cublasLtMatmulDesc_t and its layouts: c [m x n] = op(a) op(b) [+ bias along m] [+ c].
struct BlasProduct {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  BlasMatrix a, b, c;

  bool operator==(const BlasProduct&) const = default;
};

struct BlasLaunch {
  std::int64_t a_offset = 0, b_offset = 0, c_offset = 0;  // elements
  bool accumulate = false;                                // beta is 1
};

struct MatmulPlan {
  BlasProduct product;
  std::size_t a_read = 0, b_read = 0;  // which of op.reads is cuBLASLt's A, B
  // The operand is an fp32 gradient of a result and the other operand has 16 bits: the gradient is rounded to that
  // dtype first, as torch.autocast does. Router logits are such results. The product's dtypes are those after rounding.
  bool round_a = false, round_b = false;
  float scale = 1;                   // of the product
  bool bias = false;                 // reads[2] is added to every row of the result
  std::int64_t bias_stride = 0;      // elements of the bias per matrix of the batch; 0: all share one
  std::vector<BlasLaunch> launches;  // in this order
};

// Shapes are those of realrun/cpu/kernels.h. Throws std::logic_error for shapes that do not fit together.
MatmulPlan plan_matmul(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes);

// Whether cublasLtMatmul multiplies these dtypes with fp32 accumulation (cuBLAS manual, its table of types): two equal
// dtypes into themselves or into fp32, fp8 into any wider one.
bool dtypes_multiply(const BlasProduct& product);

// fp8 tensor cores of Hopper read both operands along k: op(a) transposed, op(b) not, every leading dimension a
// multiple of 16 (cuBLAS manual, "cublasLtMatmul", fp8). Here other operands are replaced by dense transposes.
struct Fp8Plan {
  BlasProduct product;
  bool copy_a = false, copy_b = false;  // the operand must be transposed first
};
// Whether fp8 matrix units support the product's sizes.
bool fp8_sizes_fit(const BlasProduct& product);
Fp8Plan along_k(const BlasProduct& product);

}  // namespace orrery::cuda
