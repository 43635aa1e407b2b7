#include "sim/des/child_process.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <stdexcept>

namespace orrery {
namespace {

constexpr char kReturned = 'r', kThrew = 't';
int to_parent = -1;  // write end of the pipe, in the child
thread_local double last_peak_bytes = 0;

void write_all(int file, const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = write(file, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // the parent has ended
    done += static_cast<std::size_t>(n);
  }
}

}  // namespace

double last_child_peak_bytes() { return last_peak_bytes; }

void return_from_child(const std::string& result) {
  write_all(to_parent, std::string(1, kReturned));
  write_all(to_parent, result);
  _exit(0);  // no destructors: SimGrid's would end its actors one by one
}

std::string run_in_child(const std::function<std::string()>& work) {
  std::array<int, 2> ends{};
  // One at a time: a child that inherits the end of another's pipe would keep it open for its own lifetime.
  static std::mutex forking;
  std::unique_lock one(forking);
  if (pipe(ends.data()) != 0)
    throw std::runtime_error(fmt::format("no pipe for the simulation: {}", std::strerror(errno)));
  std::fflush(nullptr);  // otherwise the child prints buffered text again
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error(fmt::format("no process for the simulation: {}", std::strerror(errno)));
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // the process that asked for the result has ended
    close(ends[0]);
    to_parent = ends[1];
    // A parent that handles interrupts (a Python interpreter) does so itself.
    if (struct sigaction interrupt{}; sigaction(SIGINT, nullptr, &interrupt) == 0 && interrupt.sa_handler != SIG_IGN)
      signal(SIGINT, SIG_DFL);
    try {
      return_from_child(work());
    } catch (const std::exception& error) {
      write_all(to_parent, std::string(1, kThrew) + error.what());
    }
    _exit(0);
  }
  close(ends[1]);
  one.unlock();
  std::string result;
  std::array<char, 1 << 16> buffer{};
  for (;;) {
    const ssize_t n = read(ends[0], buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    result.append(buffer.data(), static_cast<std::size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  rusage used{};
  while (wait4(child, &status, 0, &used) < 0 && errno == EINTR) {
  }
  last_peak_bytes = static_cast<double>(used.ru_maxrss) * 1024;
  if (WIFSIGNALED(status))
    throw std::runtime_error(
        fmt::format("the simulation was ended by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status))));
  if (result.empty()) throw std::runtime_error("the simulation ended without a result");
  if (result.front() == kThrew) throw std::runtime_error(result.substr(1));
  result.erase(0, 1);
  return result;
}

}  // namespace orrery
