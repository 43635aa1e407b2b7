// Which candidates meet the constraints, which of them to take, and which constraints to relax if none does.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "study/capacity/sized_candidate.h"

namespace orrery {

// The end of its interval at which a candidate must meet deadline and budget.
enum class HeldBy : std::uint8_t { expectation, worst };

struct Verdict {
  bool possible = false, in_memory = false, in_time = false, in_budget = false;
  // Time over deadline minus 1, and cost over budget minus 1; infinite if there is no training.
  double time_excess = 0, cost_excess = 0;
  bool meets() const { return possible && in_memory && in_time && in_budget; }
};

// How far constraints must be relaxed to admit `candidate`. Constraints that stay as they are are empty.
struct Relaxation {
  std::size_t candidate = 0;
  std::optional<double> deadline_seconds, budget_amount;
};

struct Choice {
  std::vector<Verdict> verdicts;  // by candidate
  // Among those that meet all constraints. Ties: the fastest of the cheapest, the cheapest of the fastest.
  std::optional<std::size_t> cheapest, fastest;
  // By cluster: the cheapest size that meets all constraints; else the one that misses them by the least; empty if none
  // is possible.
  std::vector<std::optional<std::size_t>> best;
  // By cluster: the size with the fewest devices that fits and is in time, at any cost; empty: none.
  std::vector<std::optional<std::size_t>> fewest;
  // The candidates that fit, and that no other is both faster and cheaper than, sorted by time.
  std::vector<std::size_t> frontier;
  // If no candidate meets all constraints: with a later deadline alone, with a larger budget alone, and, if neither
  // suffices, with both. Only the possible ones; empty, too, if nothing fits in memory.
  std::vector<Relaxation> relaxations;
};
Choice choose(const CapacityPlan& plan, std::span<const SizedCandidate> candidates, HeldBy held_by);

}  // namespace orrery
