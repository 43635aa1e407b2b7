// What ranks measured, in the form of a prediction, so that both can be laid side by side.
//
// Conventions:
//  - The step is the median, over the steps without marks, of the slowest rank's time.
//  - A stage's terms are the means over its ranks and the marked steps, scaled to add up to the step. On a CPU, which
//    does one thing after the other, communication is all exposed and "waiting for the host" is what the executor does
//    between ops. On a GPU a term is time of the compute stream, and a gap in it counts for the stream it waited for.
//  - Seconds of an op are the median over steps of the mean over its calls, on the slowest rank of the bounding stage.
//  An
//    op that fills buckets runs once an instance here, once a bucket in a prediction: compare seconds * times_per_step.
//  - Routing is what the data gave: the busiest rank over the mean of its group. FLOPs and bytes of ops on experts'
//  rows
//    are of those that were there.
//  - Memory is that of tensors in their own dtypes, as they came and went; no framework, no fragmentation.
#pragma once

#include <vector>

#include "realrun/backend.h"
#include "realrun/executor.h"
#include "sim/report/report.h"

namespace orrery {

// REQUIRES: results of all ranks, measured (ExecutionOptions::measure).
Report measured_report(const Scenario& scenario, const Program& program, const std::vector<RankResult>& ranks,
                       const BackendFacts& facts);

// Of the steps without marks (of all, if there are none), by the slowest rank.
double fastest_step_seconds(const std::vector<RankResult>& ranks);

}  // namespace orrery
