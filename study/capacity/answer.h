// The complete answer to a capacity plan, the answer of `orrery plan`: sizes, choice, failures, sensitivities,
// break-even prices.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/planning/candidate.h"
#include "sim/planning/training_run.h"
#include "study/capacity/choice.h"
#include "study/capacity/sized_candidate.h"

namespace orrery {

// The inputs that change an answer most: each input is changed by the same share down and up, with all others fixed.
struct Tornado {
  PlanOutput output = PlanOutput::cost;
  double swing = 0;              // share by which inputs change
  double value = 0;              // of the unchanged output
  std::vector<TornadoBar> bars;  // widest first
};

// Hardware inputs (rates of matrix units, memory and links; the memory's size) are changed in the scenario, and the
// step is predicted again with the same plan and number of devices. Other costs of a training are changed in its
// figures (sim/planning/candidate.h). kPredictedStep is not a swing: its ends are the output at the ends of the
// step's interval. Throws InputError.
inline constexpr std::string_view kPredictedStep = "predicted step, its interval";
Tornado tornado(const CapacityPlan& plan, const SizedCandidate& sized, PlanOutput output, double swing,
                Simulator& simulator);

struct AnswerOptions {
  HeldBy held_by = HeldBy::expectation;
  RunOptions histories = {};  // `seed`: that of the first history
  std::int64_t history_count = 100;
  PlanOutput output = PlanOutput::cost;  // the output whose sensitivities are computed
  double swing = 0.2;
  std::string against = {};  // the candidate with whose price others are compared; empty: the answer's subject
};

// A figure over many histories: its mean, and its first and ninth decile.
struct Spread {
  double mean = 0, tenth = 0, ninetieth = 0;
};

// A candidate's failures, in closed form and simulated event by event.
struct FailureStudy {
  std::size_t candidate = 0;                                        // index into CapacityAnswer::candidates
  double seconds_between = 0;                                       // between failures of the job; infinite: none
  double stall_seconds = 0;                                         // for which training waits for a checkpoint
  double young_seconds = 0, daly_seconds = 0, optimal_seconds = 0;  // between checkpoints; 0: none
  RunOutcome closed;
  Spread simulated_wall_seconds, simulated_ettr, simulated_failures;
};

// Two candidates, and the price at which they cost the same: `of` pays below it.
struct PriceTie {
  std::size_t of = 0, against = 0;
  BreakEven tie;
};

struct CapacityAnswer {
  CapacityPlan plan;
  AnswerOptions options;
  std::vector<SizedCandidate> candidates;
  Choice choice;
  std::vector<FailureStudy> failures;  // of the best size of each cluster, if one is possible
  // The candidate of sensitivities and break-even prices: the cheapest one. If none meets all constraints: the one that
  // needs the least relaxation. Empty if nothing fits.
  std::optional<std::size_t> subject;
  std::optional<Tornado> tornado;
  std::vector<PriceTie> ties;  // the best size of each other cluster against one candidate
};

// Throws InputError if AnswerOptions::against is not a candidate's name, or if the step with a changed input cannot be
// predicted.
CapacityAnswer answer(const CapacityPlan& plan, const AnswerOptions& options, Simulator& simulator,
                      const ScenarioOn& scenario_on = with_replicas);

// ---- the answer as text

// Returns the answer for people; it ends with a newline. `every_size`: list all sizes of all candidates instead of only
// the best size of each.
std::string answer_text(const CapacityAnswer& answer, bool every_size);
nlohmann::ordered_json answer_json(const CapacityAnswer& answer);
// Returns CSV with one row per size of each candidate.
std::string answer_csv(const CapacityAnswer& answer);

// Returns the chart of CapacityAnswer::tornado. REQUIRES: the answer has one.
std::string answer_svg(const CapacityAnswer& answer);

}  // namespace orrery
