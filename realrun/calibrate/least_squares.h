// Robust least squares in log space by Levenberg-Marquardt (Levenberg 1944, Marquardt 1963). The loss is Huber's (Huber
// 1964); for points slower than fitted it is Cauchy's, which gives outliers almost no weight: other work on a machine
// makes kernels slower, never faster.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace orrery {

// A parameter, fitted by its logarithm. A `least` close to 0 stands for 0.
struct FitParameter {
  std::string name;
  double start = 1, least = 0, most = 1;  // least > 0
};

struct FitResult {
  std::vector<double> values;
  // The 95% confidence interval of value i is [values[i] / factor, values[i] * factor], from the Jacobian and the
  // residual's variance; 0: undetermined by the points, or at a bound.
  std::vector<double> factor_95;
  double loss = 0;  // mean over the points
};

// Returns log(fitted / measured) of every point, for given values of the parameters.
using LogErrors = std::function<std::vector<double>(const std::vector<double>&)>;

FitResult fit_least_squares(const std::vector<FitParameter>& parameters, const LogErrors& log_errors);

}  // namespace orrery
