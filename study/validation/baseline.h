// Error figures kept in a file, so that a change that worsens them is seen: results/accuracy.json.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "study/validation/predicted_points.h"

namespace orrery {

// By group, a source's points of one quantity: how many, their median absolute error, and its noise, the standard error
// of that median from the spread of the errors, at least kLeastNoise.
inline constexpr double kLeastNoise = 0.005;
nlohmann::ordered_json baseline_json(std::span<const PredictedPoint> points);

struct MovedGroup {
  std::string name;
  double before = 0, after = 0, noise = 0;  // of the median error
  bool is_worse = false;                    // by more than the noise; or a group that is gone or lost points
};
// The groups whose figures are not the baseline's, in its order. Throws InputError for a file that is no baseline.
std::vector<MovedGroup> moved_groups(std::span<const PredictedPoint> points, const nlohmann::json& baseline,
                                     const std::string& file);
std::string moved_table(const std::vector<MovedGroup>& moved);  // "" where nothing moved

}  // namespace orrery
