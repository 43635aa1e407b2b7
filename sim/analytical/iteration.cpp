#include "sim/analytical/iteration.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <utility>

#include "sim/report/memory_verdict.h"
#include "sim/report/terms.h"

namespace orrery {
namespace {

class Clock {
 public:
  Clock(const Program& program, std::span<const double> alone, const BesideTimes& beside)
      : tasks_(program.tasks),
        alone_(alone),
        beside_(beside),
        waiting_(tasks_.size()),
        done_(tasks_.size()),
        spans_(tasks_.size()),
        lasted_(tasks_.size()) {}

  // Runs the next iteration. Returns the time when it ends.
  double iteration(std::int64_t number) {
    std::ranges::fill(waiting_, 0);
    uncertain_ = 0;
    const double begin = time_;
    for (std::size_t t = 0; t < tasks_.size(); ++t) {
      const double before = time_;
      for (const After& after : tasks_[t].after)
        if (tasks_[after.task].beside && number >= after.lag) wait_for(after.task, number - after.lag);
      waiting_[t] = time_ - before;
      spans_[t].begin = time_ - begin;
      if (tasks_[t].beside) {
        for (std::int64_t i = 0; i < tasks_[t].repeats; ++i)
          under_way_.push_back({t, alone_[t], time_, i == 0, i + 1 == tasks_[t].repeats});
      } else {
        run(t);
      }
      spans_[t].end = time_ - begin;
    }
    for (std::size_t t = 0; t < tasks_.size(); ++t)
      if (tasks_[t].beside) spans_[t].end = spans_[t].begin + lasted_[t];
    return time_;
  }
  const std::vector<Iteration::Span>& spans() const { return spans_; }
  const std::vector<double>& waiting() const { return waiting_; }
  double uncertain() const { return uncertain_; }
  // Seconds that tasks beside others still have to do.
  double backlog() const {
    double left = 0;
    for (const UnderWay& run : under_way_) left += run.left;
    return left;
  }

 private:
  struct UnderWay {
    std::size_t task = 0;
    double left = 0;  // seconds alone
    double issued = 0;
    bool first = true, last = true;  // run of its iteration
  };

  void end_first() {
    const UnderWay& first = under_way_.front();
    if (first.first) first_issued_ = first.issued;
    if (first.last) {
      ++done_[first.task];
      lasted_[first.task] = time_ - first_issued_;
    }
    under_way_.pop_front();
  }
  void wait_for(std::size_t task, std::int64_t iteration) {
    while (done_[task] <= iteration && !under_way_.empty()) {
      time_ += under_way_.front().left;
      end_first();
    }
  }
  const RunBeside& run_beside(std::size_t task, std::size_t other) {
    const auto [at, is_new] = known_.try_emplace({tasks_[task].block, tasks_[other].block});
    if (is_new) at->second = beside_(task, other);
    return at->second;
  }
  void run(std::size_t task) {
    auto left = static_cast<double>(tasks_[task].repeats);
    while (left > 0 && !under_way_.empty()) {
      UnderWay& first = under_way_.front();
      const RunBeside each = run_beside(task, first.task);
      const double runs = each.done > 0 ? std::min(left, first.left / each.done) : left;
      time_ += runs * each.seconds;
      if (runs < left) uncertain_ += (runs - std::floor(runs)) * (each.seconds - alone_[task]);
      left -= runs;
      first.left -= runs * each.done;
      if (left > 0) end_first();
    }
    time_ += left * alone_[task];
  }

