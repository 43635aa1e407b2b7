// Candidates by the best plan of each size, in place of the pattern's.
#pragma once

#include <functional>
#include <string>

#include "study/capacity/sized_candidate.h"
#include "study/search/search.h"

namespace orrery {

// The fastest plan that fits with the upper end of its predicted peak; where there is none, the fastest that fits;
// where nothing fits, the pattern's own. `started`: called before each search.
ScenarioOn searched_plans(SpaceOptions fields, int threads, UserCalibration user,
                          std::function<void(const Scenario&)> started = {});

}  // namespace orrery
