// Chooses a cluster and its size for a training: which candidates meet the constraints (memory, deadline, budget),
// which of them to take, and which constraints to relax if none meets all.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "study/capacity/sized_candidate.h"

namespace orrery {

// What must meet deadline and budget: the expected time and cost, or those at the slow end of the step's interval.
enum class HeldBy : std::uint8_t { expectation, worst };

struct Verdict {
  bool possible = false, in_memory = false, in_time = false, in_budget = false;
  // time / deadline - 1 and cost / budget - 1 (-1 without a budget); infinite if the training is impossible.
  double time_excess = 0, cost_excess = 0;
  bool meets() const { return possible && in_memory && in_time && in_budget; }
};

// The deadline and budget that would admit `candidate`. A constraint that need not change is empty.
struct Relaxation {
  std::size_t candidate = 0;
  std::optional<double> deadline_seconds, budget_amount;
};

struct Choice {
  std::vector<Verdict> verdicts;  // by candidate
  // Indices of candidates that meet all constraints; empty: none does. Of equally cheap ones `cheapest` is the fastest;
  // of equally fast ones `fastest` is the cheapest.
  std::optional<std::size_t> cheapest, fastest;
  // By cluster: the cheapest size that meets all constraints; else the one that misses them by the least; empty if none
  // is possible.
  std::vector<std::optional<std::size_t>> best;
  // By cluster: the size with the fewest devices that fits in memory and meets the deadline, at any cost; empty: none.
  std::vector<std::optional<std::size_t>> fewest;
  // The candidates that fit in memory and for which no other one is both faster and cheaper (Pareto), sorted by time.
  std::vector<std::size_t> frontier;
  // If no candidate meets all constraints, what would admit one: a later deadline alone, a larger budget alone, or, if
  // neither suffices, both. Empty if nothing fits in memory.
  std::vector<Relaxation> relaxations;
};
Choice choose(const CapacityPlan& plan, std::span<const SizedCandidate> candidates, HeldBy held_by);

}  // namespace orrery
