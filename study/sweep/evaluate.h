// The work of one thread of a sweep.
#pragma once

#include <string>

#include "sim/cost/user_calibration.h"
#include "study/sweep/document.h"
#include "study/sweep/work.h"

namespace orrery {

struct SweepEvaluation {
  std::string program;  // its version and calibrations, which are part of each key
  UserCalibration user{};
  int search_threads = 1;  // threads of each search for a point's best plan
};

// Evaluates points of `work` until there are none left.
void evaluate_points(const SweepDocument& sweep, const SweepEvaluation& evaluation, SweepWork& work);

}  // namespace orrery
