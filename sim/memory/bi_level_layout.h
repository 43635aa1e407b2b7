// A plan for the addresses of a step's storages, made before the step runs, in two levels (MEMO, arXiv 2407.12117,
// section 4.2). Level 1 lays out the storages that live inside a layer's forward, and those inside its backward; these
// layouts are alike in all layers. Level 2 lays out the step: each such block is one storage of its layout's size, next
// to all storages that outlive blocks and those of embedding and head. The plan replaces PyTorch's allocator
// (caching_allocator.h), which places each storage without knowing later ones.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "sim/memory/allocation_trace.h"
#include "sim/memory/address_layout.h"

namespace orrery {

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
