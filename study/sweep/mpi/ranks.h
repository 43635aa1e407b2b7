// A sweep on all ranks of an MPI job. Rank 0 reads the request, hands out points, and alone writes the file of results.
// The other ranks evaluate points; so do the threads of rank 0 beyond its first.
//
// Ranks ask for points whenever they have none. Rank 0 tells them for which keys there are results, so that no other
// rank holds the file's contents. If a job loses a rank, Open MPI ends the others. What rank 0 has written remains, and
// the same command continues from there.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "study/sweep/run.h"

namespace orrery {

// Initialises MPI; its destructor finalises it. Create it once per process. All ranks create one; ranks above 0 then
// call help(). Ranks above 0 leave interrupts to rank 0, and end when the process that started them ends.
class SweepRanks final : public SweepHelpers {
 public:
  // Throws std::runtime_error if MPI cannot start.
  SweepRanks(int* argc, char*** argv);
  ~SweepRanks() override;  // rank 0: releases the other ranks, which must not be at work
  SweepRanks(const SweepRanks&) = delete;
  SweepRanks& operator=(const SweepRanks&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  // --- Rank 0
  int processes() const override { return ranks_ - 1; }
  int threads_here() const override { return threads_here_; }
  void prepare(const SweepDocument& sweep, const std::vector<std::string>& calibration_files,
               const SweepRunOptions& options, int threads) override;
  std::int64_t threads() const override { return threads_; }
  void share(SweepWork& work, std::int64_t points, int here) override;
  [[noreturn]] void abort(int code) override;
  bool at_work() const { return state_ == State::at_work; }

  // Other ranks: does what rank 0 requests until it releases them. `version`: of this program.
  void help(const std::string& version);

 private:
  class RemoteWork;
  struct Message {
    int from = 0;
    std::string bytes;
  };
  enum class State : std::uint8_t { waiting, prepared, at_work, gone };

  // Calls of MPI happen one at a time, from any thread.
  std::optional<Message> receive(int from, int tag);  // empty: no message has arrived
  Message wait_for(int from, int tag);
  void send(int to, int tag, const std::string& bytes);  // waits until it is sent

  int rank_ = 0, ranks_ = 1, threads_here_ = 1;
  std::int64_t threads_ = 0;
  State state_ = State::waiting;
  std::timed_mutex calls_;
};

}  // namespace orrery
