// Prediction errors stored in a file, results/accuracy.json, so that a change that worsens them is noticed.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "study/validation/predicted_points.h"

namespace orrery {

// By group (a source's points of one quantity): the number of points, their median absolute error, and its noise. The
// noise is the standard error of that median from the spread of the errors, at least kLeastNoise.
inline constexpr double kLeastNoise = 0.005;
nlohmann::ordered_json baseline_json(std::span<const PredictedPoint> points);

struct MovedGroup {
  std::string name;
  double before = 0, after = 0, noise = 0;  // median errors, and the noise of the baseline
  bool is_worse = false;                    // worse by more than the noise; or the group is gone or has lost points
};
// The groups whose figures differ from the baseline, in its order. Throws InputError if the file is not a baseline.
std::vector<MovedGroup> moved_groups(std::span<const PredictedPoint> points, const nlohmann::json& baseline,
                                     const std::string& file);
std::string moved_table(const std::vector<MovedGroup>& moved);  // "" if nothing moved

}  // namespace orrery
