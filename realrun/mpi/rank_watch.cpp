#include "realrun/mpi/rank_watch.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>

#include "realrun/communicator.h"

namespace orrery {
namespace {

constexpr const char* kVariable = "ORRERY_LAUNCHER";
constexpr std::chrono::seconds kAllHaveCome{30};  // after the first; ranks connect before anything else

// Linux's abstract names need no folder and leave nothing behind.
struct Address {
  explicit Address(std::string_view name) {
    address.sun_family = AF_UNIX;
    name = name.substr(0, sizeof(address.sun_path) - 1);
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* pointer() const { return reinterpret_cast<const sockaddr*>(&address); }
  sockaddr_un address{};
  socklen_t size = 0;
};

ucred other_end(int socket) {
  ucred who{};
  socklen_t size = sizeof(who);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) who.uid = static_cast<uid_t>(-1);
  return who;
}

int launcher = -1;  // this process's connection to the launcher

}  // namespace

RankWatch::RankWatch(std::size_t ranks) : expected_(ranks) {
  static int jobs = 0;
  name_ = fmt::format("orrery-{}-{}", getpid(), jobs++);
  listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const Address address(name_);
  if (listener_ < 0 || bind(listener_, address.pointer(), address.size) != 0 || listen(listener_, SOMAXCONN) != 0) {
    const int reason = errno;
    if (listener_ >= 0) close(listener_);
    throw ExecutionError(fmt::format("no socket for the ranks: {}", std::strerror(reason)));
  }
}

RankWatch::~RankWatch() {
  close(listener_);
  for (const Rank& rank : ranks_)
    if (rank.socket >= 0) close(rank.socket);
}

std::string RankWatch::variable() const { return fmt::format("{}={}", kVariable, name_); }

std::string RankWatch::look() {
  for (int come = 0; (come = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0;) {
    const ucred who = other_end(come);
    if (who.uid != geteuid() || ranks_.size() == expected_) {  // not a rank of this job
      close(come);
      continue;
    }
    if (ranks_.empty()) first_ = std::chrono::steady_clock::now();
    ranks_.push_back({come, who.pid, std::nullopt});
  }
  std::string wrong;
  for (Rank& rank : ranks_) {
    unsigned char code = 0;
    ssize_t n = 0;
    while (rank.socket >= 0 && (n = read(rank.socket, &code, 1)) != -1) {
      if (n > 0) {
        rank.code = code;
        continue;
      }
      close(rank.socket);
      rank.socket = -1;
    }
    if (rank.socket < 0 && !rank.code && wrong.empty())
      wrong = fmt::format("a rank (process {}) ended without a message", rank.process);
  }
  if (wrong.empty() && !ranks_.empty() && ranks_.size() < expected_ &&
      std::chrono::steady_clock::now() - first_ > kAllHaveCome)
    wrong = fmt::format("{} of {} ranks have not started within {} s of the first", expected_ - ranks_.size(),
                        expected_, kAllHaveCome.count());
  return wrong;
}

std::optional<int> RankWatch::ended() const {
  std::optional<int> code;
  for (const Rank& rank : ranks_) {
    if (rank.socket >= 0 || !rank.code) return std::nullopt;
    code = std::max(code.value_or(0), *rank.code);
  }
  return ranks_.size() == expected_ ? code : std::nullopt;
}

void end_with_launcher() {
  const char* name = std::getenv(kVariable);
  if (name == nullptr) return;
  launcher = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const Address address(name);
  if (launcher < 0 || connect(launcher, address.pointer(), address.size) != 0) _exit(1);
  std::thread([] {
    char word = 0;
    while (read(launcher, &word, 1) != 0)
      if (errno != EINTR) break;
    _exit(1);
  }).detach();
}

void tell_launcher_of_end(int code) {
  const auto word = static_cast<unsigned char>(code);
  if (launcher >= 0) [[maybe_unused]]
    const ssize_t sent = send(launcher, &word, 1, MSG_NOSIGNAL);
}

}  // namespace orrery
