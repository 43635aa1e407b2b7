// Ranks on hosts of their own: network namespaces behind shaped links (realrun/netlab). Values, not times.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

namespace orrery {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int kSkipped = 77;  // netlab.py's exit code where no lab can be built

// netlab.py as a process of its own, with all it says.
class Netlab {
 public:
  explicit Netlab(const std::string& arguments) {
    std::array<int, 2> ends{};
    if (pipe(ends.data()) != 0) ADD_FAILURE() << "no pipe";
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      dup2(ends[1], STDERR_FILENO);
      close(ends[0]);
      close(ends[1]);
      const std::string command = fmt::format(
          "exec env ASAN_OPTIONS=detect_leaks=0 PYTHONDONTWRITEBYTECODE=1 python3 '{}/realrun/netlab/netlab.py' {}",
          ORRERY_SOURCE_DIR, arguments);
      execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      _exit(127);
    }
    close(ends[1]);
    reader_ = std::thread([this, from = ends[0]] {
      std::array<char, 4096> buffer{};
      for (ssize_t n = 0; (n = read(from, buffer.data(), buffer.size())) > 0;)
        text_.append(buffer.data(), static_cast<std::size_t>(n));
      close(from);
    });
  }
  ~Netlab() {
    if (!waited_) wait();
    if (reader_.joinable()) reader_.join();
  }

  pid_t pid() const { return pid_; }
  // Its exit code, or 128 + signal.
  int wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    waited_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  // The same, once all that it started has ended too.
  int end() {
    const int code = wait();
    reader_.join();
    return code;
  }
  const std::string& text() const { return text_; }  // after end()

  // Processes of the lab: they have its name in their environment.
  std::vector<pid_t> processes(const std::string& program = "") const {
    std::vector<pid_t> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (!std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isdigit(c) != 0; })) continue;
      if (read_file(entry.path() / "environ").find(tag()) == std::string::npos) continue;
      if (!program.empty() && read_file(entry.path() / "comm") != program + "\n") continue;
      found.push_back(static_cast<pid_t>(std::stoi(name)));
    }
    return found;
  }
  void expect_nothing_left() const {
    EXPECT_THAT(processes(), testing::IsEmpty());
    std::vector<std::string> left;
    for (const char* folder : {"/run/netns", "/tmp"})
      if (std::filesystem::exists(folder))
        for (const auto& entry : std::filesystem::directory_iterator(folder))
          if (entry.path().filename().string().starts_with(tag())) left.push_back(entry.path());
    EXPECT_THAT(left, testing::IsEmpty());
  }

 private:
  std::string tag() const { return fmt::format("orrerylab-{}-", pid_); }
  static std::string read_file(const std::filesystem::path& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  pid_t pid_ = -1;
  bool waited_ = false;
  std::thread reader_;
  std::string text_;
};

class NetlabTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::string(ORRERY_RANK).empty())
      GTEST_SKIP() << "CMake found no MPI (Debian: libopenmpi-dev openmpi-bin), so no ranks ran on hosts of their own";
    Netlab probe("exec --hosts 1 -- true");
    if (probe.end() == kSkipped) GTEST_SKIP() << probe.text();
  }

  static std::string exec(int hosts, const std::string& command, const std::string& topology = "") {
    return fmt::format("exec --hosts {} {} -- '{}' {}", hosts, topology, ORRERY_RANK, command);
  }
  static void expect_success(const std::string& arguments, const std::string& said) {
    Netlab lab(arguments);
    EXPECT_EQ(lab.end(), 0) << lab.text();
    EXPECT_THAT(lab.text(), HasSubstr(said));
    lab.expect_nothing_left();
  }
  // A job that would run for hours, once its ranks are there.
  static std::vector<pid_t> wait_for_ranks(const Netlab& lab, std::size_t ranks) {
    for (int tries = 0; tries < 300; ++tries) {
      const std::vector<pid_t> found = lab.processes("orrery-rank");
      if (found.size() == ranks) return found;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    ADD_FAILURE() << "the ranks did not start";
    return {};
  }
  static std::string endless(int hosts) {
    return exec(hosts, "collective all_reduce -b 1M -e 1M --iterations 1000000");
  }
};

