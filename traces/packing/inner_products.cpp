#include "traces/packing/inner_products.h"

#include <Eigen/Core>
#include <algorithm>
#include <numeric>

namespace orrery {

void inner_products(std::span<const float> a, std::span<const float> b, std::size_t depth,
                    std::vector<float>& products) {
  using Rows = Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
  // On its own, Eigen cuts longer rows by the size of the machine's caches, and rounding would depend on them.
  constexpr Eigen::Index kDepthAtOnce = 256;
  const auto all = static_cast<Eigen::Index>(depth);
  const Rows left(a.data(), static_cast<Eigen::Index>(a.size()) / all, all);
  const Rows right(b.data(), static_cast<Eigen::Index>(b.size()) / all, all);
  products.assign(static_cast<std::size_t>(left.rows() * right.rows()), 0.0f);
  Eigen::Map<Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>> sums(products.data(), left.rows(),
                                                                                         right.rows());
  for (Eigen::Index k = 0; k < all; k += kDepthAtOnce) {
    const Eigen::Index count = std::min(kDepthAtOnce, all - k);
    sums.noalias() += left.middleCols(k, count) * right.middleCols(k, count).transpose();
  }
}

float inner_product(const float* a, const float* b, std::size_t depth) {
  return std::inner_product(a, a + depth, b, 0.0f);
}

}  // namespace orrery
