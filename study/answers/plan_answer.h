// What `orrery plan` answers: what a training takes on each of several clusters, and which to take.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/cost/user_calibration.h"
#include "study/answers/scenario_argument.h"
#include "study/capacity/answer.h"

namespace orrery {

inline constexpr double kLeastSwing = 0.001, kMostSwing = 0.9, kLeastShape = 0.1, kMostShape = 10;
inline constexpr std::int64_t kMostHistories = 100'000;

struct PlanRequest {
  std::vector<std::string> sets;          // "KEY=VALUE"
  std::vector<std::string> calibrations;  // the user's files
  std::string output = std::string(kPlanOutputNames[static_cast<std::size_t>(PlanOutput::cost)]);
  AnswerOptions options = {};      // `held_by` and `output` follow from what is said here
  bool worst = false;              // deadline and budget hold at the slow end of the step's interval
  bool search = false;             // the fastest plan that fits, of each size
  std::vector<std::string> fixed;  // fields of plans that a search leaves, with "plan." before them or without
  std::function<void(const Scenario&)> searching{};  // called before each search
};

struct PlanAnswer {
  nlohmann::json document;  // with what is set
  ScenarioSource source;
  CapacityAnswer result;
};

// `plan`: a bundled plan's name, a path, "-", or a document. Throws InputError, its file filled in.
PlanAnswer answer_plan(const ScenarioArgument& plan, const PlanRequest& request);
nlohmann::ordered_json plan_answer_json(const PlanAnswer& answer, const PlanRequest& request);

}  // namespace orrery
