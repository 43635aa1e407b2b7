#include "sim/planning/training_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/base/error.h"
#include "sim/planning/checkpoint_interval.h"

namespace orrery {
namespace {

constexpr double kHopeless = 1000;

}  // namespace

double TrainingRun::stall_seconds() const {
  if (snapshot_bytes_per_second <= 0) return write_seconds();
  return std::min(write_seconds(), checkpoint_bytes / snapshot_bytes_per_second);
}

double TrainingRun::durable_lag_seconds() const { return write_seconds() - stall_seconds(); }

double TrainingRun::interval_seconds() const {
  const double stall = stall_seconds(), between = seconds_between_failures();
  double interval = checkpoint_interval_seconds;
  if (interval <= 0) {
    if (std::isinf(between))
      interval = useful_seconds();
    else
      interval = stall > 0 ? daly_interval(stall, between) : step_seconds;
  }
  return std::min(std::max({interval, step_seconds, durable_lag_seconds()}), useful_seconds());
}

double goodput(const TrainingRun& run, const RunOutcome& outcome) {
  const auto held = static_cast<double>(run.nodes + run.spare_nodes) / static_cast<double>(run.nodes);
  return outcome.ettr() / held;
}

double erlang_loss(std::int64_t servers, double load) {
  double loss = 1;
  for (std::int64_t n = 1; n <= servers; ++n) loss = load * loss / (static_cast<double>(n) + load * loss);
  return loss;
}

RunOutcome expected_run(const TrainingRun& run) {
  RunOutcome out;
  out.useful_seconds = run.useful_seconds();
  out.interval_seconds = run.interval_seconds();
  const double checkpoints = out.useful_seconds / out.interval_seconds;
  const double stall = run.stall_seconds(), lag = run.durable_lag_seconds();
  out.checkpoint_seconds = checkpoints * stall + lag;
  const double between = run.seconds_between_failures();
  if (std::isinf(between)) {
    out.wall_seconds = out.useful_seconds + out.checkpoint_seconds;
    return out;
  }
  const double recovery = run.recovery_seconds();
  double busy = between * std::exp((recovery + lag) / between) * std::expm1((out.interval_seconds + stall) / between) *
                checkpoints;
  busy += between * std::exp(recovery / between) * std::expm1(lag / between);
  if (!(busy <= kHopeless * (out.useful_seconds + out.checkpoint_seconds + recovery)))
    throw InputError({"", "/failures"}, fmt::format("a failure every {:.4g} s", between),
                     fmt::format("rarer failures: with {:.4g} s between durable checkpoints and {:.4g} s of recovery, "
                                 "the run would take more than {:.0f} times as long as without failures",
                                 out.interval_seconds + stall + lag, recovery, kHopeless));
  out.failures = busy / between;
  // Each failure starts a recovery, which the next failure may interrupt.
  const auto spent = [&](double seconds) { return -out.failures * between * std::expm1(-seconds / between); };
  out.detection_seconds = spent(run.detection_seconds);
  out.restart_seconds = spent(recovery) - out.detection_seconds;
  out.lost_seconds = std::max(0.0, busy - out.useful_seconds - out.checkpoint_seconds - spent(recovery));
  const double away = run.repair_share * run.repair_seconds / between;
  const double short_of_nodes = erlang_loss(run.spare_nodes + 1, away);
  out.waiting_seconds = busy * short_of_nodes / (1 - short_of_nodes);
  out.wall_seconds = busy + out.waiting_seconds;
  return out;
}

}  // namespace orrery
