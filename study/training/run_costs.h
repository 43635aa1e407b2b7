// The costs by which controllers weigh changes, from the engines' cost models.
#pragma once

#include "strategies/training_controller.h"
#include "study/prediction/prediction.h"

namespace orrery {

// For the expert groups of a prepared scenario; all costs are 0 without experts. The functions hold copies of the data
// they need.
StepMoveCosts run_costs(const Prepared& prepared);

}  // namespace orrery
