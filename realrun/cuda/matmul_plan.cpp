#include "realrun/cuda/matmul_plan.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <string>

namespace orrery::cuda {
namespace {

void require(const Op& op, bool condition, const char* what) {
  if (!condition) throw std::logic_error(std::string("kernel ") + name_of(op.kind) + " (" + op.name + "): " + what);
}

const Tensor& tensor(const Op& op, std::span<const Operand> operands, std::size_t i) {
  require(op, i < operands.size() && operands[i].tensor != nullptr, "an operand is missing");
  return *operands[i].tensor;
}

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

// A weight as a matrix [k, n], or transposed [n, k]; for grouped products that of one expert.
struct Weight {
  std::int64_t k = 1, n = 1;
};

Weight weight_shape(const Op& op, const Tensor& w) {
  const int inner = op.inner_dims, first = op.group_dims;
  require(op, inner >= 1 && first + inner <= w.rank, "inner_dims does not fit the weight");
  Weight shape;
  for (int d = first; d < w.rank; ++d) {
    const bool is_k = op.transposed_weight ? d >= w.rank - inner : d < first + inner;
    (is_k ? shape.k : shape.n) *= w.sizes[d];
  }
  return shape;
}

// Number of products: the first dimensions of all operands.
std::int64_t groups(const Op& op, std::initializer_list<const Tensor*> operands) {
  std::int64_t groups = 1;
  const Tensor& first = **operands.begin();
  for (int d = 0; d < op.group_dims; ++d) {
    groups *= first.sizes[d];
    for (const Tensor* t : operands)
      require(op, d < t->rank && t->sizes[d] == first.sizes[d], "operands differ in experts");
  }
  return groups;
}

// Rows of one group.
std::int64_t rows(const Op& op, const Tensor& t, std::int64_t columns, std::int64_t groups) {
  require(op, columns > 0 && groups > 0 && t.elements() % (columns * groups) == 0,
          "a tensor's trailing dimensions are not those of the weight");
  return t.elements() / (columns * groups);
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

MatmulPlan plan_batched(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes) {
  const Tensor &a = tensor(op, reads, 0), &b = tensor(op, reads, 1), &c = tensor(op, writes, 0);
  const int rank = a.rank, batch_dims = rank - 2;
  require(op, rank >= 2 && b.rank == rank && c.rank == rank, "operands differ in rank");
  Product p;
  p.transpose_left = op.transpose_a;
  p.transpose_right = op.transpose_b;
  p.rows = c.sizes[rank - 2];
  p.columns = c.sizes[rank - 1];
  p.inner = a.sizes[op.transpose_a ? rank - 2 : rank - 1];
  require(op,
          a.sizes[op.transpose_a ? rank - 1 : rank - 2] == p.rows &&
              b.sizes[op.transpose_b ? rank - 2 : rank - 1] == p.columns &&
              b.sizes[op.transpose_b ? rank - 1 : rank - 2] == p.inner,
          "matrices do not fit");
  // From the innermost dimension outwards. An operand of size 1 is repeated (or is a sum) and does not move.
  std::int64_t left = p.rows * p.inner, right = p.inner * p.columns, result = p.rows * p.columns;
  for (int d = batch_dims - 1; d >= 0; --d) {
    const std::int64_t size = std::max({a.sizes[d], b.sizes[d], c.sizes[d]});
    for (const Tensor* t : {&a, &b, &c})
      require(op, t->sizes[d] == size || t->sizes[d] == 1, "batch dimensions do not fit");
    require(op, std::max(a.sizes[d], b.sizes[d]) == size, "the result repeats along a batch dimension");
    if (size > 1)
      p.batch.insert(p.batch.begin(),
                     {size, a.sizes[d] > 1 ? left : 0, b.sizes[d] > 1 ? right : 0, c.sizes[d] > 1 ? result : 0});
    left *= a.sizes[d], right *= b.sizes[d], result *= c.sizes[d];
  }
  fold_into_matrices(p);
  MatmulPlan plan;
  plan.product = column_major(p, a.dtype, b.dtype, c.dtype);
  plan.a_read = 1, plan.b_read = 0;
  lay_out_batch(p, plan);
  return plan;
}

// Products of a mask [tokens.., experts, slots] with rows [experts, slots, width].
MatmulPlan plan_of_mask(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes) {
  const Tensor &first = tensor(op, reads, 0), &second = tensor(op, reads, 1), &result = tensor(op, writes, 0);
  const bool permutes = op.kind == OpKind::mask_permute, gradient = op.kind == OpKind::mask_gradient;
  const Tensor &rows = permutes   ? result
                       : gradient ? second
                                  : first,
               &mask = gradient ? result : second, &x = permutes || gradient ? first : result;
  const std::int64_t width = x.sizes[x.rank - 1], all = rows.elements() / width, tokens = x.elements() / width;
  require(op, rows.rank == 3 && rows.sizes[2] == width && mask.rank >= 3, "rows are not as wide as tokens");
  require(op,
          mask.sizes[mask.rank - 2] == rows.sizes[0] && mask.sizes[mask.rank - 1] == rows.sizes[1] &&
              mask.elements() == tokens * all,
          "a mask is of all tokens and rows");
  Product p;
  if (permutes) {  // rows = mask' x
    p = {.rows = all, .columns = width, .inner = tokens, .transpose_left = true, .batch = {}};
  } else if (gradient) {  // dmask = dx rows'
    p = {.rows = tokens, .columns = all, .inner = width, .transpose_right = true, .batch = {}};
  } else {  // x = mask rows
    p = {.rows = tokens, .columns = width, .inner = all, .batch = {}};
  }
  MatmulPlan plan;
  const Tensor &left = gradient ? first : second, &right = gradient ? second : first;
  plan.product = column_major(p, left.dtype, right.dtype, result.dtype);
  plan.a_read = gradient ? 1 : 0;
  plan.b_read = gradient ? 0 : 1;
  lay_out_batch(p, plan);
  return plan;
}

}  // namespace

MatmulPlan plan_matmul(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes) {
  if (op.kind == OpKind::batched_matmul) return plan_batched(op, reads, writes);
  if (op.kind == OpKind::mask_permute || op.kind == OpKind::mask_unpermute || op.kind == OpKind::mask_gradient)
    return plan_of_mask(op, reads, writes);
  const Tensor &first = tensor(op, reads, 0), &second = tensor(op, reads, 1), &result = tensor(op, writes, 0);
  const auto [k, n] = weight_shape(op, op.kind == OpKind::linear_weight_gradient ? result : second);
  const std::int64_t experts = groups(op, {&first, &second, &result});
  MatmulPlan plan;
  Product p;
  bool accumulate = false;
  switch (op.kind) {
    case OpKind::linear: {  // y [t, n] = x [t, k] w
      p = {.rows = rows(op, first, k, experts),
           .columns = n,
           .inner = k,
           .transpose_right = op.transposed_weight,
           .batch = {}};
      require(op, rows(op, result, n, experts) == p.rows, "input and output differ in tokens");
      plan.bias = reads.size() > 2 && reads[2].data != nullptr;
      if (plan.bias)
        require(op, tensor(op, reads, 2).elements() == experts * n, "the bias is not as wide as the output");
      if (experts > 1) plan.bias_stride = n;
      break;
    }
    case OpKind::linear_input_gradient: {  // dx [t, k] = dy [t, n] w'
      p = {.rows = rows(op, first, n, experts),
           .columns = k,
           .inner = n,
           .transpose_right = !op.transposed_weight,
           .batch = {}};
      require(op, rows(op, result, k, experts) == p.rows, "gradients of input and output differ in tokens");
      break;
    }
    case OpKind::linear_weight_gradient: {  // dw [k, n] = x' dy; of a transposed weight, dw [n, k] = dy' x
      const std::int64_t tokens = rows(op, first, k, experts);
      require(op, rows(op, second, n, experts) == tokens, "input and output gradient differ in tokens");
      p = {.rows = k, .columns = n, .inner = tokens, .transpose_left = true, .batch = {}};
      if (op.transposed_weight) std::swap(p.rows, p.columns);
      accumulate = op.accumulate;
      break;
    }
    default:
      require(op, false, "is not a matrix product");
  }
  if (experts > 1) p.batch.push_back({experts, p.rows * p.inner, p.inner * p.columns, p.rows * p.columns});
  const bool exchanged = op.kind == OpKind::linear_weight_gradient && op.transposed_weight;
  const Tensor &left = exchanged ? second : first, &right = exchanged ? first : second;
  plan.product = column_major(p, left.dtype, right.dtype, result.dtype);
  plan.a_read = exchanged ? 0 : 1;
  plan.b_read = exchanged ? 1 : 0;
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
  lay_out_batch(p, plan);
  for (BlasLaunch& launch : plan.launches) launch.accumulate = accumulate;
  return plan;
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
