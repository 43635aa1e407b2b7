// How a number came about: formulas with their numbers and sources.
#pragma once

#include <string>

#include "sim/simulation/simulation.h"

namespace orrery {

// `name`: an op ("layer.forward.fc1", or its last part, "fc1"), a term of the time ("bubble", "exposed_...", see
// terms_of), or "step", "mfu", "memory". Throws InputError with the nearest name. REQUIRES: the report has its ops.
std::string explain(const std::string& name, const Simulation& simulation);

// Every op with its cost. REQUIRES: the report has its ops.
std::string op_table(const Simulation& simulation);

}  // namespace orrery
