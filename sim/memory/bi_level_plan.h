// A step's memory laid out before it runs, in two levels (MEMO, arXiv 2407.12117, section 4.2): first what comes and
// goes inside a layer's forward and inside its backward, alike in all layers; then the step, in which each of those is
// one storage of that size, beside all that outlives it and what embedding and head ask for. In place of PyTorch's
// allocator (caching_allocator.h), which places each storage without knowing those to come.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "sim/memory/allocation_trace.h"
#include "sim/memory/storage_layout.h"

namespace orrery {

// Of all block runs that ask for the same.
struct BlockLayout {
  std::uint16_t piece = 0;
  std::uint8_t block = 0;      // of kBlocks
  std::int64_t instances = 0;  // runs of the step
  std::size_t storages = 0;    // that come and go in one
  StorageLayout layout;
};

struct BiLevelPlan {
  std::vector<BlockLayout> blocks;  // level 1, in the order of their first runs
  std::size_t storages = 0;         // of level 2: of layers' blocks one each, and all others
  StorageLayout step;               // level 2, behind what stays all step long
  std::int64_t resident_bytes = 0;  // that stays, from address 0
  std::int64_t alive_bytes = 0;     // at the worst instant, of storages rounded as they are here: no plan is smaller
  std::vector<std::int64_t> addresses;  // by allocation of the trace

  std::int64_t bytes() const { return resident_bytes + step.bytes; }
};

using LayOut = std::function<StorageLayout(std::span<const StorageLife>)>;
// `trace`: of the program. Storages are rounded up to multiples of `granule`.
BiLevelPlan bi_level_plan(const Program& program, const AllocationTrace& trace, std::int64_t granule,
                          const LayOut& lay_out);

// The step as its plan has it: one segment, in which each storage has its address. `granule`: as the plan's.
Replay replay(const AllocationTrace& trace, const BiLevelPlan& plan, std::int64_t granule);

}  // namespace orrery
