#include "sim/validation/intervals.h"

#include <algorithm>
#include <set>

namespace orrery {
namespace {

struct Weighted {
  double value = 0, weight = 0;
};

// The value with `share` of the weight below it.
double weighted_quantile(std::vector<Weighted> values, double share) {
  std::sort(values.begin(), values.end(), [](const Weighted& a, const Weighted& b) { return a.value < b.value; });
  double total = 0, below = 0;
  for (const Weighted& v : values) total += v.weight;
  for (const Weighted& v : values) {
    below += v.weight;
    if (below >= share * total) return v.value;
  }
  return values.back().value;
}

std::map<std::string, StepInterval> intervals_without(std::span<const PredictedPoint> points, double share,
                                                      const std::string& without) {
  const std::map<std::string, double> weights = weights_of_sources(points);
  std::map<std::string, std::vector<Weighted>> ratios;
  std::map<std::string, std::set<std::string>> sources;
  for (const PredictedPoint& p : points) {
    if (!is_fitted(p) || p.source->name == without) continue;
    for (const std::string& group : comparable_steps(p.framework, p.measured_device)) {
      ratios[group].push_back({p.point->value / p.predicted, weights.at(p.source->name)});
      sources[group].insert(p.source->name);
    }
  }
  std::map<std::string, StepInterval> intervals;
  for (const auto& [group, values] : ratios) {
    const auto of_group = static_cast<std::int64_t>(sources[group].size());
    const auto size = static_cast<std::int64_t>(values.size());
    if (size < kLeastPoints || of_group < kLeastSources) continue;
    intervals[group] = {.low = weighted_quantile(values, (1 - share) / 2),
                        .high = weighted_quantile(values, (1 + share) / 2),
                        .points = size,
                        .sources = of_group};
  }
  return intervals;
}

}  // namespace

bool is_fitted(const PredictedPoint& p) {
  return p.is_predicted() && p.point->quantity == Quantity::step_seconds && p.point->not_fitted.empty();
}

std::map<std::string, double> weights_of_sources(std::span<const PredictedPoint> points) {
  std::map<std::string, double> weights;
  for (const PredictedPoint& p : points)
    if (is_fitted(p)) ++weights[p.source->name];
  for (auto& [name, weight] : weights) weight = std::min(1.0, kMostOfSource / weight);
  return weights;
}

double interval_coverage(std::span<const PredictedPoint> points, double share, const std::set<std::string>& of) {
  double inside = 0, all = 0;
  for (const auto& [source, weight] : weights_of_sources(points)) {
    if (!of.empty() && !of.contains(source)) continue;
    const std::map<std::string, StepInterval> intervals = intervals_without(points, share, source);
    for (const PredictedPoint& p : points) {
      if (!is_fitted(p) || p.source->name != source) continue;
      for (const std::string& group : comparable_steps(p.framework, p.measured_device)) {
        const auto found = intervals.find(group);
        if (found == intervals.end()) continue;
        const double ratio = p.point->value / p.predicted;
        all += weight;
        if (ratio >= found->second.low && ratio <= found->second.high) inside += weight;
        break;
      }
    }
  }
  return all > 0 ? inside / all : 0;
}

double interval_share(std::span<const PredictedPoint> points, const std::set<std::string>& of) {
  constexpr int kHundredth = 100;
  for (int share = static_cast<int>(kIntervalShare * kHundredth); share < kHundredth; ++share)
    if (interval_coverage(points, share / static_cast<double>(kHundredth), of) >= kIntervalShare)
      return share / static_cast<double>(kHundredth);
  return 1;
}

std::pair<std::set<std::string>, std::set<std::string>> halves_of_sources(std::span<const PredictedPoint> points) {
  std::pair<std::set<std::string>, std::set<std::string>> halves;
  std::size_t next = 0;
  for (const auto& [name, weight] : weights_of_sources(points))
    (next++ % 2 == 0 ? halves.first : halves.second).insert(name);
  return halves;
}

std::map<std::string, StepInterval> step_intervals(std::span<const PredictedPoint> points) {
  return intervals_without(points, interval_share(points), "");
}

}  // namespace orrery
