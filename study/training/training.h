// A training: a sequence of steps whose Programs change between steps, by the strategies' controllers
// (strategies/training_controller.h). Steps in the same state are predicted once. Data that a controller moves between
// ranks either delays the next step, or moves during the following steps, in the time in which they leave links idle.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "strategies/training_controller.h"
#include "study/simulation/simulation.h"

namespace orrery {

// The figures of a predicted step.
struct StepOutcome {
  double seconds = 0;
  double tokens_per_second_per_device = 0, mfu = 0;
  double exposed_communication_seconds = 0;
  double idle_link_seconds = 0;  // time in which no communication of the bounding stage is under way
  double memory_peak_bytes = 0, memory_capacity_bytes = 0;
  bool memory_fits = false;
  std::vector<double> figures;  // by figure_columns()
};
// Known outcomes, by the digest of everything that a step depends on: scenario, state, engine, calibration, version.
using KnownOutcomes = std::unordered_map<std::uint64_t, StepOutcome>;

struct TrainingOptions {
  std::int64_t steps = 1;
  SimulationOptions simulation{};
  std::uint64_t digest = 0;        // of the scenario, the engine and other inputs of outcomes
  KnownOutcomes* known = nullptr;  // extended with new outcomes; null: none are known
  std::function<void(std::uint64_t key, const StepOutcome&)> found{};  // for each new outcome
  std::function<void(std::int64_t done, std::int64_t predicted)> progress{};
};

// One figure for all steps.
struct TrainingColumn {
  std::string name;
  std::vector<double> values;
};

struct Training {
  std::int64_t first_step = 0, steps = 0;
  std::int64_t different = 0;     // number of different steps: every other step equals one of these
  double seconds = 0;             // of all steps and all delays between them
  double unfinished_seconds = 0;  // time that movements still need after the last step
  double memory_capacity_bytes = 0;
  bool memory_fits = true;  // true if all steps fit
  // The columns of kTrainingColumns, of figure_columns(), then the controllers'.
  std::vector<TrainingColumn> columns;
  Report first;  // report of the first step, without its ops

  const std::vector<double>& column(std::string_view name) const;  // REQUIRES: it exists
};

// step_seconds: of the step; waiting_seconds: before it; moving_seconds: of movements under way when it ends.
inline constexpr std::string_view kTrainingColumns[]{"step",
                                                     "begin_seconds",
                                                     "step_seconds",
                                                     "waiting_seconds",
                                                     "moving_seconds",
                                                     "tokens_per_second_per_device",
                                                     "mfu",
                                                     "exposed_communication_seconds",
                                                     "memory_peak_bytes"};
// The figures of strategies that every training has a column for.
std::span<const FigureKind* const> figure_columns();

// The controllers of the scenario's strategies, which change it from step to step.
std::vector<std::unique_ptr<TrainingController>> controllers_of(const Scenario& scenario);

// Steps are numbered from workload.step, or, if that is 0, from the first step of a recorded routing. Throws like
// Simulator::evaluate(), and InputError if steps exceed Workload::kMostSteps.
Training train(Simulator& simulator, const Scenario& scenario, const TrainingOptions& options);
// The same with given controllers.
Training train(Simulator& simulator, const Scenario& scenario,
               std::vector<std::unique_ptr<TrainingController>> controllers, const TrainingOptions& options);

// ---- a training as table, CSV, JSON and SVG

// One row per range of steps, and their totals. `title`: lines that say what was simulated.
std::string training_table(const Training& training, const std::vector<std::string>& title);

// One row per step: "scenario", the columns, then the columns `more`, which have the values `inputs` in each row.
std::string training_csv(const Training& training, const std::string& scenario, std::span<const std::string_view> more,
                         std::span<const std::string> inputs);

// {"steps": ..., "seconds": ..., "columns": {"step": [...], ...}}
nlohmann::ordered_json training_json(const Training& training);

// A standalone SVG document: a panel for the step time, and one for each other figure that changes. If there are more
// steps than pixels, the drawing spans the lowest to the highest value of the steps that share a pixel.
std::string training_svg(const Training& training, const std::vector<std::string>& title);

}  // namespace orrery
