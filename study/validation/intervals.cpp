#include "study/validation/intervals.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace orrery {
namespace {

constexpr double kRounding = 1e-9;  // the widest that is inside lies on the border

struct Error {
  double size = 0;  // |log(measured / predicted)|, later in units of a width
  double weight = 0;
  std::string stack;
  std::size_t origin = 0;
  bool mixture = false, rare_mixture = false;
  std::string source;
};

// The least value that `share` of the weight does not exceed.
template <class Key>
double weighted_quantile(const std::vector<Error>& errors, double share, const Key& value) {
  std::vector<std::pair<double, double>> values;
  double total = 0, below = 0;
  for (const Error& e : errors)
    if (const double v = value(e); v >= 0) values.emplace_back(v, e.weight), total += e.weight;
  std::sort(values.begin(), values.end());
  for (const auto& [v, weight] : values) {
    below += weight;
    if (below >= share * total * (1 - 1e-12)) return v;
  }
  return values.empty() ? 0 : values.back().first;
}

struct Widths {
  std::map<std::string, double> stacks;
  std::array<double, kCurveOrigins> origins{1, 1, 1};
  double any = 0;  // of a stack that has none

  double of(const Error& e) const {
    const auto found = stacks.find(e.stack);
    return (found == stacks.end() ? any : found->second) * origins[e.origin];
  }
};

// Widths of a stack times those of an origin, so that either holds its share: each in turn, given the other.
Widths widths_of(const std::vector<Error>& errors, const std::string& without) {
  constexpr int kTurns = 30;
  Widths w;
  std::set<std::string> stacks;
  for (const Error& e : errors)
    if (e.source != without) stacks.insert(e.stack);
  w.any = weighted_quantile(errors, kIntervalShare, [&](const Error& e) { return e.source == without ? -1 : e.size; });
  const auto fit_stacks = [&] {
    for (const std::string& stack : stacks)
      w.stacks[stack] = weighted_quantile(errors, kIntervalShare, [&](const Error& e) {
        return e.source == without || e.stack != stack ? -1 : e.size / w.origins[e.origin];
      });
  };
  fit_stacks();
  for (int turn = 0; turn < kTurns; ++turn) {
    for (std::size_t origin = 1; origin < kCurveOrigins; ++origin) {
      const double factor = weighted_quantile(errors, kIntervalShare, [&](const Error& e) {
        if (e.source == without || e.origin != origin) return -1.0;
        const double width = w.stacks.at(e.stack);
        return width > 0 ? e.size / width : 0;
      });
      if (factor > 0) w.origins[origin] = std::max(1.0, factor);
    }
    fit_stacks();
  }
  return w;
}

// Composed numbers are fitted, but what a prediction misses them by says nothing of measurements.
bool counts(const PredictedPoint& p) { return is_fitted(p) && p.is_measured(); }

bool is_of(const PredictedPoint& p, const std::set<std::string>& of) {
  return of.empty() || of.contains(p.source->name);
}

// Points, and sources by name.
struct Published {
  std::int64_t points = 0;
  std::set<std::string> sources;

