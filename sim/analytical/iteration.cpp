#include "sim/analytical/iteration.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "sim/report/terms.h"

namespace orrery {
namespace {

class Clock {
 public:
  Clock(const Program& program, std::span<const double> alone, const BesideTimes& beside)
      : tasks_(program.tasks), alone_(alone), beside_(beside), waiting_(tasks_.size()), done_(tasks_.size()) {}

  // Runs the next iteration. Returns the time when it ends.
  double iteration(std::int64_t number) {
    std::ranges::fill(waiting_, 0);
    uncertain_ = 0;
    for (std::size_t t = 0; t < tasks_.size(); ++t) {
      const double before = time_;
      for (const After& after : tasks_[t].after)
        if (tasks_[after.task].beside && number >= after.lag) wait_for(after.task, number - after.lag);
      waiting_[t] = time_ - before;
      if (tasks_[t].beside)
        for (std::int64_t i = 0; i < tasks_[t].repeats; ++i)
          under_way_.push_back({t, alone_[t], i + 1 == tasks_[t].repeats});
      else
        run(t);
    }
    return time_;
  }
  const std::vector<double>& waiting() const { return waiting_; }
  double uncertain() const { return uncertain_; }

 private:
  struct UnderWay {
    std::size_t task = 0;
    double left = 0;   // seconds alone
    bool last = true;  // run of its iteration
  };

  void end_first() {
    if (under_way_.front().last) ++done_[under_way_.front().task];
    under_way_.pop_front();
  }
  void wait_for(std::size_t task, std::int64_t iteration) {
    while (done_[task] <= iteration && !under_way_.empty()) {
      time_ += under_way_.front().left;
      end_first();
    }
  }
  void run(std::size_t task) {
    auto left = static_cast<double>(tasks_[task].repeats);
    while (left > 0 && !under_way_.empty()) {
      UnderWay& first = under_way_.front();
      const RunBeside each = beside_(task, first.task);
      const double runs = each.done > 0 ? std::min(left, first.left / each.done) : left;
      time_ += runs * each.seconds;
      if (runs < left) uncertain_ += std::min(1.0, runs) * (each.seconds - alone_[task]);
      left -= runs;
      first.left -= runs * each.done;
      if (left > 0) end_first();
    }
    time_ += left * alone_[task];
  }

  const std::vector<Task>& tasks_;
  const std::span<const double> alone_;
  const BesideTimes& beside_;
  std::deque<UnderWay> under_way_;  // the first one runs, the others follow it
  double time_ = 0, uncertain_ = 0;
  std::vector<double> waiting_;
  std::vector<std::int64_t> done_;  // by task: iterations
};

}  // namespace

Iteration iterate(const Program& program, std::span<const double> alone, const BesideTimes& beside) {
  constexpr double kEqual = 1e-12;  // relative to the time of an iteration
  Clock clock(program, alone, beside);
  double begin = 0, last = -1, half = 0;
  for (int i = 0; i < kMostIterations; ++i) {
    const double end = clock.iteration(i), seconds = end - begin;
    if (std::abs(seconds - last) <= kEqual * seconds) return {seconds, clock.uncertain(), clock.waiting()};
    last = seconds;
    begin = end;
    if (2 * (i + 1) == kMostIterations) half = end;
  }
  return {(begin - half) / (kMostIterations / 2), clock.uncertain(), clock.waiting()};
}

void spread(const Program& program, const Iteration& iteration, std::span<const Report> blocks, Report& report) {
  const auto steps = static_cast<double>(steps_of_iteration(program));
  const double alone = report.step_seconds, each = iteration.seconds / steps;
  double accounted = alone;
  for (std::size_t t = 0; t < program.tasks.size(); ++t) {
    const Task& task = program.tasks[t];
    const Report& of = task.block == 0 ? report : blocks[task.block - 1u];
    report.tasks.push_back({.name = task.name,
                            .repeats = task.repeats,
                            .seconds = task.block == 0 ? alone : of.step_seconds,
                            .waiting_seconds = iteration.waiting[t],
                            .beside = task.beside});
    if (task.block == 0 || task.beside) continue;
    const double share = static_cast<double>(task.repeats) / steps;
    accounted += share * of.step_seconds;
    for (std::size_t s = 0; s < report.stages.size(); ++s) {
      // Stages that do the same in the step do the same in other tasks, but not the reverse.
      const std::int64_t stage = report.stages[s].stage;
      const auto like = std::ranges::find_if(
          of.stages, [&](const StageReport& r) { return r.stage <= stage && stage < r.stage + r.stages; });
      const TimeBreakdown& time = (like == of.stages.end() ? of.stages.back() : *like).time;
      for (const TimeTerm& term : time_terms()) term.of(report.stages[s].time) += share * term.of(time);
      report.stages[s].busy_seconds += share * (of.step_seconds - time.bubble);
    }
    report.memory_peak_bytes = std::max(report.memory_peak_bytes, of.memory_peak_bytes);
    report.memory_fits = report.memory_fits && of.memory_fits;
  }
  // What is left: waits for tasks that run beside others, and what these take from the links.
  for (StageReport& stage : report.stages)
    stage.time.exposed[static_cast<std::size_t>(Stream::data_communication)] += each - accounted;
  report.iteration_seconds = iteration.seconds;
  report.step_seconds = each;
  for (double* rate : {&report.tokens_per_second, &report.tokens_per_second_per_device, &report.sequences_per_second,
                       &report.model_flops_per_second_per_device, &report.mfu, &report.mfu_full_attention, &report.hfu})
    *rate *= alone / each;
  summarise_bounding_stage(report);
}

}  // namespace orrery
