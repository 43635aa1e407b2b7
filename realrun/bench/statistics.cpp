#include "realrun/bench/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <numeric>
#include <utility>

namespace orrery::bench {
namespace {

// P(U = 0), P(U <= 1), ... for n and m values without ties. With p(n, m, u) for the probability of u, the recurrence
// (the largest value is one of the n, above all m, or one of the m) is
//   p(n, m, u) = n/(n+m) p(n-1, m, u-m) + m/(n+m) p(n, m-1, u).
std::vector<double> distribution(std::size_t n, std::size_t m) {
  std::vector<std::vector<double>> by_m(m + 1, std::vector<double>{1});  // n = 0: u is 0
  for (std::size_t i = 1; i <= n; ++i)
    for (std::size_t j = 1; j <= m; ++j) {  // by_m[j] is p(i-1, j, .), by_m[j-1] is already p(i, j-1, .)
      std::vector<double> here(i * j + 1);
      const double of_i = static_cast<double>(i) / static_cast<double>(i + j);
      for (std::size_t u = 0; u < by_m[j].size(); ++u) here[u + j] += of_i * by_m[j][u];
      for (std::size_t u = 0; u < by_m[j - 1].size(); ++u) here[u] += (1 - of_i) * by_m[j - 1][u];
      by_m[j] = std::move(here);
    }
  std::vector<double>& result = by_m[m];
  std::partial_sum(result.begin(), result.end(), result.begin());
  return std::move(result);
}

// P(U <= u). Cached: hundreds of benchmarks have the same few numbers of repetitions.
double lower_tail(std::size_t n, std::size_t m, double u) {
  thread_local std::map<std::pair<std::size_t, std::size_t>, std::vector<double>> known;
  std::vector<double>& tails = known[{n, m}];
  if (tails.empty()) tails = distribution(n, m);
  return tails[static_cast<std::size_t>(u)];
}

// `tied`: the sum of t^3 - t over groups of t equal values.
bool is_exact(std::size_t n, std::size_t m, double tied) { return tied == 0 && std::max(n, m) <= kExactMost; }

// Two-sided p for n and m values with this U.
double p_of(std::size_t n, std::size_t m, double u, double tied) {
  const auto pairs = static_cast<double>(n) * static_cast<double>(m), total = static_cast<double>(n + m);
  if (is_exact(n, m, tied)) return std::min(1.0, 2 * lower_tail(n, m, std::min(u, pairs - u)));
  const double variance = pairs / 12 * (total + 1 - tied / (total * (total - 1)));
  if (variance <= 0) return 1;  // all values are equal
  constexpr double kContinuity = 0.5;
  const double z = (std::abs(u - pairs / 2) - kContinuity) / std::sqrt(variance);
  return std::min(1.0, std::erfc(z / std::numbers::sqrt2));
}

// The ranks of values, from 1; equal values share the mean of theirs.
struct Ranks {
  std::vector<double> ranks;
  double tied = 0;
};
Ranks ranks_of(std::span<const double> values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t x, std::size_t y) { return values[x] < values[y]; });
  Ranks result{.ranks = std::vector<double>(values.size())};
  for (std::size_t begin = 0; begin < order.size();) {
    std::size_t end = begin;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    const auto t = static_cast<double>(end - begin);
    const double rank = (static_cast<double>(begin + 1) + static_cast<double>(end)) / 2;
    for (; begin < end; ++begin) result.ranks[order[begin]] = rank;
    result.tied += t * t * t - t;
  }
  return result;
}

// The fewest values on either side of a change that could be significant; 0: no change could.
std::size_t least_side(std::size_t values, double level) {
  std::size_t least = 0;
  for (std::size_t side = values / 2; side > 0; --side) {
    const auto places = static_cast<double>(values - 2 * side + 1);
    if (smallest_p(side, values - side) * places >= level) break;
    least = side;
  }
  return least;
}

}  // namespace

MannWhitney mann_whitney(std::span<const double> a, std::span<const double> b) {
  MannWhitney result;
  if (a.empty() || b.empty()) return result;
  std::vector<double> all(a.begin(), a.end());
  all.insert(all.end(), b.begin(), b.end());
  const auto [ranks, tied] = ranks_of(all);
  const auto n = static_cast<double>(a.size());
  const double ranks_of_a = std::accumulate(ranks.begin(), ranks.begin() + std::ssize(a), 0.0);
  result.u = ranks_of_a - n * (n + 1) / 2;
  result.exact = is_exact(a.size(), b.size(), tied);
  result.p = p_of(a.size(), b.size(), result.u, tied);
  return result;
}

double smallest_p(std::size_t n, std::size_t m) {
  double p = 2;
  for (std::size_t i = 1; i <= n; ++i) p *= static_cast<double>(i) / static_cast<double>(m + i);
  return std::min(1.0, p);
}

double least_significant_factor(std::span<const double> a, std::span<const double> b, double level) {
  constexpr double kPrecision = 1e-4;
  std::vector<double> raised(b.size());
  const auto larger = [&](double factor) {  // once true, it is true for all larger factors
    std::transform(b.begin(), b.end(), raised.begin(), [&](double value) { return value * factor; });
    const MannWhitney test = mann_whitney(a, raised);
    return test.p < level && 2 * test.u < static_cast<double>(a.size()) * static_cast<double>(b.size());
  };
  if (larger(1)) return 1;
  double below = 1, above = 1 + kPrecision;
  above *= std::max(1.0, *std::max_element(a.begin(), a.end()) / *std::min_element(b.begin(), b.end()));
  if (!larger(above))
    return std::numeric_limits<double>::infinity();  // ties: the normal approximation never reaches this level
  while (above / below > 1 + kPrecision) {
    const double middle = std::sqrt(below * above);
    (larger(middle) ? above : below) = middle;
  }
  return above;
}

std::vector<double> holm(std::span<const double> p) {
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t x, std::size_t y) { return p[x] < p[y]; });
  std::vector<double> adjusted(p.size());
  double most = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    most = std::max(most, std::min(1.0, static_cast<double>(p.size() - i) * p[order[i]]));
    adjusted[order[i]] = most;
  }
  return adjusted;
}

ChangePoint change_point(std::span<const double> values, double level) {
  ChangePoint best;
  const std::size_t count = values.size(), least = least_side(count, level);
  if (least == 0) return best;
  const auto [ranks, tied] = ranks_of(values);
  double sum = 0;  // sum of the ranks before the place
  double smallest = 2;
  for (std::size_t place = 1; place + least <= count; ++place) {
    sum += ranks[place - 1];
    if (place < least) continue;
    const auto n = static_cast<double>(place);
    const double p = p_of(place, count - place, sum - n * (n + 1) / 2, tied);
    if (p >= smallest) continue;
    smallest = p;
    best.first = place;
  }
  best.p = std::min(1.0, smallest * static_cast<double>(count - 2 * least + 1));
  return best;
}

std::size_t values_for_change(double level) {
  std::size_t values = 2;
  while (least_side(values, level) == 0) ++values;
  return values;
}

}  // namespace orrery::bench
