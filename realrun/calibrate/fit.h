// Fits a calibration to measured points: the formulas of sim/cost/kernel_cost.h, evaluated by that code.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "realrun/backend.h"
#include "realrun/calibrate/measure.h"
#include "realrun/calibrate/sweep.h"
#include "sim/cost/calibration.h"
#include "sim/cost/collective_calibration.h"
#include "sim/cost/kernel_cost.h"
#include "sim/hardware/cluster.h"

namespace orrery {

struct FittedParameter {
  std::string name;
  double value = 0;
  double factor_95 = 0;  // the 95% interval is value / factor .. value * factor; 0: at a bound, or undetermined
};

struct CurveFit {
  std::string name;  // "matmul fp32", "memory rotary"
  std::vector<FittedParameter> parameters;
  Residual residual;  // of the curve, fitted to all points
  // The residual over shapes that were left out of a fit to the others. No points: too few to leave any out.
  Residual held_out;
  double loss = 0;  // least_squares.h
};

struct CalibrationFit {
  Calibration calibration;
  Device device;
  bool device_is_measured = false;  // true: its rates are from this sweep; false: from the data sheet
  std::vector<CurveFit> curves;
  std::vector<std::string> missing;  // curves for which too few points were measured
  CollectiveClasses collectives;     // between ranks on the same host; may be empty
  std::optional<CopyOverlaps> overlaps;
  std::string no_overlaps;  // why there are none; both empty: not measured
};

// `preset`: gives the data sheet's peaks if the device has a preset. Throws InputError if there are too few points for
// any product or any memory-bound kernel.
CalibrationFit fit_calibration(const std::vector<KernelPoint>& points,
                               const std::map<std::string, Measurement>& measured, const BackendFacts& facts,
                               const std::optional<Device>& preset);

// In the format of results/calibration/*.json.
std::string calibration_text(const CalibrationFit& fit, const std::string& source, const std::string& date,
                             const std::string& method);
// A table of parameters with their intervals, residuals and held-out errors.
std::string fit_table(const CalibrationFit& fit);

// Returns a CPU's name as the name of a device, without trademarks and blanks: "Intel-Xeon-Platinum-8259CL-2.50GHz".
std::string device_name(const BackendFacts& facts);
// Returns the id of a point's measurement while all hardware threads of the host were busy.
std::string busy_id(const std::string& id);

// Writes JSON in the layout of the files in results/calibration, with a newline at the end. The outermost object,
// objects that contain objects or texts, and lists of objects have one entry per line; every other value is on a single
// line.
std::string written_json(const nlohmann::ordered_json& json);

Residual residual_of(const std::vector<double>& log_errors);
nlohmann::ordered_json residual_json(const Residual& residual);

}  // namespace orrery
