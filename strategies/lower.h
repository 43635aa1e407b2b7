// The one way from a scenario to a Program.
#pragma once

#include <span>

#include "sim/program/program.h"
#include "strategies/scenario.h"
#include "strategies/strategy.h"

namespace orrery {

// Lowers into `program`, reusing its storage. Throws InputError as check() does. Cost: independent of
// micro-batches and data-parallel replicas, and of layers unless the plan has ranges of them; about 15 us.
void lower(const Scenario& scenario, Program& program);
// By these strategies rather than by all_strategies().
void lower(const Scenario& scenario, std::span<const Strategy> strategies, Program& program);

}  // namespace orrery
