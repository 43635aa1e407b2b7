// Matrix products.
#include <Eigen/Dense>
#include <algorithm>
#include <initializer_list>

#include "realrun/cpu/kernel_call.h"

namespace orrery::cpu {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using View = Eigen::Map<Matrix>;

// A weight as a matrix [k, n], or transposed [n, k]; for grouped products that of one expert.
struct Weight {
  std::int64_t k = 1, n = 1;
};

Weight weight_shape(const KernelCall& call, const Tensor& w) {
  const int inner = call.op.inner_dims, first = call.op.group_dims;
  call.require(inner >= 1 && first + inner <= w.rank, "inner_dims does not fit the weight");
  Weight shape;
  for (int d = first; d < w.rank; ++d) {
    const bool is_k = call.op.transposed_weight ? d >= w.rank - inner : d < first + inner;
    (is_k ? shape.k : shape.n) *= w.sizes[d];
  }
  return shape;
}

// Number of products: the first dimensions of all operands.
std::int64_t groups(const KernelCall& call, std::initializer_list<const Buffer*> operands) {
  std::int64_t groups = 1;
  const Tensor& first = *(*operands.begin())->tensor;
  for (int d = 0; d < call.op.group_dims; ++d) {
    groups *= first.sizes[d];
    for (const Buffer* b : operands)
      call.require(d < b->tensor->rank && b->tensor->sizes[d] == first.sizes[d], "operands differ in experts");
  }
  return groups;
}

// Rows of one group.
std::int64_t rows(const KernelCall& call, const Buffer& b, std::int64_t columns, std::int64_t groups) {
  call.require(columns > 0 && groups > 0 && b.elements() % (columns * groups) == 0,
               "a tensor's trailing dimensions are not those of the weight");
  return b.elements() / (columns * groups);
}

// The matrix of a group.
View matrix(const Buffer& b, std::int64_t group, std::int64_t rows, std::int64_t columns) {
  return {b.data + group * rows * columns, rows, columns};
}

}  // namespace

void linear(const KernelCall& call) {
  const Buffer &x = call.read(0), &w = call.read(1), &y = call.write(0);
  const auto [k, n] = weight_shape(call, *w.tensor);
  const std::int64_t experts = groups(call, {&x, &w, &y}), tokens = rows(call, x, k, experts);
  call.require(rows(call, y, n, experts) == tokens, "input and output differ in tokens");
  if (call.has_read(2)) call.require(call.read(2).elements() == experts * n, "the bias is not as wide as the output");
  for (std::int64_t g = 0; g < experts; ++g) {
    View result = matrix(y, g, tokens, n);
    if (call.op.transposed_weight) {
      result.noalias() = matrix(x, g, tokens, k) * matrix(w, g, n, k).transpose();
    } else {
      result.noalias() = matrix(x, g, tokens, k) * matrix(w, g, k, n);
    }
    if (call.has_read(2)) result.rowwise() += Eigen::Map<Eigen::RowVectorXf>(call.read(2).data + g * n, n);
  }
}

void linear_input_gradient(const KernelCall& call) {
  const Buffer &dy = call.read(0), &w = call.read(1), &dx = call.write(0);
  const auto [k, n] = weight_shape(call, *w.tensor);
  const std::int64_t experts = groups(call, {&dy, &w, &dx}), tokens = rows(call, dy, n, experts);
  call.require(rows(call, dx, k, experts) == tokens, "gradients of input and output differ in tokens");
  for (std::int64_t g = 0; g < experts; ++g) {
    View result = matrix(dx, g, tokens, k);
    if (call.op.transposed_weight) {
      result.noalias() = matrix(dy, g, tokens, n) * matrix(w, g, n, k);
    } else {
      result.noalias() = matrix(dy, g, tokens, n) * matrix(w, g, k, n).transpose();
    }
  }
}

void linear_weight_gradient(const KernelCall& call) {
  const Buffer &x = call.read(0), &dy = call.read(1), &dw = call.write(0);
  const auto [k, n] = weight_shape(call, *dw.tensor);
  const std::int64_t experts = groups(call, {&x, &dy, &dw}), tokens = rows(call, x, k, experts);
  call.require(rows(call, dy, n, experts) == tokens, "input and output gradient differ in tokens");
  if (!call.op.accumulate) std::fill_n(dw.data, dw.elements(), 0.0f);
  for (std::int64_t g = 0; g < experts; ++g) {
    if (call.op.transposed_weight) {
      matrix(dw, g, n, k).noalias() += matrix(dy, g, tokens, n).transpose() * matrix(x, g, tokens, k);
    } else {
      matrix(dw, g, k, n).noalias() += matrix(x, g, tokens, k).transpose() * matrix(dy, g, tokens, n);
    }
  }
}

