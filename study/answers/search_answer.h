// What `orrery search` answers: the best plans of a space, each with its report, and why there is none.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "study/answers/scenario_argument.h"
#include "study/search/network.h"
#include "study/search/remedies.h"
#include "study/search/search.h"
#include "study/simulation/simulation.h"

namespace orrery {

inline constexpr std::int64_t kMostPlansListed = 1000, kMostSearchThreads = 4096;
inline constexpr double kMostFront = 1000, kLeastNetworkPercent = 0.1, kMostNetworkPercent = 1000;

struct SearchRequest {
  std::vector<std::string> sets;         // "KEY=VALUE"; a field of the plan that is set is not searched
  std::vector<std::string> fixed;        // "KEY" or "KEY=VALUE", with "plan." before it or without
  std::vector<std::string> over;         // "KEY" or "KEY=VALUE,VALUE" or "KEY=[VALUE,VALUE]"
  std::string global_batch;              // "256..4096", "256,384"; empty: the scenario's
  std::string most_memory;               // "64G"; empty: a device's capacity
  bool safe = false;                     // predicted peaks must fit with the upper end of their interval
  bool all = false, exhaustive = false;  // fields that are not usually searched; plans that are proven no answer
  std::int64_t top = 10, threads = 0;    // threads: 0 stands for as many as the machine has
  double front = SearchOptions{}.front;
  std::optional<double> network_within_percent;       // asks for SearchAnswer::network
  std::optional<SimulationOptions> engine_of_listed;  // of the discrete-event engine: simulates the listed plans, too
  std::vector<std::string> calibrations;              // the user's files
  std::function<void(const SearchProgress&)> progress{};
  // Called where no plan fits, before the search for what would fit, which takes longer.
  std::function<void(const struct SearchAnswer&)> nothing_fits{};
};

// A plan of the answer, evaluated with all that a report has.
struct ShownPlan {
  FoundPlan found;
  Scenario scenario;
  Report report;                // the analytical engine's
  std::optional<Report> des{};  // the discrete-event engine's, where it was asked for

  // The report of the engine that was asked for.
  const Report& asked() const { return des ? *des : report; }
};

struct SearchAnswer {
  nlohmann::json document;  // with what is set and fixed
  ScenarioSource source;
  Scenario base;
  double most_memory_bytes = 0;
  Space space;
  SearchResult result{};
  std::vector<ShownPlan> best{}, front{};
  std::optional<NetworkNeed> network{};
  std::vector<Remedy> remedies{};
  std::optional<ShownPlan> leanest{};
  double seconds = 0;         // of the search alone
  double remedy_seconds = 0;  // of those for the remedies
  // Where the batch is the reason why there is no plan: the nearest smaller and larger batch that the replicas of some
  // plan divide. 0: there is none.
  std::int64_t smaller_batch = 0, larger_batch = 0;
};

// Throws InputError, its file filled in, and StalledError.
SearchAnswer answer_search(const ScenarioArgument& scenario, const SearchRequest& request);
// `label`: what the answer is called; may be empty.
nlohmann::ordered_json search_json(const SearchAnswer& answer, const SearchRequest& request, const std::string& label);

// A plan's value of an axis, as scenarios have it.
nlohmann::ordered_json chosen_value(const Space::Axis& axis, const Scenario& scenario);
// The term that costs most of those that a faster plan could have less of, and its share of the step.
std::string loses_by(const Report& report);

}  // namespace orrery
