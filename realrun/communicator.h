// What ranks give each other: collectives over groups of ranks and messages between stages. One object a rank; its
// peers are threads of this process (in_process.h), MPI processes (mpi/) or NCCL ranks (cuda/nccl).
//
// Data is in the memory of the rank's backend, in its stored form of the dtype, dense. Work is ordered like any other
// on `stream`. `members` are the ranks of the group, ascending, this one among them. `what` names the operation: ranks
// that meet under different names have diverged, which throws. Every wait ends: with the data, with the failure of
// another rank, or after the watchdog's time with an ExecutionError that says which rank waits for whom.
#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "sim/program/op.h"
#include "sim/program/tensor.h"

namespace orrery {

// A rank failed, or waited in vain: says which rank, where in the Program, and for whom it waits.
class ExecutionError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

using Members = std::vector<std::size_t>;

struct MessageTag {           // which boundary a message between stages crosses
  std::int64_t position = 0;  // of the receiving chunk
  std::int64_t micro_batch = 0;
  bool backward = false;
  std::size_t stream = 0;  // 0: the residual stream; then those beside it
  auto operator<=>(const MessageTag&) const = default;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual std::size_t rank() const = 0;
  virtual std::size_t ranks() const = 0;

  // Where the rank stands, for the watchdog's report. Static storage.
  virtual void at(const char* block, const char* op, std::int64_t micro_batch) = 0;

  virtual void all_reduce(const Members& members, const std::string& what, Stream stream, void* data,
                          std::int64_t elements, Dtype dtype) = 0;  // the sum, in place
  // `whole` holds part_elements from every member, in their order. `part` may lie in its place inside `whole`.
  virtual void all_gather(const Members& members, const std::string& what, Stream stream, const void* part, void* whole,
                          std::int64_t part_elements, Dtype dtype) = 0;
  virtual void reduce_scatter(const Members& members, const std::string& what, Stream stream, const void* whole,
                              void* part, std::int64_t part_elements, Dtype dtype) = 0;  // sums
  // Each member sends part j of `from` to member j and receives member j's part for it as part j of `to`.
  virtual void all_to_all(const Members& members, const std::string& what, Stream stream, const void* from, void* to,
                          std::int64_t part_elements, Dtype dtype) = 0;
  // The same where parts differ: part j of `from` has sends[j] elements, part i of `to` receives[i], which are what
  // member i sends this one; parts lie behind each other and may be empty. On the host, not read after the call.
  virtual void all_to_all_v(const Members& members, const std::string& what, Stream stream, const void* from,
                            std::span<const std::int64_t> sends, void* to, std::span<const std::int64_t> receives,
                            Dtype dtype) = 0;
  // Each member sends to one member and receives from one (indices into `members`): a permutation.
  virtual void permute(const Members& members, const std::string& what, Stream stream, const void* from, void* to,
                       std::int64_t elements, Dtype dtype, std::size_t to_member, std::size_t from_member) = 0;
  // Everyone's host values, of any length, in the order of the members: for rare and small things.
  virtual std::vector<std::vector<double>> gather_values(const Members& members, const std::string& what,
                                                         std::vector<double> values) = 0;

  // Between stages, never to oneself. send() does not wait for the receiver, and returns when work issued to `stream`
  // later may write `data` again.
  virtual void send(std::size_t to, const MessageTag& tag, Stream stream, const void* data, std::int64_t elements,
                    Dtype dtype) = 0;
  virtual void receive(std::size_t from, const MessageTag& tag, Stream stream, void* data, std::int64_t elements,
                       Dtype dtype) = 0;

  // Ends every wait of every rank, also of those to come. The first failure is kept.
  virtual void fail(std::exception_ptr failure) = 0;
  // At the end: throws for messages that nobody received.
  virtual void finish() = 0;
};

}  // namespace orrery
