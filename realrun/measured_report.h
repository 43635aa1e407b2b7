// Turns the ranks' measurements into a Report, the form of a prediction, so that both can be compared.
//
// Conventions:
//  - The step time is the median, over the steps without marks, of the slowest rank's time. With tasks beside the step
//    (sim/program/task.h) it is the median, over stretches of as many steps as an iteration has, of their mean. Ranks
//    meet before each measured step. On a GPU a measured step ends when all streams are idle, so that a task beside the
//    steps is waited for at once.
//  - Other tasks, and waits for them, have no marks: their time is in "waiting for the host".
//  - A stage's terms are the means over its ranks and the marked steps, scaled to add up to the step time. On a CPU,
//    which does one thing after the other, all communication is exposed, and "waiting for the host" is the executor's
//    own time between ops. On a GPU a term is time of the compute stream; a gap counts for the stream it waited for.
//  - Seconds of an op are the median over steps of the mean over its calls, on the slowest rank of the bounding stage.
//    An op that fills buckets runs once per instance here, once per bucket in a prediction: compare seconds *
//    times_per_step.
//  - Routing is what the data gave: rows of the busiest rank over the mean of its group. FLOPs and bytes of ops on
//    experts' rows count the rows that existed.
//  - Memory is that of live tensors in their own dtypes, without framework overhead or fragmentation.
#pragma once

#include <vector>

#include "realrun/backend.h"
#include "realrun/executor.h"
#include "sim/report/report.h"

namespace orrery {

// REQUIRES: results of all ranks, measured (ExecutionOptions::measure).
Report measured_report(const Scenario& scenario, const Program& program, const std::vector<RankResult>& ranks,
                       const BackendFacts& facts);

// The slowest rank's time of each step: &RankResult::step_seconds.
std::vector<double> slowest(const std::vector<RankResult>& ranks, std::vector<double> RankResult::*seconds);
// The same of what repeats: if the Program has other tasks than the step, the mean over each stretch of as many steps
// as an iteration has, or over all steps if they are fewer.
std::vector<double> step_samples(const Program& program, const std::vector<RankResult>& ranks,
                                 std::vector<double> RankResult::*seconds);
// The shortest of these samples without marks (with marks if there are no others).
double fastest_step_seconds(const Program& program, const std::vector<RankResult>& ranks);

}  // namespace orrery
