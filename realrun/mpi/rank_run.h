// One rank of a scenario's training steps in a process of its own: what orrery-rank run (MPI, CPUs) and orrery-gpu rank
// (NCCL, GPUs) have in common.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "realrun/backend.h"
#include "realrun/communicator.h"
#include "realrun/executor.h"
#include "sim/program/program.h"
#include "strategies/read_scenario.h"

namespace orrery {

struct RankTraining {
  std::string scenario;                // as for orrery simulate
  std::vector<std::string> sets;       // as --set there
  std::int64_t steps = 6, warmup = 1;  // measured ones, and those before; checked ones as options_to_compare says
  std::uint64_t seed = 1;
  double watchdog_seconds = 60;
  bool check = false;          // instead of measuring: loss, gradients and parameters against the one-rank Program
  bool round_to_bf16 = false;  // tensors of bf16 hold what bf16 can; not in the one-rank Program that checks
  // Where not empty: nothing is compared or printed, but rank 0 writes all ranks' results there (launch.h) and reports
  // steps; --check then says what is run.
  std::string results;
  bool alone = false;  // every rank runs the scenario on one rank by itself, all at the same time: what computing takes
};

struct PreparedRun {
  RankTraining run;
  ScenarioSource source;
  Scenario scenario, one_rank_scenario;
  Program program, one_rank;
};

// Throws InputError.
PreparedRun prepare(const RankTraining& run);
// Throws InputError where the plan has another number of ranks than have been started.
void require_ranks(const PreparedRun& prepared, std::size_t started);

// This rank's part; the results of all ranks, on every rank. Fails as execute_rank does.
std::vector<RankResult> execute_with_peers(const PreparedRun& prepared, Backend& backend, Communicator& communicator);

// For rank 0, when it needs the others no more: writes RankTraining::results, or prints one JSON document: the measured
// report (report_json, ranks together) with "losses", "step_samples" (of the steps without marks, the slowest rank's)
// and, if checked, "agreement". Throws ExecutionError where a layout computes something else.
void report_results(const PreparedRun& prepared, const BackendFacts& facts, const std::vector<RankResult>& results);

}  // namespace orrery
