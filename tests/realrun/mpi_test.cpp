// Ranks as MPI processes against what each rank can work out by itself; started by mpirun on this host.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "realrun/agreement.h"
#include "realrun/mpi/launch.h"
#include "realrun/mpi/transfers.h"
#include "sim/base/error.h"
#include "sim/cost/collective_flows.h"
#include "strategies/lower.h"
#include "strategies/read_scenario.h"

namespace orrery {
namespace {

using ::testing::HasSubstr;
using Algorithm = CollectiveAlgorithm;

struct Ended {
  int status = 0;
  std::string text;
};

class Mpi : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::string(ORRERY_MPIRUN).empty())
      GTEST_SKIP() << "CMake found no MPI (Debian: libopenmpi-dev openmpi-bin), so ranks as processes were not tested";
  }

  // Root may run them: containers of tests have no other user. Sanitizers: MPI itself leaks.
  static Ended mpirun(int ranks, const std::string& arguments) {
    const std::string command = fmt::format(
        "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 "
        "OMPI_MCA_mpi_yield_when_idle=1 ASAN_OPTIONS=detect_leaks=0 timeout -k 10 100 '{}' -n {} '{}' {} 2>&1",
        ORRERY_MPIRUN, ranks, ORRERY_MPI_RANKS, arguments);
    Ended run;
    FILE* pipe = popen(command.c_str(), "r");
    if (pipe == nullptr) return {-1, "popen failed"};
    std::array<char, 4096> buffer{};
    while (const std::size_t n = fread(buffer.data(), 1, buffer.size(), pipe)) run.text.append(buffer.data(), n);
    run.status = pclose(pipe);
    return run;
  }
  static void expect_agreement(int ranks, const std::string& algorithm) {
    const Ended run = mpirun(ranks, "collectives " + algorithm);
    EXPECT_EQ(run.status, 0) << ranks << " ranks, " << algorithm << ": " << run.text;
    EXPECT_THAT(run.text, HasSubstr("all ranks agree"));
  }
  static void expect_end(const std::string& what, const std::string& sentence, int ranks = 2) {
    const Ended run = mpirun(ranks, what);
    EXPECT_NE(run.status, 0) << run.text;
    EXPECT_THAT(run.text, HasSubstr(sentence)) << what;
  }
};

TEST_F(Mpi, RingsOfAnyLengthGiveWhatEachRankWorksOut) {
  for (const int ranks : {1, 2, 3, 5, 8}) expect_agreement(ranks, "ring");
}
TEST_F(Mpi, TreesDo) {
  for (const int ranks : {2, 3, 6, 7}) expect_agreement(ranks, "tree");
}
TEST_F(Mpi, HalvingAndDoublingDoes) {
  for (const int ranks : {2, 4, 5, 7}) expect_agreement(ranks, "halving_doubling");
}

TEST_F(Mpi, RanksThatDivergeFindOut) {
  expect_end("diverging", "\"activations\" of ranks {0, 1}");
  expect_end("diverging", "\"gradients\" of ranks {0, 1}");
  expect_end("diverging_sizes", "\"gradients\" of ranks {0, 1}");
}
TEST_F(Mpi, AWaitInVainSaysForWhom) {
  expect_end("absent",
             "rank 0 (forward of micro-batch 3, op \"linear\") waits in \"gradients\" of ranks {0, 1} for rank 1");
  expect_end("no_message", "waits for the output gradient of position 2, micro-batch 5 from rank 1");
}
TEST_F(Mpi, MessagesThatDoNotFitAreReported) {
  expect_end("left_over", "rank 1 has never received a message from rank 0");
  expect_end("wrong_counts", "in \"exchange\" of ranks {0, 1}: expects 80 bytes from rank 1, which sends 40");
  expect_end("wrong_length", "in the input of position 2, micro-batch 5: expects 4000 bytes from rank 0, which sends 40");
}
TEST_F(Mpi, ARankThatFailsEndsTheOthers) {
  expect_end("throws", "orrery-rank: rank 1 has had enough", 3);
  expect_end("killed", "signal 9", 3);
}

// --- Started from a program without MPI (tests/cli/run_mpi_test.cpp has how such a run ends)
// --------------------------

