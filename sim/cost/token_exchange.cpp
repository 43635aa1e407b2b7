#include "sim/cost/token_exchange.h"

#include <algorithm>
#include <cmath>

namespace orrery {
namespace {

// The probability that none of `draws` different ones out of `all` is among `some`.
double none_of(double all, double some, double draws) {
  if (draws > all - some) return 0;
  double p = 1;
  for (double i = 0; i < draws; ++i) p *= (all - some - i) / (all - i);
  return p;
}

// The probability that a token goes to any of `some` experts that lie side by side.
double meets(const Router& router, double some) {
  const double experts = router.experts, choices = router.choices;
  if (router.groups == 0) return 1 - none_of(experts, some, choices);
  const double in_group = experts / router.groups, best = router.best_groups;
  if (some < in_group) {  // a part of one group, if that group is chosen
    return best / router.groups * (1 - none_of(best * in_group, some, choices));
  }
  // Several whole groups: j of them are among the best with hypergeometric probability.
  const double groups = some / in_group;
  double p = 0;
  for (double j = std::max(0.0, best - (router.groups - groups)); j <= std::min(best, groups); ++j) {
    double ways = 1;  // choose(groups, j) choose(rest, best - j) / choose(all, best)
    const auto choose = [](double n, double k) { return std::exp(std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1)); };
    ways = choose(groups, j) * choose(router.groups - groups, best - j) / choose(router.groups, best);
    p += ways * (1 - none_of(best * in_group, j * in_group, choices));
  }
  return p;
}

}  // namespace

TokenShares token_shares(const Router& router, std::int64_t ranks, std::int64_t nodes) {
  const double experts = router.experts, choices = router.choices;
  return {meets(router, experts / static_cast<double>(ranks)) / choices,
          meets(router, experts / static_cast<double>(nodes)) / choices, choices};
}

}  // namespace orrery
