// Lowers a scenario to a Program.
#pragma once

#include <span>

#include "sim/program/program.h"
#include "strategies/scenario.h"
#include "strategies/strategy.h"

namespace orrery {

// Writes the scenario's program into `program`, reusing its storage. Throws InputError as check() does. Cost: about 15
// us, independent of micro-batches and data-parallel replicas, and of layers unless the plan has ranges of them.
void lower(const Scenario& scenario, Program& program);
// As above, but applies `strategies` instead of all_strategies().
void lower(const Scenario& scenario, std::span<const Strategy> strategies, Program& program);

}  // namespace orrery
