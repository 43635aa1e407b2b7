// The answers of `orrery simulate` as JSON documents, and the work of `orrery simulate --steps`.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/report/report.h"
#include "study/answers/arguments.h"
#include "study/simulation/simulation.h"
#include "study/training/training.h"

namespace orrery {

// The request behind an answer. REQUIRES: the referenced objects outlive it.
struct Asked {
  const nlohmann::json& document;
  const ScenarioSource& source;
  const std::vector<std::string>& calibrations;  // the user's files
  const std::string& label;                      // the name of the result; may be empty
  bool ops = false;                              // include the lists of ops
};

// { "label", "scenario", "set", report, "version", "inputs" }. For both engines, "analytical", "des" and "change"
// replace the report; for jobs, "jobs" with jobs_json() of them.
nlohmann::ordered_json simulation_json(const Asked& asked, const Report& report);
nlohmann::ordered_json both_json(const Asked& asked, const Report& analytical, const Report& des);
nlohmann::ordered_json jobs_json(const Asked& asked, const std::vector<JobResult>& jobs);

// [{"name": ..., "slowdown": ..., "alone_seconds": ..., "together": report}]
nlohmann::ordered_json jobs_json(const std::vector<JobResult>& jobs, bool ops);

// ---- the trainings of --steps

struct TrainingRequest {
  std::int64_t steps = 1;
  std::string database;  // keeps outcomes of steps, and the completed training; empty: none
  EngineChoice engine;
  std::function<void(std::int64_t done, std::int64_t predicted)> progress;
};

struct TrainingAnswer {
  Scenario scenario;  // of the first step
  Training training;
};

// Throws InputError like train(), and if the database cannot be written.
TrainingAnswer training_answer(const Asked& asked, const TrainingRequest& request);

// { "label", "scenario", "set", training, "first": report, "version", "inputs" }
nlohmann::ordered_json training_answer_json(const Asked& asked, const Training& training);

}  // namespace orrery