  const std::vector<Task>& tasks_;
  const std::span<const double> alone_;
  const BesideTimes& beside_;
  std::map<std::pair<std::uint16_t, std::uint16_t>, RunBeside> known_;  // by blocks
  std::deque<UnderWay> under_way_;                                      // the first one runs, the others follow it
  double time_ = 0, uncertain_ = 0;
  std::vector<double> waiting_;
  std::vector<std::int64_t> done_;  // by task: iterations
  std::vector<Iteration::Span> spans_;
  std::vector<double> lasted_;  // by task beside others: from its issue to its end, the last time
  double first_issued_ = 0;
};

}  // namespace

TaskParts evaluate_tasks(const Program& program, const Report& step,
                         const std::function<void(const Task&, const Program&, Report&)>& evaluate) {
  TaskParts parts;
  parts.programs.resize(program.pieces.front().tasks.size());
  parts.reports.resize(parts.programs.size());
  for (const Task& task : program.tasks) {
    if (task.block > 0) {  // no two tasks have one block but the step
      task_program(program, task.block, parts.programs[task.block - 1u]);
      evaluate(task, parts.programs[task.block - 1u], parts.reports[task.block - 1u]);
    }
    parts.alone.push_back(task.block == 0 ? step.step_seconds : parts.reports[task.block - 1u].step_seconds);
  }
  return parts;
}

Iteration iterate(const Program& program, std::span<const double> alone, const BesideTimes& beside) {
  constexpr double kEqual = 1e-12;  // relative to the time of an iteration
  Clock clock(program, alone, beside);
  static_assert(kMostIterations % 2 == 0);
  std::uint16_t lag = 0;  // before so many iterations some tasks do not wait
  for (const Task& task : program.tasks)
    for (const After& after : task.after) lag = std::max(lag, after.lag);
  double begin = 0, last = -1, half = 0, backlog = -1;
  for (int i = 0; i < kMostIterations; ++i) {
    const double end = clock.iteration(i), seconds = end - begin, before = std::exchange(backlog, clock.backlog());
    if (i > lag && std::abs(seconds - last) <= kEqual * seconds && std::abs(backlog - before) <= kEqual * seconds)
      return {seconds, clock.uncertain(), clock.waiting(), clock.spans()};
    last = seconds;
    begin = end;
    if (2 * (i + 1) == kMostIterations) half = end;
  }
  return {(begin - half) / (kMostIterations / 2), clock.uncertain(), clock.waiting(), clock.spans()};
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
                            .beside = task.beside,
                            .begin_seconds = iteration.spans[t].begin,
                            .end_seconds = iteration.spans[t].end});
    if (task.block == 0 || task.beside) continue;
    const double share = static_cast<double>(task.repeats) / steps;
    accounted += share * of.step_seconds;
    // Stages that do the same in the step do the same in other tasks, but not the reverse.
    const auto like = [&of](const StageReport& stage) -> const StageReport& {
      const auto found = std::ranges::find_if(
          of.stages, [&](const StageReport& r) { return r.stage <= stage.stage && stage.stage < r.stage + r.stages; });
      return found == of.stages.end() ? of.stages.back() : *found;
    };
    for (StageReport& stage : report.stages) {
      const TimeBreakdown& time = like(stage).time;
      for (const TimeTerm& term : time_terms()) term.of(stage.time) += share * term.of(time);
    }
    // The communicators of all tasks exist all the time; the step's report has them.
    for (StageReport& stage : report.stages) {
      MemoryBreakdown there = like(stage).memory;
      there.peak_bytes += stage.memory.framework_bytes - there.framework_bytes;
      there.framework_bytes = stage.memory.framework_bytes;
      if (there.peak_bytes > stage.memory.peak_bytes) stage.memory = there;
    }
  }
  for (std::size_t s = 0; s < report.stages.size(); ++s) {
    if (report.stages[s].memory.peak_bytes <= report.memory_peak_bytes) continue;
    report.memory_peak_bytes = report.stages[s].memory.peak_bytes;
    report.memory_stage = static_cast<std::int64_t>(s);
  }
  report.memory_fits = fits_everywhere(report);
  // The rest is waits for tasks that run beside others, and the time by which these slow steps down.
  for (StageReport& stage : report.stages) {
    stage.time.exposed[static_cast<std::size_t>(Stream::data_communication)] += each - accounted;
    stage.busy_seconds = each - stage.time.bubble;
  }
  report.iteration_seconds = iteration.seconds;
  report.step_seconds = each;
  for (double* rate : rates(report)) *rate *= alone / each;
  summarise_bounding_stage(report);
}

}  // namespace orrery
