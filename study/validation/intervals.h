// Derives intervals for predictions from the errors of published steps.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "sim/cost/step_calibration.h"
#include "study/validation/predicted_points.h"

namespace orrery {

// Whether the step calibration is fitted on the point: a predicted step time that is not excluded.
bool is_fitted(const PredictedPoint& point);
// The weight of a fitted point, by source: a source of more than kMostOfSource points weighs as much as that many.
inline constexpr double kMostOfSource = 30;
std::map<std::string, double> weights_of_sources(std::span<const PredictedPoint> points);

inline constexpr double kIntervalShare = 0.8;
// The points and sources that a stack needs for an interval of its own, and its mixtures over a network, too.
inline constexpr std::int64_t kLeastPoints = 10, kLeastSources = 2;

// Half widths and factors such that kIntervalShare of the weighted points of every stack, of every origin and of
// mixtures of experts lie within, when each source is tested against the intervals from the other sources: errors
// differ more between sources than within one. Mixtures where few were published (StepIntervals::RareMixtures) have too
// few sources for that; their half width is the one within which kIntervalShare of their points lie. `points`:
// predicted by calibrations that have not seen them (Seen::others). Points that are composed or not fitted are ignored;
// those of rare mixtures count though they are not fitted, unless they are doubtful (quality C). `of`: the sources to
// derive intervals from; empty: all.
StepIntervals step_intervals(std::span<const PredictedPoint> points, const std::set<std::string>& of = {});

// Computes StepIntervals::unseen_device_factor: the smallest factor >= 1 on the widths of `intervals` with which they
// contain kIntervalShare of the points' weight. `points`: each predicted by a calibration that has seen no step of its
// device.
double unseen_device_factor(std::span<const PredictedPoint> points, const StepIntervals& intervals);

// How many points are in a group, and how many of them lie inside their intervals, each with its weight.
struct Coverage {
  double points = 0, inside = 0;
  // REQUIRES: points > 0.
  double share() const { return inside / points; }
};
// By group: of all points, by stack ("megatron-core"), by origin ("curves: own"), and of models with or without
// experts. Rare mixtures are no part of kMixtures.
using CoverageOfGroups = std::map<std::string, Coverage>;
inline constexpr const char* kAllSteps = "all";
inline constexpr const char* kDense = "models: dense";
inline constexpr const char* kMixtures = "models: mixtures of experts";
inline constexpr const char* kRareMixtures = "models: mixtures where few were published";

// Returns the coverage of fitted points that are not composed, as if steps of every device had been published. `of`:
// the sources whose points are tested; empty: all.
CoverageOfGroups interval_coverage(std::span<const PredictedPoint> points, const StepIntervals& intervals,
                                   const std::set<std::string>& of = {});

// The same if each source is tested against the widths from the other sources, multiplied by the factors of
// step_intervals(): the coverage to expect for an unseen source. The widths of rare mixtures have no such factor.
CoverageOfGroups unseen_coverage(std::span<const PredictedPoint> points);

// Returns the coverage of all predicted steps that were measured, also of those that are not fitted, by the intervals
// that reports state. Each step counts once.
CoverageOfGroups plain_coverage(std::span<const PredictedPoint> points);

// The sources with predicted steps in two halves, alternately; the first half begins.
std::pair<std::set<std::string>, std::set<std::string>> halves_of_sources(std::span<const PredictedPoint> points);

}  // namespace orrery
