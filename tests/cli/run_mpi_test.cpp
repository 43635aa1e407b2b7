// orrery run --ranks mpi: the same answers as threads give, and no process left behind, however a run ends. On CPUs
// over MPI; as on GPUs over NCCL, with stand-ins of both that compute on the CPU (tests/realrun/cuda_runtime).
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
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

bool within(std::chrono::seconds limit, const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(20ms);
  }
  return true;
}

// A model of the smallest kind, so that ranks spend their time on each other.
constexpr const char* kTiny = R"({
  "model": {"layers": 2, "hidden": 32, "heads": 4, "vocab": 64, "max_positions": 16, "dropout": 0},
  "cluster": {"node": "cpu-host", "nodes": 1, "devices_per_node": 4},
  "workload": {"sequence_length": 16, "global_batch_size": 4},
  "plan": {"precision": "fp32", "framework": "orrery", "overlap_grad_reduce": false}
})";

// Set where CMake builds them.
#ifndef ORRERY_GPU
#define ORRERY_GPU ""
#endif
#ifndef ORRERY_GPU_ON_STAND_IN
#define ORRERY_GPU_ON_STAND_IN ""
#endif

class RunOverMpi : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::string(ORRERY_RANK).empty())
      GTEST_SKIP()
          << "CMake found no MPI (Debian: libopenmpi-dev openmpi-bin), so orrery run --ranks mpi was not tested";
    begin();
  }
  void begin() {
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);  // MPI itself leaks
    // Where ranks leave what they leave.
    setenv("TMPDIR", temporary_.c_str(), 1);
    fs::create_directories(temporary_);
  }
  void TearDown() override {
    unsetenv("TMPDIR");
    // An mpirun that was left behind tidies up there too.
    EXPECT_TRUE(within(30s, [this] {
      std::error_code another_was_first;
      fs::remove_all(temporary_, another_was_first);
      return !fs::exists(temporary_);
    }));
  }
  bool leaves_no_results() const {
    for (const auto& entry : fs::directory_iterator(temporary_))
      for (const char* what : {"orrery_ranks_", "orrery_nccl_"})
        if (entry.path().filename().string().starts_with(what)) return false;
    return true;
  }

  const fs::path temporary_ = fs::path(testing::TempDir()) / ("run_mpi_" + std::to_string(getpid()));
};

class RunOverNccl : public RunOverMpi {
 protected:
  void SetUp() override {
    if (std::string(ORRERY_GPU).empty())
      GTEST_SKIP() << "orrery-gpu is not built (CMake found no nvcc), so orrery run --device cuda --ranks mpi was not "
                      "tested";
    begin();
  }
};

