// Published points with the analytical engine's predictions.
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
  // Empty: predicted. Otherwise the reason: the point's own, or the fault in its scenario.
  std::string not_predicted;
  double predicted = 0;  // in the quantity's unit; fits: 1 or 0
  double peak_bytes = 0, capacity_bytes = 0;
  double allocated_bytes = 0;  // part of the peak without the framework's
  std::string device, framework;
  CurveOrigin curves = CurveOrigin::own;
  bool mixture = false;    // the model has experts
  bool four_bits = false;  // layers multiply in NVFP4
  std::string network;     // IntervalClass::network
  bool measured_device() const { return curves == CurveOrigin::own; }
  std::int64_t devices = 0, nodes = 0;
  std::vector<std::string> strategies;  // plan_words(): "tensor", "zero-1", "recompute-full"
  std::string bound_by;
  TimeBreakdown time;  // of the bounding stage

  bool is_predicted() const { return not_predicted.empty(); }
  // Returns whether the source's numbers were measured (not composed). Statistics over several sources use only these.
  bool is_measured() const { return source->composed.empty(); }
  // REQUIRES: is_predicted().
  double error() const { return predicted / point->value - 1; }
  IntervalClass interval_class() const;
};

// In the quantity's unit. For quantities of a layer, REQUIRES: the simulation has its ops.
double predicted_value(Quantity quantity, const Simulation& simulation);

// Returns whether `text` contains `part`, in any letter case.
bool is_part_of(const std::string& text, const std::string& part);

struct ValidationFilter {
  std::string source;    // part of a source's name, title or citation, in any letter case
  std::string gpu;       // part of a device's name
  std::string strategy;  // one of all_plan_words()
};

// The sources on which the step calibration was fitted: for each point all but its own source; all; none (then there is
// no step calibration, only kernels and collectives).
enum class Seen : std::uint8_t { others, all, none };
inline constexpr std::array<std::string_view, 3> kSeenNames{"others", "all", "none"};

// In the order of the sources and their points. Points of a layer or its attention never use a step calibration. The
// simulator uses the bundled one afterwards.
std::vector<PredictedPoint> predict_published(const ValidationFilter& filter, Simulator& simulator,
                                              Seen seen = Seen::all);
// The same by other step calibrations than the bundled ones. `calibration_of`: that of a source's points; it outlives
// the call.
using CalibrationOfSource = std::function<const StepCalibration&(const PublishedSource&)>;
std::vector<PredictedPoint> predict_published(const ValidationFilter& filter, Simulator& simulator,
                                              const CalibrationOfSource& calibration_of);

// The same. Throws InputError if the filter leaves no point; the error names the part of the filter that is the cause.
std::vector<PredictedPoint> points_asked_for(const ValidationFilter& filter, Simulator& simulator, Seen seen);

}  // namespace orrery
