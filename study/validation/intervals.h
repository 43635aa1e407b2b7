// From the errors of published steps to intervals for others.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "sim/cost/step_calibration.h"
#include "study/validation/predicted_points.h"

namespace orrery {

// Whether the step calibration has been fitted on the point: a step time that is predicted and not set aside.
bool is_fitted(const PredictedPoint& point);
// What a fitted point of each source counts: a source of more than kMostOfSource weighs no more than so many.
inline constexpr double kMostOfSource = 30;
std::map<std::string, double> weights_of_sources(std::span<const PredictedPoint> points);

inline constexpr double kIntervalShare = 0.8;
// Of a stack that speaks for itself.
inline constexpr std::int64_t kLeastPoints = 10, kLeastSources = 2;

// Half widths and factors that hold kIntervalShare of every stack's and every origin's weighted points when each source
// is held against those that the other sources give: sources differ from each other more than the points of one do.
// `points`: predicted by calibrations that have not seen them (Seen::others); those that are not fitted are no part.
// `of`: the sources that they are found from; all where empty.
StepIntervals step_intervals(std::span<const PredictedPoint> points, const std::set<std::string>& of = {});

// Returns StepIntervals::unseen_device_factor: the least factor, but at least 1, on the widths of `intervals` with
// which they hold kIntervalShare of the points' weight. `points`: each predicted by a calibration that has seen no step
// of its device.
double unseen_device_factor(std::span<const PredictedPoint> points, const StepIntervals& intervals);

// Weighted share of fitted points inside their intervals: over all, by stack ("megatron-core") and by origin
// ("curves: own"). `of`: the sources whose points are tried; all where empty.
std::map<std::string, double> interval_coverage(std::span<const PredictedPoint> points, const StepIntervals& intervals,
                                                const std::set<std::string>& of = {});
inline constexpr const char* kAllSteps = "all";

// The same where each source is held against widths that the others give, times what step_intervals() finds missing:
// what to expect of a source that nobody has seen.
std::map<std::string, double> unseen_coverage(std::span<const PredictedPoint> points);

// Of all predicted steps that were measured, each counting once, those among them that are not fitted: how many there
// are, and how many lie inside the intervals that reports state.
struct PlainCoverage {
  std::int64_t points = 0, inside = 0;
};
std::map<std::string, PlainCoverage> plain_coverage(std::span<const PredictedPoint> points);

// The sources that have predicted steps, every other one in the first.
std::pair<std::set<std::string>, std::set<std::string>> halves_of_sources(std::span<const PredictedPoint> points);

}  // namespace orrery