// With mpirun, over the stand-ins.
class RunOverNcclOnStandIn : public RunOverNccl {
 protected:
  void SetUp() override {
    if (std::string(ORRERY_GPU_ON_STAND_IN).empty())
      GTEST_SKIP()
          << "orrery-gpu is not built on stand-ins (CMake found no nvcc or no nccl.h), so ranks over NCCL were "
             "not tested";
    if (std::system("mpirun --version >/dev/null 2>&1") != 0)
      GTEST_SKIP() << "there is no mpirun (Debian: openmpi-bin), so ranks over NCCL were not tested";
    begin();
  }
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

// All-to-alls, rings and gathers over groups of some of the ranks.
TEST_F(RunOverMpi, ComputesWhatOneRankComputesOverGroupsOfSomeRanks) {
  const Workplace place;
  place.write("tiny.json", kTiny);
  for (const char* plan :
       {"--set plan.context_parallel=4 --set plan.context_parallel_type=usp --set plan.ulysses_degree=2",
        "--set plan.context_parallel=2 --set plan.data_parallel=2 --set plan.context_parallel_type=all_gather",
        // Between two deals ranks give each other parts of unequal size.
        R"(--set plan.context_parallel=4 --set 'plan.layers=[{"from":1,"context_parallel_balance":"contiguous"}]')",
        "--set plan.data_parallel=4 --set plan.zero_stage=3 --set plan.zero_hpz_partition_size=2",
        "--set plan.data_parallel=4 --set plan.zero_stage=3 --set plan.mics_shard_size=2"}) {
    const CommandResult mpi = place.orrery(std::string("run tiny.json --ranks mpi --check --steps 0 --json - ") + plan);
    ASSERT_EQ(mpi.code, 0) << plan << mpi.err;
    EXPECT_TRUE(json::parse(mpi.out)["agreement"]["agrees"]) << plan;
  }
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
  const std::string path = std::getenv("PATH");
  setenv("PATH", "/nowhere", 1);
  const CommandResult no_mpirun = place.orrery("run tiny.json --ranks mpi");
  setenv("PATH", path.c_str(), 1);
  expect_refused(no_mpirun, "found no mpirun on the PATH, expected an MPI (Debian: openmpi-bin)");
  // The program by itself, elsewhere.
  const fs::path alone = temporary_ / "orrery";
  fs::copy_file(ORRERY_COMMAND, alone);
  expect_refused(place.program(alone.string(), "run tiny.json --ranks mpi"),
                 "found no program orrery-rank next to this one");
  expect_refused(place.program(alone.string(), "run tiny.json --ranks mpi --device cuda"),
                 "found no program orrery-gpu next to this one");
}

TEST_F(RunOverNccl, WhatIsMissingIsSaidAndNothingStays) {
  const Workplace place;
  place.write("tiny.json", kTiny);
  const auto expect_refused = [&](const CommandResult& result, int code, const std::string& sentence) {
    EXPECT_EQ(result.code, code);
    EXPECT_THAT(result.err, HasSubstr(sentence));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_TRUE(leaves_no_results());
  };
  const std::string gpu = ORRERY_GPU;
  if (place.program(gpu, "rank tiny.json").err.find("without NCCL") != std::string::npos) {
    expect_refused(place.orrery("run tiny.json --device cuda --ranks mpi"), 2, "in a program without NCCL");
    return;
  }
  expect_refused(place.program(gpu, "rank tiny.json"), 2, "found no rank in the environment");
  const std::string rank = "RANK=1 WORLD_SIZE=2 '" + gpu + "' rank tiny.json ";
  expect_refused(place.program("env", rank), 2,
                 "found a plan of 4 ranks, expected a plan of the 2 ranks that were started");
  expect_refused(place.program("env", rank + "--set plan.data_parallel=2"), 2,
                 "--id-directory: found nothing, expected an empty folder that all ranks see");
  if (fs::exists("/dev/nvidiactl")) GTEST_SKIP() << "there is a GPU here, so what is said without one was not tested";
  expect_refused(place.program("env", rank + "--set plan.data_parallel=2 --id-directory ."), 1,
                 "no NVIDIA driver is installed here");
  expect_refused(place.orrery("run tiny.json --device cuda --ranks mpi --set plan.data_parallel=2"), 1,
                 "no NVIDIA driver is installed here");
}

TEST_F(RunOverNcclOnStandIn, ComputesWhatOneRankComputesInTheSameReportAsThreads) {
  const Workplace place;
  place.write("tiny.json", kTiny);
  const std::string arguments =
      "run tiny.json --device cuda --set plan.tensor_parallel=2 --set plan.pipeline_parallel=2 --check --steps 4 "
      "--predict --seed 7 ";
  const CommandResult threads = place.program(ORRERY_GPU_ON_STAND_IN, arguments + "--json threads.json");
  const CommandResult nccl = place.program(ORRERY_GPU_ON_STAND_IN, arguments + "--ranks mpi --json nccl.json");
  ASSERT_EQ(threads.code, 0) << threads.err;
  ASSERT_EQ(nccl.code, 0) << nccl.err;
  const json a = json::parse(place.read("threads.json")), b = json::parse(place.read("nccl.json"));
  EXPECT_TRUE(b["agreement"]["agrees"]);
  EXPECT_EQ(a["agreement"], b["agreement"]) << "to the last digit";
  EXPECT_EQ(b["backend"]["ranks"], "mpi");
  EXPECT_EQ(b["backend"]["kind"], "cuda") << "rank 0's, not this process's";
  EXPECT_EQ(a["backend"]["device"], b["backend"]["device"]);
  EXPECT_EQ(a["predicted"], b["predicted"]);
  EXPECT_EQ(a["measured"]["memory"], b["measured"]["memory"]) << "the same tensors live at the same time";
  EXPECT_GT(b["measured"]["step_seconds"], 0);
  EXPECT_THAT(nccl.out, HasSubstr("(4 ranks over NCCL)"));
  EXPECT_TRUE(leaves_no_results());
}

TEST_F(RunOverNcclOnStandIn, RefusesNumbersThatNoKernelStores) {
  const Workplace place;
  place.write("tiny.json", kTiny);
  const std::string adapters = " tiny.json --set plan.lora_rank=4 --set plan.lora_alpha=4 --check ",
                    four_bits = adapters + "--set plan.lora_quantize_base=true ";
  const auto refuses = [](const CommandResult& result) {
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr("in nf4, expected another: no kernel of a GPU stores such numbers yet"));
  };
  EXPECT_EQ(place.program(ORRERY_GPU_ON_STAND_IN, "run" + adapters + "--device cuda").code, 0);
  for (const char* ranks : {"threads", "mpi"})
    refuses(place.program(ORRERY_GPU_ON_STAND_IN, "run" + four_bits + "--device cuda --ranks " + ranks));
  refuses(place.program("env", std::string("RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 ") + ORRERY_GPU_ON_STAND_IN + " rank" +
                                   four_bits + "--set plan.data_parallel=1 --id-directory ."));
}

