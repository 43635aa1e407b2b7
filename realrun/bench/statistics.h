// Statistics for comparing two sets of repetitions.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace orrery::bench {

struct MannWhitney {
  double u = 0;  // pairs (a, b) with a > b; ties count half
  double p = 1;  // two-sided
  bool exact = true;
};

// The rank-sum test of Mann & Whitney 1947 (Annals of Mathematical Statistics 18(1)): would a and b differ this much if
// they were drawn from one distribution? Without ties and with at most kExactMost values on either side, p follows from
// their recurrence: P = 2 P(U <= min(u, nm - u)). Otherwise it is the normal approximation, corrected for continuity
// and ties (Lehmann 1975, Nonparametrics, chapter 1). p is 1 if a side is empty.
inline constexpr std::size_t kExactMost = 40;
MannWhitney mann_whitney(std::span<const double> a, std::span<const double> b);

// The smallest p that samples of these sizes can have: 2 / binomial(n + m, n), if one lies wholly above the other.
double smallest_p(std::size_t n, std::size_t m);

// The least factor >= 1 such that mann_whitney(a, factor x b) calls b the larger with p below `level`, to a
// ten-thousandth; infinity if there is none. It is one end of the confidence interval of the factor that the test
// inverts to (Hodges & Lehmann 1963, Annals of Mathematical Statistics 34(2)). REQUIRES: values above 0.
double least_significant_factor(std::span<const double> a, std::span<const double> b, double level);

// Returns p-values adjusted for their number, in the same order: Holm 1979 (Scandinavian Journal of Statistics 6(2)).
// If hypotheses are rejected where the adjusted value is below alpha, the probability of any false alarm is at most
// alpha, however the tests depend on each other.
std::vector<double> holm(std::span<const double> p);

// A place at which the level of consecutive values changes.
struct ChangePoint {
  // Index of the first value of the new level; 0: there are too few values for a significant change.
  std::size_t first = 0;
  double p = 1;  // two-sided, adjusted for the number of places
};

// Returns the place at which mann_whitney of the values before and after it has the smallest p, the earliest among
// equals: a maximally selected rank statistic (Lausen & Schumacher 1992, Biometrics 48(1)). It is the statistic of
// Pettitt 1979 (Applied Statistics 28(2)) divided by its spread at each place; without this a change among the last
// runs would have to be larger than one in the middle. p is the smallest p times the number of places (Bonferroni): an
// upper bound however the places depend on each other. The function tries only places at which a significant change is
// possible: smallest_p of the values before and after, times the number of tried places, must be below `level`. Which
// these are depends on the number of values alone, so leaving out the others does not bias the test.
ChangePoint change_point(std::span<const double> values, double level);
// The least number of values in which a change could be significant at `level`. REQUIRES: 0 < level.
std::size_t values_for_change(double level);

}  // namespace orrery::bench
