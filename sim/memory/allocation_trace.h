// What a rank of a pipeline stage asks its device's allocator for in one step, in the order in which its host issues
// ops (sim/program/issue.h): a storage is asked for before the first op that touches it and freed behind the last one,
// as reference counts do in PyTorch. It says when what lives; where that lies is an allocator's (caching_allocator.h).
//
// A block takes over what the instance before hands on, without a copy; what comes from another stage is asked for as
// the slot begins, and what goes there is freed as it ends, or with its backward (Runtime::sent_outputs). A pair
// (Schedule::pairs) alternates between its two chunks layer by layer; the forward's layer comes first.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/memory/caching_allocator.h"
#include "sim/program/program.h"

namespace orrery {

struct Allocation {
  std::int64_t bytes = 0;
  // Of PyTorch's streams the one that is current: 0, but for what is issued ahead or runs free of the compute stream
  // (FSDP's unshard stream), whose Stream it is.
  int stream = 0;
  std::uint16_t piece = 0;
  TensorId tensor = kNoTensor;  // the storage, in the piece's table; kNoTensor: a buffer of the stack (stage_buffers.h)
  const char* buffer = "";      // the name of that buffer
};

struct AllocationTrace {
  struct Event {
    std::uint32_t allocation = 0;
    bool frees = false;
  };
  // What an instance of a piece does in one of its blocks, with what it has others issue ahead meanwhile.
  struct BlockRun {
    std::size_t begin = 0, end = 0;  // events
    std::uint16_t piece = 0;
    std::uint8_t block = 0;  // of kBlocks
  };
  std::vector<Allocation> allocations;
  std::vector<Event> events;
  std::size_t step_begin = 0;    // events before this one are of what stays all step long
  std::vector<BlockRun> blocks;  // in their order
};

// On the device alone. REQUIRES: stage < program.stages.size(). Cost: linear in instances, micro-batches and ops.
AllocationTrace allocation_trace(const Program& program, std::size_t stage);

// Estimates how many events allocation_trace() would return, without making any.
double allocation_events(const Program& program, std::size_t stage);

// The most that is alive at once, each allocation rounded up to a multiple of `granule` (0: not at all).
std::int64_t peak_bytes(const AllocationTrace& trace, std::int64_t granule);

// What the allocator does with `steps` of these, one after another, what stays being asked for once.
struct Replay {
  CachingAllocator::Statistics statistics;
  // Of the last step, or up to where one found no room; tags are numbers of allocations.
  std::vector<CachingAllocator::Event> events;
  std::vector<CachingAllocator::Segment> segments;  // behind it
  bool out_of_memory = false;
  std::uint32_t failed = 0;  // the allocation that found no room
};
Replay replay(const AllocationTrace& trace, const CachingAllocator::Options& options, int steps = 3);

}  // namespace orrery
