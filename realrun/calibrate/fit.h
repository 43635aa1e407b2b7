// From measured points to a calibration: the formulas of sim/cost/kernel_cost.h, fitted with that very code.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "realrun/backend.h"
#include "realrun/calibrate/measure.h"
#include "realrun/calibrate/sweep.h"
#include "sim/cost/collective_calibration.h"
#include "sim/cost/copy_overlap.h"
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
  Residual held_out;  // of shapes that were left out of a fit to the others; no points: too few to leave any out
};

struct CalibrationFit {
  Calibration calibration;
  Device device;
  bool device_is_measured = false;  // its rates are those of this sweep; false: the data sheet's
  std::vector<CurveFit> curves;
  std::vector<std::string> missing;  // curves for which too few points were measured
  CollectiveClasses collectives;     // between ranks on the same host; may be empty
  std::optional<CopyOverlaps> overlaps;
  std::string no_overlaps;  // why there are none; both empty: nobody has looked
};

// `preset`: the data sheet's peaks, where the device has a preset. Throws InputError when the points are too few for
// any product or any memory-bound kernel.
CalibrationFit fit_calibration(const std::vector<KernelPoint>& points,
                               const std::map<std::string, Measurement>& measured, const BackendFacts& facts,
                               const std::optional<Device>& preset);

// In the format of results/calibration/*.json.
std::string calibration_text(const CalibrationFit& fit, const std::string& source, const std::string& date,
                             const std::string& method);
// Parameters with their intervals, residuals, held-out errors.
std::string fit_table(const CalibrationFit& fit);

// A CPU's name as a device's: without trademarks and blanks, "Intel-Xeon-Platinum-8259CL-2.50GHz".
std::string device_name(const BackendFacts& facts);
// Under which the measurement of a point stands that was taken while all hardware threads of the host were busy.
std::string busy_id(const std::string& id);

Residual residual_of(const std::vector<double>& log_errors);

}  // namespace orrery
