#include "strategies/search_axis.h"

#include <algorithm>

namespace orrery {

void append_divisors(std::int64_t number, std::vector<std::int64_t>& values) {
  const std::size_t first = values.size();
  for (std::int64_t d = 1; d * d <= number; ++d) {
    if (number % d != 0) continue;
    values.push_back(d);
    if (d != number / d) values.push_back(number / d);
  }
  std::sort(values.begin() + static_cast<std::ptrdiff_t>(first), values.end());
}

void append_flags(bool also, std::vector<std::int64_t>& values) {
  values.push_back(0);
  if (also) values.push_back(1);
}

}  // namespace orrery
