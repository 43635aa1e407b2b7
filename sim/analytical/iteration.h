// The time of an iteration of tasks (sim/program/task.h), from the times of its tasks. Both engines use it: they differ
// in where these come from.
//
// A task that runs beside others needs links that these need, too. It is described by the seconds that it takes alone,
// and by how much of these a run of another task gets done for it meanwhile.
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
// The tasks numbered `task` and `beside`, of which the second runs beside the first.
using BesideTimes = std::function<RunBeside(std::size_t task, std::size_t beside)>;

struct Iteration {
  double seconds = 0;
  // What slowing down adds to runs of which a part only is beside another task: the other may have met another part.
  double uncertain_seconds = 0;
  std::vector<double> waiting;  // by task: seconds for which it waits for others before it begins
};

// Iterations are added up until they take equally long; then this is their time, and otherwise the mean of the second
// half of kMostIterations. `alone`: seconds of one run of each task with nothing beside it.
inline constexpr int kMostIterations = 64;
Iteration iterate(const Program& program, std::span<const double> alone, const BesideTimes& beside);

// Makes of `report`, that of the step alone, the report of a step on average over iterations: its time, with the other
// tasks' parts of it, and its rates. Memory is the most that any task needs. `blocks`: the reports of the Programs of
// blocks 1, 2, .. (task_program()), for tasks that run beside others their seconds only.
void spread(const Program& program, const Iteration& iteration, std::span<const Report> blocks, Report& report);

}  // namespace orrery
