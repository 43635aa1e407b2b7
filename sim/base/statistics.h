// Order statistics of small samples.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

namespace orrery {

// The quantile of values in any order by linear interpolation between order statistics (type 7 of Hyndman & Fan 1996,
// The American Statistician 50(4); the default of R and NumPy). NaN for no values.
inline double quantile(std::vector<double> values, double share) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(values.begin(), values.end());
  const double position = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return std::lerp(values[below], values[above], position - static_cast<double>(below));
}
inline double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

}  // namespace orrery
