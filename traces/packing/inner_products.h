// Inner products of many rows with many others.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace orrery {

// products[i * (rows of b) + j] = the inner product of row i of `a` and row j of `b`. Rows have `depth` elements (at
// least 1) and are contiguous. The order of summation is the same on all machines with the same instructions (x86-64).
void inner_products(std::span<const float> a, std::span<const float> b, std::size_t depth,
                    std::vector<float>& products);

// Inner product of two rows.
float inner_product(const float* a, const float* b, std::size_t depth);

}  // namespace orrery
