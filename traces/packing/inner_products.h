// Inner products of many rows with many others.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace orrery {

// products[i * (rows of b) + j] = the inner product of row i of `a` and row j of `b`. Rows are of `depth` numbers, at
// least one, and lie one behind the other. Sums run over the numbers in an order that is the same on all machines with
// the same instructions (x86-64).
void inner_products(std::span<const float> a, std::span<const float> b, std::size_t depth,
                    std::vector<float>& products);

// Of two rows.
float inner_product(const float* a, const float* b, std::size_t depth);

}  // namespace orrery
