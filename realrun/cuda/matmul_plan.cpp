#include "realrun/cuda/matmul_plan.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <utility>

#include "realrun/kernel_shapes.h"

namespace orrery::cuda {
namespace {

// A batch dimension, and how far each operand moves along it; 0: not at all.
struct BatchDim {
  std::int64_t size = 1, left = 0, right = 0, result = 0;
};

// result [rows, columns] = left [rows, inner] right [inner, columns], all row-major; a transposed operand is stored
// with its two dimensions exchanged.
struct Product {
  std::int64_t rows = 1, columns = 1, inner = 1;
  bool transpose_left = false, transpose_right = false;
  std::vector<BatchDim> batch;  // outermost first
};

BlasMatrix matrix(Dtype dtype, std::int64_t rows, std::int64_t columns) {
  return {.dtype = dtype, .rows = rows, .columns = columns, .leading = rows, .batch = 1, .batch_stride = 0};
}

// As in matmul_plan.h: A is the right operand, B the left; a row-major matrix is its transpose in column-major order.
BlasProduct column_major(const Product& p, Dtype left, Dtype right, Dtype result) {
  BlasProduct blas;
  blas.m = p.columns, blas.n = p.rows, blas.k = p.inner;
  blas.transpose_a = p.transpose_right;
  blas.transpose_b = p.transpose_left;
  blas.a = p.transpose_right ? matrix(right, p.inner, p.columns) : matrix(right, p.columns, p.inner);
  blas.b = p.transpose_left ? matrix(left, p.rows, p.inner) : matrix(left, p.inner, p.rows);
  blas.c = matrix(result, p.columns, p.rows);
  return blas;
}

// Turns batch dimensions into a further dimension of a matrix where possible: products that share the right operand
// become more rows (grouped queries and their key); summed products extend the inner dimension (the key's gradient).
void fold_into_matrices(Product& p) {
  while (!p.batch.empty()) {
    const BatchDim& d = p.batch.back();
    if (d.right == 0 && d.left == p.rows * p.inner && d.result == p.rows * p.columns && !p.transpose_left) {
      p.rows *= d.size;
    } else if (d.result == 0 && d.left == p.rows * p.inner && d.right == p.inner * p.columns && p.transpose_left &&
               !p.transpose_right) {
      p.inner *= d.size;
    } else {
      return;
    }
    p.batch.pop_back();
  }
}

void join_adjacent(std::vector<BatchDim>& dims) {
  std::vector<BatchDim> joined;
  for (const BatchDim& d : dims) {
    if (!joined.empty()) {
      BatchDim& outer = joined.back();
      const bool even =
          outer.left == d.left * d.size && outer.right == d.right * d.size && outer.result == d.result * d.size;
      if (even) {
        outer = {outer.size * d.size, d.left, d.right, d.result};
        continue;
      }
    }
    joined.push_back(d);
  }
  dims = std::move(joined);
}

// One dimension becomes a strided batch, others launches. Sums over a batch dimension are launches that add.
void lay_out_batch(const Product& p, MatmulPlan& plan) {
  std::vector<BatchDim> dims = p.batch;
  join_adjacent(dims);
  auto strided = dims.end();
  for (auto d = dims.begin(); d != dims.end(); ++d)
    if (d->result != 0 && d->size <= std::numeric_limits<std::int32_t>::max() &&
        (strided == dims.end() || d->size > strided->size))
      strided = d;
  if (strided != dims.end()) {
    for (BlasMatrix* m : {&plan.product.a, &plan.product.b, &plan.product.c})
      m->batch = static_cast<std::int32_t>(strided->size);
    plan.product.a.batch_stride = strided->right;
    plan.product.b.batch_stride = strided->left;
    plan.product.c.batch_stride = strided->result;
    dims.erase(strided);
  }
  plan.launches.assign(1, {});
  for (const BatchDim& d : dims) {
    std::vector<BlasLaunch> all;
    for (const BlasLaunch& outer : plan.launches)
      for (std::int64_t i = 0; i < d.size; ++i)
        all.push_back({outer.a_offset + i * d.right, outer.b_offset + i * d.left, outer.c_offset + i * d.result,
                       outer.accumulate || (d.result == 0 && i > 0)});
    plan.launches = std::move(all);
  }
}

// `exchanged`: the product's left operand is the op's second.
MatmulPlan plan_of(const KernelCall& call, const Product& p, bool exchanged = false) {
  MatmulPlan plan;
  plan.a_read = exchanged ? 0 : 1;
  plan.b_read = exchanged ? 1 : 0;
  plan.product = column_major(p, call.read(plan.b_read).tensor->dtype, call.read(plan.a_read).tensor->dtype,
                              call.write(0).tensor->dtype);
  lay_out_batch(p, plan);
  return plan;
}

MatmulPlan plan_batched(const KernelCall& call) {
  const Tensor &a = *call.read(0).tensor, &b = *call.read(1).tensor, &c = *call.write(0).tensor;
  const BatchedShape s = batched_shape(call);
  Product p{.rows = s.m,
            .columns = s.n,
            .inner = s.k,
            .transpose_left = call.op.transpose_a,
            .transpose_right = call.op.transpose_b,
            .batch = {}};
  // From the innermost dimension outwards. An operand of size 1 is repeated (or is a sum) and does not move.
  std::int64_t left = p.rows * p.inner, right = p.inner * p.columns, result = p.rows * p.columns;
  for (int d = s.batch_dims - 1; d >= 0; --d) {
    const std::int64_t size = s.batch[static_cast<std::size_t>(d)];
    if (size > 1)
      p.batch.insert(p.batch.begin(),
                     {size, a.sizes[d] > 1 ? left : 0, b.sizes[d] > 1 ? right : 0, c.sizes[d] > 1 ? result : 0});
    left *= a.sizes[d], right *= b.sizes[d], result *= c.sizes[d];
  }
  fold_into_matrices(p);
  MatmulPlan plan = plan_of(call, p);
  plan.scale = static_cast<float>(call.op.scale);
  for (BlasLaunch& launch : plan.launches) launch.accumulate = launch.accumulate || call.op.accumulate;
  return plan;
}

MatmulPlan plan_of_mask(const KernelCall& call) {
  const auto [tokens, rows, width] = mask_product_shape(call);
  if (call.op.kind == OpKind::mask_permute)  // rows = mask' x
    return plan_of(call, {.rows = rows, .columns = width, .inner = tokens, .transpose_left = true, .batch = {}}, true);
  if (call.op.kind == OpKind::mask_gradient)  // dmask = dx rows'
    return plan_of(call, {.rows = tokens, .columns = rows, .inner = width, .transpose_right = true, .batch = {}});
  return plan_of(call, {.rows = tokens, .columns = width, .inner = rows, .batch = {}}, true);  // x = mask rows
}

MatmulPlan plan_linear(const KernelCall& call) {
  const Op& op = call.op;
  const auto [groups, tokens, k, n] = linear_shape(call);
  const bool exchanged = op.kind == OpKind::linear_weight_gradient && op.transposed_weight;
  Product p;
  if (op.kind == OpKind::linear) {  // y [t, n] = x [t, k] w
    p = {.rows = tokens, .columns = n, .inner = k, .transpose_right = op.transposed_weight, .batch = {}};
  } else if (op.kind == OpKind::linear_input_gradient) {  // dx [t, k] = dy [t, n] w'
    p = {.rows = tokens, .columns = k, .inner = n, .transpose_right = !op.transposed_weight, .batch = {}};
  } else {  // dw [k, n] = x' dy; of a transposed weight, dw [n, k] = dy' x
    p = {.rows = k, .columns = n, .inner = tokens, .transpose_left = true, .batch = {}};
    if (exchanged) std::swap(p.rows, p.columns);
  }
  if (groups > 1) p.batch.push_back({groups, p.rows * p.inner, p.inner * p.columns, p.rows * p.columns});
  MatmulPlan plan = plan_of(call, p, exchanged);
  // The gradient of the result: the first operand of the input's product, the second of the weight's.
  const std::size_t gradient = op.kind == OpKind::linear_input_gradient ? 0 : 1;
  const auto is_rounded = [&](std::size_t read, BlasMatrix& m, Dtype other) {
    const bool narrower = other == Dtype::bf16 || other == Dtype::fp16;
    if (op.kind == OpKind::linear || read != gradient || m.dtype != Dtype::fp32 || !narrower) return false;
    m.dtype = other;
    return true;
  };
  plan.round_a = is_rounded(plan.a_read, plan.product.a, plan.product.b.dtype);
  plan.round_b = is_rounded(plan.b_read, plan.product.b, plan.product.a.dtype);
  plan.bias = op.kind == OpKind::linear && call.has_read(2);
  if (op.kind == OpKind::linear && groups > 1) plan.bias_stride = n;
  for (BlasLaunch& launch : plan.launches)
    launch.accumulate = op.kind == OpKind::linear_weight_gradient && op.accumulate;
  return plan;
}

}  // namespace

MatmulPlan plan_matmul(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes) {
  const KernelContext context;
  const KernelCall call{op, reads, writes, context};
  switch (op.kind) {
    case OpKind::batched_matmul:
      return plan_batched(call);
    case OpKind::mask_permute:
    case OpKind::mask_unpermute:
    case OpKind::mask_gradient:
      return plan_of_mask(call);
    case OpKind::linear:
    case OpKind::linear_input_gradient:
    case OpKind::linear_weight_gradient:
      return plan_linear(call);
    default:
      call.fail("is not a matrix product");
  }
}

bool dtypes_multiply(const BlasProduct& product) {
  const Dtype in = product.a.dtype, out = product.c.dtype;
  if (product.b.dtype != in) return false;
  const auto is = [&](std::initializer_list<Dtype> dtypes) { return std::ranges::find(dtypes, out) != dtypes.end(); };
  switch (in) {
    case Dtype::fp32:
      return is({Dtype::fp32});
    case Dtype::fp16:
      return is({Dtype::fp16, Dtype::fp32});
    case Dtype::bf16:
      return is({Dtype::bf16, Dtype::fp32});
    case Dtype::fp8:
      return is({Dtype::fp16, Dtype::bf16, Dtype::fp32});
    default:
      return false;
  }
}

namespace {
constexpr std::int64_t kFp8Alignment = 16;  // in bytes, which are elements in fp8
}

bool fp8_sizes_fit(const BlasProduct& product) {
  return product.m % kFp8Alignment == 0 && product.k % kFp8Alignment == 0 && product.n % kFp8Alignment == 0;
}

Fp8Plan along_k(const BlasProduct& product) {
  Fp8Plan plan{.product = product, .copy_a = !product.transpose_a, .copy_b = product.transpose_b};
  const auto transposed = [](BlasMatrix& m) {
    std::swap(m.rows, m.columns);
    m.leading = m.rows;
  };
  if (plan.copy_a) transposed(plan.product.a);
  if (plan.copy_b) transposed(plan.product.b);
  plan.product.transpose_a = true;
  plan.product.transpose_b = false;
  return plan;
}

}  // namespace orrery::cuda
