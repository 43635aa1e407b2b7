// A step's allocations as torch.cuda.memory._dump_snapshot() writes them: a pickle (protocol 2) that PyTorch's memory
// visualiser opens (pytorch.org/memory_viz) and Python's pickle.load reads. Segments and blocks are those behind the
// step, device_traces its events in order; they carry no times. Frames name the tensor, its piece and its category.
#pragma once

#include <string>

#include "sim/memory/allocation_trace.h"

namespace orrery {

std::string memory_snapshot(const Program& program, const AllocationTrace& trace, const Replay& replay,
                            const CachingAllocator::Options& options);

}  // namespace orrery
