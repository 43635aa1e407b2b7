// What published series lose as clusters grow, beside what is predicted: results/published/scaling.json.
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
  bool weak = false;  // the same work on each replica; else the same global batch
  std::vector<const PredictedPoint*> points;
  // Share of the tokens a device and second that each doubling of the devices costs, between the first and the last;
  // negative: gained.
  double measured_loss = 0, predicted_loss = 0;
};

// Series that have two predicted points at least, in the order of the file. Throws InputError where the file names a
// point that is not there.
std::vector<ScalingSeries> scaling_series(std::span<const PredictedPoint> points);

}  // namespace orrery
