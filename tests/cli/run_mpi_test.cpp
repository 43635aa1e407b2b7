// orrery run --ranks mpi: the same answers as threads give, and no process left behind, however a run ends.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/cli/command.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

// A model of the smallest kind, so that ranks spend their time on each other.
constexpr const char* kTiny = R"({
  "model": {"layers": 2, "hidden": 32, "heads": 4, "vocab": 64, "max_positions": 16, "dropout": 0},
  "cluster": {"node": "cpu-host", "nodes": 1, "devices_per_node": 4},
  "workload": {"sequence_length": 16, "global_batch_size": 4},
  "plan": {"precision": "fp32", "framework": "orrery", "overlap_grad_reduce": false}
})";

class RunOverMpi : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::string(ORRERY_RANK).empty())
      GTEST_SKIP()
          << "CMake found no MPI (Debian: libopenmpi-dev openmpi-bin), so orrery run --ranks mpi was not tested";
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);  // MPI itself leaks
    // Where ranks leave what they leave.
    setenv("TMPDIR", temporary_.c_str(), 1);
    fs::create_directories(temporary_);
  }
  void TearDown() override {
    unsetenv("TMPDIR");
    fs::remove_all(temporary_);
  }
  bool leaves_no_results() const {
    for (const auto& entry : fs::directory_iterator(temporary_))
      if (entry.path().filename().string().starts_with("orrery_ranks_")) return false;
    return true;
  }

  const fs::path temporary_ = fs::path(testing::TempDir()) / ("run_mpi_" + std::to_string(getpid()));
};

TEST_F(RunOverMpi, ComputesWhatOneRankComputesInTheSameReportAsThreads) {
  const Workplace place;
  place.write("tiny.json", kTiny);
  const std::string arguments =
      "run tiny.json --set plan.tensor_parallel=2 --set plan.pipeline_parallel=2 --check --steps 4 --predict --seed 7 ";
  const CommandResult threads = place.orrery(arguments + "--json threads.json");
  const CommandResult mpi = place.orrery(arguments + "--ranks mpi --json mpi.json");
  ASSERT_EQ(threads.code, 0) << threads.err;
  ASSERT_EQ(mpi.code, 0) << mpi.err;
  const json a = json::parse(place.read("threads.json")), b = json::parse(place.read("mpi.json"));
  EXPECT_TRUE(b["agreement"]["agrees"]);
  EXPECT_NEAR(a["agreement"]["gradients"], b["agreement"]["gradients"], 2e-6);
  EXPECT_EQ(a["backend"]["ranks"], "threads");
  EXPECT_EQ(b["backend"]["ranks"], "mpi");
  EXPECT_EQ(a["predicted"], b["predicted"]);
  EXPECT_EQ(a["measured"]["memory"], b["measured"]["memory"]) << "the same tensors live at the same time";
  EXPECT_GT(b["measured"]["step_seconds"], 0);
  for (const auto& [key, value] : a.items()) EXPECT_TRUE(b.contains(key)) << key;
  EXPECT_THAT(mpi.out, HasSubstr("(4 ranks over MPI)"));
  EXPECT_THAT(mpi.out, HasSubstr("Against the same model on one rank"));
  EXPECT_TRUE(leaves_no_results());
}

TEST_F(RunOverMpi, HandsOverTheStorageOfNarrowTensors) {
  const Workplace place;
  place.write("tiny.json", kTiny);
  const std::string arguments =
      "run tiny.json --ranks mpi --set cluster.node=dgx-h100 --set plan.precision=bf16 --set plan.data_parallel=2 "
      "--check --steps 0 --json - ";
  const json exact = json::parse(place.orrery(arguments).out);
  const json rounded = json::parse(place.orrery(arguments + "--bf16-storage").out);
  EXPECT_LT(exact["agreement"]["gradients"], 1e-5);
  EXPECT_GT(rounded["agreement"]["gradients"], 1e-4);
  EXPECT_TRUE(rounded["agreement"]["agrees"]);
}

TEST_F(RunOverMpi, WhatIsMissingIsSaidWithExitCodeTwo) {
  const Workplace place;
  place.write("tiny.json", kTiny);
  const auto expect_refused = [&](const CommandResult& result, const std::string& sentence) {
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.err, HasSubstr(sentence));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  };
  expect_refused(place.orrery("run - --ranks mpi", kTiny), "found a scenario on standard input");
  expect_refused(place.orrery("run tiny.json --ranks mpi --device cuda"), "found mpi with --device cuda");
  const std::string path = std::getenv("PATH");
  setenv("PATH", "/nowhere", 1);
  const CommandResult no_mpirun = place.orrery("run tiny.json --ranks mpi");
  setenv("PATH", path.c_str(), 1);
  expect_refused(no_mpirun, "found no mpirun on the PATH, expected an MPI (Debian: openmpi-bin)");
  // The program by itself, elsewhere.
  const fs::path alone = temporary_ / "orrery";
  fs::copy_file(ORRERY_COMMAND, alone);
  expect_refused(place.program(alone.string(), "run tiny.json --ranks mpi"),
                 "found no program orrery-rank beside this one");
}

