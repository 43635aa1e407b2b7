#include "sim/planning/simulate_run.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <queue>
#include <random>
#include <utility>

namespace orrery {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

class History {
 public:
  History(const TrainingRun& run, const RunOptions& options)
      : run_(run), options_(options), random_(options.seed), scale_(scale(run, options.shape)) {
    const double steps = std::max(std::round(run.interval_seconds() / run.step_seconds),
                                  std::ceil(run.durable_lag_seconds() / run.step_seconds));
    interval_ = static_cast<std::int64_t>(std::clamp(steps, 1.0, static_cast<double>(run.steps)));
    until_failure_ = time_to_failure();
  }

  RunHistory run() {
    while (kept_ < run_.steps) {
      if (!train_and_checkpoint()) recover();
    }
    RunOutcome& out = history_.outcome;
    const std::int64_t checkpoints = (run_.steps + interval_ - 1) / interval_;
    out.wall_seconds = now_;
    out.useful_seconds = run_.useful_seconds();
    out.checkpoint_seconds = static_cast<double>(checkpoints) * run_.stall_seconds() + run_.durable_lag_seconds();
    out.interval_seconds = static_cast<double>(interval_) * run_.step_seconds;
    out.lost_seconds = std::max(0.0, training_ - out.useful_seconds - out.checkpoint_seconds);
    note(RunEventKind::finished);
    return std::move(history_);
  }

 private:
  static double scale(const TrainingRun& run, double shape) {
    return run.seconds_between_failures() / std::tgamma(1 + 1 / shape);
  }

  // In the open interval (0, 1).
  double uniform() { return (static_cast<double>(random_() >> 11) + 0.5) * 0x1p-53; }
  double time_to_failure() {
    if (std::isinf(scale_)) return kNever;
    const double exponential = -std::log(uniform());
    return scale_ * (options_.shape == 1 ? exponential : std::pow(exponential, 1 / options_.shape));
  }

  void keep_event(double seconds, RunEventKind kind) {
    if (options_.keep_events)
      history_.events.push_back({seconds, kind, kept_, static_cast<std::int64_t>(returns_.size())});
  }
  void return_nodes() {
    while (!returns_.empty() && returns_.top() <= now_) {
      const double seconds = returns_.top();
      returns_.pop();
      keep_event(seconds, RunEventKind::node_back);
    }
  }
  void note(RunEventKind kind) {
    return_nodes();
    keep_event(now_, kind);
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
    std::swap(now_, written_at_);  // at the event's own time
    return_nodes();                // those before it
    kept_ = written_;
    note(RunEventKind::durable);
    now_ = std::exchange(written_at_, kNever);
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
    return_nodes();
    ++history_.outcome.failures;
    until_failure_ = time_to_failure();
    if (run_.repair_share >= 1 || uniform() < run_.repair_share) returns_.push(now_ + run_.repair_seconds);
    keep_event(now_, RunEventKind::failure);
  }

  void recover() {
    settle();
    written_at_ = kNever;
    done_ = kept_;
    RunOutcome& out = history_.outcome;
    for (;;) {
      fail();
      if (!spend(run_.detection_seconds, out.detection_seconds)) continue;
      note(RunEventKind::detected);
      while (static_cast<std::int64_t>(returns_.size()) > run_.spare_nodes) {
        out.waiting_seconds += returns_.top() - now_;
        now_ = returns_.top();
        return_nodes();
      }
      if (!spend(run_.recovery_seconds() - run_.detection_seconds, out.restart_seconds)) continue;
      note(RunEventKind::restarted);
      return;
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
  RunHistory history_;
};

}  // namespace

RunHistory simulate_run(const TrainingRun& run, const RunOptions& options) {
  expected_run(run);
  return History(run, options).run();
}

std::vector<RunOutcome> simulate_runs(const TrainingRun& run, std::int64_t count, const RunOptions& options) {
  expected_run(run);
  std::vector<RunOutcome> outcomes;
  outcomes.reserve(static_cast<std::size_t>(count));
  RunOptions each = options;
  each.keep_events = false;
  for (std::int64_t i = 0; i < count; ++i, ++each.seed) {
    if (options.between) options.between();
    outcomes.push_back(History(run, each).run().outcome);
  }
  return outcomes;
}

}  // namespace orrery
