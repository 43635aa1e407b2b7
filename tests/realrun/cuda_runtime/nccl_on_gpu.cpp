// Ranks as processes over NCCL: two on one GPU, which call themselves different hosts. For orrery-cuda-tests.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "realrun/agreement.h"
#include "realrun/cuda/backend.h"
#include "realrun/cuda/nccl_communicator.h"
#include "realrun/executor.h"
#include "strategies/lower.h"
#include "strategies/read_scenario.h"

extern char** environ;

namespace orrery {
namespace {

constexpr std::size_t kRanks = 2;
constexpr double kTolerance = 1e-4;
constexpr const char* kRankVariable = "ORRERY_NCCL_TEST_RANK";
constexpr const char* kFolderVariable = "ORRERY_NCCL_TEST_FOLDER";
constexpr const char* kPatchVariable = "ORRERY_NCCL_TEST_PLAN";

Scenario scenario_of(const std::string& patch) {
  nlohmann::json document = nlohmann::json::parse(R"({
    "model": {"layers": 2, "hidden": 32, "heads": 4, "vocab": 256, "max_positions": 16, "dropout": 0},
    "cluster": {"node": "dgx-h100", "nodes": 1},
    "workload": {"sequence_length": 16, "global_batch_size": 4},
    "plan": {"precision": "fp32", "data_parallel": 1}})");
  document.merge_patch(nlohmann::json{{"plan", nlohmann::json::parse(patch)}});
  return read_scenario(document, {});
}

// The part of one process; in the others' run it is skipped.
TEST(NcclRank, ComputesItsPart) {
  const char* const rank = std::getenv(kRankVariable);
  if (rank == nullptr) GTEST_SKIP() << "started by Nccl.ProcessesComputeWhatOneRankComputes alone";
  const Scenario scenario = scenario_of(std::getenv(kPatchVariable));
  Program program;
  lower(scenario, program);
  CudaBackend backend(0, false);
  NcclOptions nccl;
  nccl.rank = std::stoul(rank);
  nccl.ranks = kRanks;
  nccl.id_directory = std::getenv(kFolderVariable);
  nccl.one_device = true;
  nccl.check_names = true;
  const std::unique_ptr<Communicator> communicator = make_nccl_communicator(backend, nccl);
  ExecutionOptions options;
  options.steps = 2;
  options.epsilon = 1e-4;
  const RankResult own = execute_rank(scenario, program, options, backend, *communicator);
  Members all;
  for (std::size_t r = 0; r < kRanks; ++r) all.push_back(r);
  const auto numbers = communicator->gather_values(all, "results", to_numbers(own));
  if (nccl.rank != 0) return;
  std::vector<RankResult> results;
  for (const auto& of_rank : numbers) results.push_back(rank_result_from(of_rank));
  const Agreement found = agreement(execute(on_one_rank(scenario), options), assemble(scenario, results));
  EXPECT_TRUE(found.within(kTolerance)) << "gradients " << found.gradients << " parameters " << found.parameters;
}

TEST(Nccl, ProcessesComputeWhatOneRankComputes) {
  if (!built_with_nccl()) GTEST_SKIP() << "built without NCCL";
  for (const char* patch : {R"({"data_parallel": 2})", R"({"data_parallel": 2, "zero_stage": 3})",
                            R"({"tensor_parallel": 2, "sequence_parallel": true})", R"({"pipeline_parallel": 2})",
                            R"({"context_parallel": 2})"}) {
    SCOPED_TRACE(patch);
    std::string folder = (std::filesystem::temp_directory_path() / "orrery-nccl-XXXXXX").string();
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    std::vector<pid_t> processes;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      std::vector<std::string> environment{std::string(kRankVariable) + "=" + std::to_string(rank),
                                           std::string(kFolderVariable) + "=" + folder,
                                           std::string(kPatchVariable) + "=" + patch};
      for (char** variable = environ; *variable != nullptr; ++variable) environment.emplace_back(*variable);
      std::vector<char*> pointers;
      for (std::string& variable : environment) pointers.push_back(variable.data());
      pointers.push_back(nullptr);
      std::string program = "/proc/self/exe", filter = "--gtest_filter=NcclRank.*", output = "--gtest_output=";
      const std::array<char*, 4> arguments{program.data(), filter.data(), output.data(), nullptr};
      pid_t process = 0;
      ASSERT_EQ(posix_spawn(&process, program.c_str(), nullptr, nullptr, arguments.data(), pointers.data()), 0);
      processes.push_back(process);
    }
    for (const pid_t process : processes) {
      int status = 0;
      ASSERT_EQ(waitpid(process, &status, 0), process);
      EXPECT_EQ(status, 0);
    }
    std::filesystem::remove_all(folder);
  }
}

}  // namespace
}  // namespace orrery