namespace {

// rows: [experts, slots, width]; the mask: [tokens.., experts, slots].
struct MaskShape {
  MaskShape(const KernelCall& call, const Buffer& rows, const Buffer& mask, const Buffer& x)
      : width(last_size(x)), all(rows.elements() / last_size(x)), tokens(x.elements() / last_size(x)) {
    const Tensor &r = *rows.tensor, &m = *mask.tensor;
    call.require(r.rank == 3 && r.sizes[2] == width && m.rank >= 3, "rows are not as wide as tokens");
    call.require(m.sizes[m.rank - 2] == r.sizes[0] && m.sizes[m.rank - 1] == r.sizes[1] && m.elements() == tokens * all,
                 "a mask is of all tokens and rows");
  }
  std::int64_t width, all, tokens;
};

}  // namespace

void mask_permute(const KernelCall& call) {
  const Buffer &x = call.read(0), &mask = call.read(1), &rows = call.write(0);
  const MaskShape s(call, rows, mask, x);
  matrix(rows, 0, s.all, s.width).noalias() =
      matrix(mask, 0, s.tokens, s.all).transpose() * matrix(x, 0, s.tokens, s.width);
}

void mask_unpermute(const KernelCall& call) {
  const Buffer &rows = call.read(0), &mask = call.read(1), &x = call.write(0);
  const MaskShape s(call, rows, mask, x);
  matrix(x, 0, s.tokens, s.width).noalias() = matrix(mask, 0, s.tokens, s.all) * matrix(rows, 0, s.all, s.width);
}

void mask_gradient(const KernelCall& call) {
  const Buffer &dx = call.read(0), &rows = call.read(1), &dmask = call.write(0);
  const MaskShape s(call, rows, dmask, dx);
  matrix(dmask, 0, s.tokens, s.all).noalias() =
      matrix(dx, 0, s.tokens, s.width) * matrix(rows, 0, s.all, s.width).transpose();
}

// A batch dimension of size 1 is repeated when read (grouped queries share a key), and summed when written (its
// gradient).
void batched_matmul(const KernelCall& call) {
  const Buffer &a = call.read(0), &b = call.read(1), &c = call.write(0);
  const int rank = a.tensor->rank, batch_dims = rank - 2;
  call.require(rank >= 2 && b.tensor->rank == rank && c.tensor->rank == rank, "operands differ in rank");
  std::array<std::int64_t, Tensor::kMaxRank> sizes{};
  std::int64_t products = 1;
  for (int d = 0; d < batch_dims; ++d) {
    sizes[d] = std::max({a.tensor->sizes[d], b.tensor->sizes[d], c.tensor->sizes[d]});
    for (const Buffer* operand : {&a, &b, &c})
      call.require(operand->tensor->sizes[d] == sizes[d] || operand->tensor->sizes[d] == 1,
                   "batch dimensions do not fit");
    call.require(std::max(a.tensor->sizes[d], b.tensor->sizes[d]) == sizes[d],
                 "the result repeats along a batch dimension");
    products *= sizes[d];
  }
  const auto size = [&](const Buffer& operand, int from_last) { return operand.tensor->sizes[rank - from_last]; };
  const std::int64_t m = size(c, 2), n = size(c, 1), k = call.op.transpose_a ? size(a, 2) : size(a, 1);
  call.require((call.op.transpose_a ? size(a, 1) : size(a, 2)) == m &&
                   (call.op.transpose_b ? size(b, 2) : size(b, 1)) == n &&
                   (call.op.transpose_b ? size(b, 1) : size(b, 2)) == k,
               "matrices do not fit");
  // Index of the operand's matrix that a product uses.
  const auto matrix = [&](const Buffer& operand, std::int64_t product) {
    std::int64_t index = 0, stride = 1;
    for (int d = batch_dims - 1; d >= 0; --d) {
      if (operand.tensor->sizes[d] > 1) index += product % sizes[d] * stride;
      stride *= operand.tensor->sizes[d];
      product /= sizes[d];
    }
    return View(operand.data + index * size(operand, 2) * size(operand, 1), size(operand, 2), size(operand, 1));
  };
  std::ranges::fill(c.span(), 0.0f);
  for (std::int64_t p = 0; p < products; ++p) {
    const View left = matrix(a, p), right = matrix(b, p);
    View result = matrix(c, p);
    if (call.op.transpose_a && call.op.transpose_b) {
      result.noalias() += left.transpose() * right.transpose();
    } else if (call.op.transpose_a) {
      result.noalias() += left.transpose() * right;
    } else if (call.op.transpose_b) {
      result.noalias() += left * right.transpose();
    } else {
      result.noalias() += left * right;
    }
  }
}

}  // namespace orrery::cpu
