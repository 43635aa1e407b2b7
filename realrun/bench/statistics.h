// The statistics of comparing two sets of repetitions.
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

// The rank-sum test of Mann & Whitney 1947 (Annals of Mathematical Statistics 18(1)): would a and b look this different
// were they drawn from one distribution? Without ties and with at most kExactMost values on either side, p follows from
// their recurrence: P = 2 P(U <= min(u, nm - u)). Otherwise from the normal approximation with correction for
// continuity and ties (Lehmann 1975, Nonparametrics, chapter 1). p is 1 where a side is empty.
inline constexpr std::size_t kExactMost = 40;
MannWhitney mann_whitney(std::span<const double> a, std::span<const double> b);

// The smallest p that samples of these sizes can have: 2 / binomial(n + m, n), when one lies wholly above the other.
double smallest_p(std::size_t n, std::size_t m);

// The least factor from 1 on by which every b must be multiplied for mann_whitney(a, b) to call b the larger with p
// below `level`, to a ten-thousandth; infinity where no factor does. It is one end of the confidence interval of the
// factor that the test inverts to (Hodges & Lehmann 1963, Annals of Mathematical Statistics 34(2)). REQUIRES: values
// above 0.
double least_significant_factor(std::span<const double> a, std::span<const double> b, double level);

// p-values adjusted for their number, in their order: Holm 1979 (Scandinavian Journal of Statistics 6(2)). Rejecting
// where the adjusted value is below alpha makes one false alarm or more with a probability of alpha at the most,
// however the tests depend on each other.
std::vector<double> holm(std::span<const double> p);

}  // namespace orrery::bench
