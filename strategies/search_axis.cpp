#include "strategies/search_axis.h"

#include <algorithm>

namespace orrery {

AxisValues divisors_of(std::int64_t number) {
  AxisValues values;
  for (std::int64_t d = 1; d * d <= number; ++d) {
    if (number % d != 0) continue;
    values.push_back(d);
    if (d != number / d) values.push_back(number / d);
  }
  std::ranges::sort(values);
  return values;
}

}  // namespace orrery
