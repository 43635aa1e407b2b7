#include "realrun/bench/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "realrun/bench/statistics.h"
#include "sim/base/error.h"
#include "sim/base/statistics.h"

namespace orrery::bench {
namespace {

struct Sample {
  std::vector<double> seconds;
  double median = 0, fastest = 0;
};

Sample sample_of(const Series& series, const MachineState& machine) {
  Sample s;
  for (const Repetition& r : machine.undisturbed(series)) s.seconds.push_back(series.seconds(r));
  if (s.seconds.empty()) return s;
  s.median = median(s.seconds);
  s.fastest = *std::min_element(s.seconds.begin(), s.seconds.end());
  return s;
}

// The range of factors by which the machine alone may have slowed a benchmark.
struct Explained {
  double least = 1, most = 1;
};
Explained explained_by(std::span<const double> drift) {
  const auto [least, most] = std::minmax_element(drift.begin(), drift.end());
  const double beyond = std::pow(*most / *least, kBeyond);
  return {*least / beyond, *most * beyond};
}

struct Pair {
  Difference difference;
  Sample before, after;
  // p if the machine explains the least possible part (slower_p), or the most (faster_p), of the new run's times.
  double slower_p = 1, faster_p = 1;
};

Pair pair_of(const Series* before, const Series* after, const MachineState& before_machine,
             const MachineState& after_machine) {
  Pair pair;
  Difference& d = pair.difference;
  d.name = (before != nullptr ? before : after)->name;
  if (before != nullptr) pair.before = sample_of(*before, before_machine);
  if (after != nullptr) pair.after = sample_of(*after, after_machine);
  d.baseline_repetitions = pair.before.seconds.size();
  d.new_repetitions = pair.after.seconds.size();
  d.baseline_seconds = pair.before.median;
  d.new_seconds = pair.after.median;
  const bool has_before = before != nullptr && before->error.empty(),
             has_after = after != nullptr && after->error.empty();
  if (has_before && has_after) {
    if (d.baseline_repetitions > 0 && d.new_repetitions > 0) {
      d.ratio = pair.after.median / pair.before.median;
      d.fastest_ratio = pair.after.fastest / pair.before.fastest;
    } else {
      d.verdict = Verdict::too_few_repetitions;
    }
  } else if (has_before && after != nullptr) {
    d.verdict = Verdict::failed;
    d.note = after->error;
  } else if (has_before) {
    d.verdict = Verdict::only_in_baseline;
  } else if (has_after) {
    d.verdict = Verdict::only_in_new;
    if (before != nullptr) d.note = "failed in the baseline: " + before->error;
  } else {
    d.verdict = after != nullptr ? Verdict::only_in_new : Verdict::only_in_baseline;
    d.note = "failed: " + (after != nullptr ? after : before)->error;
  }
  return pair;
}

bool comparable(const Pair& pair) {  // both ran, whether or not often enough
  return pair.difference.baseline_repetitions > 0 && pair.difference.new_repetitions > 0;
}

// Attributes a slow-down to the machine up to the larger end of its range, and a speed-up down to the smaller end. A
// ratio within the range cannot be told from the machine's influence.
void test(Pair& pair, const Explained& machine) {
  Difference& d = pair.difference;
  d.explained = std::clamp(d.ratio, machine.least, machine.most);
  const auto p_without = [&](double machines) {
    std::vector<double> corrected = pair.after.seconds;
    for (double& seconds : corrected) seconds /= machines;
    return mann_whitney(pair.before.seconds, corrected).p;
  };
  d.p = p_without(d.explained);
  pair.slower_p = p_without(machine.least);
  pair.faster_p = p_without(machine.most);
}

Verdict verdict_of(const Pair& pair, const Explained& machine, std::size_t tests, const VerdictOptions& options) {
  const Difference& d = pair.difference;
  const double limit = 1 + options.threshold;
  const auto slower_than = [&](double times) { return std::min(d.ratio, d.fastest_ratio) > limit * times; };
  const auto faster_than = [&](double times) { return std::max(d.ratio, d.fastest_ratio) < times / limit; };
  if (d.adjusted_p < options.alpha) {
    if (slower_than(d.explained)) return Verdict::regression;
    if (faster_than(d.explained)) return Verdict::improvement;
  }
  const auto sure = [&](double p) { return p * static_cast<double>(tests) < options.alpha; };
  const bool open =
      (slower_than(machine.least) && sure(pair.slower_p)) || (faster_than(machine.most) && sure(pair.faster_p));
  if (open) return Verdict::cannot_tell;
  if (d.adjusted_p < options.alpha) {
    if (std::min(d.ratio, d.fastest_ratio) > d.explained) return Verdict::slower_below_threshold;
    if (std::max(d.ratio, d.fastest_ratio) < d.explained) return Verdict::faster_below_threshold;
  }
  return Verdict::unchanged;
}

double least_slowdown(const Pair& pair, const Explained& machine, std::size_t tests, const VerdictOptions& options) {
  const double limit = 1 + options.threshold, onto_baseline = pair.before.median / pair.after.median;
  std::vector<double> moved = pair.after.seconds;
  for (double& seconds : moved) seconds *= onto_baseline;
  const double by_fastest = limit * pair.before.fastest / (pair.after.fastest * onto_baseline);
  const double by_test =
      least_significant_factor(pair.before.seconds, moved, options.alpha / static_cast<double>(tests));
  return std::max({limit, by_fastest, by_test}) * machine.most / machine.least - 1;
}

std::size_t repetitions_needed(std::size_t tests, double alpha) {
  std::size_t n = 1;
  while (smallest_p(n, n) * static_cast<double>(tests) >= alpha) ++n;
  return n;
}

}  // namespace

const char* name_of(Verdict verdict) {
  constexpr std::array kNames{
      "failed",    "regression",  "improvement",         "slower below the threshold", "faster below the threshold",
      "unchanged", "cannot tell", "too few repetitions", "only in baseline",           "only in new"};
  return kNames[static_cast<std::size_t>(verdict)];
}

LeastSlowdown Comparison::least_slowdown() const {
  std::vector<double> shares;
  for (const Difference& d : benchmarks)
    if (d.least_slowdown > 0) shares.push_back(d.least_slowdown);
  if (shares.empty()) return {};
  const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
  return {shares.size(), median(shares), *least, *most};
}

std::vector<std::string> Comparison::missing() const {
  std::vector<std::string> names;
  for (const Difference& d : benchmarks)
    if (d.verdict == Verdict::only_in_baseline) names.push_back(d.name);
  return names;
}

Comparison compare_runs(const BenchmarkRun& baseline, const BenchmarkRun& candidate, const VerdictOptions& options) {
  const auto caches = [](const BenchmarkRun& run) { return run.has_cold_caches() ? "cold caches" : "warm caches"; };
  if (baseline.has_cold_caches() != candidate.has_cold_caches())
    throw InputError({candidate.file, "/context/cache_state"}, fmt::format("a run with {}", caches(candidate)),
                     fmt::format("one with {}, like {} (orrery bench --cold-cache)", caches(baseline), baseline.file));
  Comparison result;
  result.options = options;
  result.baseline_file = baseline.file, result.baseline_date = baseline.date;
  result.new_file = candidate.file, result.new_date = candidate.date;
  for (const std::string_view key : kMachineFacts) {
    const std::string before = baseline.fact(key), after = candidate.fact(key);
    if (!before.empty() && !after.empty() && before != after)
      result.warnings.push_back(
          fmt::format("the machines differ: {} was {} in the baseline and is {} in the new run", key, before, after));
  }

  const MachineState before(baseline), after(candidate);
  const auto is_wanted = [&](const Series& series) { return !options.wanted || options.wanted(series.name); };
  for (std::size_t y = 0; y < kYardsticks.size(); ++y)
    if (before.usual_seconds[y] > 0 && after.usual_seconds[y] > 0)
      result.drift[y] = after.usual_seconds[y] / before.usual_seconds[y];
  for (const auto& [run, state] : {std::pair(&baseline, &before), std::pair(&candidate, &after)})
    for (const Series& series : run->series) {
      if (!is_wanted(series)) continue;
      result.repetitions += series.repetitions.size();
      result.set_aside += series.repetitions.size() - state->undisturbed(series).size();
    }
  std::vector<Pair> pairs;
  for (const Series& series : baseline.series)
    if (is_wanted(series)) pairs.push_back(pair_of(&series, candidate.find(series.name), before, after));
  for (const Series& series : candidate.series)
    if (is_wanted(series) && baseline.find(series.name) == nullptr)
      pairs.push_back(pair_of(nullptr, &series, before, after));

  std::vector<Pair*> tested;
  for (Pair& pair : pairs)
    if (comparable(pair)) tested.push_back(&pair);
  if (tested.empty()) result.warnings.emplace_back("the two files have no benchmark in common");
  const std::size_t tests = tested.size();
  result.needed_repetitions = repetitions_needed(std::max<std::size_t>(tests, 1), options.alpha);
  std::erase_if(tested, [&](Pair* pair) {
    Difference& d = pair->difference;
    const bool too_few =
        smallest_p(d.baseline_repetitions, d.new_repetitions) * static_cast<double>(tests) >= options.alpha;
    if (too_few) d.verdict = Verdict::too_few_repetitions;
    return too_few;
  });
  const Explained machine = explained_by(result.drift);
  std::vector<double> p;
  for (Pair* pair : tested) {
    test(*pair, machine);
    p.push_back(pair->difference.p);
  }
  const std::vector<double> adjusted = holm(p);
  for (std::size_t i = 0; i < tested.size(); ++i) {
    Difference& d = tested[i]->difference;
    d.adjusted_p = adjusted[i];
    d.verdict = verdict_of(*tested[i], machine, tests, options);
    d.least_slowdown = least_slowdown(*tested[i], machine, tests, options);
  }
  for (Pair& pair : pairs) result.benchmarks.push_back(std::move(pair.difference));
  result.sort();
  return result;
}

}  // namespace orrery::bench
