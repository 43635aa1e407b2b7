// The work of `orrery simulate --steps`.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "study/answers/engine_choice.h"
#include "study/answers/results.h"
#include "study/training/training.h"

namespace orrery {

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
