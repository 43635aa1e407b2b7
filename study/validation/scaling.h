// The losses of published series as clusters grow, with the predicted losses: results/published/scaling.json.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "study/validation/predicted_points.h"

namespace orrery {

// Points of one model at several sizes of one cluster, fewest devices first.
struct ScalingSeries {
  std::string name;
  bool weak = false;  // the same work per replica; false: the same global batch
  std::vector<const PredictedPoint*> points;
  // Share of the tokens per device and second that each doubling of the devices costs, between the first and the last
  // point; negative: a gain.
  double measured_loss = 0, predicted_loss = 0;
};

// The series with at least two predicted points, in the order of the file. Throws InputError if the file names a point
// that does not exist.
std::vector<ScalingSeries> scaling_series(std::span<const PredictedPoint> points);

}  // namespace orrery
