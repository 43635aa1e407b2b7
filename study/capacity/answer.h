// All that is said of a capacity plan: sizes, choice, failures, sensitivities, break-even prices.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/planning/sensitivity.h"
#include "sim/planning/simulate_run.h"
#include "study/capacity/choice.h"
#include "study/capacity/sized_candidate.h"
#include "study/capacity/tornado.h"

namespace orrery {

struct AnswerOptions {
  HeldBy held_by = HeldBy::expectation;
  RunOptions histories = {};  // the first one's seed
  std::int64_t history_count = 100;
  PlanOutput output = PlanOutput::cost;  // whose sensitivities are asked
  double swing = 0.2;
  std::string against = {};  // the candidate to whose price others are compared; empty: the answer's subject
};

// Of many histories: the mean, and the values that a tenth of them lies below and above.
struct Spread {
  double mean = 0, tenth = 0, ninetieth = 0;
};

// A candidate's failures, in closed form and event by event.
struct FailureStudy {
  std::size_t candidate = 0;                                        // of CapacityAnswer::candidates
  double seconds_between = 0;                                       // failures of the job; infinite: none
  double stall_seconds = 0;                                         // that training waits for a checkpoint
  double young_seconds = 0, daly_seconds = 0, optimal_seconds = 0;  // between checkpoints; 0: no such interval
  RunOutcome closed;
  Spread simulated_wall_seconds, simulated_ettr, simulated_failures;
};

// Two candidates at which prices cost alike: `of` pays below the price.
struct PriceTie {
  std::size_t of = 0, against = 0;
  BreakEven tie;
};

struct CapacityAnswer {
  CapacityPlan plan;
  AnswerOptions options;
  std::vector<SizedCandidate> candidates;
  Choice choice;
  std::vector<FailureStudy> failures;  // of each cluster's best, where one is possible
  // What sensitivities and break-even prices are of: the cheapest; where nothing meets all, what does with the least
  // given way; none where nothing fits.
  std::optional<std::size_t> subject;
  std::optional<Tornado> tornado;
  std::vector<PriceTie> ties;  // of each other cluster's best against one
};

// Throws InputError where AnswerOptions::against is no candidate's name, or the prediction of an input's change cannot
// be made.
CapacityAnswer answer(const CapacityPlan& plan, const AnswerOptions& options, Simulator& simulator,
                      const ScenarioOn& scenario_on = with_replicas);

}  // namespace orrery
