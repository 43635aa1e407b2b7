// The training stack's generation: which kernels it fuses, how fast its host issues them, what memory it holds and how
// large its gradient buckets are. Numbers and sources: strategies/framework/stacks.json.
#pragma once

#include "models/layers.h"
#include "sim/program/program.h"
#include "strategies/scenario.h"

namespace orrery::framework {

KernelChoices kernel_choices(const Scenario& scenario);
double gradient_bucket_bytes(const Plan& plan, std::int64_t data_ranks);

void check(const Scenario& scenario);
void rewrite(const Scenario& scenario, Program& program);

}  // namespace orrery::framework
