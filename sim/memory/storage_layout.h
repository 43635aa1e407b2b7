// Where storages whose lives are known beforehand lie in one buffer: offline dynamic storage allocation, which is
// NP-hard. Fast by best fit, or the smallest buffer as a mixed-integer program (MEMO, arXiv 2407.12117, section 4.2).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace orrery {

// Alive from `begin` until before `end`, in instants of whatever order its owner counts by. REQUIRES: bytes >= 0.
struct StorageLife {
  std::int64_t bytes = 0;
  std::size_t begin = 0, end = 0;

  bool meets(const StorageLife& other) const { return begin < other.end && other.begin < end; }
};

struct StorageLayout {
  std::vector<std::int64_t> addresses;  // by storage; those of storages that meet do not overlap
  std::int64_t bytes = 0;               // of the buffer
  std::int64_t least_bytes = 0;         // no layout is known to be smaller than this; equal: this one is the smallest
  bool by_program = false;              // found by the mixed-integer program; false: by best fit

  double gap() const { return bytes > 0 ? static_cast<double>(bytes - least_bytes) / static_cast<double>(bytes) : 0; }
};

// At the worst instant: no layout is smaller.
std::int64_t most_alive(std::span<const StorageLife> lives);

// The largest first, each into the smallest gap between those placed before that it meets; above them where none is
// large enough. Cost: quadratic.
StorageLayout best_fit(std::span<const StorageLife> lives);
// The same around storages that have their places, of address >= 0 in `placed`.
StorageLayout best_fit_around(std::span<const StorageLife> lives, std::vector<std::int64_t> placed);

// Work, not seconds: the same input gives the same layout on any machine.
struct LayoutLimits {
  int nodes = 100;          // of the search tree
  std::size_t pairs = 150;  // that meet: one binary variable each
};
// The smallest layout of
//   min M,  A_i + S_i <= M,  for each pair that meets  A_i + S_i <= A_j + z_ij H,  A_j + S_j <= A_i + (1 - z_ij) H,
// H being the height of best fit, which is returned where the limits give nothing better. Of more pairs than the limit
// the largest storages are laid out so, as many as it allows, and all others around them by best fit. REQUIRES:
// built_with_cbc().
StorageLayout smallest_layout(std::span<const StorageLife> lives, const LayoutLimits& limits = {});

// Whether the solver (COIN-OR CBC) is linked, which takes 10 ms to load.
bool built_with_cbc();

}  // namespace orrery