  void add(const PredictedPoint& p) {
    ++points;
    sources.insert(p.source->name);
  }
  bool is_enough() const {
    return points >= kLeastPoints && static_cast<std::int64_t>(sources.size()) >= kLeastSources;
  }
};

// Intervals of which nothing but the stacks' networks with enough steps of mixtures is found.
StepIntervals mixture_networks(std::span<const PredictedPoint> points, const std::set<std::string>& of) {
  std::map<std::pair<std::string, std::string>, Published> published;
  for (const PredictedPoint& p : points)
    if (counts(p) && p.mixture && is_of(p, of)) published[{p.framework, p.network}].add(p);
  StepIntervals intervals;
  for (const auto& [of_stack, there] : published)
    if (there.is_enough()) intervals.stacks[of_stack.first].mixture_networks.insert(of_stack.second);
  return intervals;
}

Error error_of(const PredictedPoint& p, double weight, bool rare_mixture) {
  return {.size = std::abs(std::log(p.point->value / p.predicted)),
          .weight = weight,
          .stack = p.framework,
          .origin = static_cast<std::size_t>(p.curves),
          .mixture = p.mixture,
          .rare_mixture = rare_mixture,
          .source = p.source->name};
}

std::vector<Error> errors_of(std::span<const PredictedPoint> points, const std::set<std::string>& of) {
  const std::map<std::string, double> weights = weights_of_sources(points);
  const StepIntervals networks = mixture_networks(points, of);
  std::vector<Error> errors;
  for (const PredictedPoint& p : points)
    if (counts(p) && is_of(p, of))
      errors.push_back(error_of(p, weights.at(p.source->name), networks.is_rare_mixture(p.interval_class())));
  return errors;
}

// The errors of the steps that `wanted` chooses, also of points that are not fitted, unless they are doubtful.
template <class Wanted>
std::vector<Error> errors_of_few(std::span<const PredictedPoint> points, const std::set<std::string>& of,
                                 const Wanted& wanted) {
  std::vector<Error> errors;
  std::map<std::string, double> of_source;
  for (const PredictedPoint& p : points) {
    if (!p.is_predicted() || !p.is_measured() || p.point->quantity != Quantity::step_seconds || !is_of(p, of)) continue;
    if (p.point->quality == "C" || !wanted(p.interval_class())) continue;
    ++of_source[p.source->name];
    errors.push_back(error_of(p, 1, p.mixture));
  }
  for (Error& e : errors) e.weight = std::min(1.0, kMostOfSource / of_source.at(e.source));
  return errors;
}

std::vector<Error> errors_of_rare_mixtures(std::span<const PredictedPoint> points, const std::set<std::string>& of) {
  const StepIntervals networks = mixture_networks(points, of);
  return errors_of_few(points, of, [&](const IntervalClass& c) { return networks.is_rare_mixture(c); });
}

// The half width that the intervals give a step's stack, origin and kind of model; a stack without one has the widest.
double width_of_class(const Error& e, const StepIntervals& intervals) {
  double widest = 0;
  for (const auto& [name, stack] : intervals.stacks) widest = std::max(widest, stack.half_width);
  const auto stack = intervals.stacks.find(e.stack);
  return (stack == intervals.stacks.end() ? widest : stack->second.half_width) * intervals.origin_factor[e.origin] *
         (e.mixture ? intervals.mixture_factor : 1);
}
// The smallest factor of at least 1 on these widths with which kIntervalShare of the errors lie within.
double factor_to_hold(const std::vector<Error>& errors, const StepIntervals& intervals) {
  return std::max(1.0, weighted_quantile(errors, kIntervalShare, [&](const Error& e) {
                    const double width = width_of_class(e, intervals);
                    return width > 0 ? e.size / width : 0;
                  }));
}

// The width that holds kIntervalShare of the rare mixtures of other sources than `without`, and the smallest factor of
// at least 1 on such widths with which they hold kIntervalShare of the sources that they have not seen.
double rare_mixture_width(const std::vector<Error>& errors, const std::string& without) {
  return weighted_quantile(errors, kIntervalShare, [&](const Error& e) { return e.source == without ? -1 : e.size; });
}
double rare_mixture_factor(const std::vector<Error>& errors) {
  return std::max(1.0, weighted_quantile(errors, kIntervalShare, [&](const Error& e) {
                    const double width = rare_mixture_width(errors, e.source);
                    return width > 0 ? e.size / width : 0;
                  }));
}

// Each error in units of the width that the other sources give it.
std::vector<Error> unseen_errors(std::vector<Error> errors) {
  std::map<std::string, Widths> without;
  for (const Error& e : errors)
    if (!without.contains(e.source)) without[e.source] = widths_of(errors, e.source);
  for (Error& e : errors) {
    const double width = without.at(e.source).of(e);
    e.size = width > 0 ? e.size / width : 0;
  }
  return errors;
}

// The smallest factor of at least 1 with which kIntervalShare of mixtures lie within. `unseen`: from unseen_errors();
// `wider`: their widths.
double mixture_factor(const std::vector<Error>& unseen, const Widths& wider) {
  return std::max(1.0, weighted_quantile(unseen, kIntervalShare, [&](const Error& e) {
                    return e.mixture && !e.rare_mixture ? e.size / wider.of(e) : -1;
                  }));
}

// `models`: kDense, kMixtures or kRareMixtures.
void count(const std::string& stack, CurveOrigin origin, const char* models, double weight, bool inside,
           CoverageOfGroups& coverage) {
  for (const std::string& group :
       {std::string(kAllSteps), stack, "curves: " + std::string(name_of(origin)), std::string(models)}) {
    coverage[group].points += weight;
    if (inside) coverage[group].inside += weight;
  }
}
const char* models_of(bool mixture, bool rare_mixture) {
  return rare_mixture ? kRareMixtures : mixture ? kMixtures : kDense;
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

StepIntervals step_intervals(std::span<const PredictedPoint> points, const std::set<std::string>& of) {
  const std::vector<Error> errors = errors_of(points, of);
  const std::vector<Error> unseen = unseen_errors(errors);
  const Widths widths = widths_of(errors, ""), wider = widths_of(unseen, "");

  StepIntervals intervals = mixture_networks(points, of);
  std::map<std::string, Published> published;
  for (const PredictedPoint& p : points) {
    if (!counts(p) || !is_of(p, of)) continue;
    published[p.framework].add(p);
    std::int64_t& most_devices = intervals.stacks[p.framework].most_devices;
    most_devices = std::max(most_devices, p.devices);
  }
  for (auto& [name, stack] : intervals.stacks) {
    stack.points = published.at(name).points;
    stack.sources = static_cast<std::int64_t>(published.at(name).sources.size());
    stack.half_width = widths.stacks.at(name) * wider.stacks.at(name);
  }
  std::erase_if(intervals.stacks, [&](const auto& entry) { return !published.at(entry.first).is_enough(); });
  for (std::size_t origin = 0; origin < kCurveOrigins; ++origin)
    intervals.origin_factor[origin] =
        std::max(widths.origins[origin] * wider.origins[origin], origin > 1 ? intervals.origin_factor[origin - 1] : 0);
  intervals.mixture_factor = mixture_factor(unseen, wider);
  // Few steps in NVFP4 are fitted. Rare mixtures have a width of their own.
  const auto in_nvfp4 = [&](const IntervalClass& c) { return c.four_bits && !intervals.is_rare_mixture(c); };
  intervals.four_bit_factor = factor_to_hold(errors_of_few(points, of, in_nvfp4), intervals);
  const std::vector<Error> rare_mixtures = errors_of_rare_mixtures(points, of);
  std::set<std::string> sources;
  for (const Error& e : rare_mixtures) sources.insert(e.source);
  intervals.rare_mixtures = {.half_width = rare_mixture_width(rare_mixtures, "") * rare_mixture_factor(rare_mixtures),
                             .points = static_cast<std::int64_t>(rare_mixtures.size()),
                             .sources = static_cast<std::int64_t>(sources.size())};
  return intervals;
}

double unseen_device_factor(std::span<const PredictedPoint> points, const StepIntervals& intervals) {
  return factor_to_hold(errors_of(points, {}), intervals);
}

CoverageOfGroups interval_coverage(std::span<const PredictedPoint> points, const StepIntervals& intervals,
                                   const std::set<std::string>& of) {
  const std::map<std::string, double> weights = weights_of_sources(points);
  CoverageOfGroups coverage;
  for (const PredictedPoint& p : points) {
    if (!counts(p) || !is_of(p, of)) continue;
    IntervalClass of_point = p.interval_class();
    of_point.device_seen = true;
    const std::optional<StepInterval> interval = step_interval(intervals, of_point);
    if (!interval) continue;
    const double ratio = p.point->value / p.predicted;
    count(p.framework, p.curves, models_of(p.mixture, intervals.is_rare_mixture(of_point)), weights.at(p.source->name),
          ratio >= interval->low * (1 - kRounding) && ratio <= interval->high * (1 + kRounding), coverage);
  }
  return coverage;
}

CoverageOfGroups unseen_coverage(std::span<const PredictedPoint> points) {
  const std::vector<Error> unseen = unseen_errors(errors_of(points, {}));
  const Widths wider = widths_of(unseen, "");
  const double of_mixtures = mixture_factor(unseen, wider);
  CoverageOfGroups coverage;
  for (const Error& e : unseen)
    if (!e.rare_mixture)
      count(e.stack, static_cast<CurveOrigin>(e.origin), models_of(e.mixture, false), e.weight,
            e.size <= wider.of(e) * (e.mixture ? of_mixtures : 1) * (1 + kRounding), coverage);
  const std::vector<Error> rare_mixtures = errors_of_rare_mixtures(points, {});
  const double of_rare = rare_mixture_factor(rare_mixtures);
  for (const Error& e : rare_mixtures)
    count(e.stack, static_cast<CurveOrigin>(e.origin), kRareMixtures, e.weight,
          e.size <= rare_mixture_width(rare_mixtures, e.source) * of_rare * (1 + kRounding), coverage);
  return coverage;
}

CoverageOfGroups plain_coverage(std::span<const PredictedPoint> points) {
  CoverageOfGroups coverage;
  for (const PredictedPoint& p : points) {
    if (!p.is_predicted() || !p.is_measured() || p.point->quantity != Quantity::step_seconds) continue;
    const std::optional<StepInterval> interval = step_interval(p.interval_class());
    if (!interval) continue;
    const double ratio = p.point->value / p.predicted;
    count(p.framework, p.curves, models_of(p.mixture, interval->rare_mixture_half_width > 0), 1,
          ratio >= interval->low && ratio <= interval->high, coverage);
  }
  return coverage;
}

std::pair<std::set<std::string>, std::set<std::string>> halves_of_sources(std::span<const PredictedPoint> points) {
  std::pair<std::set<std::string>, std::set<std::string>> halves;
  std::size_t next = 0;
  for (const auto& [name, weight] : weights_of_sources(points))
    (next++ % 2 == 0 ? halves.first : halves.second).insert(name);
  return halves;
}

}  // namespace orrery
