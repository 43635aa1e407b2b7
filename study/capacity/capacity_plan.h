// What is asked: a training, by when, for how much, and the clusters on which it could be done.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/planning/candidate.h"
#include "strategies/read_scenario.h"

namespace orrery {

struct Budget {
  double amount = 0;
  std::string currency;  // ISO 4217
};

// A cluster to be had in several sizes.
struct CandidateCluster {
  std::string name;
  std::string pointer;                      // where it stands in the document: "/candidates/0"
  std::optional<Scenario> pattern;          // of any size; none: the step's seconds are given, and `whole` is complete
  std::vector<std::int64_t> devices;        // to be tried, ascending
  std::optional<std::int64_t> spare_nodes;  // none: as many as make the training cheapest
  bool checkpoint_bytes_given = false;      // else they follow from model and optimizer
  Candidate whole;                          // with a pattern: without step, length and size
};

struct CapacityPlan {
  double tokens = 0;  // to be trained; 0: `steps` are given
  std::int64_t steps = 0;
  double deadline_seconds = 0;  // of wall time; infinite: none
  std::optional<Budget> budget;
  std::string currency;  // of all prices
  std::vector<CandidateCluster> clusters;
};

// The object
//   {"tokens" or "steps",
//    "deadline_days" or "start" and "deadline",  dates as 2026-05-31; the training ends before the deadline's day
//    "budget": {"amount", "currency"},
//    "model", "workload",                        of candidates that do not name a scenario
//    "all_candidates": {...},                    what candidates do not say themselves
//    "candidates": [{
//      "name",
//      "scenario" or "cluster" and "plan",       of any size: a scenario's name, file or object; its parts
//      "devices",                                a count, a list of counts, or {"least", "most"}: all in between into
//                                                which replicas of the plan divide the batch; absent: the scenario's
//      "spare_nodes",
//      "checkpoint_bytes", "checkpoint_interval_seconds", "repair_seconds", "failures", "storage", "restarts",
//      "price", "electricity_per_kwh", "power", "site", "grid"     sim/planning/candidate.h
//    }]}
// or, for a candidate whose step has been measured, in place of a scenario what read_candidate takes ("step_seconds",
// "tokens_per_step", "devices", ...). Relative paths start from the document's folder.
//
// InputError, its file filled in: what is missing, unknown or out of range; a deadline that is not after the start;
// prices in several currencies, or in another than the budget's; candidates that train different models.
CapacityPlan read_capacity_plan(const nlohmann::json& document, const ScenarioSource& source);

// Plans that come with Orrery.
struct BundledPlan {
  std::string name;
  std::string_view path;  // in the repository
  std::string_view text;
};
std::vector<BundledPlan> bundled_plans();

// The document of a bundled plan's name, a path, or "-" (standard input), with `sets` applied in order. Fills `source`.
nlohmann::json load_plan_document(const std::string& name_or_path, const std::vector<std::string>& sets,
                                  ScenarioSource& source);

}  // namespace orrery
