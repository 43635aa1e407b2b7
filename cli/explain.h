// Explains a number: its formula with values and sources.
#pragma once

#include <functional>
#include <string>

#include "study/simulation/simulation.h"

namespace orrery {

// `name`: an op ("layer.forward.fc1", or its last part, "fc1"), a term of the time ("bubble", "exposed_...", see
// terms_of), or "step", "mfu", "memory", "moe_pipeline_degree". For the last, `evaluate` is called for other degrees;
// it must use the same engine and must not change what `simulation` points to. Throws InputError with the nearest name.
// REQUIRES: the report has its ops.
std::string explain(const std::string& name, const Simulation& simulation,
                    const std::function<Simulation(const Scenario&)>& evaluate);

// Returns a table of all ops with their costs. REQUIRES: the report has its ops.
std::string op_table(const Simulation& simulation);

}  // namespace orrery
