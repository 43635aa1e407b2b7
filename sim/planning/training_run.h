// A training from its first to its last step, with checkpoints, failures and restarts: what it takes, in closed form.
// simulate_run.h has the same event by event.
//
// What happens: after `interval` seconds of training a checkpoint is taken, for which training waits stall_seconds();
// durable_lag_seconds() later it can be restored. A failure stops all ranks. It is noticed detection_seconds later; a
// node that needs repair is replaced by a spare, or, where none is left, the job waits until one is back; then
// processes restart and read the last durable checkpoint. What was trained since is trained again. A failure meanwhile
// is found and handled like the first.
#pragma once

#include <cstdint>

namespace orrery {

// Seconds, bytes, bytes per second. Rates and durations >= 0; step_seconds, steps, nodes, devices and
// write_bytes_per_second > 0.
struct TrainingRun {
  double step_seconds = 0;
  std::int64_t steps = 0;
  std::int64_t devices = 0;  // that train
  std::int64_t nodes = 0;    // that they are in
  std::int64_t spare_nodes = 0;

  double failures_per_node_second = 0;  // that interrupt the job; the job's rate is `nodes` times this
  double repair_share = 1;              // of failures after which the node is away for repair_seconds
  double repair_seconds = 0;            // from the failure on
  double detection_seconds = 0;
  double restart_seconds = 0;  // without reading the checkpoint

  double checkpoint_bytes = 0;
  double write_bytes_per_second = 0;
  double read_bytes_per_second = 0;        // > 0
  double snapshot_bytes_per_second = 0;    // 0: training waits for the write
  double checkpoint_interval_seconds = 0;  // of training between two; 0: Daly's

  double useful_seconds() const { return step_seconds * static_cast<double>(steps); }
  // Infinite where nothing fails.
  double seconds_between_failures() const { return 1 / (failures_per_node_second * static_cast<double>(nodes)); }
  double write_seconds() const { return checkpoint_bytes / write_bytes_per_second; }
  // What training waits for a checkpoint.
  double stall_seconds() const;
  // From the end of that wait until the checkpoint is durable.
  double durable_lag_seconds() const;
  // From a failure until training goes on, where a node is at hand.
  double recovery_seconds() const {
    return detection_seconds + restart_seconds + checkpoint_bytes / read_bytes_per_second;
  }
  // checkpoint_interval_seconds, or Daly's (checkpoint_interval.h); no shorter than a step and than it takes a
  // checkpoint to become durable, no longer than the run.
  double interval_seconds() const;
};

// Where the time of a run goes; the parts add up to wall_seconds. Expectations, or those of one simulated run.
struct RunOutcome {
  double wall_seconds = 0;
  double useful_seconds = 0;      // steps that were kept
  double checkpoint_seconds = 0;  // waits for checkpoints that were kept
  double lost_seconds = 0;        // training and checkpoints that a failure made undone
  double detection_seconds = 0;
  double restart_seconds = 0;  // with reading the checkpoint
  double waiting_seconds = 0;  // for a node to be repaired
  double failures = 0;
  double interval_seconds = 0;  // of training between two checkpoints

  // Effective training time ratio, productive time over wall time (Kokolis et al. 2024, arXiv 2410.21680, section 2;
  // there without the time in a scheduler's queue before the first start, too).
  double ettr() const { return useful_seconds / wall_seconds; }
};
// Of the time of all devices that are held, spares included, the share in which steps were trained that were kept.
double goodput(const TrainingRun& run, const RunOutcome& outcome);

// Expected outcome. Exact for failures that come by an exponential clock whenever the job is not waiting for a node
// (Daly 2006, FGCS 22(3), eq. 20), but for two things:
//   - the interval need not be a multiple of a step;
//   - waiting for nodes is that of the stationary state: all spare_nodes + 1 away, by Erlang's loss formula (exact for
//     any distribution of repair times; spares are all there when a run starts, so a run of few repair_seconds waits
//     less).
// A checkpoint that becomes durable later counts as a longer restart: with the lag L, the time for n intervals is
//   M exp((R + L)/M) (exp((tau + delta)/M) - 1) n + M exp(R/M) (exp(L/M) - 1),
// the first term with L = 0 being Daly's. Where failures cluster (simulate_run.h: shape < 1) it is too long.
//
// InputError where the run would hardly end: more than 1,000 times as long as without failures.
RunOutcome expected_run(const TrainingRun& run);

// Erlang's loss formula (Erlang 1917): the share of time in which all of `servers` are busy, offered `load` servers'
// work. REQUIRES: servers >= 0, load >= 0.
double erlang_loss(std::int64_t servers, double load);

}  // namespace orrery
