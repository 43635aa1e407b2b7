#include "realrun/bench/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <tuple>

#include "realrun/bench/statistics.h"
#include "sim/base/statistics.h"

namespace orrery::bench {
namespace {

// Facts without which two runs are of two machines (or of two builds of the libraries below).
constexpr std::array kMachineFacts{"device", "processors", "software", "cpu_governor", "library_build_type"};

struct Sample {
  std::vector<double> seconds;
  double median = 0, fastest = 0;
};

// What the yardsticks say of a run.
struct Machine {
  std::array<double, kYardsticks.size()> usual{};  // seconds: the first quartile; 0: not measured

  explicit Machine(const BenchmarkRun& run) {
    constexpr double kQuartile = 0.25;
    for (std::size_t y = 0; y < usual.size(); ++y) {
      std::vector<double> all;
      for (const Series& series : run.series)
        for (const Repetition& r : series.repetitions)
          if (r.yardstick_seconds[y] > 0) all.push_back(r.yardstick_seconds[y]);
      if (!all.empty()) usual[y] = quantile(std::move(all), kQuartile);
    }
  }
  bool disturbed(const Repetition& r) const {
    for (std::size_t y = 0; y < usual.size(); ++y)
      if (usual[y] > 0 && r.yardstick_seconds[y] > (1 + kDisturbance[y]) * usual[y]) return true;
    return false;
  }
  Sample sample(const Series& series) const {
    Sample s;
    for (const Repetition& r : series.repetitions)
      if (!disturbed(r)) s.seconds.push_back(series.seconds(r));
    if (s.seconds.empty()) return s;
    s.median = median(s.seconds);
    s.fastest = *std::min_element(s.seconds.begin(), s.seconds.end());
    return s;
  }
};

struct Pair {
  Difference difference;
  Sample before, after;
};

Pair pair_of(const Series* before, const Series* after, const Machine& before_machine, const Machine& after_machine) {
  Pair pair;
  Difference& d = pair.difference;
  d.name = (before != nullptr ? before : after)->name;
  if (before != nullptr) pair.before = before_machine.sample(*before);
  if (after != nullptr) pair.after = after_machine.sample(*after);
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

// `drift` is that of the yardsticks.
void judge(Pair& pair, std::span<const double> drift) {
  Difference& d = pair.difference;
  // What is slower than before may be so by the larger, what is faster by the smaller; what lies between cannot be told
  // from the machine.
  const auto [least, most] = std::minmax_element(drift.begin(), drift.end());
  d.explained = std::clamp(d.ratio, *least, *most);
  std::vector<double> corrected = pair.after.seconds;
  for (double& seconds : corrected) seconds /= d.explained;
  d.p = mann_whitney(pair.before.seconds, corrected).p;
}

Verdict verdict_of(const Difference& d, const CompareOptions& options) {
  if (d.adjusted_p >= options.alpha) return Verdict::unchanged;
  const double median_ratio = d.ratio / d.explained, fastest_ratio = d.fastest_ratio / d.explained;
  const double limit = 1 + options.threshold;
  if (median_ratio > limit && fastest_ratio > limit) return Verdict::regression;
  if (median_ratio < 1 / limit && fastest_ratio < 1 / limit) return Verdict::improvement;
  return Verdict::unchanged;
}

// For sorting: what asks for attention first.
int group_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::failed:
      return 0;
    case Verdict::regression:
      return 1;
    case Verdict::improvement:
    case Verdict::unchanged:
      return 2;
    default:
      return 3 + static_cast<int>(verdict);
  }
}

std::size_t repetitions_needed(std::size_t tests, double alpha) {
  std::size_t n = 1;
  while (smallest_p(n, n) * static_cast<double>(tests) >= alpha) ++n;
  return n;
}

}  // namespace

const char* name_of(Verdict verdict) {
  constexpr std::array kNames{"failed",           "regression", "improvement", "unchanged", "too few repetitions",
                              "only in baseline", "only in new"};
  return kNames[static_cast<std::size_t>(verdict)];
}

std::size_t Comparison::count(Verdict verdict) const {
  return static_cast<std::size_t>(
      std::count_if(differences.begin(), differences.end(), [&](const Difference& d) { return d.verdict == verdict; }));
}

Comparison compare_runs(const BenchmarkRun& baseline, const BenchmarkRun& candidate, const CompareOptions& options) {
  Comparison result{.baseline_file = baseline.file,
                    .new_file = candidate.file,
                    .baseline_date = baseline.date,
                    .new_date = candidate.date,
                    .options = options,
                    .differences = {},
                    .warnings = {}};
  for (const char* key : kMachineFacts) {
    const std::string *before = baseline.fact(key), *after = candidate.fact(key);
    if (before != nullptr && after != nullptr && *before != *after)
      result.warnings.push_back(
          fmt::format("the machines differ: {} was {} in the baseline and is {} in the new run", key, *before, *after));
  }

  const Machine before(baseline), after(candidate);
  for (std::size_t y = 0; y < kYardsticks.size(); ++y)
    if (before.usual[y] > 0 && after.usual[y] > 0) result.drift[y] = after.usual[y] / before.usual[y];
  for (const auto& [run, machine] : {std::pair(&baseline, &before), std::pair(&candidate, &after)})
    for (const Series& series : run->series) {
      result.repetitions += series.repetitions.size();
      for (const Repetition& r : series.repetitions) result.set_aside += machine->disturbed(r) ? 1 : 0;
    }
  std::vector<Pair> pairs;
  for (const Series& series : baseline.series)
    pairs.push_back(pair_of(&series, candidate.find(series.name), before, after));
  for (const Series& series : candidate.series)
    if (baseline.find(series.name) == nullptr) pairs.push_back(pair_of(nullptr, &series, before, after));

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
  std::vector<double> p;
  for (Pair* pair : tested) {
    judge(*pair, result.drift);
    p.push_back(pair->difference.p);
  }
  const std::vector<double> adjusted = holm(p);
  for (std::size_t i = 0; i < tested.size(); ++i) {
    Difference& d = tested[i]->difference;
    d.adjusted_p = adjusted[i];
    d.verdict = verdict_of(d, options);
  }
  for (Pair& pair : pairs) result.differences.push_back(std::move(pair.difference));
  std::stable_sort(result.differences.begin(), result.differences.end(), [](const Difference& a, const Difference& b) {
    return std::tuple(group_of(a.verdict), -a.ratio) < std::tuple(group_of(b.verdict), -b.ratio);
  });
  return result;
}

}  // namespace orrery::bench
