#include "sim/planning/checkpoint_interval.h"

#include <cmath>

namespace orrery {

double young_interval(double stall, double between) { return std::sqrt(2 * stall * between); }

double daly_interval(double stall, double between) {
  if (stall >= 2 * between) return between;
  const double half = stall / (2 * between);
  return young_interval(stall, between) * (1 + std::sqrt(half) / 3 + half / 9) - stall;
}

double optimal_interval(double stall, double between) {
  const double d = stall / between;
  // f(x) = 1 - x - exp(-x - d) is concave and falls from x = 0 on. Starting from its negative side, Newton's steps
  // descend to the root without passing it. 1 - exp(-x - d) keeps its digits if both are small.
  double x = 1;
  for (;;) {
    const double rise = -std::expm1(-x - d);
    const double next = x - (x - rise) / rise;
    if (!(next < x)) return x * between;
    x = next;
  }
}

double kokolis_ettr(double stall, double interval, double restart, double between) {
  return (1 - (restart + interval / 2) / between) / (1 + stall / interval);
}

}  // namespace orrery
