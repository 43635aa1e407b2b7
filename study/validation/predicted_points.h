// Published points beside what the analytical engine says of them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "study/simulation/simulation.h"
#include "study/validation/published.h"

namespace orrery {

struct PredictedPoint {
  const PublishedSource* source = nullptr;
  const PublishedPoint* point = nullptr;
  // Empty: predicted. Else why not: the point's own reason, or what is wrong with its scenario.
  std::string not_predicted;
  double predicted = 0;  // in the quantity's unit; fits: 1 or 0
  double peak_bytes = 0, capacity_bytes = 0;
  double allocated_bytes = 0;  // of the peak, without the framework's
  std::string device, framework;
  CurveOrigin curves = CurveOrigin::own;
  bool measured_device() const { return curves == CurveOrigin::own; }
  std::int64_t devices = 0, nodes = 0;
  std::vector<std::string> strategies;  // plan_words(): "tensor", "zero-1", "recompute-full"
  std::string bound_by;
  TimeBreakdown time;  // of the stage that bounds the step

  bool is_predicted() const { return not_predicted.empty(); }
  // Not composed: statistics that are of more than one source count measurements alone.
  bool is_measured() const { return source->composed.empty(); }
  double error() const { return predicted / point->value - 1; }
};

// In the quantity's unit. Of layers the simulation must have their ops.
double predicted_value(Quantity quantity, const Simulation& simulation);

// Returns whether `text` contains `part`, in any letter case.
bool is_part_of(const std::string& text, const std::string& part);

struct ValidationFilter {
  std::string source;    // part of a source's name, title or citation, in any letter case
  std::string gpu;       // part of a device's name
  std::string strategy;  // one of all_plan_words()
};

// What the step calibration has been fitted on: for each point all sources but its own; all; none (there is no step
// calibration then: kernels and collectives alone).
enum class Seen : std::uint8_t { others, all, none };
inline constexpr std::array<std::string_view, 3> kSeenNames{"others", "all", "none"};

// In the order of the sources and their points. `progress` is called before each point.
std::vector<PredictedPoint> predict_published(const ValidationFilter& filter, Simulator& simulator,
                                              Seen seen = Seen::all,
                                              const std::function<void(std::size_t, std::size_t)>& progress = {});

}  // namespace orrery
