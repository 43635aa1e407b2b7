// A training: steps one after another whose Programs change between them, by the strategies' controllers
// (strategies/run_controller.h). Steps of one state are predicted once. What a controller moves between ranks either
// holds up the next step, or goes on beside the steps that follow, in the time in which they leave links idle.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "strategies/run_controller.h"
#include "study/simulation/simulation.h"

namespace orrery {

// What a step's prediction comes to.
struct StepOutcome {
  double seconds = 0;
  double tokens_per_second_per_device = 0, mfu = 0;
  double exposed_communication_seconds = 0;
  double idle_link_seconds = 0;  // in which no communication of the bounding stage is under way
  double memory_peak_bytes = 0, memory_capacity_bytes = 0;
  bool memory_fits = false;
  std::vector<double> figures;  // of figure_columns()
};
// Outcomes that are known, by the digest of all that a step depends on: scenario, state, engine, calibration, version.
using KnownOutcomes = std::unordered_map<std::uint64_t, StepOutcome>;

struct TrainingOptions {
  std::int64_t steps = 1;
  SimulationOptions simulation{};
  std::uint64_t digest = 0;        // of the scenario, the engine and what else outcomes depend on
  KnownOutcomes* known = nullptr;  // filled, too; null: none are known
  std::function<void(std::uint64_t key, const StepOutcome&)> found{};  // of what was not known
  std::function<void(std::int64_t done, std::int64_t predicted)> progress{};
};

// One figure of each step.
struct TrainingColumn {
  std::string name;
  std::vector<double> values;
};

struct Training {
  std::int64_t first_step = 0, steps = 0;
  std::int64_t different = 0;     // steps: all others are alike one of these
  double seconds = 0;             // of all steps, and of all that has held one up
  double unfinished_seconds = 0;  // of what still moves when the last step ends
  double memory_capacity_bytes = 0;
  bool memory_fits = true;  // of all steps
  // The columns of kTrainingColumns, of figure_columns(), then the controllers'.
  std::vector<TrainingColumn> columns;
  Report first;  // the first step, in full, without its ops

  const std::vector<double>& column(std::string_view name) const;  // REQUIRES: there is one
};

// seconds: of the step; waiting_seconds: in front of it; moving_seconds: of what is under way when it ends.
inline constexpr std::string_view kTrainingColumns[]{"step",
                                                     "begin_seconds",
                                                     "step_seconds",
                                                     "waiting_seconds",
                                                     "moving_seconds",
                                                     "tokens_per_second_per_device",
                                                     "mfu",
                                                     "exposed_communication_seconds",
                                                     "memory_peak_bytes"};
// The figures of strategies that every training has a column of.
std::span<const FigureKind* const> figure_columns();

// What the scenario's strategies change from step to step.
std::vector<std::unique_ptr<RunController>> controllers_of(const Scenario& scenario);

// Steps are numbered from workload.step, or, where that is 0, from the first of a recorded routing. Throws as
// Simulator::evaluate, and InputError where steps are beyond Workload::kMostSteps.
Training train(Simulator& simulator, const Scenario& scenario, const TrainingOptions& options);
// The same with other controllers.
Training train(Simulator& simulator, const Scenario& scenario, std::vector<std::unique_ptr<RunController>> controllers,
               const TrainingOptions& options);

}  // namespace orrery
