// From the errors of published steps to intervals for others.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sim/cost/step_calibration.h"
#include "sim/validation/predicted_points.h"

namespace orrery {

// Whether the step calibration has been fitted on the point: a step time that is predicted and not set aside.
bool is_fitted(const PredictedPoint& point);
// What a fitted point of each source counts: a source of more than kMostOfSource weighs no more than so many.
inline constexpr double kMostOfSource = 30;
std::map<std::string, double> weights_of_sources(std::span<const PredictedPoint> points);

inline constexpr double kIntervalShare = 0.8;
// Of a group that speaks for itself.
inline constexpr std::int64_t kLeastPoints = 10, kLeastSources = 2;

// Share of points inside the interval that the points of all other sources give them, when these take the central
// `share` of measured / predicted. Sources weigh as above. `of`: the
// sources whose points are tried; all where empty.
double interval_coverage(std::span<const PredictedPoint> points, double share, const std::set<std::string>& of = {});

// Sources differ from each other more than the points of one do, so that the central kIntervalShare of some sources
// holds less than that of another. The smallest share, in steps of a hundredth, whose coverage is kIntervalShare.
double interval_share(std::span<const PredictedPoint> points, const std::set<std::string>& of = {});

// The sources that have predicted steps, every other one in the first.
std::pair<std::set<std::string>, std::set<std::string>> halves_of_sources(std::span<const PredictedPoint> points);

// For every group of comparable_steps() that has enough steps: the central interval_share() of measured / predicted,
// weighted as above. `points`: predicted by calibrations that have not seen them (Seen::others); those that are not
// fitted are no part.
std::map<std::string, StepInterval> step_intervals(std::span<const PredictedPoint> points);

}  // namespace orrery
