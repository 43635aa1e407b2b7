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

class Evaluated;  // strategies/topic.h

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

// Shows a simulation to the topics of strategies, through the interface that they know. It is valid as long as the
// objects that the simulation points to.
std::unique_ptr<Evaluated> evaluated(Simulation simulation);

// A job that shares a cluster with others at the same time, and its time when it has the cluster to itself: on the same
// nodes, with the same perturbations.
struct JobResult {
  Job job;
  Report together;
  double alone_seconds = 0;
  std::string most_shared_link;  // the link on which it loses the most time compared to running alone; "" if none

  double slowdown() const { return together.step_seconds / alone_seconds; }
};

// A scenario as a line of JSON, with its parts where it can be read by them (ScenarioReader::read_parts).
struct Variant {
  std::string line;
  ScenarioSource source;
  std::optional<ScenarioReader::Parts> parts{};

  nlohmann::json document() const;  // with `source.sets` applied; throws InputError
  // scenario_digest(); nothing for a line that cannot be read.
  std::optional<std::uint64_t> digest() const;
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
  // One of many scenarios that share parts. Never throws.
  Variant variant(std::string line, ScenarioSource source);
  // The analytical engine's report of it. Equal to that of the other evaluate(), in a fraction of the time if its
  // model, cluster, workload or plan were in earlier variants. `ops`: fill Report::ops and ::unmeasured. Valid until
  // the next call.
  const Report& evaluate(const Variant& variant, bool ops);
  // Always uses the discrete-event engine. REQUIRES: has_jobs(document).
  std::vector<JobResult> evaluate_jobs(const nlohmann::json& document, const ScenarioSource& source,
                                       const SimulationOptions& options);

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace orrery
