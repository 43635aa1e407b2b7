// A line from each rank to the program that has mpirun start it: either end sees at once when the other is gone, also
// where mpirun does not (a rank that dies before it has joined MPI; mpirun itself killed).
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace orrery {

// The launcher's end. Ranks whose launcher is gone end themselves, so nothing of a job outlives this object.
class RankWatch {
 public:
  explicit RankWatch(std::size_t ranks);  // throws ExecutionError without a socket
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  // "NAME=value" for the ranks' environment.
  std::string variable() const;

  // Notes who has come and gone; to be called often. "" as long as all is well, else what is wrong: a rank that went
  // without a word, or ranks that have not come within half a minute of the first.
  std::string look();

 private:
  struct Rank {
    int socket = -1;
    int process = 0;
    bool done = false;
  };
  std::size_t expected_ = 0;
  int listener_ = -1;
  std::string name_;
  std::vector<Rank> ranks_;
  std::chrono::steady_clock::time_point first_{};
};

// The rank's end, from before it joins MPI: where the environment names a launcher, the process ends (exit code 1) as
// soon as that is gone. Without one, nothing happens.
void end_with_launcher();
// The rank will end by itself now.
void tell_launcher_of_end();

}  // namespace orrery
