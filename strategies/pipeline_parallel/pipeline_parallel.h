// Pipeline parallelism: distributes the model's runs over stages and chunks, chooses the schedule, and splits weight
// gradients from the backward for zero-bubble schedules. schedules.h has the schedules.
#pragma once

#include "sim/program/program.h"
#include "strategies/strategy.h"

namespace orrery::pipeline_parallel {

void check(const Scenario& scenario);
void add_digits(const Scenario& scenario, Mesh& mesh);
void rewrite(const Scenario& scenario, Program& program);
void disable(Plan& plan);
std::int64_t ranks(const Plan& plan);
std::span<const PlanWord> words();
std::vector<std::string> notes(const Scenario& scenario);
void write_out(const Scenario& scenario, Plan& plan);
std::span<const SearchAxis> search_axes();

}  // namespace orrery::pipeline_parallel
