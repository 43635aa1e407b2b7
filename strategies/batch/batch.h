// How the global batch is cut: replicas x micro-batches x micro-batch size. Gradient accumulation is what remains.
#pragma once

#include "sim/program/program.h"
#include "strategies/scenario.h"

namespace orrery::batch {

void check(const Scenario& scenario);
// Every dimension along the batch is divided over the data-parallel digits.
void rewrite(const Scenario& scenario, Program& program);

}  // namespace orrery::batch
