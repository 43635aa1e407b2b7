// The answer of `orrery plan`: the time and cost of a training on each of several clusters, and which one to take.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "study/answers/arguments.h"
#include "study/capacity/answer.h"

namespace orrery {

inline constexpr double kLeastSwing = 0.001, kMostSwing = 0.9, kLeastShape = 0.1, kMostShape = 10;
inline constexpr std::int64_t kMostHistories = 100'000;

struct PlanRequest {
  std::vector<std::string> sets;          // "KEY=VALUE"
  std::vector<std::string> calibrations;  // the user's files
  std::string output = std::string(kPlanOutputNames[static_cast<std::size_t>(PlanOutput::cost)]);
  AnswerOptions options = {};      // `held_by` and `output` follow from the fields of this struct
  bool worst = false;              // deadline and budget must hold at the slow end of the step's interval
  bool search = false;             // use the fastest plan that fits, for each size
  std::vector<std::string> fixed;  // fields of plans that a search does not change, with or without "plan."
  std::function<void(const Scenario&)> searching{};  // called before each search
};

struct PlanAnswer {
  nlohmann::json document;  // with the settings applied
  ScenarioSource source;
  CapacityAnswer result;
};

// `plan`: a bundled plan's name, a path, "-", or a document. Throws InputError, with its file set.
PlanAnswer answer_plan(const ScenarioArgument& plan, const PlanRequest& request);
nlohmann::ordered_json plan_answer_json(const PlanAnswer& answer, const PlanRequest& request);

}  // namespace orrery
