// A training simulated event by event: one history of checkpoints, failures, restarts and repairs.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "sim/planning/training_run.h"

namespace orrery {

enum class RunEventKind : std::uint8_t { durable, failure, detected, node_back, restarted, finished };
inline constexpr std::array<std::string_view, 6> kRunEventNames{"checkpoint durable", "failure",   "failure detected",
                                                                "node back",          "restarted", "finished"};

struct RunEvent {
  double seconds = 0;  // since the begin of the run
  RunEventKind kind = RunEventKind::failure;
  std::int64_t steps = 0;       // that a restart would keep
  std::int64_t nodes_away = 0;  // in repair
};

struct RunHistory {
  RunOutcome outcome;
  std::vector<RunEvent> events;  // in order of time; empty unless asked for
};

struct RunOptions {
  std::uint64_t seed = 1;
  // Times between failures of the job are Weibull's with this shape and the mean of the closed form; 1: exponential.
  // Below 1 failures come in clusters: 0.7 to 0.8 in HPC systems (Schroeder and Gibson 2006, DSN). > 0.
  double shape = 1;
  bool keep_events = false;
  // Called before each history where there are several; an exception from it ends the simulation.
  std::function<void()> between = {};
};

// The interval between checkpoints is TrainingRun::interval_seconds() in whole steps. The clock of failures stands
// while the job waits for a node. A checkpoint waits for the write of the one before. The same run and seed give the
// same bits on one machine and C library (random numbers are std::mt19937_64's).
//
// Costs tens of nanoseconds a checkpoint or failure. InputError as expected_run, which bounds the failures of a history.
RunHistory simulate_run(const TrainingRun& run, const RunOptions& options = {});

// `count` histories, of seeds options.seed, options.seed + 1, ...
std::vector<RunOutcome> simulate_runs(const TrainingRun& run, std::int64_t count, const RunOptions& options = {});

}  // namespace orrery
