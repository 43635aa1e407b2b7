// Do the statistics agree with published tables, worked examples and the programs everybody uses?
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "realrun/bench/statistics.h"
#include "sim/base/statistics.h"

namespace orrery::bench {
namespace {

using Values = std::vector<double>;

// Two samples without ties of n and m values with a given U.
struct Samples {
  Values a, b;
};
Samples with_u(int n, int m, int u) {
  Samples s;
  for (int j = 0; j < m; ++j) s.b.push_back(j);
  // Each of a stands above u/n of b or one more.
  for (int i = 0; i < n; ++i) {
    const int below = std::min(u, m);
    u -= below;
    s.a.push_back(below - 0.5 + 0.001 * i);
  }
  return s;
}

double p_of(int n, int m, int u) {
  const Samples s = with_u(n, m, u);
  const MannWhitney test = mann_whitney(s.a, s.b);
  EXPECT_EQ(test.u, u);
  EXPECT_TRUE(test.exact);
  return test.p;
}

TEST(Quantile, InterpolatesAsNumPyDoes) {
  EXPECT_DOUBLE_EQ(median({3, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_DOUBLE_EQ(quantile({1, 2, 3, 4}, 0.25), 1.75);  // numpy.quantile([1, 2, 3, 4], 0.25)
  EXPECT_DOUBLE_EQ(quantile({15, 20, 35, 40, 50}, 0.4), 29);
  EXPECT_DOUBLE_EQ(quantile({7}, 0.9), 7);
  EXPECT_TRUE(std::isnan(median({})));
}

// The example in the documentation of scipy.stats.mannwhitneyu (SciPy 1.11), and what it prints there.
TEST(MannWhitney, AgreesWithSciPysExample) {
  const Values males{19, 22, 16, 29, 24}, females{20, 11, 17, 12};
  const MannWhitney test = mann_whitney(males, females);
  EXPECT_EQ(test.u, 17);
  EXPECT_NEAR(test.p, 0.1111111111111111, 1e-15);
  EXPECT_TRUE(test.exact);
  EXPECT_EQ(mann_whitney(females, males).u, 3);
  EXPECT_DOUBLE_EQ(mann_whitney(females, males).p, test.p);
}

// Critical values of U, two-sided, as textbooks print them (Siegel & Castellan 1988; Milton 1964, JASA 59): the largest
// U that is significant at 0.05 and at 0.01.
TEST(MannWhitney, RejectsUpToThePublishedCriticalValues) {
  struct Row {
    int n, m, at_5, at_1;
  };
  for (const Row& row : {Row{5, 5, 2, 0}, Row{6, 8, 8, 4}, Row{8, 10, 17, 11}, Row{10, 10, 23, 16}, Row{12, 15, 49, 37},
                         Row{15, 15, 64, 51}, Row{20, 20, 127, 105}}) {
    EXPECT_LE(p_of(row.n, row.m, row.at_5), 0.05) << row.n << " " << row.m;
    EXPECT_GT(p_of(row.n, row.m, row.at_5 + 1), 0.05) << row.n << " " << row.m;
    EXPECT_LE(p_of(row.n, row.m, row.at_1), 0.01) << row.n << " " << row.m;
    EXPECT_GT(p_of(row.n, row.m, row.at_1 + 1), 0.01) << row.n << " " << row.m;
  }
}

// Table I of Mann & Whitney 1947 prints P(U <= u) for n, m up to 8.
TEST(MannWhitney, HasTheProbabilitiesOfTheOriginalTable) {
  EXPECT_NEAR(p_of(3, 3, 0) / 2, 0.050, 5e-4);
  EXPECT_NEAR(p_of(3, 3, 2) / 2, 0.200, 5e-4);
  EXPECT_NEAR(p_of(4, 4, 3) / 2, 0.100, 5e-4);
  EXPECT_NEAR(p_of(5, 5, 4) / 2, 0.048, 5e-4);
  EXPECT_NEAR(p_of(8, 8, 13) / 2, 0.025, 5e-4);
}

// Every arrangement of small samples, counted one by one.
TEST(MannWhitney, IsTheShareOfArrangementsAtLeastAsExtreme) {
  const int n = 4, m = 5;
  std::vector<int> of_a(n + m, 0);
  std::fill(of_a.begin() + m, of_a.end(), 1);
  std::vector<int> counts(n * m + 1);
  do {
    int u = 0, b_below = 0;
    for (const int a : of_a) a != 0 ? u += b_below : ++b_below;
    ++counts[static_cast<std::size_t>(u)];
  } while (std::next_permutation(of_a.begin(), of_a.end()));
  int total = 0, tail = 0;
  for (const int c : counts) total += c;
  ASSERT_EQ(total, 126);
  for (int u = 0; u <= n * m / 2; ++u) {
    tail += counts[static_cast<std::size_t>(u)];
    EXPECT_NEAR(p_of(n, m, u), std::min(1.0, 2.0 * tail / total), 1e-14) << u;
  }
}

// Worked by hand: ranks of a are 1, 2.5, 5, 5; U = 3.5; ties of 2 and 3 values; variance 16/12 (9 - 30/56).
TEST(MannWhitney, CorrectsForTiesAndContinuity) {
  const Values a{1, 2, 3, 3}, b{2, 3, 4, 5};
  const MannWhitney test = mann_whitney(a, b);
  EXPECT_FALSE(test.exact);
  EXPECT_EQ(test.u, 3.5);
  const double z = (8 - 3.5 - 0.5) / std::sqrt(16.0 / 12 * (9 - 30.0 / 56));
  EXPECT_NEAR(test.p, std::erfc(z / std::sqrt(2.0)), 1e-12);
  EXPECT_NEAR(test.p, 0.2336, 1e-3);
}

TEST(MannWhitney, TheApproximationMeetsTheExactValue) {
  Values a, b;
  for (int i = 0; i < 40; ++i) {
    a.push_back(i);
    b.push_back(i + 9.5);
  }
  const MannWhitney exact = mann_whitney(a, b);
  a.push_back(-1);  // one too many to be exact
  const MannWhitney approximate = mann_whitney(a, b);
  EXPECT_TRUE(exact.exact);
  EXPECT_FALSE(approximate.exact);
  EXPECT_NEAR(std::log(approximate.p), std::log(exact.p), 0.35);
}

TEST(MannWhitney, SeesNoDifferenceWhereThereIsNone) {
  EXPECT_EQ(mann_whitney(Values{2, 2, 2}, Values{2, 2, 2}).p, 1);
  EXPECT_EQ(mann_whitney(Values{}, Values{1}).p, 1);
  EXPECT_EQ(mann_whitney(Values{1, 4}, Values{2, 3}).p, 1);
}

TEST(MannWhitney, SeparatedSamplesHaveTheSmallestValue) {
  for (const int n : {2, 5, 10, 15}) EXPECT_NEAR(p_of(n, n + 1, 0), smallest_p(n, n + 1), 1e-12 * n);
  EXPECT_NEAR(smallest_p(10, 10), 2.0 / 184756, 1e-18);
  EXPECT_EQ(smallest_p(1, 1), 1);
}

// Holm's procedure by hand: 0.01 x 4, 0.02 x 3, then never below the one before.
TEST(LeastSignificantFactor, IsAnEndOfTheIntervalOfPairwiseRatios) {
  // Of the 25 ratios a / b that one lies below which p < level follows: for five and five U = 2 has p = 2 x 4 / 252 and
  // U = 3 has 2 x 7 / 252, so below 0.04 at most two pairs may have b below a.
  const std::vector<double> a{1, 1.1, 1.3, 1.6, 2}, b{1.02, 1.15, 1.25, 1.4, 1.9};
  std::vector<double> ratios;
  for (const double x : a)
    for (const double y : b) ratios.push_back(x / y);
  std::sort(ratios.begin(), ratios.end(), std::greater<>());
  EXPECT_NEAR(least_significant_factor(a, b, 0.04), ratios[2], 2e-4 * ratios[2]);
  EXPECT_NEAR(least_significant_factor(a, b, 0.0080), ratios[0], 2e-4 * ratios[0]) << "wholly apart";
  EXPECT_EQ(least_significant_factor(a, std::vector<double>{3, 4, 5, 6, 7}, 0.01), 1) << "is the larger already";
  EXPECT_TRUE(std::isinf(least_significant_factor(a, b, 0.0079))) << "smallest_p is not below it";
}

TEST(Holm, MultipliesBySteppingDown) {
  const std::vector<double> adjusted = holm(Values{0.04, 0.01, 0.02, 0.9});
  EXPECT_DOUBLE_EQ(adjusted[1], 0.04);
  EXPECT_DOUBLE_EQ(adjusted[2], 0.06);
  EXPECT_DOUBLE_EQ(adjusted[0], 0.08);
  EXPECT_DOUBLE_EQ(adjusted[3], 0.9);
  // R: p.adjust(c(0.01, 0.011, 0.5), "holm")
  const std::vector<double> monotone = holm(Values{0.01, 0.011, 0.5});
  EXPECT_DOUBLE_EQ(monotone[0], 0.03);
  EXPECT_DOUBLE_EQ(monotone[1], 0.03);
  EXPECT_DOUBLE_EQ(holm(Values{0.7, 0.8})[0], 1);
}

}  // namespace
}  // namespace orrery::bench
