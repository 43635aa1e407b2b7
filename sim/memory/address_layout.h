// Addresses in one buffer for storages whose lifetimes are known beforehand: offline dynamic storage allocation, which
// is NP-hard. There are two methods: best fit, which is fast, and the smallest buffer by a mixed-integer program (MEMO,
// arXiv 2407.12117, section 4.2).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "sim/memory/allocation_trace.h"

namespace orrery {

// Alive from `begin` until before `end`, in instants that the caller defines. REQUIRES: bytes >= 0.
struct StorageLife {
  std::int64_t bytes = 0;
  std::size_t begin = 0, end = 0;

  bool meets(const StorageLife& other) const { return begin < other.end && other.begin < end; }
};

struct AddressLayout {
  std::vector<std::int64_t> addresses;  // by storage; two storages that are alive together do not overlap
  std::int64_t bytes = 0;               // size of the buffer
  std::int64_t least_bytes = 0;         // lower bound for any layout; if equal to `bytes`, this one is the smallest
  bool by_program = false;              // found by the mixed-integer program; false: by best fit

  double gap() const { return bytes > 0 ? static_cast<double>(bytes - least_bytes) / static_cast<double>(bytes) : 0; }
};

// The most bytes alive at one instant: no layout is smaller.
std::int64_t most_alive(std::span<const StorageLife> lives);

// Places the largest storages first, each into the smallest gap between earlier ones that live at the same time, or
// above them if no gap is large enough. Cost: quadratic.
AddressLayout best_fit(std::span<const StorageLife> lives);
// The same around storages that already have a place: those with an address >= 0 in `placed`.
AddressLayout best_fit_around(std::span<const StorageLife> lives, std::vector<std::int64_t> placed);

// Limits of work rather than of time: the same input gives the same layout on any machine.
struct LayoutLimits {
  int nodes = 100;          // nodes of the search tree
  std::size_t pairs = 150;  // pairs of storages that are alive together: one binary variable each
};
// The smallest layout, as the solution of
//   min M,  A_i + S_i <= M,  for each pair that meets  A_i + S_i <= A_j + z_ij H,  A_j + S_j <= A_i + (1 - z_ij) H,
// where H is the height of best fit. Returns best fit if the solver finds nothing better within the limits. If there
// are more pairs than the limit, only the largest storages are laid out this way, as many as the limit allows, and all
// others around them by best fit. REQUIRES: built_with_cbc().
AddressLayout smallest_layout(std::span<const StorageLife> lives, const LayoutLimits& limits = {});

// Whether the solver (COIN-OR CBC) is linked. Loading it takes 10 ms.
bool built_with_cbc();

// A plan for the addresses of a step's storages, made before the step runs, in two levels (MEMO, arXiv 2407.12117,
// section 4.2). Level 1 lays out the storages that live inside a layer's forward, and those inside its backward; these
// layouts are alike in all layers. Level 2 lays out the step: each such block is one storage of its layout's size, next
// to all storages that outlive blocks and those of embedding and head. The plan replaces PyTorch's allocator
// (caching_allocator.h), which places each storage without knowing later ones.

// The layout of all block runs that allocate the same storages.
struct BlockLayout {
  std::uint16_t piece = 0;
  std::uint8_t block = 0;      // index into kBlocks
  std::int64_t instances = 0;  // number of runs in a step
  std::size_t storages = 0;    // storages that live inside one run
  AddressLayout layout;
};

struct BiLevelLayout {
  std::vector<BlockLayout> blocks;      // level 1, in the order of their first runs
  std::size_t storages = 0;             // of level 2: one per block run of a layer, and all others
  AddressLayout step;                   // level 2; addresses follow the resident bytes
  std::int64_t resident_bytes = 0;      // bytes that live for the whole step, from address 0
  std::int64_t alive_bytes = 0;         // at the worst instant, rounded as in this plan: no plan is smaller
  std::vector<std::int64_t> addresses;  // by index into the trace's allocations

  std::int64_t bytes() const { return resident_bytes + step.bytes; }
};

using LayOut = std::function<AddressLayout(std::span<const StorageLife>)>;
// `trace`: the trace of `program`. Storages are rounded up to multiples of `granule`.
BiLevelLayout bi_level_plan(const Program& program, const AllocationTrace& trace, std::int64_t granule,
                            const LayOut& lay_out);

// The step under its plan: one segment, in which each storage has its planned address. `granule`: the plan's.
Replay replay(const AllocationTrace& trace, const BiLevelLayout& plan, std::int64_t granule);

}  // namespace orrery
