#include "realrun/bench/drift.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "realrun/bench/statistics.h"
#include "sim/base/statistics.h"

namespace orrery::bench {
namespace {

using Part = std::pair<std::size_t, std::size_t>;  // a range of runs: [first, second)

struct Found {
  std::size_t first = 0;
  double adjusted_p = 1;
};

// Searches for changes before and after one that was found.
void search(std::span<const double> seconds, Part part, double least_p, double tests, double alpha,
            std::vector<Found>& found) {
  const ChangePoint change = change_point(seconds.subspan(part.first, part.second - part.first), alpha / tests);
  const double p = std::max(least_p, std::min(1.0, change.p * tests));
  if (change.first == 0 || p >= alpha) return;
  const std::size_t at = part.first + change.first;
  found.push_back({at, p});
  search(seconds, {part.first, at}, p, tests, alpha, found);
  search(seconds, {at, part.second}, p, tests, alpha, found);
}

struct Level {
  double median = 0, fastest = 0;
};

Level level_of(const std::vector<HistoryPoint>& points, Part part) {
  std::vector<double> medians, fastest;
  for (std::size_t i = part.first; i < part.second; ++i) {
    medians.push_back(points[i].median_seconds);
    fastest.push_back(points[i].fastest_seconds);
  }
  return {median(std::move(medians)), median(std::move(fastest))};
}

std::vector<std::string> machine_changes(const HistoryPoint& before, const HistoryPoint& after) {
  std::vector<std::string> changes;
  for (std::size_t i = 0; i < kMachineFacts.size(); ++i)
    if (before.machine[i] != after.machine[i] && !before.machine[i].empty() && !after.machine[i].empty())
      changes.push_back(fmt::format("{} was {} and is {}", kMachineFacts[i], before.machine[i], after.machine[i]));
  return changes;
}

void judge(Trend& trend, std::vector<Found> found, const DriftOptions& options) {
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.first < b.first; });
  std::vector<Level> levels;
  for (std::size_t i = 0, begin = 0; i <= found.size(); ++i) {
    const std::size_t end = i < found.size() ? found[i].first : trend.points.size();
    levels.push_back(level_of(trend.points, {begin, end}));
    begin = end;
  }
  trend.seconds = levels.back().median;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const Level &before = levels[i], &after = levels[i + 1];
    const std::size_t first = found[i].first;
    trend.changes.push_back({first, before.median, after.median, after.median / before.median,
                             after.fastest / before.fastest, found[i].adjusted_p,
                             machine_changes(trend.points[first - 1], trend.points[first])});
    trend.adjusted_p = std::min(trend.adjusted_p, found[i].adjusted_p);
  }
  if (found.empty()) return;

  const double limit = 1 + options.threshold;
  const auto against = [&](const Level& level) {
    trend.ratio = levels.back().median / level.median;
    trend.fastest_ratio = levels.back().fastest / level.fastest;
  };
  against(*std::min_element(levels.begin(), levels.end() - 1,
                            [](const Level& a, const Level& b) { return a.median < b.median; }));
  if (std::min(trend.ratio, trend.fastest_ratio) > limit) {
    trend.verdict = Verdict::regression;
    return;
  }
  against(levels.front());
  const auto medians = [&](std::size_t begin, std::size_t end) {
    std::vector<double> values;
    for (; begin < end; ++begin) values.push_back(trend.points[begin].median_seconds);
    return values;
  };
  if (found.size() > 1 &&
      mann_whitney(medians(0, found.front().first), medians(found.back().first, trend.points.size())).p >=
          options.alpha)
    return;  // the level is the same again
  if (std::max(trend.ratio, trend.fastest_ratio) < 1 / limit) {
    trend.verdict = Verdict::improvement;
  } else if (std::min(trend.ratio, trend.fastest_ratio) > 1) {
    trend.verdict = Verdict::slower_below_threshold;
  } else if (std::max(trend.ratio, trend.fastest_ratio) < 1) {
    trend.verdict = Verdict::faster_below_threshold;
  }
}

