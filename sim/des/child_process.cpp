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
#include <string_view>
#include <type_traits>

#include "sim/des/simulation.h"

namespace orrery {
namespace {

constexpr char kReturned = 'r', kThrew = 't';
int to_parent = -1;  // write end of the pipe, in the child
thread_local double last_peak_bytes = 0;

void write_all(int file, std::string_view text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = write(file, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // the parent has ended
    done += static_cast<std::size_t>(n);
  }
}

// Visits all parts of an outcome, in the order in which they are sent.
template <class Visit>
void for_each_part(Outcome& o, Visit&& visit) {
  visit(o.stalled);
  visit(o.classes);
  visit(o.flows);
  visit(o.events);
  visit(o.exchanges);
  visit(o.waits);
  visit(o.activities);
  visit(o.seconds);
}

template <class Part>
std::string_view bytes_of(const Part& part) {
  if constexpr (requires { part.data(); }) {
    static_assert(std::is_trivially_copyable_v<typename Part::value_type>);
    return {reinterpret_cast<const char*>(part.data()), part.size() * sizeof(typename Part::value_type)};
  } else {
    return {reinterpret_cast<const char*>(&part), sizeof part};
  }
}

Outcome received(std::string_view left) {
  Outcome outcome;
  const auto take = [&left](std::size_t size, void* to) {
    if (size > 0) std::memcpy(to, left.data(), size);
    left.remove_prefix(size);
  };
  for_each_part(outcome, [&]<class Part>(Part& part) {
    std::size_t size = 0;
    take(sizeof size, &size);
    if constexpr (requires { part.data(); }) {
      part.resize(size / sizeof(typename Part::value_type));
      take(size, part.data());
    } else {
      take(size, &part);
    }
  });
  return outcome;
}

}  // namespace

double last_child_peak_bytes() { return last_peak_bytes; }

void return_from_child(Outcome outcome) {
  write_all(to_parent, {&kReturned, 1});
  for_each_part(outcome, [](const auto& part) {
    const std::string_view bytes = bytes_of(part);
    const std::size_t size = bytes.size();
    write_all(to_parent, bytes_of(size));
    write_all(to_parent, bytes);
  });
  _exit(0);  // no destructors: SimGrid's would end its actors one by one
}

Outcome run_in_child(const std::function<Outcome()>& simulate) {
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
      return_from_child(simulate());
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
  return received(std::string_view(result).substr(1));
}

}  // namespace orrery
