// Evaluates scenarios: reading, lowering, calibrations, engine, report.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/analytical/engine.h"
#include "sim/cost/collective_cost.h"
#include "sim/cost/kernel_cost.h"
#include "sim/program/program.h"
#include "sim/report/report.h"
#include "strategies/read_scenario.h"

namespace orrery {

// A scenario with what became of it. Everything but `report` stays valid until the next evaluate() of its Simulator.
struct Simulation {
  Scenario scenario;
  Report report;
  const Program* program = nullptr;
  const Calibration* kernels = nullptr;
  const CollectiveCalibration* collectives = nullptr;
};

// Keeps what costs time to make between scenarios: parsed presets, calibrations, the program's storage.
class Simulator {
 public:
  Simulator();
  ~Simulator();

  // Throws InputError with the file filled in.
  Simulation evaluate(const nlohmann::json& document, const ScenarioSource& source, const AnalyticalOptions& options);

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

// What was simulated, for the head of a table: the parts of the scenario, then the plan where it is not the default.
std::vector<std::string> title_of(const Scenario& scenario);

}  // namespace orrery
