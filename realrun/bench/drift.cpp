#include "realrun/bench/drift.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <tuple>
#include <utility>

#include "realrun/bench/statistics.h"
#include "sim/base/statistics.h"

namespace orrery::bench {
namespace {

using Points = std::span<const HistoryPoint>;

std::vector<double> values_of(Points points, double HistoryPoint::*value) {
  std::vector<double> values;
  for (const HistoryPoint& point : points) values.push_back(point.*value);
  return values;
}

// Searches for changes before and after one that was found, in the part of the runs that begins with number `begin`.
// `found`: with adjusted p.
void search(std::span<const double> part, std::size_t begin, double least_p, double tests, double alpha,
            std::vector<ChangePoint>& found) {
  const ChangePoint change = change_point(part, alpha / tests);
  const double p = std::max(least_p, std::min(1.0, change.p * tests));
  if (change.first == 0 || p >= alpha) return;
  found.push_back({begin + change.first, p});
  search(part.first(change.first), begin, p, tests, alpha, found);
  search(part.subspan(change.first), begin + change.first, p, tests, alpha, found);
}

struct Level {
  Points points;
  double median = 0, fastest = 0;
};

std::vector<std::string> machine_changes(const HistoryPoint& before, const HistoryPoint& after) {
  std::vector<std::string> changes;
  for (std::size_t i = 0; i < kMachineFacts.size(); ++i)
    if (before.machine[i] != after.machine[i] && !before.machine[i].empty() && !after.machine[i].empty())
      changes.push_back(fmt::format("{} was {} and is {}", kMachineFacts[i], before.machine[i], after.machine[i]));
  return changes;
}

void judge(Trend& trend, std::vector<ChangePoint> found, const VerdictOptions& options) {
  std::ranges::sort(found, {}, &ChangePoint::first);
  std::vector<Level> levels;
  for (std::size_t i = 0, begin = 0; i <= found.size(); ++i) {
    const std::size_t end = i < found.size() ? found[i].first : trend.points.size();
    const Points points = Points(trend.points).subspan(begin, end - begin);
    levels.push_back({points, median(values_of(points, &HistoryPoint::median_seconds)),
                      median(values_of(points, &HistoryPoint::fastest_seconds))});
    begin = end;
  }
  trend.seconds = levels.back().median;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const Level &before = levels[i], &after = levels[i + 1];
    trend.changes.push_back({found[i].first, before.median, after.median, after.median / before.median,
                             after.fastest / before.fastest, found[i].p,
                             machine_changes(before.points.back(), after.points.front())});
    trend.adjusted_p = std::min(trend.adjusted_p, found[i].p);
  }
  if (found.empty()) return;

  const double limit = 1 + options.threshold;
  const auto against = [&](const Level& level) {
    trend.ratio = levels.back().median / level.median;
    trend.fastest_ratio = levels.back().fastest / level.fastest;
  };
  against(*std::ranges::min_element(levels.begin(), levels.end() - 1, {}, &Level::median));
  if (std::min(trend.ratio, trend.fastest_ratio) > limit) {
    trend.verdict = Verdict::regression;
    return;
  }
  against(levels.front());
  const auto medians = [](const Level& level) { return values_of(level.points, &HistoryPoint::median_seconds); };
  if (found.size() > 1 && mann_whitney(medians(levels.front()), medians(levels.back())).p >= options.alpha)
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

}  // namespace

Drift find_drift(std::vector<HistorySeries> series, const VerdictOptions& options) {
  Drift result;
  result.options = options;
  for (HistorySeries& s : series) {
    if (options.wanted && !options.wanted(s.name)) continue;
    // An SQLite file may hold any number.
    std::erase_if(s.points, [](const HistoryPoint& p) {
      return !(p.median_seconds > 0 && p.fastest_seconds > 0 && std::isfinite(p.median_seconds));
    });
    if (s.points.empty()) continue;
    result.runs = std::max(result.runs, s.points.size());
    static_cast<HistorySeries&>(result.benchmarks.emplace_back()) = std::move(s);
  }
  if (result.benchmarks.empty()) return result;
  const auto tests = static_cast<double>(result.benchmarks.size());
  const double level = options.alpha / tests;
  result.needed_runs = values_for_change(level);

  std::vector<std::vector<double>> seconds;
  std::vector<ChangePoint> surest;
  std::vector<double> p;
  for (const Trend& trend : result.benchmarks) {
    seconds.push_back(values_of(trend.points, &HistoryPoint::median_seconds));
    surest.push_back(change_point(seconds.back(), level));
    p.push_back(surest.back().p);
  }
  const std::vector<double> adjusted = holm(p);
  for (std::size_t i = 0; i < result.benchmarks.size(); ++i) {
    Trend& trend = result.benchmarks[i];
    std::vector<ChangePoint> found;
    trend.adjusted_p = adjusted[i];
    if (const std::size_t first = surest[i].first; adjusted[i] < options.alpha && first > 0) {
      found.push_back({first, adjusted[i]});
      const std::span<const double> runs = seconds[i];
      search(runs.first(first), 0, adjusted[i], tests, options.alpha, found);
      search(runs.subspan(first), first, adjusted[i], tests, options.alpha, found);
    }
    judge(trend, std::move(found), options);
    if (trend.points.size() < result.needed_runs) trend.verdict = Verdict::too_few_repetitions;
  }
  result.warnings = common_changes(result.benchmarks);
  result.sort();
  return result;
}

}  // namespace orrery::bench