// As srun and torchrun start ranks: rank 0 prints the report.
TEST_F(RunOverNcclOnStandIn, RanksThatAreStartedByHandReportThemselves) {
  const Workplace place;
  place.write("tiny.json", kTiny);
  place.write("two",
              "mkdir ids; for r in 1 0; do RANK=$r WORLD_SIZE=2 LOCAL_RANK=$r \"$@\" --id-directory ids & done; "
              "wait -n && wait -n");
  const std::string rank =
      std::string("two ") + ORRERY_GPU_ON_STAND_IN + " rank tiny.json --set plan.data_parallel=2 --seed 7 ";
  const CommandResult checked = place.program("bash", rank + "--check");
  ASSERT_EQ(checked.code, 0) << checked.err;
  EXPECT_LT(json::parse(checked.out)["agreement"]["gradients"], 2e-5);
  const CommandResult measured = place.program("bash", "-c 'rm -r ids'; bash " + rank + "--steps 4");
  ASSERT_EQ(measured.code, 0) << measured.err;
  EXPECT_GT(json::parse(measured.out)["step_seconds"], 0);
  place.program("bash", "-c 'rm -r ids; mkdir ids'");
  const CommandResult started = place.program(
      "env", std::string("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -n 2 ") +
                 ORRERY_GPU_ON_STAND_IN +
                 " rank tiny.json --set plan.pipeline_parallel=2 --set plan.data_parallel=1 --check "
                 "--id-directory ids");
  ASSERT_EQ(started.code, 0) << started.err;
  EXPECT_LT(json::parse(started.out)["agreement"]["gradients"], 2e-5);
  EXPECT_TRUE(leaves_no_results());
}

// --- Ends ------------------------------------------------------------------------------------------------------------

// A command that starts ranks, and what the kernel calls those.
struct Starts {
  const char* program;
  const char* device;
  std::string rank;
};
const Starts kOverMpi{ORRERY_COMMAND, "cpu", "orrery-rank"};
const Starts kOverNccl{ORRERY_GPU_ON_STAND_IN, "cuda", "orrery-gpu-on-s"};

// The processes below `ancestor` of this name.
std::vector<pid_t> ranks_below(pid_t ancestor, const std::string& rank) {
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
    if (pid != ancestor && text.substr(name + 1, after - name - 1) == rank) ranks.push_back(pid);
  }
  std::erase_if(ranks, [&](pid_t pid) {
    while (pid > 1 && pid != ancestor) pid = parents.contains(pid) ? parents[pid] : 0;
    return pid != ancestor;
  });
  return ranks;
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
  Endless(const fs::path& folder, std::chrono::milliseconds time, const Starts& starts = kOverMpi)
      : errors_(folder / "errors") {
    const fs::path scenario = folder / "tiny.json";
    std::ofstream(scenario) << kTiny;
    pid_ = fork();
    if (pid_ == 0) {
      const int file = open(errors_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      dup2(file, STDOUT_FILENO);
      dup2(file, STDERR_FILENO);
      execl(starts.program, "orrery", "run", scenario.c_str(), "--device", starts.device, "--ranks", "mpi", "--set",
            "plan.data_parallel=2", "--steps", "1000000", nullptr);
      _exit(127);
    }
    within(30s, [&] { return ranks_below(pid_, starts.rank).size() == 2; });
    ranks = ranks_below(pid_, starts.rank);
    launchers_ = ranks_below(pid_, "mpirun");
    std::this_thread::sleep_for(time);
  }
  ~Endless() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    for (const auto* processes : {&ranks, &launchers_})
      for (const pid_t process : *processes)
        if (!is_gone(process)) kill(process, SIGKILL);
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
  std::vector<pid_t> launchers_;  // Open MPI's sometimes wait for themselves
};

