#include "study/capacity/choice.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <tuple>

namespace orrery {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

class Choosing {
 public:
  Choosing(const CapacityPlan& plan, std::span<const SizedCandidate> candidates, HeldBy held_by)
      : plan_(plan), candidates_(candidates), held_by_(held_by) {}

  Choice run() {
    for (const SizedCandidate& candidate : candidates_) choice_.verdicts.push_back(verdict_of(candidate));
    choice_.cheapest = first([&](std::size_t i) { return verdict(i).meets(); }, by_cost());
    choice_.fastest = first([&](std::size_t i) { return verdict(i).meets(); }, by_time());
    for (std::size_t c = 0; c < plan_.clusters.size(); ++c) choose_sizes(c);
    find_frontier();
    if (!choice_.cheapest) relax();
    return std::move(choice_);
  }

 private:
  const CapacityPlan& plan_;
  std::span<const SizedCandidate> candidates_;
  HeldBy held_by_;
  Choice choice_;

  const Verdict& verdict(std::size_t i) const { return choice_.verdicts[i]; }
  double held(const Estimate& estimate) const { return held_by_ == HeldBy::worst ? estimate.high : estimate.value; }
  double time(std::size_t i) const { return held(candidates_[i].forecast.wall_seconds); }
  double cost(std::size_t i) const { return held(candidates_[i].forecast.cost); }
  bool fits(std::size_t i) const { return verdict(i).possible && verdict(i).in_memory; }

  Verdict verdict_of(const SizedCandidate& candidate) const {
    Verdict verdict;
    verdict.possible = candidate.impossible.empty();
    verdict.time_excess = verdict.cost_excess = kInfinite;
    if (!verdict.possible) return verdict;
    verdict.in_memory = candidate.memory_fits;
    verdict.time_excess = held(candidate.forecast.wall_seconds) / plan_.deadline_seconds - 1;
    verdict.cost_excess = plan_.budget ? held(candidate.forecast.cost) / plan_.budget->amount - 1 : -1;
    verdict.in_time = verdict.time_excess <= 0;
    verdict.in_budget = verdict.cost_excess <= 0;
    return verdict;
  }

  // The first by `key` of those that are `admitted`; of like ones the first candidate.
  template <class Admitted, class By>
  std::optional<std::size_t> first(Admitted admitted, By key) const {
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < candidates_.size(); ++i)
      if (admitted(i) && (!best || key(i) < key(*best))) best = i;
    return best;
  }
  using Key = std::function<std::tuple<double, double>(std::size_t)>;
  Key by_cost() const {
    return [this](std::size_t i) { return std::tuple(cost(i), time(i)); };
  }
  Key by_time() const {
    return [this](std::size_t i) { return std::tuple(time(i), cost(i)); };
  }
  // By how much the worse missed of the two is missed.
  double miss(std::size_t i) const { return std::max({verdict(i).time_excess, verdict(i).cost_excess, 0.0}); }

  void choose_sizes(std::size_t cluster) {
    const auto of_it = [&](std::size_t i) { return candidates_[i].cluster == cluster; };
    std::optional<std::size_t> best = first([&](std::size_t i) { return of_it(i) && verdict(i).meets(); }, by_cost());
    // What lacks memory misses by more than what lacks time or money: neither buys it.
    if (!best)
      best = first([&](std::size_t i) { return of_it(i) && verdict(i).possible; },
                   [&](std::size_t i) {
                     const double memory = candidates_[i].memory_peak_bytes;
                     return std::tuple(fits(i) ? 0.0 : memory, miss(i), cost(i));
                   });
    choice_.best.push_back(best);
    choice_.fewest.push_back(first([&](std::size_t i) { return of_it(i) && fits(i) && verdict(i).in_time; },
                                   [&](std::size_t i) { return candidates_[i].devices; }));
  }

  void find_frontier() {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < candidates_.size(); ++i)
      if (fits(i)) order.push_back(i);
    std::stable_sort(order.begin(), order.end(),
                     [key = by_time()](std::size_t a, std::size_t b) { return key(a) < key(b); });
    double least = kInfinite;
    for (const std::size_t i : order) {
      if (cost(i) >= least) continue;
      least = cost(i);
      choice_.frontier.push_back(i);
    }
  }

  void relax() {
    const auto in_budget = first([&](std::size_t i) { return fits(i) && verdict(i).in_budget; }, by_time());
    const auto in_time = first([&](std::size_t i) { return fits(i) && verdict(i).in_time; }, by_cost());
    if (in_budget) choice_.relaxations.push_back({*in_budget, time(*in_budget), std::nullopt});
    if (in_time) choice_.relaxations.push_back({*in_time, std::nullopt, cost(*in_time)});
    if (in_budget || in_time) return;
    const auto nearest = first([&](std::size_t i) { return fits(i); }, [&](std::size_t i) { return miss(i); });
    if (nearest) choice_.relaxations.push_back({*nearest, time(*nearest), cost(*nearest)});
  }
};

}  // namespace

Choice choose(const CapacityPlan& plan, std::span<const SizedCandidate> candidates, HeldBy held_by) {
  return Choosing(plan, candidates, held_by).run();
}

}  // namespace orrery
