// Ranks as threads of one process: they meet, then read each other's memory. Works with any backend whose ranks share
// an address space, and also for several ranks on one GPU (slow: every collective waits for its stream).
//
// Sums are added in the order of the members, not of arrival, so that runs repeat bit for bit.
#pragma once

#include <functional>
#include <memory>

#include "realrun/backend.h"
#include "realrun/communicator.h"

namespace orrery {

// State that the ranks share. Must outlive their communicators.
class InProcessRanks {
 public:
  InProcessRanks(std::size_t ranks, double watchdog_seconds);
  ~InProcessRanks();

  std::unique_ptr<Communicator> communicator(std::size_t rank, Backend& backend);
  // Reports the failure of a rank that has no communicator yet.
  void fail(std::exception_ptr failure);
  // Throws the first failure, if any.
  void rethrow() const;

  struct Rep;

 private:
  std::unique_ptr<Rep> rep_;
};

// Makes the backend of a rank. Called in the rank's thread.
using BackendFactory = std::function<std::unique_ptr<Backend>(std::size_t rank)>;
// Calls work(its backend, its communicator) in a thread for each rank. When all have returned, throws what the first
// one threw that failed, if any did.
void run_in_threads(std::size_t ranks, double watchdog_seconds, const BackendFactory& make_backend,
                    const std::function<void(Backend&, Communicator&)>& work);

}  // namespace orrery
