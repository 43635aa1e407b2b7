// Robust least squares in log space by Levenberg-Marquardt (Levenberg 1944, Marquardt 1963), the one fit of kernels and
// collectives, measured here or published. The loss is Huber's (Huber 1964).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sim/cost/calibration.h"

namespace orrery {

// A parameter, fitted by its logarithm. A `least` close to 0 stands for 0.
struct FitParameter {
  std::string name;
  double start = 1, least = 0, most = 1;  // least > 0
};

// Sets the numbers of a curve (sim/cost/calibration.h) that have the parameters' names. `values` may be longer.
template <class Curve>
void set_numbers(Curve& curve, std::span<const FitParameter> parameters, std::span<const double> values) {
  for (std::size_t i = 0; i < parameters.size(); ++i) number_in(curve, parameters[i].name) = values[i];
}

struct FitResult {
  std::vector<double> values;
  // The 95% confidence interval of value i is [values[i] / factor, values[i] * factor], from the Jacobian and the
  // residual's variance; 0: undetermined by the points, or at a bound.
  std::vector<double> factor_95;
  double loss = 0;  // mean over the points
};

// Returns log(fitted / measured) of every point, for given values of the parameters.
using LogErrors = std::function<std::vector<double>(const std::vector<double>&)>;

// The defaults are for measurements of one's own machine.
struct FitLoss {
  // For points slower than fitted the loss is Cauchy's, which gives outliers almost no weight: other work on a machine
  // makes kernels slower, never faster. Published points are somebody's choice of runs: there both sides count alike.
  bool forgets_slow = true;
  // If true, the search holds a parameter fixed while it is at a bound and its gradient points beyond. If false, the
  // search can stop before the least loss, as it did for the bundled calibration of the CPU.
  bool holds_bounds = false;
  std::vector<double> weights;  // of the points, 1 on average; empty: all 1
};
inline FitLoss published_loss() { return {.forgets_slow = false, .holds_bounds = true, .weights = {}}; }

FitResult fit_least_squares(const std::vector<FitParameter>& parameters, const LogErrors& log_errors,
                            const FitLoss& loss = {});

}  // namespace orrery
