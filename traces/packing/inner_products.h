// Inner products of many rows with many others, blocked so that they stay in registers and caches.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace orrery {

// Rows that others are multiplied with, laid out in panels of kWidth rows side by side.
class Panels {
 public:
  static constexpr std::size_t kWidth = 16;

  explicit Panels(std::size_t depth) : depth_(depth) {}  // numbers of a row, at least 1

  void clear() { rows_ = 0; }  // keeps its storage
  void append(const float* row);
  void set(std::size_t row, const float* numbers);  // REQUIRES: row < rows()
  std::size_t rows() const { return rows_; }
  std::size_t columns() const { return (rows_ + kWidth - 1) / kWidth * kWidth; }  // of products

  // products[i * columns() + j] = the inner product of rows[i] and panel row j; 0 from rows() on. Sums run over the
  // numbers in order, whatever the machine's vectors, so that results are the same on all that do not fuse
  // multiplications with additions (x86-64).
  void multiply(std::span<const float* const> rows, float* products) const;

 private:
  std::size_t depth_, rows_ = 0;
  std::vector<float> numbers_;  // [panel][number][row of the panel]
};

// Of two rows.
float inner_product(const float* a, const float* b, std::size_t depth);

}  // namespace orrery
