// How a number came about: formulas with their numbers and sources.
#pragma once

#include <functional>
#include <string>

#include "study/simulation/simulation.h"

namespace orrery {

// `name`: an op ("layer.forward.fc1", or its last part, "fc1"), a term of the time ("bubble", "exposed_...", see
// time_terms), or "step", "mfu", "memory", "moe_pipeline_degree", for which `evaluate` is asked what other degrees take:
// the same engine, and nothing that `simulation` points to. Throws InputError with the nearest name. REQUIRES: the
// report has its ops.
std::string explain(const std::string& name, const Simulation& simulation,
                    const std::function<Simulation(const Scenario&)>& evaluate);

// Every op with its cost. REQUIRES: the report has its ops.
std::string op_table(const Simulation& simulation);

}  // namespace orrery
