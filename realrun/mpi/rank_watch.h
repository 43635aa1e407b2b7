// A connection from each rank to the program that starts them with mpirun. Either end notices at once when the other is
// gone, also where mpirun does not (a rank that dies before it has joined MPI; mpirun itself killed).
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace orrery {

// The launcher's end. Ranks end themselves when the launcher is gone, so nothing of a job outlives this object.
class RankWatch {
 public:
  explicit RankWatch(std::size_t ranks);  // throws ExecutionError without a socket
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  // "NAME=value", to be set in the ranks' environment.
  std::string variable() const;

  // Checks which ranks have come and gone; call it often. Returns "" if all is well, otherwise what is wrong: a rank
  // that ended without tell_launcher_of_end(), or ranks that have not come within half a minute of the first.
  std::string look();
  // Once all ranks have called tell_launcher_of_end() and ended: the highest of their exit codes.
  std::optional<int> ended() const;

 private:
  struct Rank {
    int socket = -1;
    int process = 0;
    std::optional<int> code;  // that it has told
  };
  std::size_t expected_ = 0;
  int listener_ = -1;
  std::string name_;
  std::vector<Rank> ranks_;
  std::chrono::steady_clock::time_point first_{};
};

// The rank's end; call it before joining MPI. If the environment names a launcher, the process ends (exit code 1) as
// soon as the launcher is gone. Otherwise it does nothing.
void end_with_launcher();
// Tells the launcher that this rank is about to end with this exit code, which is at most 255.
void tell_launcher_of_end(int code);

}  // namespace orrery
