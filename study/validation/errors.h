// How far predictions are off: statistics over groups of points.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "study/validation/predicted_points.h"

namespace orrery {

// Of errors predicted / measured - 1.
struct ErrorStatistics {
  std::size_t points = 0;
  double mean = 0, median = 0, percentile_90 = 0, worst = 0;  // of the absolute errors
  double bias = 0;                                            // median of the signed errors
};
ErrorStatistics error_statistics(const std::vector<double>& errors);

// Kendall's tau-b (Kendall 1945, Biometrika 33(3)) of two rankings of the same things: 1 the same order, -1 reversed.
// Nothing where either side is constant.
std::optional<double> kendall_tau(std::span<const double> a, std::span<const double> b);

// Does the prediction order the configurations of a table as the measurement does? The mean of tau over the tables of
// at least kLeastOfTable predicted points, each with its weight of one.
inline constexpr std::size_t kLeastOfTable = 4;
struct Ranking {
  std::size_t tables = 0;
  double tau = 0;
  double best_lost = 0;  // mean over tables: the measured time of the configuration predicted fastest / the fastest - 1
};
Ranking ranking_of(std::span<const PredictedPoint* const> points);

// By how many times they are off, either way.
inline constexpr std::size_t kWorstShown = 10;
void sort_worst_first(std::vector<const PredictedPoint*>& points);

// What fits a device's memory: points of Quantity::fits, and those with a step time or a memory peak (they ran), of
// measured sources.
struct FitsConfusion {
  std::size_t fits_as_predicted = 0, fails_as_predicted = 0;
  std::size_t wrongly_fits = 0;              // predicted to fit, ended out of memory
  std::size_t wrongly_fails = 0;             // ran, predicted not to fit
  std::vector<const PredictedPoint*> wrong;  // both, by how far the predicted peak is from the capacity
  // Of the wrong ones, those whose predicted peak is more than kFitsMargin away from the capacity.
  std::size_t wrong_beyond_margin = 0;
};
inline constexpr double kFitsMargin = 0.05;
bool ran(const PublishedPoint& point);
FitsConfusion fits_confusion(std::span<const PredictedPoint> points);

// A group of points of one quantity.
struct ErrorGroup {
  std::string name;
  std::size_t not_predicted = 0;
  ErrorStatistics error;
  Ranking ranking;                            // of Quantity::step_seconds
  std::vector<const PredictedPoint*> points;  // the predicted ones
};
// By each point's key (an empty key: left out), in the order in which keys come up.
std::vector<ErrorGroup> groups_by_key(std::span<const PredictedPoint> points, std::span<const std::string> keys);
// The same by `key` of a point.
template <class Key>
std::vector<ErrorGroup> groups_by(std::span<const PredictedPoint> points, Key key) {
  std::vector<std::string> keys;
  keys.reserve(points.size());
  for (const PredictedPoint& p : points) keys.push_back(key(p));
  return groups_by_key(points, keys);
}

}  // namespace orrery
