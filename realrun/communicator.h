// Communication between ranks: collectives over groups of ranks and messages between stages. There is one object per
// rank. Its peers are threads of this process (in_process.h), MPI processes (mpi/) or NCCL ranks (cuda/nccl).
//
// Data is dense, in the memory of the rank's backend and in its stored form of the dtype. Every wait ends: with the
// data, with the failure of another rank, or after the watchdog's time with an ExecutionError that says which rank
// waits for whom.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "sim/program/op.h"
#include "sim/program/tensor.h"

namespace orrery {

class Backend;

// A rank failed, or waited too long. The message says which rank, where in the Program, and for whom it waits.
class ExecutionError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

using Members = std::vector<std::size_t>;

// A collective operation of a group of ranks.
struct CollectiveCall {
  Members members;   // the ranks of the group, ascending, including this one
  std::string what;  // its name; a call throws if ranks meet under different names, as they have diverged
  Stream stream = Stream::compute;  // orders it like any other work
  Dtype dtype = Dtype::fp32;
};

// Identifies the boundary that a message between stages crosses.
struct MessageTag {
  std::int64_t position = 0;  // position of the receiving chunk
  std::int64_t micro_batch = 0;
  bool backward = false;
  std::size_t stream = 0;  // 0: the residual stream; above: side streams
  auto operator<=>(const MessageTag&) const = default;
};

// Where in the Program a rank is. The strings must have static storage.
struct PlaceInProgram {
  const char *block = "start", *op = "";
  std::int64_t micro_batch = -1;
};

// How messages name a rank and its place, ranks, and a message between stages.
inline std::string text_of(std::size_t rank, const PlaceInProgram& at) {
  return fmt::format("rank {} ({} of micro-batch {}, op \"{}\")", rank, at.block, at.micro_batch, at.op);
}
inline std::string text_of(const Members& ranks) { return fmt::format("{{{}}}", fmt::join(ranks, ", ")); }
inline std::string text_of(const MessageTag& tag) {
  return fmt::format("the {} of position {}, micro-batch {}", tag.backward ? "output gradient" : "input", tag.position,
                     tag.micro_batch);
}

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual std::size_t rank() const = 0;
  virtual std::size_t ranks() const = 0;
  Members everyone() const {
    Members all(ranks());
    std::iota(all.begin(), all.end(), std::size_t{0});
    return all;
  }

  // Sets the place that the watchdog reports for this rank.
  virtual void at(const PlaceInProgram& place) = 0;

  virtual void all_reduce(const CollectiveCall& of, void* data, std::int64_t elements) = 0;  // the sum, in place
  // `whole` holds part_elements from each member, in the members' order. `part` may be this rank's place in `whole`.
  virtual void all_gather(const CollectiveCall& of, const void* part, void* whole, std::int64_t part_elements) = 0;
  // The reverse, with sums.
  virtual void reduce_scatter(const CollectiveCall& of, const void* whole, void* part, std::int64_t part_elements) = 0;
  // Sends part j of `from` to member j; part j of `to` receives member j's part for this rank.
  void all_to_all(const CollectiveCall& of, const void* from, void* to, std::int64_t part_elements) {
    const std::vector<std::int64_t> parts(of.members.size(), part_elements);
    all_to_all_v(of, from, parts, to, parts);
  }
  // The same for parts of different sizes: part j of `from` has sends[j] elements, part i of `to` has receives[i], as
  // many as member i sends to this rank. Parts are contiguous and may be empty. `sends` and `receives` are host memory
  // and not read after the call.
  virtual void all_to_all_v(const CollectiveCall& of, const void* from, std::span<const std::int64_t> sends, void* to,
                            std::span<const std::int64_t> receives) = 0;
  // Each member sends to one member and receives from one, both given as indices into `members`: a permutation.
  virtual void permute(const CollectiveCall& of, const void* from, void* to, std::int64_t elements,
                       std::size_t to_member, std::size_t from_member) {
    std::vector<std::int64_t> sends(of.members.size()), receives(of.members.size());
    sends.at(to_member) = receives.at(from_member) = elements;
    all_to_all_v(of, from, sends, to, receives);
  }
  // Returns every member's host values, of any length, in the order of the members. For rare and small messages.
  virtual std::vector<std::vector<double>> gather_values(const Members& members, const std::string& what,
                                                         std::vector<double> values) = 0;

  // Messages between stages, never to the rank itself. send() does not wait for the receiver. After it returns, work
  // that is issued to `stream` later may overwrite `data`.
  virtual void send(std::size_t to, const MessageTag& tag, Stream stream, const void* data, std::int64_t elements,
                    Dtype dtype) = 0;
  virtual void receive(std::size_t from, const MessageTag& tag, Stream stream, void* data, std::int64_t elements,
                       Dtype dtype) = 0;

  // Returns a communicator of the same ranks for another thread, which uses `backend`: what it does meets nothing that
  // this one does. All ranks call it equally often. Null: there is none.
  virtual std::unique_ptr<Communicator> beside(Backend& backend) {
    (void)backend;
    return nullptr;
  }

  // Ends every wait of every rank, now and later. The first failure is kept.
  virtual void fail(std::exception_ptr failure) = 0;
  // Called at the end. Throws if a message was never received.
  virtual void finish() = 0;
};

}  // namespace orrery
