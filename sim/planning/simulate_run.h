// Simulates a training event by event: one history of checkpoints, failures, restarts and repairs.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "sim/planning/training_run.h"

namespace orrery {

enum class RunEventKind : std::uint8_t { durable, failure, detected, node_back, restarted, finished };

struct RunEvent {
  double seconds = 0;  // since the start of the run
  RunEventKind kind = RunEventKind::failure;
  std::int64_t steps = 0;       // steps that a restart now would keep
  std::int64_t nodes_away = 0;  // nodes in repair
};

struct RunHistory {
  RunOutcome outcome;
  std::vector<RunEvent> events;  // in order of time; empty unless asked for
};

struct RunOptions {
  std::uint64_t seed = 1;
  // Times between failures of the job follow a Weibull distribution with this shape and the closed form's mean; 1:
  // exponential. Below 1 failures come in clusters: 0.7 to 0.8 in HPC systems (Schroeder and Gibson 2006, DSN). > 0.
  double shape = 1;
  bool keep_events = false;
  // Called before each history if there are several; an exception from it ends the simulation.
  std::function<void()> between = {};
};

// The interval between checkpoints is TrainingRun::interval_seconds() in whole steps. The clock of failures stops while
// the job waits for a node. A checkpoint waits until the previous one is written. The same run and seed give the same
// bits on one machine and C library (random numbers: std::mt19937_64).
//
// Cost: tens of nanoseconds per checkpoint or failure. Throws InputError like expected_run(), which bounds the failures
// of a history.
RunHistory simulate_run(const TrainingRun& run, const RunOptions& options = {});

// `count` histories with seeds options.seed, options.seed + 1, ...
std::vector<RunOutcome> simulate_runs(const TrainingRun& run, std::int64_t count, const RunOptions& options = {});

}  // namespace orrery
