// The points that `orrery validate` predicts.
#pragma once

#include <vector>

#include "study/validation/predicted_points.h"

namespace orrery {

// predict_published(). Throws InputError where the filter leaves none, and says which part of it does so.
std::vector<PredictedPoint> points_asked_for(const ValidationFilter& filter, Simulator& simulator, Seen seen);

}  // namespace orrery
