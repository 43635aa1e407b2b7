// Candidates that use the best plan of each size instead of the pattern's.
#pragma once

#include <functional>
#include <string>

#include "study/capacity/sized_candidate.h"
#include "study/search/search.h"

namespace orrery {

// The fastest plan that fits with the upper end of its predicted peak; if there is none, the fastest that fits; if
// nothing fits, the pattern's own plan. `started`: called before each search.
ScenarioOn searched_plans(SpaceOptions fields, int threads, UserCalibration user,
                          std::function<void(const Scenario&)> started = {});

}  // namespace orrery
