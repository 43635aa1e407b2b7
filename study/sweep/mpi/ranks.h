// A sweep on all ranks of an MPI job: rank 0 reads what is asked, hands out points and alone writes the file of
// results; the others evaluate, as do threads of rank 0 beyond its first.
//
// Ranks come for points whenever they have none, and rank 0 says of which keys there are results, so no other rank
// holds what the file holds. Of a job that loses a rank, Open MPI ends the others; what rank 0 has written stays, and
// the same command goes on from there.
#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "study/sweep/run.h"

namespace orrery {

// MPI from construction to destruction; once a process. All ranks make one; those above 0 then call help(). Ranks above
// 0 leave interrupts to rank 0, and end when the process that started them does.
class SweepRanks final : public SweepHelpers {
 public:
  // Throws std::runtime_error where MPI cannot start.
  SweepRanks(int* argc, char*** argv);
  ~SweepRanks() override;  // rank 0: lets the others go, who must not be at work
  SweepRanks(const SweepRanks&) = delete;
  SweepRanks& operator=(const SweepRanks&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  // --- Rank 0
  int processes() const override { return ranks_ - 1; }
  int threads_here() const override { return threads_here_; }
  void prepare(const SweepTask& task) override;
  std::int64_t threads() const override { return threads_; }
  void share(SweepWork& work, std::int64_t points, int here) override;
  [[noreturn]] void abort(int code) override;
  bool at_work() const { return state_ == State::at_work; }

  // --- The others: what rank 0 asks, until it lets them go. `version`: of this program.
  void help(const std::string& version);

 private:
  class RemoteWork;
  struct Message {
    int from = 0;
    std::string bytes;
  };
  struct Sending;
  enum class State : std::uint8_t { waiting, prepared, at_work, gone };

  // Of the calls of MPI one at a time, by whatever thread.
  void begin_to_send(int to, int tag, std::string bytes);
  std::optional<Message> receive(int from, int tag);  // none: there is none yet
  bool sends();                                       // some messages are still on their way
  Message wait_for(int from, int tag);
  void send(int to, int tag, std::string bytes);  // and waits until that is done

  int rank_ = 0, ranks_ = 1, threads_here_ = 1;
  std::int64_t threads_ = 0;
  State state_ = State::waiting;
  std::timed_mutex calls_;
  std::list<Sending> sendings_;
};

}  // namespace orrery
