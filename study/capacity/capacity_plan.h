// The question of a capacity plan: a training, a deadline, a budget, and the clusters that could run it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sim/planning/candidate.h"
#include "strategies/read_scenario.h"

namespace orrery {

struct Budget {
  double amount = 0;
  std::string currency;  // ISO 4217
};

// A cluster that is available in several sizes.
struct CandidateCluster {
  std::string name;
  std::string pointer;                      // its place in the document: "/candidates/0"
  std::optional<Scenario> pattern;          // of any size; empty: step seconds are given, and `whole` is complete
  std::vector<std::int64_t> devices;        // sizes to try, ascending
  std::optional<std::int64_t> spare_nodes;  // empty: the number that makes the training cheapest
  bool checkpoint_bytes_given = false;      // false: they follow from model and optimizer
  Candidate whole;                          // with a pattern: without step time, length and size
};

struct CapacityPlan {
  double tokens = 0;  // to train; 0: `steps` is given
  std::int64_t steps = 0;
  double deadline_seconds = 0;  // wall time; infinite: none
  std::optional<Budget> budget;
  std::string currency;  // of all prices
  std::vector<CandidateCluster> clusters;
};

// Reads the object
//   {"tokens" or "steps",
//    "deadline_days" or "start" and "deadline",  dates as 2026-05-31; the training ends before the deadline's day
//    "budget": {"amount", "currency"},
//    "model", "workload",                        for candidates that do not name a scenario
//    "all_candidates": {...},                    defaults of all candidates
//    "candidates": [{
//      "name",
//      "scenario" or "cluster" and "plan",       whatever its size: a scenario's name, file or object; or its parts
//      "devices",                                a count, a list of counts, or {"least", "most"}: all between them for
//                                                which the plan's replicas divide the batch; absent: the scenario's
//      "spare_nodes",
//      "checkpoint_bytes", "checkpoint_interval_seconds", "repair_seconds", "failures", "storage", "restarts",
//      "price", "electricity_per_kwh", "power", "site", "grid"     sim/planning/candidate.h
//    }]}
// or, for a candidate whose step time was measured, the keys of read_candidate() in place of a scenario
// ("step_seconds", "tokens_per_step", "devices", ...). Relative paths start from the document's folder.
//
// Throws InputError, with its file set, for keys that are missing, unknown or out of range; a deadline that is not
// after the start; prices in several currencies, or in another one than the budget's; and candidates that train
// different models.
CapacityPlan read_capacity_plan(const nlohmann::json& document, const ScenarioSource& source);

// The plans that come with Orrery: study/capacity/examples/<name>.json.
std::vector<BundledDocument> bundled_plans();

}  // namespace orrery
