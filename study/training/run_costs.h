// What controllers weigh changes by, from the cost models of the engines.
#pragma once

#include "strategies/run_controller.h"
#include "study/prediction/prediction.h"

namespace orrery {

// Of the expert groups of a prepared scenario; without experts all costs are 0. Functions hold copies of what they
// need.
RunCosts run_costs(const Prepared& prepared);

}  // namespace orrery
