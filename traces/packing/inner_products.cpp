#include "traces/packing/inner_products.h"

#include <algorithm>

// Wider vectors pay where the machine has them. AVX2 by itself has no fused multiply-add, which would round otherwise.
// (Sanitizers cannot run the resolver functions that this needs.)
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__) && defined(__OPTIMIZE__)
#define ORRERY_PRODUCT_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define ORRERY_PRODUCT_CLONES
#endif

namespace orrery {
namespace {

constexpr std::size_t kRowsOfTile = 6;  // 6 rows x 16 columns: 12 of the 16 registers of AVX2

using EightFloats = float __attribute__((vector_size(32)));

// Six rows with all panels.
ORRERY_PRODUCT_CLONES void multiply_six(const float* const* rows, const float* panels, std::size_t panel_count,
                                        std::size_t depth, float* const* products) {
  static_assert(Panels::kWidth == 16);
  for (std::size_t p = 0; p < panel_count; ++p) {
    const float* panel = panels + p * depth * Panels::kWidth;
    EightFloats sums[kRowsOfTile][2] = {};
    for (std::size_t k = 0; k < depth; ++k, panel += Panels::kWidth) {
      EightFloats left, right;
      __builtin_memcpy(&left, panel, sizeof left);
      __builtin_memcpy(&right, panel + 8, sizeof right);
#pragma GCC unroll 6
      for (std::size_t r = 0; r < kRowsOfTile; ++r) {
        sums[r][0] += rows[r][k] * left;
        sums[r][1] += rows[r][k] * right;
      }
    }
    for (std::size_t r = 0; r < kRowsOfTile; ++r)
      __builtin_memcpy(products[r] + p * Panels::kWidth, sums[r], sizeof sums[r]);
  }
}

}  // namespace

void Panels::append(const float* row) {
  const std::size_t needed = (rows_ / kWidth + 1) * kWidth * depth_;
  if (numbers_.size() < needed) numbers_.resize(needed);
  if (rows_ % kWidth == 0)
    std::fill_n(numbers_.begin() + static_cast<std::ptrdiff_t>(rows_ * depth_), kWidth * depth_, 0.0f);
  ++rows_;
  set(rows_ - 1, row);
}

void Panels::set(std::size_t row, const float* numbers) {
  float* to = numbers_.data() + row / kWidth * kWidth * depth_ + row % kWidth;
  for (std::size_t k = 0; k < depth_; ++k) to[k * kWidth] = numbers[k];
}

void Panels::multiply(std::span<const float* const> rows, float* products) const {
  std::vector<float> ignored;
  for (std::size_t first = 0; first < rows.size(); first += kRowsOfTile) {
    const float* six[kRowsOfTile];
    float* to[kRowsOfTile];
    for (std::size_t r = 0; r < kRowsOfTile; ++r) {
      const bool there = first + r < rows.size();
      if (!there) ignored.resize(columns());
      six[r] = rows[there ? first + r : first];
      to[r] = there ? products + (first + r) * columns() : ignored.data();
    }
    multiply_six(six, numbers_.data(), columns() / kWidth, depth_, to);
  }
}

float inner_product(const float* a, const float* b, std::size_t depth) {
  float sum = 0;
  for (std::size_t k = 0; k < depth; ++k) sum += a[k] * b[k];
  return sum;
}

}  // namespace orrery
