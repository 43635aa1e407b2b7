// A collective as messages: what one member sends and receives, and what each message waits for. The algorithms are
// those that the engines time (sim/des/collective_flows.h), message by message, so that what is modelled is what runs.
// Nothing here knows MPI.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/program/collective_algorithm.h"
#include "sim/program/op.h"

namespace orrery::mpi {

struct Range {  // of elements
  std::int64_t begin = 0, elements = 0;
};

struct Transfer {
  enum class Kind : std::uint8_t { send, receive, receive_and_add };
  Kind kind = Kind::send;
  std::size_t member = 0;          // the other end
  std::vector<Range> ranges;       // sent from the source buffer, received into the target: one message
  std::vector<std::size_t> after;  // transfers of this member, before this one, that end before it starts
  std::int64_t elements() const;
};

// In an order in which the k-th send of a member to another is what the other's k-th receive from it takes.
using Schedule = std::vector<Transfer>;

// The part of member `member` in a collective of `members` (>= 1). `elements`: of the whole buffer (all_reduce,
// broadcast), else of one member's part (all_gather, reduce_scatter, all_to_all). Source and target are the same buffer
// except for all_to_all, whose own part is left to the caller. A reduce_scatter leaves the sum of part `member` in its
// place and partial sums elsewhere.
//   all_reduce        ring, tree (NCCL's double binary tree), halving_doubling
//   all_gather, reduce_scatter   ring, halving_doubling
//   all_to_all        direct (all messages at once)
//   broadcast         ring: a chain, from member 0
// Chains and trees pass on pieces of `chunk_elements`. Throws InputError for other pairs.
Schedule schedule_of(OpKind kind, CollectiveAlgorithm algorithm, std::size_t members, std::size_t member,
                     std::int64_t elements, std::int64_t chunk_elements);

// An all_to_all whose parts differ (Communicator::all_to_all_v): all messages at once, empty ones too, as these also
// name the operation. The own part is left to the caller.
Schedule unequal_all_to_all(std::size_t member, std::span<const std::int64_t> sends,
                            std::span<const std::int64_t> receives);

}  // namespace orrery::mpi
