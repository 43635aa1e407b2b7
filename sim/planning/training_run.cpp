#include "sim/planning/training_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>
#include <random>

#include "sim/base/error.h"

namespace orrery {
namespace {

constexpr double kHopeless = 1000;
constexpr double kNever = std::numeric_limits<double>::infinity();

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

double young_interval(double stall, double between) { return std::sqrt(2 * stall * between); }

double daly_interval(double stall, double between) {
  if (stall >= 2 * between) return between;
  const double half = stall / (2 * between);
  return young_interval(stall, between) * (1 + std::sqrt(half) / 3 + half / 9) - stall;
}

double optimal_interval(double stall, double between) {
  const double d = stall / between;
  // f(x) = 1 - x - exp(-x - d) is concave and falls from x = 0 on. Starting from its negative side, Newton's steps
  // descend to the root without passing it. 1 - exp(-x - d) keeps its digits if both are small.
  double x = 1;
  for (;;) {
    const double rise = -std::expm1(-x - d);
    const double next = x - (x - rise) / rise;
    if (!(next < x)) return x * between;
    x = next;
  }
}

namespace {

class History {
 public:
  History(const TrainingRun& run, const RunOptions& options)
      : run_(run),
        options_(options),
        random_(options.seed),
        scale_(run.seconds_between_failures() / std::tgamma(1 + 1 / options.shape)) {
    const double steps = std::max(std::round(run.interval_seconds() / run.step_seconds),
                                  std::ceil(run.durable_lag_seconds() / run.step_seconds));
    interval_ = static_cast<std::int64_t>(std::clamp(steps, 1.0, static_cast<double>(run.steps)));
    until_failure_ = time_to_failure();
  }

  RunOutcome run() {
    while (kept_ < run_.steps) {
      if (!train_and_checkpoint()) recover();
    }
    const std::int64_t checkpoints = (run_.steps + interval_ - 1) / interval_;
    out_.wall_seconds = now_;
    out_.useful_seconds = run_.useful_seconds();
    out_.checkpoint_seconds = static_cast<double>(checkpoints) * run_.stall_seconds() + run_.durable_lag_seconds();
    out_.interval_seconds = static_cast<double>(interval_) * run_.step_seconds;
    out_.lost_seconds = std::max(0.0, training_ - out_.useful_seconds - out_.checkpoint_seconds);
    return out_;
  }

 private:
  // In the open interval (0, 1).
  double uniform() { return (static_cast<double>(random_() >> 11) + 0.5) * 0x1p-53; }
  double time_to_failure() {
    if (std::isinf(scale_)) return kNever;
    const double exponential = -std::log(uniform());
    return scale_ * (options_.shape == 1 ? exponential : std::pow(exponential, 1 / options_.shape));
  }

  // Advances the job's time and adds it to `part`. Returns false if a failure ends it early.
  bool spend(double seconds, double& part) {
    const bool whole = seconds < until_failure_;
    const double spent = whole ? seconds : until_failure_;
    now_ += spent;
    part += spent;
    until_failure_ -= spent;
    return whole;
  }

  // Handles a checkpoint that may have become durable by now.
  void settle() {
    if (written_at_ > now_) return;
    kept_ = written_;
    written_at_ = kNever;
  }

  bool train_and_checkpoint() {
    const std::int64_t next = std::min(done_ + interval_, run_.steps);
    if (!spend(static_cast<double>(next - done_) * run_.step_seconds, training_)) return false;
    done_ = next;
    if (written_at_ != kNever && written_at_ > now_ && !spend(written_at_ - now_, training_)) return false;
    settle();
    if (!spend(run_.stall_seconds(), training_)) return false;
    written_ = done_;
    written_at_ = now_ + run_.durable_lag_seconds();
    if (done_ == run_.steps && !spend(run_.durable_lag_seconds(), training_)) return false;
    settle();
    return true;
  }

  void fail() {
    ++out_.failures;
    until_failure_ = time_to_failure();
    if (run_.repair_share >= 1 || uniform() < run_.repair_share) returns_.push(now_ + run_.repair_seconds);
  }

  void return_nodes() {
    while (!returns_.empty() && returns_.top() <= now_) returns_.pop();
  }

  void recover() {
    settle();
    written_at_ = kNever;
    done_ = kept_;
    for (;;) {
      fail();
      if (!spend(run_.detection_seconds, out_.detection_seconds)) continue;
      return_nodes();
      while (static_cast<std::int64_t>(returns_.size()) > run_.spare_nodes) {
        out_.waiting_seconds += returns_.top() - now_;
        now_ = returns_.top();
        return_nodes();
      }
      if (spend(run_.recovery_seconds() - run_.detection_seconds, out_.restart_seconds)) return;
    }
  }

  const TrainingRun& run_;
  const RunOptions& options_;
  std::mt19937_64 random_;
  double scale_;  // of the Weibull distribution
  std::int64_t interval_ = 1;

  double now_ = 0, until_failure_ = 0, training_ = 0;
  std::int64_t done_ = 0, kept_ = 0;
  std::int64_t written_ = 0;    // steps in the checkpoint that is being written
  double written_at_ = kNever;  // when that checkpoint becomes durable
  std::priority_queue<double, std::vector<double>, std::greater<>> returns_;  // when nodes return from repair
  RunOutcome out_;
};

}  // namespace

std::vector<RunOutcome> simulate_runs(const TrainingRun& run, std::int64_t count, const RunOptions& options) {
  expected_run(run);
  std::vector<RunOutcome> outcomes;
  outcomes.reserve(static_cast<std::size_t>(count));
  RunOptions each = options;
  for (std::int64_t i = 0; i < count; ++i, ++each.seed) {
    if (options.between) options.between();
    outcomes.push_back(History(run, each).run());
  }
  return outcomes;
}

}  // namespace orrery
