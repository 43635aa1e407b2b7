// A training from its first to its last step, with checkpoints, failures and restarts: its expected duration in closed
// form, and simulated event by event.
//
// The model: after each `interval` seconds of training a checkpoint is taken. Training waits stall_seconds() for it,
// and it can be restored durable_lag_seconds() later. A failure stops all ranks and is noticed after detection_seconds.
// A node that needs repair is replaced by a spare; if none is left, the job waits until a node is back. Then processes
// restart and read the last durable checkpoint, and the training since then is repeated. A failure during this time is
// found and handled in the same way.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace orrery {

// Seconds, bytes, bytes per second. Rates and durations >= 0; step_seconds, steps, nodes, devices and
// write_bytes_per_second > 0.
struct TrainingRun {
  double step_seconds = 0;
  std::int64_t steps = 0;
  std::int64_t devices = 0;  // devices that train
  std::int64_t nodes = 0;    // nodes that hold these devices
  std::int64_t spare_nodes = 0;

  double failures_per_node_second = 0;  // failures that interrupt the job; the job's rate is `nodes` times this
  double repair_share = 1;              // share of failures after which the node is away for repair_seconds
  double repair_seconds = 0;            // from the failure on
  double detection_seconds = 0;
  double restart_seconds = 0;  // without reading the checkpoint

  double checkpoint_bytes = 0;
  double write_bytes_per_second = 0;
  double read_bytes_per_second = 0;        // > 0
  double snapshot_bytes_per_second = 0;    // 0: training waits for the write
  double checkpoint_interval_seconds = 0;  // training between two checkpoints; 0: Daly's interval

  double useful_seconds() const { return step_seconds * static_cast<double>(steps); }
  // Infinite if nothing fails.
  double seconds_between_failures() const { return 1 / (failures_per_node_second * static_cast<double>(nodes)); }
  double write_seconds() const { return checkpoint_bytes / write_bytes_per_second; }
  // The time for which training waits for a checkpoint.
  double stall_seconds() const;
  // From the end of that wait until the checkpoint is durable.
  double durable_lag_seconds() const;
  // From a failure until training continues, if a node is available.
  double recovery_seconds() const {
    return detection_seconds + restart_seconds + checkpoint_bytes / read_bytes_per_second;
  }
  // checkpoint_interval_seconds, or Daly's interval. At least one step, and at least the time
  // until a checkpoint is durable; at most the run.
  double interval_seconds() const;
};

// Where the time of a run goes; the parts add up to wall_seconds. Expected values, or those of one simulated run.
struct RunOutcome {
  double wall_seconds = 0;
  double useful_seconds = 0;      // steps that were kept
  double checkpoint_seconds = 0;  // waits for checkpoints that were kept
  double lost_seconds = 0;        // training and checkpoints undone by failures
  double detection_seconds = 0;
  double restart_seconds = 0;  // including reading the checkpoint
  double waiting_seconds = 0;  // waiting for a node to be repaired
  double failures = 0;
  double interval_seconds = 0;  // training between two checkpoints

  // Effective training time ratio: productive time over wall time (Kokolis et al. 2024, arXiv 2410.21680, section 2).
  // As there, it does not include a scheduler's queue before the first start.
  double ettr() const { return useful_seconds / wall_seconds; }
};
// The share of all held device time, spares included, in which steps were trained that were kept.
double goodput(const TrainingRun& run, const RunOutcome& outcome);

// Expected outcome. It is exact for failures with an exponential clock that runs whenever the job is not waiting for a
// node (Daly 2006, FGCS 22(3), eq. 20), except for two things:
//   - The interval need not be a multiple of a step.
//   - Waiting for nodes is that of the stationary state: all spare_nodes + 1 nodes are away, by Erlang's loss formula
//     (exact for any distribution of repair times). All spares are present when a run starts, so a run of few
//     repair_seconds waits less.
// The lag until a checkpoint is durable counts as a longer restart: the time for n intervals is
//   M exp((R + L)/M) (exp((tau + delta)/M) - 1) n + M exp(R/M) (exp(L/M) - 1).
// with R = recovery_seconds(), L = durable_lag_seconds(), M = seconds_between_failures(), tau = interval_seconds(), and
// delta = stall_seconds(). With L = 0 the first term is Daly's. If failures cluster (RunOptions::shape < 1) the result
// is too long.
//
// Throws InputError if the run would practically not end: more than 1,000 times as long as without failures.
RunOutcome expected_run(const TrainingRun& run);

// Erlang's loss formula (Erlang 1917): the share of time for which all `servers` are busy at an offered load of `load`
// servers' work. REQUIRES: servers >= 0, load >= 0.
double erlang_loss(std::int64_t servers, double load);

// ---- how long to train between two checkpoints. Arguments and results are in seconds. `stall`: the time that training
// waits for one checkpoint (delta in the papers). `between`: the mean time between failures (M). The result is the
// training time between the end of one checkpoint and the start of the next (tau). Failures are exponential.
//
// REQUIRES: stall > 0, between > 0, both finite.

// Young 1974, CACM 17(9): sqrt(2 delta M). First order: too long if the stall is not small against M.
double young_interval(double stall, double between);

// Daly 2006, FGCS 22(3), eq. 37: sqrt(2 delta M) (1 + sqrt(delta / 2M) / 3 + delta / 18M) - delta if delta < 2M, else
// M.
double daly_interval(double stall, double between);

// The exact minimum of Daly's expected time (expected_run): the root of 1 - tau/M = exp(-(tau + delta)/M), which is M
// (1 + W0(-exp(-1 - delta/M))) with Lambert's W. The time to restart does not matter.
double optimal_interval(double stall, double between);

struct RunOptions {
  std::uint64_t seed = 1;
  // Times between failures of the job follow a Weibull distribution with this shape and the closed form's mean; 1:
  // exponential. Below 1 failures come in clusters: 0.7 to 0.8 in HPC systems (Schroeder and Gibson 2006, DSN). > 0.
  double shape = 1;
  // Called before each history; an exception from it ends the simulation.
  std::function<void()> between = {};
};

// Simulates a training event by event: `count` histories of checkpoints, failures, restarts and repairs, with seeds
// options.seed, options.seed + 1, ... The interval between checkpoints is TrainingRun::interval_seconds() in whole
// steps. The clock of failures stops while the job waits for a node. A checkpoint waits until the previous one is
// written. The same run and seed give the same bits on one machine and C library (random numbers: std::mt19937_64).
//
// Cost: tens of nanoseconds per checkpoint or failure. Throws InputError like expected_run(), which bounds the failures
// of a history.
std::vector<RunOutcome> simulate_runs(const TrainingRun& run, std::int64_t count, const RunOptions& options = {});

}  // namespace orrery
