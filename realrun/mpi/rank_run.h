// One rank of a scenario's training steps in its own process: the common part of orrery-rank run (MPI, CPUs) and
// orrery-gpu rank (NCCL, GPUs).
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"
#include "realrun/backend.h"
#include "realrun/communicator.h"
#include "realrun/executor.h"
#include "sim/program/program.h"
#include "strategies/read_scenario.h"

namespace orrery {

struct RankTraining {
  std::string scenario;           // as for orrery simulate
  std::vector<std::string> sets;  // as --set there
  // The command's options set seed, steps, warmup_steps, watchdog_seconds and round_to_bf16. The one-rank Program that
  // `check` compares with ignores round_to_bf16. With `check`, the steps are those of options_to_compare.
  ExecutionOptions options{.steps = 6, .watchdog_seconds = 60, .first_values = {}, .warmup_steps = 1, .after_step = {}};
  // Instead of measuring, compares loss, gradients and parameters with the one-rank Program.
  bool check = false;
  // If not empty: nothing is compared or printed. Rank 0 writes all ranks' results to this path (launch.h) and reports
  // steps; `check` then only chooses the options of the run.
  std::string results;
  // Every rank runs the scenario on one rank by itself, all at the same time: computation without communication.
  bool alone = false;
};

// Adds SCENARIO and an option for each member of RankTraining. `run` must outlive the command.
void add_rank_options(Command command, RankTraining& run);

struct PreparedRun {
  RankTraining run;
  ScenarioSource source;
  Scenario scenario, one_rank_scenario;
  Program program;
};

// Throws InputError.
PreparedRun prepare(const RankTraining& run);
// Throws InputError if the plan needs another number of ranks than were started.
void require_ranks(const PreparedRun& prepared, std::size_t started);

// Runs this rank. Returns the results of all ranks, on every rank. Fails as execute_rank does.
std::vector<RankResult> execute_with_peers(const PreparedRun& prepared, Backend& backend, Communicator& communicator);

// For rank 0, after the last communication. Writes RankTraining::results, or prints one JSON document: the measured
// report (report_json, all ranks together) with "losses", "step_samples" (the slowest rank's time of each step without
// marks) and, if checked, "agreement". Throws ExecutionError if a layout computes something else.
void report_results(const PreparedRun& prepared, const BackendFacts& facts, const std::vector<RankResult>& results);

}  // namespace orrery
