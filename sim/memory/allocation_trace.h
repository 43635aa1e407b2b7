// The requests that a rank of a pipeline stage makes to its device's allocator in one step, in the order in which its
// host issues ops (sim/program/issue.h). A storage is allocated before the first op that touches it and freed after the
// last one, as reference counts do in PyTorch. The trace says when storages live; an allocator decides where they lie
// (caching_allocator.h).
//
// A block takes over the tensors that the instance before hands on, without a copy. Tensors from another stage are
// allocated when the slot begins. Tensors sent to another stage are freed when the slot ends, or with its backward
// (Runtime::sent_outputs). A pair (Schedule::pairs) alternates between its two chunks layer by layer; the forward's
// layer comes first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/memory/caching_allocator.h"
#include "sim/program/program.h"

namespace orrery {

struct Allocation {
  std::int64_t bytes = 0;
  // PyTorch's current stream: 0, except for ops that are issued ahead or run free of the compute stream (FSDP's unshard
  // stream); for these the op's Stream.
  int stream = 0;
  std::uint16_t piece = 0;
  TensorId tensor = kNoTensor;  // the storage, in the piece's table; kNoTensor: a buffer (StageBuffers)
  const char* buffer = "";      // the name of that buffer
};

struct AllocationTrace {
  struct Event {
    std::uint32_t allocation = 0;
    bool frees = false;
  };
  // The events of one instance of a piece in one of its blocks. They include those of ops of later instances that are
  // issued meanwhile.
  struct BlockRun {
    std::size_t begin = 0, end = 0;  // range of events
    std::uint16_t piece = 0;
    std::uint8_t block = 0;  // index into kBlocks
  };
  std::vector<Allocation> allocations;
  std::vector<Event> events;
  std::size_t step_begin = 0;    // events before this one allocate storages that live for the whole step
  std::vector<BlockRun> blocks;  // in the order in which they run
};

// The trace of the stage's device; host and storage are not included. REQUIRES: stage < program.stages.size(). Cost:
// linear in instances, micro-batches and ops.
AllocationTrace allocation_trace(const Program& program, std::size_t stage);

// Estimates how many events allocation_trace() would return, without making any.
double allocation_events(const Program& program, std::size_t stage);

// The allocator's behaviour over `steps` such steps in sequence. Storages that live for the whole step are allocated
// only once.
struct Replay {
  CachingAllocator::Statistics statistics;
  // Events of the last step, or of the step that ran out of memory, up to there. Tags are indices into `allocations`.
  std::vector<CachingAllocator::Event> events;
  std::vector<CachingAllocator::Segment> segments;  // after the last event
  bool out_of_memory = false;
  std::uint32_t failed = 0;  // if out_of_memory: index of the allocation that found no room
};
Replay replay(const AllocationTrace& trace, const CachingAllocator::Options& options, int steps = 3);

// A step's allocations in the format of torch.cuda.memory._dump_snapshot(): a pickle (protocol 2) that PyTorch's memory
// visualiser opens (pytorch.org/memory_viz) and Python's pickle.load reads. Segments and blocks are those after the
// step; device_traces has its events in order, without times. Frames name the tensor, its piece and its category.

std::string memory_snapshot(const Program& program, const AllocationTrace& trace, const Replay& replay,
                            const CachingAllocator::Options& options);

}  // namespace orrery
