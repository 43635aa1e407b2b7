// Evaluates scenarios with either engine: reading, lowering, calibrations, engine, report.
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
  Fidelity fidelity = Fidelity::steady_flow;  // this field to most_exact_works: discrete-event engine only
  Routing routing = Routing::automatic;
  double most_works = kMostWorks, most_exact_works = kMostExactWorks;
  bool timeline = false;  // fill Report::timeline
  bool ops = false;       // fill Report::ops and ::unmeasured
};

// The options that decide the result, besides the scenario, as a text by which results are distinguished.
std::string method_text(const SimulationOptions& options);

// A scenario together with its report.
struct Simulation : Prepared {
  Report report;
};

// A job that shares a cluster with others at the same time, and its time when it has the cluster to itself: on the same
// nodes, with the same perturbations.
struct JobResult {
  Job job;
  Report together;
  double alone_seconds = 0;
  std::string most_shared_link;  // the link on which it loses the most time compared to running alone; "" if none

  double slowdown() const { return together.step_seconds / alone_seconds; }
};

// Keeps what is expensive to make between scenarios: parsed presets, and the Calibrator's data.
class Simulator {
 public:
  // `user`: the user's measurements, which precede the bundled ones.
  explicit Simulator(UserCalibration user = {});
  ~Simulator();

  // Replaces the bundled step calibration. REQUIRES: `steps` outlives the simulator.
  void use(const StepCalibration& steps);

  // Throws InputError and StalledError.
  Simulation evaluate(Scenario scenario, const SimulationOptions& options);

  // Both throw InputError, with its file set, and StalledError.
  Simulation evaluate(const nlohmann::json& document, const ScenarioSource& source, const SimulationOptions& options);
  // The analytical engine's report of a scenario given as a line of JSON, with `source.sets` applied. Equal to that of
  // evaluate(), in a fraction of the time if the line's model, cluster, workload or plan were in earlier lines. `ops`:
  // fill Report::ops and ::unmeasured. Valid until the next call.
  const Report& evaluate_line(std::string_view line, const ScenarioSource& source, bool ops);
  // scenario_digest() of the last line given to evaluate_line(), even if that threw. Nothing if the line was not read
  // by its parts (ScenarioReader::read_line).
  std::optional<std::uint64_t> line_digest() const;
  // Always uses the discrete-event engine. REQUIRES: has_jobs(document).
  std::vector<JobResult> evaluate_jobs(const nlohmann::json& document, const ScenarioSource& source,
                                       const SimulationOptions& options);

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace orrery