// Runs in which more than half of the benchmarks of a device changed in one direction.
std::vector<std::string> common_changes(const std::vector<Trend>& trends) {
  std::map<std::string, std::size_t> tested;                                          // by device
  std::map<std::tuple<std::string, std::string, std::string, bool>, std::size_t> of;  // by device, date, commit, slower
  for (const Trend& trend : trends) {
    if (is_told(trend.verdict)) ++tested[trend.device];
    for (const LevelChange& change : trend.changes) {
      const HistoryPoint& run = trend.points[change.first];
      ++of[{trend.device, run.date, run.commit, change.ratio > 1}];
    }
  }
  std::vector<std::string> lines;
  for (const auto& [key, benchmarks] : of) {
    const auto& [device, date, commit, slower] = key;
    const std::size_t all = tested[device];
    if (all > 1 && 2 * benchmarks > all)
      lines.push_back(fmt::format("{} of {} benchmarks became {} with one run ({}{}{}): the machine itself may have",
                                  benchmarks, all, slower ? "slower" : "faster", date.empty() ? "no date" : date,
                                  commit.empty() ? "" : ", ", commit));
  }
  return lines;
}

// Sort key: what needs attention comes first.
int urgency_of(Verdict verdict) { return verdict == Verdict::regression ? 0 : is_told(verdict) ? 1 : 2; }

}  // namespace

std::string_view trend_verdict(const Trend& trend) {
  return trend.verdict == Verdict::too_few_repetitions ? "too few runs" : name_of(trend.verdict);
}

std::size_t Drift::count(Verdict verdict) const {
  return static_cast<std::size_t>(
      std::count_if(trends.begin(), trends.end(), [&](const Trend& t) { return t.verdict == verdict; }));
}

bool Drift::nothing_told() const {
  return std::none_of(trends.begin(), trends.end(), [](const Trend& t) { return is_told(t.verdict); });
}

bool Drift::fails(const Trend& trend) const {
  return trend.verdict == Verdict::regression || (options.strict && !is_told(trend.verdict));
}

int Drift::exit_code() const {
  constexpr int kFails = 1, kNothingTold = 3;
  if (nothing_told()) return kNothingTold;
  return std::any_of(trends.begin(), trends.end(), [&](const Trend& t) { return fails(t); }) ? kFails : 0;
}

Drift find_drift(std::vector<HistorySeries> series, const DriftOptions& options) {
  Drift result{.history = {}, .options = options, .trends = {}, .warnings = {}};
  for (HistorySeries& s : series) {
    if (options.wanted && !options.wanted(s.name)) continue;
    // An SQLite file may hold any number.
    std::erase_if(s.points, [](const HistoryPoint& p) {
      return !(p.median_seconds > 0 && p.fastest_seconds > 0 && std::isfinite(p.median_seconds));
    });
    if (s.points.empty()) continue;
    Trend& trend = result.trends.emplace_back();
    trend.name = std::move(s.name);
    trend.device = std::move(s.device);
    trend.points = std::move(s.points);
    result.runs = std::max(result.runs, trend.points.size());
  }
  if (result.trends.empty()) return result;
  const auto tests = static_cast<double>(result.trends.size());
  const double level = options.alpha / tests;
  result.needed_runs = values_for_change(level);

  std::vector<std::vector<double>> seconds;
  std::vector<ChangePoint> surest;
  std::vector<double> p;
  for (const Trend& trend : result.trends) {
    std::vector<double>& medians = seconds.emplace_back();
    for (const HistoryPoint& point : trend.points) medians.push_back(point.median_seconds);
    surest.push_back(change_point(medians, level));
    p.push_back(surest.back().p);
  }
  const std::vector<double> adjusted = holm(p);
  for (std::size_t i = 0; i < result.trends.size(); ++i) {
    Trend& trend = result.trends[i];
    std::vector<Found> found;
    trend.adjusted_p = adjusted[i];
    if (adjusted[i] < options.alpha && surest[i].first > 0) {
      found.push_back({surest[i].first, adjusted[i]});
      search(seconds[i], {0, surest[i].first}, adjusted[i], tests, options.alpha, found);
      search(seconds[i], {surest[i].first, trend.points.size()}, adjusted[i], tests, options.alpha, found);
    }
    judge(trend, std::move(found), options);
    if (trend.points.size() < result.needed_runs) trend.verdict = Verdict::too_few_repetitions;
  }
  result.warnings = common_changes(result.trends);
  std::stable_sort(result.trends.begin(), result.trends.end(), [](const Trend& a, const Trend& b) {
    return std::tuple(urgency_of(a.verdict), -a.ratio) < std::tuple(urgency_of(b.verdict), -b.ratio);
  });
  return result;
}

Drift find_drift(const History& history, const std::string& file, std::size_t runs, const DriftOptions& options) {
  Drift result = find_drift(history.last_runs(runs), options);
  result.history = file;
  return result;
}

}  // namespace orrery::bench
