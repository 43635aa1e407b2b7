// Matrix products.
#include <Eigen/Dense>
#include <algorithm>
#include <utility>
#include <vector>

#include "realrun/cpu/kernel_call.h"
#include "realrun/random_draws.h"

namespace orrery::cpu {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using View = Eigen::Map<Matrix>;

// The matrix of a group.
View matrix(const Buffer& b, std::int64_t group, std::int64_t rows, std::int64_t columns) {
  return {b.data + group * rows * columns, rows, columns};
}

}  // namespace

void linear(const Call& call) {
  const Buffer &x = call.read(0), &w = call.read(1), &y = call.write(0);
  const auto [experts, tokens, k, n] = linear_shape(call);
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

void linear_input_gradient(const Call& call) {
  const Buffer &dy = call.read(0), &w = call.read(1), &dx = call.write(0);
  const auto [experts, tokens, k, n] = linear_shape(call);
  for (std::int64_t g = 0; g < experts; ++g) {
    View result = matrix(dx, g, tokens, k);
    if (call.op.transposed_weight) {
      result.noalias() = matrix(dy, g, tokens, n) * matrix(w, g, n, k);
    } else {
      result.noalias() = matrix(dy, g, tokens, n) * matrix(w, g, k, n).transpose();
    }
  }
}

void linear_weight_gradient(const Call& call) {
  const Buffer &x = call.read(0), &dy = call.read(1), &dw = call.write(0);
  const auto [experts, tokens, k, n] = linear_shape(call);
  if (!call.op.accumulate) std::fill_n(dw.data, dw.elements(), 0.0f);
  for (std::int64_t g = 0; g < experts; ++g) {
    if (call.op.transposed_weight) {
      matrix(dw, g, n, k).noalias() += matrix(dy, g, tokens, n).transpose() * matrix(x, g, tokens, k);
    } else {
      matrix(dw, g, k, n).noalias() += matrix(x, g, tokens, k).transpose() * matrix(dy, g, tokens, n);
    }
  }
}

void orthogonalise(const Call& call) {
  const Buffer &x = call.read(0), &y = call.write(0);
  using Column = Eigen::VectorXd;
  const std::int64_t columns = last_size(x), rows = x.elements() / columns;
  std::vector<Column> done;
  for (std::int64_t c = 0; c < columns; ++c) {
    Column column(rows);
    for (std::int64_t r = 0; r < rows; ++r) column[r] = x.data[r * columns + c];
    for (const bool replaced : {false, true}) {
      if (replaced)
        for (std::int64_t r = 0; r < rows; ++r) column[r] = replacement(r * columns + c);
      const double whole = column.norm();
      for (int twice = 0; twice < 2; ++twice)  // the second time takes off what rounding has left
        for (const Column& before : done) column -= before.dot(column) * before;
      const double left = column.norm();
      if (left <= kIndependent * whole) {
        column.setZero();
        continue;
      }
      column /= left;
      break;
    }
    for (std::int64_t r = 0; r < rows; ++r) y.data[r * columns + c] = static_cast<float>(column[r]);
    done.push_back(std::move(column));
  }
}

void mask_permute(const Call& call) {
  const Buffer &x = call.read(0), &mask = call.read(1), &rows = call.write(0);
  const auto [tokens, all, width] = mask_product_shape(call);
  matrix(rows, 0, all, width).noalias() = matrix(mask, 0, tokens, all).transpose() * matrix(x, 0, tokens, width);
}

void mask_unpermute(const Call& call) {
  const Buffer &rows = call.read(0), &mask = call.read(1), &x = call.write(0);
  const auto [tokens, all, width] = mask_product_shape(call);
  matrix(x, 0, tokens, width).noalias() = matrix(mask, 0, tokens, all) * matrix(rows, 0, all, width);
}

void mask_gradient(const Call& call) {
  const Buffer &dx = call.read(0), &rows = call.read(1), &dmask = call.write(0);
  const auto [tokens, all, width] = mask_product_shape(call);
  matrix(dmask, 0, tokens, all).noalias() = matrix(dx, 0, tokens, width) * matrix(rows, 0, all, width).transpose();
}

void batched_matmul(const Call& call) {
  const Buffer &a = call.read(0), &b = call.read(1), &c = call.write(0);
  const BatchedShape s = batched_shape(call);
  const auto size = [&](const Buffer& operand, int matrix_dim) {
    return operand.tensor->sizes[s.batch_dims + matrix_dim];
  };
  std::int64_t products = 1;
  for (int d = 0; d < s.batch_dims; ++d) products *= s.batch[static_cast<std::size_t>(d)];
  // Index of the operand's matrix that a product uses.
  const auto matrix = [&](const Buffer& operand, std::int64_t product) {
    std::int64_t index = 0, stride = 1;
    for (int d = s.batch_dims - 1; d >= 0; --d) {
      const std::int64_t all = s.batch[static_cast<std::size_t>(d)];
      if (operand.tensor->sizes[d] > 1) index += product % all * stride;
      stride *= operand.tensor->sizes[d];
      product /= all;
    }
    return View(operand.data + index * size(operand, 0) * size(operand, 1), size(operand, 0), size(operand, 1));
  };
  if (!call.op.accumulate) std::ranges::fill(c.span(), 0.0f);
  const auto scale = static_cast<float>(call.op.scale);
  for (std::int64_t p = 0; p < products; ++p) {
    const View left = matrix(a, p), right = matrix(b, p);
    View result = matrix(c, p);
    if (call.op.transpose_a && call.op.transpose_b) {
      result.noalias() += scale * left.transpose() * right.transpose();
    } else if (call.op.transpose_a) {
      result.noalias() += scale * left.transpose() * right;
    } else if (call.op.transpose_b) {
      result.noalias() += scale * left * right.transpose();
    } else {
      result.noalias() += scale * left * right;
    }
  }
}

}  // namespace orrery::cpu