constexpr std::array kTimes{0ms, 100ms, 2000ms};

void expect_end_by(Endless& run, int signal) {
  ASSERT_EQ(run.ranks.size(), 2u) << run.errors();
  run.signal(signal);
  const int status = run.status();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
  EXPECT_TRUE(run.ranks_are_gone());
}

void expect_a_death_to_be_said(Endless& run) {
  ASSERT_EQ(run.ranks.size(), 2u) << run.errors();
  kill(run.ranks.front(), SIGKILL);
  const int status = run.status();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
  EXPECT_THAT(run.errors(), AnyOf(HasSubstr("the ranks ended with"), HasSubstr("mpirun has not noticed")));
  EXPECT_TRUE(run.ranks_are_gone());
}

TEST_F(RunOverMpi, AnInterruptEndsAllRanksAndThenTheCommandByTheSameSignal) {
  for (const int number : {SIGINT, SIGTERM}) {
    for (const auto time : kTimes) {
      Endless run(temporary_, time);
      expect_end_by(run, number);
      EXPECT_TRUE(leaves_no_results());
    }
  }
}

TEST_F(RunOverMpi, ARankThatDiesEndsTheOthersAndTheCommandSaysSo) {
  for (const auto time : kTimes) {
    Endless run(temporary_, time);
    expect_a_death_to_be_said(run);
    EXPECT_TRUE(leaves_no_results());
  }
}

// Open MPI's mpirun sometimes does not end when its ranks have.
TEST_F(RunOverMpi, AnMpirunThatDoesNotEndWithItsRanksIsEnded) {
  const Workplace place;
  place.write("tiny.json", kTiny);
  place.write("mpirun", "#!/bin/bash\n\"$MPIRUN\" \"$@\"\ntrap '' TERM\nwhile :; do sleep 0.1; done\n");
  const CommandResult both = place.shell(R"sh(chmod +x mpirun; export MPIRUN=$(command -v mpirun) PATH=$PWD:$PATH
run="$ORRERY run tiny.json --ranks mpi --set plan.data_parallel=2 --steps 1 --warmup 0"
(timeout -k 1 60 $run --set plan.optimizer_dtype=int4 2>refused; echo "refused with $?") &
timeout -k 1 60 $run; echo "run with $?"; wait; cat refused >&2)sh");
  EXPECT_THAT(both.out, AllOf(HasSubstr("run with 0"), HasSubstr("refused with 2"))) << both.err;
  EXPECT_THAT(both.err, HasSubstr("no kernel keeps 4-bit moments yet"));
  EXPECT_TRUE(leaves_no_results());
}

TEST_F(RunOverMpi, RanksDoNotOutliveACommandThatIsKilled) {
  for (const auto time : kTimes) {
    Endless run(temporary_, time);
    expect_end_by(run, SIGKILL);
  }
}

TEST_F(RunOverMpi, WhatAKilledCommandLeftGoesWithTheNextOne) {
  const fs::path left = temporary_ / "orrery_ranks_killed", used = temporary_ / "orrery_ranks_used";
  for (const fs::path& folder : {left, used}) {
    fs::create_directories(folder / "session");
    std::ofstream(folder / "lock");
  }
  const int lock = open((used / "lock").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(lock, LOCK_EX), 0);
  const auto result = Workplace().orrery("run small-gpt --ranks mpi --steps 1 --warmup 0");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::exists(used)) << "another command is at work in it";
  close(lock);
}

TEST_F(RunOverNcclOnStandIn, NoRankOutlivesItsCommand) {
  for (const int number : {SIGTERM, SIGKILL}) {
    Endless run(temporary_, 2000ms, kOverNccl);
    expect_end_by(run, number);
  }
}

TEST_F(RunOverNcclOnStandIn, ARankThatDiesEndsTheOthersAndTheCommandSaysSo) {
  for (const auto time : {0ms, 2000ms}) {
    Endless run(temporary_, time, kOverNccl);
    expect_a_death_to_be_said(run);
  }
}

}  // namespace
}  // namespace orrery
