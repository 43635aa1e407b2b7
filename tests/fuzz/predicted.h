// From a scenario to all that is said of it.
#pragma once

#include <string>

#include "sim/cost/user_calibration.h"
#include "strategies/read_scenario.h"

namespace orrery::fuzz {

// Lowers the scenario, proves the Program, predicts the step and writes the report in all forms; its JSON. Throws
// InputError.
std::string predicted(const Scenario& scenario, const UserCalibration& user = {});

}  // namespace orrery::fuzz
