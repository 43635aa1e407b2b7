// A step's allocations in the format of torch.cuda.memory._dump_snapshot(): a pickle (protocol 2) that PyTorch's memory
// visualiser opens (pytorch.org/memory_viz) and Python's pickle.load reads. Segments and blocks are those after the
// step; device_traces has its events in order, without times. Frames name the tensor, its piece and its category.
#pragma once

#include <string>

#include "sim/memory/allocation_trace.h"

namespace orrery {

std::string memory_snapshot(const Program& program, const AllocationTrace& trace, const Replay& replay,
                            const CachingAllocator::Options& options);

}  // namespace orrery
