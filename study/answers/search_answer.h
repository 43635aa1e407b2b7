// The answer of `orrery search`: the best plans of a space, each with its report; or why there is none.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "study/answers/arguments.h"
#include "study/search/advice.h"
#include "study/search/search.h"
#include "study/simulation/simulation.h"

namespace orrery {

inline constexpr std::int64_t kMostPlansListed = 1000, kMostSearchThreads = 4096;
inline constexpr double kMostFront = 1000, kLeastNetworkPercent = 0.1, kMostNetworkPercent = 1000;

struct SearchRequest {
  std::vector<std::string> sets;     // "KEY=VALUE"; a field of the plan that is set is not searched
  std::vector<std::string> fixed;    // "KEY" or "KEY=VALUE", with or without "plan."
  std::vector<std::string> over;     // "KEY" or "KEY=VALUE,VALUE" or "KEY=[VALUE,VALUE]"
  std::string global_batch;          // "256..4096", "256,384"; empty: the scenario's batch
  std::string most_memory;           // "64G"; empty: a device's capacity
  std::vector<std::string> at_most;  // "FIGURE=NUMBER": limits of figures of reports, by their keys in JSON
  bool safe = false;                 // the upper end of a predicted peak's interval must fit
  // `all`: also search fields that are not usually searched. `exhaustive`: also evaluate plans that are proven not to
  // be an answer.
  bool all = false, exhaustive = false;
  std::int64_t top = 10, threads = 0;  // threads: 0 means as many as the machine has
  double front = SearchOptions{}.front;
  std::optional<double> network_within_percent;       // computes SearchAnswer::network
  std::optional<SimulationOptions> engine_of_listed;  // discrete-event: simulates the listed plans, too
  std::vector<std::string> calibrations;              // the user's files
  std::function<void(const SearchProgress&)> progress{};
  // Called if no plan fits, before the search for remedies, which takes longer.
  std::function<void(const struct SearchAnswer&)> nothing_fits{};
};

// A plan of the answer, evaluated with a complete report.
struct ShownPlan {
  FoundPlan found;
  Scenario scenario;
  Report report;                // the analytical engine's
  std::optional<Report> des{};  // the discrete-event engine's, if it was requested

  // The report of the engine that was requested.
  const Report& asked() const { return des ? *des : report; }
};

struct SearchAnswer {
  nlohmann::json document;  // with the settings and fixed fields applied
  ScenarioSource source;
  Scenario base;
  double most_memory_bytes = 0;
  Space space;
  SearchResult result{};
  std::vector<ShownPlan> best{}, front{};
  std::optional<NetworkNeed> network{};
  std::vector<Remedy> remedies{};
  std::optional<ShownPlan> leanest{};  // if no plan fits: the plan with the smallest memory peak
  double seconds = 0;                  // of the main search
  double remedy_seconds = 0;           // of the searches for remedies
  // If no plan exists because of the batch: the nearest smaller and larger batch that the replicas of some plan divide.
  // 0: none.
  std::int64_t smaller_batch = 0, larger_batch = 0;
};

// Throws InputError, with its file set, and StalledError.
SearchAnswer answer_search(const ScenarioArgument& scenario, const SearchRequest& request);
// `label`: the name of the answer; may be empty.
nlohmann::ordered_json search_json(const SearchAnswer& answer, const SearchRequest& request, const std::string& label);

// The value of an axis in a plan, as scenarios write it.
nlohmann::ordered_json chosen_value(const Space::Axis& axis, const Scenario& scenario);
// The largest term that a faster plan could reduce, and its share of the step.
std::string loses_by(const Report& report);

}  // namespace orrery
