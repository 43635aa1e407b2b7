// Evaluates scenarios by either engine: reading, lowering, calibrations, engine, report.
#pragma once

#include <array>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/cost/step_calibration.h"
#include "sim/cost/user_calibration.h"
#include "sim/des/engine.h"
#include "sim/report/report.h"
#include "strategies/read_scenario.h"
#include "study/prediction/prediction.h"

namespace orrery {

enum class Engine : std::uint8_t { analytical, des };
inline constexpr int kEngines = 2;
inline constexpr std::array<std::string_view, kEngines> kEngineNames{"analytical", "des"};

struct SimulationOptions {
  Engine engine = Engine::analytical;
  Fidelity fidelity = Fidelity::steady_flow;  // this to most_exact_works: of des
  Routing routing = Routing::automatic;
  double most_works = kMostWorks, most_exact_works = kMostExactWorks;
  bool timeline = false;  // fill Report::timeline
  bool ops = false;       // fill Report::ops and ::unmeasured
};

// What of them decides the result, beside the scenario, in words that results are told apart by.
std::string method_text(const SimulationOptions& options);

// A scenario with what became of it.
struct Simulation : Prepared {
  Report report;
};

// Jobs that share a cluster, all at once, and what each takes when it has the cluster to itself: on the same nodes,
// with the same perturbations.
struct JobResult {
  Job job;
  Report together;
  double alone_seconds = 0;
  std::string most_shared_link;  // on which it loses more time than alone; "" where nowhere

  double slowdown() const { return together.step_seconds / alone_seconds; }
};

// Keeps what costs time to make between scenarios: parsed presets, and what a Calibrator keeps.
class Simulator {
 public:
  // `user`: what is measured by the user goes before what is bundled.
  explicit Simulator(UserCalibration user = {});
  ~Simulator();

  // In place of what is bundled. `steps` must outlive the simulator.
  void use(const StepCalibration& steps);

  // Throws InputError and StalledError.
  Simulation evaluate(Scenario scenario, const SimulationOptions& options);

  // Both throw InputError with the file filled in, and StalledError.
  Simulation evaluate(const nlohmann::json& document, const ScenarioSource& source, const SimulationOptions& options);
  // The analytical engine's report of a scenario that is a line of JSON, with `source.sets` applied: that of
  // evaluate(), in a fraction of the time where model, cluster, workload or plan stand in the line as in earlier ones.
  // `ops`: fill Report::ops and ::unmeasured. Valid until the next call.
  const Report& evaluate_line(std::string_view line, const ScenarioSource& source, bool ops);
  // scenario_digest() of the line last given to it, also where that threw; none where the line was not read by its
  // parts (ScenarioReader::read_line).
  std::optional<std::uint64_t> line_digest() const;
  // Always the discrete-event engine. REQUIRES: has_jobs(document).
  std::vector<JobResult> evaluate_jobs(const nlohmann::json& document, const ScenarioSource& source,
                                       const SimulationOptions& options);

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace orrery
