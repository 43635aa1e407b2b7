// Selects the points that `orrery validate` predicts.
#pragma once

#include <vector>

#include "study/validation/predicted_points.h"

namespace orrery {

// predict_published(). Throws InputError if the filter leaves no point; the error names the part of the filter that is
// the cause.
std::vector<PredictedPoint> points_asked_for(const ValidationFilter& filter, Simulator& simulator, Seen seen);

}  // namespace orrery
