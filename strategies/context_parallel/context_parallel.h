// Context parallelism: every rank holds 1/cp of each sequence, through the whole layer. Attention runs as a ring
// (Liu et al. 2023, arXiv 2310.01889): keys and values travel round the ranks, each step computes attention with one
// part and merges the results by their log-sum-exp. Under a causal mask the zigzag deal gives every rank equal work.
#pragma once

#include "sim/program/program.h"
#include "strategies/strategy.h"

namespace orrery::context_parallel {

void check(const Scenario& scenario);
void add_digits(const Scenario& scenario, Mesh& mesh);
void rewrite(const Scenario& scenario, Program& program);
void disable(Plan& plan);
std::int64_t ranks(const Plan& plan);
std::span<const PlanWord> words();
void check_runnable(const Scenario& scenario);

}  // namespace orrery::context_parallel
