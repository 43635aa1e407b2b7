// A collective as messages: what one member sends and receives, and what each message waits for. They are the messages
// that the engines time (sim/cost/collective_flows.h); this file adds the data that each carries. So what is modelled
// is what runs. It does not depend on MPI.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/program/op.h"

namespace orrery::mpi {

struct Range {  // range of elements
  std::int64_t begin = 0, elements = 0;
};

struct Transfer {
  enum class Kind : std::uint8_t { send, receive, receive_and_add };
  Kind kind = Kind::send;
  std::size_t member = 0;  // the partner
  // Parts of one message: sent from the source buffer, or received into the target buffer.
  std::vector<Range> ranges;
  // Earlier transfers of this member that must end before this one starts.
  std::vector<std::size_t> after;
  std::int64_t elements() const;
};

// The k-th send of a member to another corresponds to the other's k-th receive from it.
using Transfers = std::vector<Transfer>;

// Returns the transfers of member `member` in a collective of `members` (>= 1). `elements`: of the whole buffer
// (all_reduce, broadcast), else of one member's part (all_gather, reduce_scatter). Source and target are the same
// buffer. A reduce_scatter leaves the sum of part `member` in its place and partial sums elsewhere.
//   all_reduce        ring, tree (NCCL's double binary tree), halving_doubling
//   all_gather, reduce_scatter   ring, halving_doubling
//   broadcast         ring: a chain, from member 0
// Chains and trees pass on pieces of `chunk_elements`. Throws InputError for other pairs of kind and algorithm.
Transfers schedule_of(OpKind kind, CollectiveAlgorithm algorithm, std::size_t members, std::size_t member,
                     std::int64_t elements, std::int64_t chunk_elements);

// An all_to_all with parts of any sizes (Communicator::all_to_all_v): all messages at once, including empty ones, as
// messages also name the operation. The member's own part is left to the caller.
Transfers unequal_all_to_all(std::size_t member, std::span<const std::int64_t> sends,
                            std::span<const std::int64_t> receives);

}  // namespace orrery::mpi
