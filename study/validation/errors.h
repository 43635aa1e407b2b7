// Errors of predictions: statistics over groups of points, and what has changed since they were stored.
#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "study/validation/predicted_points.h"

namespace orrery {

// Statistics of the errors predicted / measured - 1.
struct ErrorStatistics {
  std::size_t points = 0;
  double mean = 0, median = 0, percentile_90 = 0, worst = 0;  // of the absolute errors
  double bias = 0;                                            // median of the signed errors
};
ErrorStatistics error_statistics(const std::vector<double>& errors);

// Kendall's tau-b (Kendall 1945, Biometrika 33(3)) of two rankings of the same items: 1 for the same order, -1 for the
// reverse. Nothing if either side is constant.
std::optional<double> kendall_tau(std::span<const double> a, std::span<const double> b);

// Whether predictions order the configurations of a table as the measurements do: the mean of tau over all tables with
// at least kLeastOfTable predicted points, with equal weights.
inline constexpr std::size_t kLeastOfTable = 4;
struct Ranking {
  std::size_t tables = 0;
  double tau = 0;
  // Mean over tables: the measured time of the configuration that is predicted to be the fastest, over the fastest
  // measured time, minus 1.
  double best_lost = 0;
};
Ranking ranking_of(std::span<const PredictedPoint* const> points);

// Sorts by the factor by which predictions are off, in either direction.
inline constexpr std::size_t kWorstShown = 10;
void sort_worst_first(std::vector<const PredictedPoint*>& points);

// Whether runs fit a device's memory, predicted against measured. The points are those of Quantity::fits and those with
// a step time or a memory peak (these ran), from measured sources.
struct FitsConfusion {
  std::size_t fits_as_predicted = 0, fails_as_predicted = 0;
  std::size_t wrongly_fits = 0;              // predicted to fit, but ran out of memory
  std::size_t wrongly_fails = 0;             // ran, predicted not to fit
  std::vector<const PredictedPoint*> wrong;  // both kinds, by the distance of the peak from the capacity
  // The number of wrong ones whose predicted peak is more than kFitsMargin away from the capacity.
  std::size_t wrong_beyond_margin = 0;
};
inline constexpr double kFitsMargin = 0.05;
bool ran(const PublishedPoint& point);
FitsConfusion fits_confusion(std::span<const PredictedPoint> points);

// A group of points with one quantity.
struct ErrorGroup {
  std::string name;
  std::size_t not_predicted = 0;
  ErrorStatistics error;
  Ranking ranking;                            // for Quantity::step_seconds
  std::vector<const PredictedPoint*> points;  // the predicted ones
};
// Groups points by their keys, in the order in which keys first occur. Leaves out points with an empty key.
std::vector<ErrorGroup> groups_by(std::span<const PredictedPoint> points,
                                  const std::function<std::string(const PredictedPoint&)>& key);

// A published series of points of one model at several sizes of one cluster (results/published/scaling.json), fewest
// devices first: its losses as the cluster grows, with the predicted losses.
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

// ---- errors stored in a file, results/accuracy.json, so that a change that worsens them is noticed

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