TEST_F(Mpi, RanksStartedFromHereSayWhatThreadsDo) {
  ScenarioSource source;
  const std::vector<std::string> sets{"plan.data_parallel=2", "model.layers=1",         "model.hidden=32",
                                      "model.vocab=64",       "model.max_positions=16", "workload.sequence_length=16"};
  const Scenario scenario = read_scenario(load_scenario_document("small-gpt", sets, source), source);
  Program program;
  lower(scenario, program);
  ExecutionOptions options;
  options.seed = 3;
  options.measure = true;
  options.keep_tensors = false;
  options.steps = 4;
  options.warmup_steps = 1;
  std::vector<std::int64_t> steps;
  options.after_step = [&](std::size_t rank, std::int64_t step) {
    EXPECT_EQ(rank, 0u);
    steps.push_back(step);
  };
  setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
  const JobResults job = execute_ranks_over_mpi({.scenario = "small-gpt", .sets = sets, .ranks = 2}, options);
  const std::vector<RankResult>& processes = job.ranks;
  EXPECT_EQ(job.facts.device, make_cpu_backend()->facts().device);
  EXPECT_EQ(steps, (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
  options.after_step = {};
  const std::vector<RankResult> threads =
      execute_ranks(scenario, program, options, [](std::size_t) { return make_cpu_backend(); });
  ASSERT_EQ(processes.size(), threads.size());
  for (std::size_t r = 0; r < threads.size(); ++r) {
    EXPECT_EQ(processes[r].rank, threads[r].rank);
    EXPECT_EQ(processes[r].losses, threads[r].losses);
    EXPECT_EQ(processes[r].step_seconds.size(), threads[r].step_seconds.size());
    EXPECT_EQ(processes[r].ops.size(), threads[r].ops.size());
    EXPECT_EQ(processes[r].peak_bytes, threads[r].peak_bytes);
  }
}

// Workers that take the mean of their copies on another thread, over a communicator of its own.
TEST_F(Mpi, WorkersAgreeAsThreadsDo) {
  ScenarioSource source;
  const std::vector<std::string> sets{"plan.data_parallel=2", "model.layers=1",         "model.hidden=32",
                                      "model.vocab=64",       "model.max_positions=16", "workload.sequence_length=16",
                                      "plan.local_steps=1",   "plan.local_workers=2",   "plan.outer_optimizer=momentum",
                                      "plan.outer_delay=1"};
  const Scenario scenario = read_scenario(load_scenario_document("small-gpt", sets, source), source);
  ExecutionOptions options;
  options.seed = 3;
  const Execution processes =
      assemble(scenario, execute_ranks_over_mpi({.scenario = "small-gpt", .sets = sets, .ranks = 2}, options).ranks);
  const Execution threads = execute(scenario, options_to_compare(options, scenario, 1));  // what such ranks run
  ASSERT_EQ(threads.losses.size(), 2u);
  ASSERT_EQ(processes.parameters.size(), threads.parameters.size());
  for (std::size_t t = 0; t < threads.parameters.size(); ++t)
    EXPECT_EQ(processes.parameters[t].values, threads.parameters[t].values) << threads.parameters[t].name;
}

TEST_F(Mpi, WhatTheFirstRankThatFailsSaysIsTheError) {
  // Ranks of another number than the plan's: each finds out by itself.
  ExecutionOptions options;
  try {
    execute_ranks_over_mpi({.scenario = "small-gpt", .sets = {}, .ranks = 2}, options);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("found a plan of 1 ranks, expected a plan of the 2 ranks that were started"));
  }
}

TEST(MpiResults, ThatWereCutOffAreNotTaken) {
  const std::string path = testing::TempDir() + "rank_results";
  RankResult result;
  result.losses = {1, 2};
  BackendFacts facts;
  facts.kind = "cuda";
  facts.device = "a device";
  facts.memory_bytes = 8e9;
  facts.asynchronous_streams = true;
  write_rank_results(path, {{result, result}, facts});
  const JobResults read = read_rank_results(path);
  EXPECT_EQ(read.ranks.size(), 2u);
  EXPECT_EQ(read.ranks[1].losses, result.losses);
  EXPECT_EQ(read.facts.device, "a device");
  EXPECT_EQ(read.facts.memory_bytes, 8e9);
  EXPECT_TRUE(read.facts.asynchronous_streams);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_THROW(read_rank_results(path), ExecutionError);
  std::filesystem::remove(path);
  EXPECT_THROW(read_rank_results(path), ExecutionError);
}

// --- The schedules themselves, without MPI ---------------------------------------------------------------------------

using Edge = std::pair<std::size_t, std::size_t>;

// Bytes by pair of members, as shares of the op's.
std::map<Edge, double> scheduled(OpKind kind, Algorithm algorithm, std::size_t n) {
  constexpr std::int64_t kElements = 27720;  // divisible by all that occurs
  const bool whole = kind == OpKind::all_reduce || kind == OpKind::broadcast;
  std::map<Edge, double> shares;
  const std::vector<std::int64_t> parts(n, kElements);
  for (std::size_t i = 0; i < n; ++i)
    for (const mpi::Transfer& t : kind == OpKind::all_to_all ? mpi::unequal_all_to_all(i, parts, parts)
                                                             : mpi::schedule_of(kind, algorithm, n, i, kElements, 1000))
      if (t.kind == mpi::Transfer::Kind::send)
        shares[{i, t.member}] +=
            static_cast<double>(t.elements()) / static_cast<double>(kElements) / (whole ? 1 : static_cast<double>(n));
  return shares;
}
std::map<Edge, double> modelled(OpKind kind, Algorithm algorithm, std::size_t n) {
  std::vector<std::int64_t> devices(n);
  for (std::size_t i = 0; i < n; ++i) devices[i] = static_cast<std::int64_t>(i);
  FlowGraph graph;
  collective_flows(kind, algorithm, {.devices = devices, .devices_per_node = 1}, {}, graph);
  std::map<Edge, double> shares;
  for (const FlowEdge& e : graph.edges)
    shares[{static_cast<std::size_t>(e.from.member), static_cast<std::size_t>(e.to.member)}] += e.bytes * e.messages;
  return shares;
}

TEST(MpiSchedule, SendsBetweenEachTwoRanksWhatTheDiscreteEventEngineDoes) {
  const std::vector<std::pair<OpKind, Algorithm>> all{{OpKind::all_reduce, Algorithm::ring},
                                                      {OpKind::all_reduce, Algorithm::tree},
                                                      {OpKind::all_reduce, Algorithm::halving_doubling},
                                                      {OpKind::all_gather, Algorithm::ring},
                                                      {OpKind::all_gather, Algorithm::halving_doubling},
                                                      {OpKind::reduce_scatter, Algorithm::ring},
                                                      {OpKind::reduce_scatter, Algorithm::halving_doubling},
                                                      {OpKind::all_to_all, Algorithm::direct},
                                                      {OpKind::broadcast, Algorithm::ring}};
  for (const auto& [kind, algorithm] : all)
    for (std::size_t n = 2; n <= 9; ++n) {
      const std::map<Edge, double> mine = scheduled(kind, algorithm, n), theirs = modelled(kind, algorithm, n);
      ASSERT_EQ(mine.size(), theirs.size()) << name_of(kind) << " " << name_of(algorithm) << " " << n;
      for (const auto& [edge, share] : theirs) {
        ASSERT_TRUE(mine.contains(edge)) << name_of(kind) << " " << name_of(algorithm) << " " << n << ": " << edge.first
                                         << " to " << edge.second;
        EXPECT_NEAR(mine.at(edge), share, 1e-4) << name_of(kind) << " " << name_of(algorithm) << " " << n;
      }
    }
}

TEST(MpiSchedule, ExchangesUnequallyWhatTheDiscreteEventEngineDoes) {
  for (std::size_t n = 2; n <= 5; ++n) {
    std::vector<std::int64_t> devices(n);
    std::vector<double> rows;
    for (std::size_t i = 0; i < n; ++i) devices[i] = static_cast<std::int64_t>(i);
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < n; ++j) rows.push_back(static_cast<double>((i + 2 * j) % 3));  // 0: nothing
    FlowGraph graph;
    collective_flows(OpKind::all_to_all, Algorithm::direct, {.devices = devices, .devices_per_node = 1, .rows = rows},
                     {}, graph);
    std::map<Edge, double> theirs, mine;
    for (const FlowEdge& e : graph.edges)
      theirs[{static_cast<std::size_t>(e.from.member), static_cast<std::size_t>(e.to.member)}] += e.bytes * e.messages;
    constexpr std::int64_t kPart = 60;  // of equal parts
    for (std::size_t i = 0; i < n; ++i) {
      std::vector<std::int64_t> sends, receives;
      for (std::size_t m = 0; m < n; ++m) {
        sends.push_back(kPart * std::llround(rows[i * n + m]));
        receives.push_back(kPart * std::llround(rows[m * n + i]));
      }
      for (const mpi::Transfer& t : mpi::unequal_all_to_all(i, sends, receives)) {
        ASSERT_EQ(t.ranges.size(), 1u);
        const std::vector<std::int64_t>& parts = t.kind == mpi::Transfer::Kind::send ? sends : receives;
        EXPECT_EQ(t.ranges[0].begin,
                  std::accumulate(parts.begin(), parts.begin() + std::ptrdiff_t(t.member), std::int64_t{0}));
        EXPECT_EQ(t.elements(), parts[t.member]);
        if (t.kind == mpi::Transfer::Kind::send && t.elements() > 0)
          mine[{i, t.member}] +=
              static_cast<double>(t.elements()) / static_cast<double>(kPart) / static_cast<double>(n);
      }
    }
    ASSERT_EQ(mine.size(), theirs.size()) << n;
    for (const auto& [edge, share] : theirs) EXPECT_NEAR(mine.at(edge), share, 1e-9) << edge.first << edge.second;
  }
}

TEST(MpiSchedule, RefusesWhatItHasNot) {
  EXPECT_THROW(mpi::schedule_of(OpKind::all_to_all, Algorithm::ring, 2, 0, 1, 1), InputError);
  EXPECT_THROW(mpi::schedule_of(OpKind::all_gather, Algorithm::tree, 2, 0, 1, 1), InputError);
}

}  // namespace
}  // namespace orrery
