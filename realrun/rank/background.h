// Collectives of tasks that run beside others (sim/program/task.h), on a thread with a communicator and a backend of
// its own. For backends that run work at once in the caller's thread; on a device a stream does the same.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "realrun/backend.h"
#include "realrun/communicator.h"

namespace orrery::realrun {

// Copies `from` to `to`, and sums it there over the members, or takes the mean. Both are dense, and nobody else uses
// them until the run that this belongs to has ended.
struct SumBeside {
  CollectiveCall call;
  const char* op = "";  // its name, in static storage
  const void* from = nullptr;
  void* to = nullptr;
  const Tensor* tensor = nullptr;  // of both, which have the call's dtype; outlives the run
  bool mean = false;
};

// Divides dense values of the tensor's size.
void divide(Backend& backend, Stream stream, void* data, const Tensor& tensor, std::size_t by);

class Background {
 public:
  Background(std::unique_ptr<Backend> backend, std::unique_ptr<Communicator> communicator);
  // Drops runs that have not begun. If one is under way, fails its communicator, which ends that of all ranks.
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // Appends a run. Returns its number, from 0. After a failure nothing more is run.
  std::int64_t add(std::vector<SumBeside> run);
  // Returns when this run and all before it have ended. Throws what one of them threw.
  void wait(std::int64_t run);

 private:
  void work();
  void sum(const SumBeside& of);

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Communicator> communicator_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::vector<SumBeside>> waiting_;
  std::int64_t added_ = 0, ended_ = 0;
  bool stops_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace orrery::realrun
