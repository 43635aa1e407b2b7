// Ranks as threads of one process: they meet, then read each other's memory. Works with any backend whose ranks share
// an address space, so also with several ranks on one GPU (for correctness: every collective waits for its stream).
//
// Sums are added in the order of the members, whoever comes first, so that runs repeat bit for bit.
#pragma once

#include <memory>

#include "realrun/backend.h"
#include "realrun/communicator.h"

namespace orrery {

// What the ranks share. Outlives their communicators.
class InProcessRanks {
 public:
  InProcessRanks(std::size_t ranks, double watchdog_seconds);
  ~InProcessRanks();

  std::unique_ptr<Communicator> communicator(std::size_t rank, Backend& backend);
  // Of a rank that has no communicator yet.
  void fail(std::exception_ptr failure);
  // Throws the first failure, if any.
  void rethrow() const;

  struct Rep;

 private:
  std::unique_ptr<Rep> rep_;
};

}  // namespace orrery
