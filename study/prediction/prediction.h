// Prepares a scenario for an engine: its Program, and the costs of its devices, links and training stack.
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

// The pointers point into the Calibrator, and stay valid until the next call of one of its functions.
struct Prepared {
  Scenario scenario;  // its cluster with the user's measurements applied
  const Program* program = nullptr;
  const Calibration* kernels = nullptr;
  const CollectiveCalibration* collectives = nullptr;
};

// Lowers scenarios and looks up their costs. Keeps what is expensive to make: calibrations, the Program's storage.
class Calibrator {
 public:
  // `user`: the user's measurements, which precede the bundled ones.
  explicit Calibrator(UserCalibration user = {});
  ~Calibrator();

  // Replaces the bundled step calibration. REQUIRES: `steps` outlives the calibrator.
  void use(const StepCalibration& steps);
  const StepCalibration& steps() const;

  // `executor_ranks`: this repository's executor (realrun/) runs the scenario instead of the stack that the plan names,
  // with this many ranks on one host. Throws InputError.
  Prepared prepare(Scenario scenario, std::optional<std::int64_t> executor_ranks = std::nullopt);

  // The parts of prepare(), for jobs that share a cluster. All throw InputError for a scenario or measurements that
  // cannot be predicted from.
  // kernels() returns the calibration of the cluster's device: the user's, if there is one. It applies the user's
  // measurements to `cluster`. On a CPU it divides the device's rates among the ranks that share a hardware thread;
  // call it once for a cluster.
  const Calibration& kernels(Cluster& cluster, const Scenario& scenario);
  void lower(const Scenario& scenario, Program& program) const;
  const CollectiveCalibration& collectives(const Cluster& cluster, std::span<const std::string> stacks);

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

// The training stack that the scenario's plan names.
std::string stack_of(const Scenario& scenario);
// The class of the interval around the scenario's step.
IntervalClass interval_class(const Scenario& scenario, const Calibration& kernels,
                             const CollectiveCalibration& collectives);

// The analytical engine's report. Throws InputError if the step never ends.
Report predict(const Prepared& prepared, const AnalyticalOptions& options = {});
void check_ends(const Report& report);  // throws this InputError

}  // namespace orrery
