// From a scenario to what an engine takes: its Program, and what its devices, links and training stack cost.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "sim/analytical/engine.h"
#include "sim/cost/collective_cost.h"
#include "sim/cost/kernel_cost.h"
#include "sim/cost/step_calibration.h"
#include "sim/cost/user_calibration.h"
#include "sim/program/program.h"
#include "sim/report/report.h"
#include "strategies/scenario.h"

namespace orrery {

// What is pointed to is its Calibrator's, and stays valid until that is used again.
struct Prepared {
  Scenario scenario;  // its cluster as the user has measured it
  const Program* program = nullptr;
  const Calibration* kernels = nullptr;
  const CollectiveCalibration* collectives = nullptr;
};

// Lowers scenarios and looks up what they cost. Keeps what takes time to make: calibrations, the Program's storage.
class Calibrator {
 public:
  // `user`: what is measured by the user goes before what is bundled.
  explicit Calibrator(UserCalibration user = {});
  ~Calibrator();

  // In place of what is bundled. `steps` must outlive the calibrator.
  void use(const StepCalibration& steps);
  const StepCalibration& steps() const;

  // `executor_ranks`: this repository's executor runs (realrun/) in place of the stack that the plan names, so many
  // ranks on one host. Throws InputError.
  Prepared prepare(Scenario scenario, std::optional<std::int64_t> executor_ranks = std::nullopt);

  // The same in parts, for jobs that share a cluster. All throw InputError.
  // Of the cluster's device: the user's, and of a CPU what is left of a hardware thread to each of a node's ranks. The
  // cluster becomes what the user has measured.
  const Calibration& kernels(Cluster& cluster, const Scenario& scenario);
  void lower(const Scenario& scenario, Program& program) const;
  const CollectiveCalibration& collectives(const Cluster& cluster, std::span<const std::string> stacks);

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

// The training stack that the scenario's plan names.
std::string stack_of(const Scenario& scenario);

// What the analytical engine says. Throws InputError where the step never ends.
Report predict(const Prepared& prepared, const AnalyticalOptions& options = {});
void check_ends(const Report& report);  // throws it

}  // namespace orrery