// --- Ends ------------------------------------------------------------------------------------------------------------

// The processes below `ancestor` that are ranks.
std::vector<pid_t> ranks_below(pid_t ancestor) {
  std::map<pid_t, pid_t> parents;
  std::vector<pid_t> ranks;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "stat");
    std::string text;
    if (!std::getline(file, text)) continue;
    const std::size_t name = text.find('('), after = text.rfind(')');
    if (after == std::string::npos) continue;
    std::istringstream rest(text.substr(after + 1));
    char state = 0;
    pid_t parent = 0;
    rest >> state >> parent;
    const pid_t pid = std::stoi(text);
    parents[pid] = parent;
    if (text.substr(name + 1, after - name - 1) == "orrery-rank") ranks.push_back(pid);
  }
  std::erase_if(ranks, [&](pid_t pid) {
    while (pid > 1 && pid != ancestor) pid = parents.contains(pid) ? parents[pid] : 0;
    return pid != ancestor;
  });
  return ranks;
}

bool within(std::chrono::seconds limit, const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(20ms);
  }
  return true;
}
bool is_gone(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(file, text)) return true;
  return text.substr(text.rfind(')') + 2, 1) == "Z";  // for the machine's first process to collect
}

// A run that would take hours, some time after its two ranks are there: at once, they have hardly joined MPI yet.
class Endless {
 public:
  Endless(const fs::path& folder, std::chrono::milliseconds time) : errors_(folder / "errors") {
    const fs::path scenario = folder / "tiny.json";
    std::ofstream(scenario) << kTiny;
    pid_ = fork();
    if (pid_ == 0) {
      const int file = open(errors_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      dup2(file, STDOUT_FILENO);
      dup2(file, STDERR_FILENO);
      execl(ORRERY_COMMAND, "orrery", "run", scenario.c_str(), "--ranks", "mpi", "--set", "plan.data_parallel=2",
            "--steps", "1000000", nullptr);
      _exit(127);
    }
    within(30s, [this] { return ranks_below(pid_).size() == 2; });
    ranks = ranks_below(pid_);
    std::this_thread::sleep_for(time);
  }
  ~Endless() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    for (const pid_t rank : ranks)
      if (!is_gone(rank)) kill(rank, SIGKILL);
  }
  Endless(const Endless&) = delete;
  Endless& operator=(const Endless&) = delete;

  void signal(int number) const { kill(pid_, number); }
  int status() {
    int status = -1;
    if (within(90s, [&] { return waitpid(pid_, &status, WNOHANG) == pid_; })) pid_ = 0;
    return status;
  }
  bool ranks_are_gone() const {
    return within(20s, [this] { return std::all_of(ranks.begin(), ranks.end(), is_gone); });
  }
  std::string errors() const {
    std::ostringstream text;
    text << std::ifstream(errors_).rdbuf();
    return text.str();
  }
  std::vector<pid_t> ranks;

 private:
  fs::path errors_;
  pid_t pid_ = 0;
};

constexpr std::array kTimes{0ms, 100ms, 2000ms};

TEST_F(RunOverMpi, AnInterruptEndsAllRanksAndThenTheCommandByTheSameSignal) {
  for (const int number : {SIGINT, SIGTERM}) {
    for (const auto time : kTimes) {
      Endless run(temporary_, time);
      ASSERT_EQ(run.ranks.size(), 2u) << run.errors();
      run.signal(number);
      const int status = run.status();
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == number) << status;
      EXPECT_TRUE(run.ranks_are_gone());
      EXPECT_TRUE(leaves_no_results());
    }
  }
}

TEST_F(RunOverMpi, ARankThatDiesEndsTheOthersAndTheCommandSaysSo) {
  for (const auto time : kTimes) {
    Endless run(temporary_, time);
    ASSERT_EQ(run.ranks.size(), 2u) << run.errors();
    kill(run.ranks.front(), SIGKILL);
    const int status = run.status();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
    EXPECT_THAT(run.errors(), AnyOf(HasSubstr("the ranks ended with"), HasSubstr("mpirun has not noticed")));
    EXPECT_TRUE(run.ranks_are_gone());
    EXPECT_TRUE(leaves_no_results());
  }
}

TEST_F(RunOverMpi, RanksDoNotOutliveACommandThatIsKilled) {
  for (const auto time : kTimes) {
    Endless run(temporary_, time);
    ASSERT_EQ(run.ranks.size(), 2u) << run.errors();
    run.signal(SIGKILL);
    run.status();
    EXPECT_TRUE(run.ranks_are_gone());
  }
}

}  // namespace
}  // namespace orrery
