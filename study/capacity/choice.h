// Which candidates meet the constraints, which of those to take, and what to give way where none does.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "study/capacity/sized_candidate.h"

namespace orrery {

// By which end of its interval a candidate is held to deadline and budget.
enum class HeldBy : std::uint8_t { expectation, worst };

struct Verdict {
  bool possible = false, in_memory = false, in_time = false, in_budget = false;
  // Time over deadline, cost over budget, less 1; infinite where there is no training.
  double time_excess = 0, cost_excess = 0;
  bool meets() const { return possible && in_memory && in_time && in_budget; }
};

// By how much constraints would have to give way to let `candidate` in. What stays as it was is empty.
struct Relaxation {
  std::size_t candidate = 0;
  std::optional<double> deadline_seconds, budget_amount;
};

struct Choice {
  std::vector<Verdict> verdicts;                 // of each candidate
  std::optional<std::size_t> cheapest, fastest;  // of those that meet all; of like ones the fastest, the cheapest
  // Of each cluster: the cheapest size that meets all; else the one that misses by least; empty where none is possible.
  std::vector<std::optional<std::size_t>> best;
  // Of each cluster the fewest devices that fit and are in time, whatever they cost; empty: none.
  std::vector<std::optional<std::size_t>> fewest;
  // What fits, and nothing is both faster and cheaper; by time.
  std::vector<std::size_t> frontier;
  // Where nothing meets all: with a later deadline alone, with a larger budget alone, and, where neither can do, with
  // both. Those that are possible; empty too where nothing fits in memory.
  std::vector<Relaxation> relaxations;
};
Choice choose(const CapacityPlan& plan, std::span<const SizedCandidate> candidates, HeldBy held_by);

}  // namespace orrery
