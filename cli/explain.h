// Explains a number: its formula with values and sources.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "study/simulation/simulation.h"

namespace orrery {

// `name`: an op ("layer.forward.fc1", or its last part, "fc1"), a term of the time ("bubble", "exposed_...", see
// time_terms), "step", "mfu", "memory", or a topic of a strategy (strategies/topic.h). A topic may call `evaluate` for
// other plans; it must use the same engine and must not change what `simulation` points to. Throws InputError with the
// nearest name. REQUIRES: the report has its ops.
std::string explain(const std::string& name, const Simulation& simulation,
                    const std::function<Simulation(const Scenario&)>& evaluate);

// Names without spaces that explain() knows whatever the plan.
std::vector<std::string> explained_names();
// Topics of strategies, a line each, for people.
std::string topics_text();

// Every op with its cost. REQUIRES: the report has its ops.
std::string op_table(const Simulation& simulation);

}  // namespace orrery