// orrery-rank checks every value.
TEST_F(NetlabTest, CollectivesAreRightOnTwoHosts) {
  for (const char* kind : {"all_reduce", "reduce_scatter"})
    expect_success(exec(2, fmt::format("collective {} -b 1K -e 64K --samples 1 --iterations 1", kind)),
                   fmt::format("\"{}\"", kind));
}
TEST_F(NetlabTest, CollectivesAreRightOnFourHostsBehindAnOversubscribedSpine) {
  for (const char* kind : {"all_reduce", "all_gather", "all_to_all", "broadcast"})
    expect_success(exec(4, fmt::format("collective {} -b 1K -e 64K --samples 1 --iterations 1", kind),
                        "--hosts-per-leaf 2 --oversubscription 2"),
                   fmt::format("\"{}\"", kind));
}
// What leaves a node goes in parts over all its hosts; so few elements that the parts differ, too.
TEST_F(NetlabTest, RoutedMessagesAreRightBetweenTwoNodesOfTwoHosts) {
  for (const char* bytes : {"20", "64K"})
    expect_success(exec(4,
                        fmt::format("collective send_recv --algorithm hierarchical --ranks-per-node 2 -b {0} -e {0} "
                                    "--samples 1 --iterations 1",
                                    bytes),
                        "--hosts-per-node 2"),
                   "\"hierarchical\"");
}

// Loss, gradients and updated parameters, to 2e-5.
TEST_F(NetlabTest, ATrainingStepOnTwoHostsIsThatOfOneRank) {
  expect_success(
      exec(2, fmt::format("run '{}/tests/netlab/tiny.json' --check --set plan.data_parallel=2 --set plan.zero_stage=2",
                          ORRERY_SOURCE_DIR)),
      "\"agreement\"");
}
TEST_F(NetlabTest, ATrainingStepOnFourHostsIsThatOfOneRank) {
  expect_success(exec(4, fmt::format("run '{}/tests/netlab/tiny.json' --check --set plan.tensor_parallel=2"
                                     " --set plan.pipeline_parallel=2",
                                     ORRERY_SOURCE_DIR)),
                 "\"agreement\"");
}

TEST_F(NetlabTest, AKilledRankEndsTheRunWithASentence) {
  Netlab lab(endless(4));
  const std::vector<pid_t> ranks = wait_for_ranks(lab, 4);
  if (!ranks.empty())
    kill(ranks.back(), SIGKILL);
  else
    kill(lab.pid(), SIGTERM);
  EXPECT_NE(lab.end(), 0);
  // mpirun reports whom it sees first: the killed rank, or one that lost its connection to it.
  EXPECT_THAT(lab.text(), AnyOf(HasSubstr("exited on signal 9"), HasSubstr("non-zero")));
  lab.expect_nothing_left();
}
TEST_F(NetlabTest, AnInterruptedRunLeavesNothing) {
  for (const int sig : {SIGTERM, SIGINT}) {
    Netlab lab(endless(2));
    wait_for_ranks(lab, 2);
    kill(lab.pid(), sig);
    EXPECT_EQ(lab.end(), 128 + sig) << lab.text();
    lab.expect_nothing_left();
  }
}
TEST_F(NetlabTest, WhatAKilledRunLeavesCanBeCleaned) {
  Netlab lab(endless(2));
  wait_for_ranks(lab, 2);
  kill(lab.pid(), SIGKILL);
  EXPECT_EQ(lab.wait(), 128 + SIGKILL);  // its ranks go on
  Netlab clean("clean");
  EXPECT_EQ(clean.end(), 0) << clean.text();
  EXPECT_THAT(clean.text(), HasSubstr(fmt::format("orrerylab-{}", lab.pid())));
  lab.expect_nothing_left();
}

}  // namespace
}  // namespace orrery
