// The time of an iteration of tasks (sim/program/task.h), from the times of its tasks. Both engines use it: they differ
// in where these come from.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "sim/program/program.h"
#include "sim/report/report.h"

namespace orrery {

// One run of a task while another runs beside it: its seconds, and the seconds (of those alone) that the other gets
// done.
struct RunBeside {
  double seconds = 0, done = 0;
};
// For the tasks numbered `task` and `beside`, of which the second runs beside the first. Called once for each pair of
// blocks.
using BesideTimes = std::function<RunBeside(std::size_t task, std::size_t beside)>;

// The tasks of a program, each by itself.
struct TaskParts {
  std::vector<Program> programs;  // by block - 1: task_program(); blocks that no task runs have none
  std::vector<Report> reports;    // of these
  std::vector<double> alone;      // by task, the step included: seconds of one run with nothing beside it
};
// `step`: the report of the step alone. `evaluate`: fills the report of a task's program.
TaskParts evaluate_tasks(const Program& program, const Report& step,
                         const std::function<void(const Task& task, const Program& alone, Report& report)>& evaluate);

struct Iteration {
  double seconds = 0;
  // Where a task beside others ends within a run, the run is charged the mean slow-down for that part. The part that it
  // met may slow down more or less, by up to these seconds.
  double uncertain_seconds = 0;
  std::vector<double> waiting;  // by task: seconds for which it waits for others before it begins
  // By task: when its first run begins (beside others: is issued) and its last one ends, from the begin of the
  // iteration.
  struct Span {
    double begin = 0, end = 0;
  };
  std::vector<Span> spans;
};

// Iterations are added up until two are alike; then this is their time, and otherwise the mean of the second half of
// kMostIterations. `alone`: by task, the seconds of one run with nothing beside it; above 0.
inline constexpr int kMostIterations = 64;
Iteration iterate(const Program& program, std::span<const double> alone, const BesideTimes& beside);

// Makes of `report`, that of the step alone, the report of a step on average over iterations: its time, with the other
// tasks' parts of it, and its rates. Memory is the most that any task needs. What slows steps beside another task, and
// waits for it, count as exposed data communication. `blocks`: the reports of the Programs of blocks 1, 2, ..
// (task_program()), for tasks that run beside others their seconds only. REQUIRES: the report has stages, and was not
// spread before.
void spread(const Program& program, const Iteration& iteration, std::span<const Report> blocks, Report& report);

}  // namespace orrery
