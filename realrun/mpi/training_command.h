// orrery-rank run: this process is one rank of a scenario's training steps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace orrery {

struct TrainingRun {
  std::string scenario;                // as for orrery simulate
  std::vector<std::string> sets;       // as --set there
  std::int64_t steps = 6, warmup = 1;  // measured ones, and those before
  std::uint64_t seed = 1;
  double watchdog_seconds = 60;
  bool check = false;          // instead of measuring: loss, gradients and parameters against the one-rank Program
  bool round_to_bf16 = false;  // tensors of bf16 hold what bf16 can; not in the one-rank Program that checks
  // Where not empty: nothing is compared or printed, but rank 0 writes all ranks' results there (launch.h) and reports
  // steps; --check then says what is run.
  std::string results;
  bool alone = false;  // every rank runs the scenario on one rank by itself, all at the same time: what computing takes
};

// On every rank. Rank 0 prints one JSON document: the measured report (report_json, ranks together) with "losses",
// "step_samples" (of the steps without marks, the slowest rank's) and, if checked, "agreement".
// Throws InputError. Other failures end the job (MpiCommunicator::fail), a layout that computes something else too.
void run_training(const TrainingRun& run);

}  // namespace orrery
