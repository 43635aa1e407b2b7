// Robust least squares in log space: Levenberg-Marquardt (Levenberg 1944, Marquardt 1963) on Huber's loss (Huber 1964);
// for points slower than fitted on Cauchy's, which lets go of them: what else runs on a machine makes kernels slower,
// and never faster.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace orrery {

// Searched for by its logarithm. Where `least` is next to nothing, it stands for nothing.
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

// log(fitted / measured) of every point, for the parameters' values.
using LogErrors = std::function<std::vector<double>(const std::vector<double>&)>;

FitResult fit_least_squares(const std::vector<FitParameter>& parameters, const LogErrors& log_errors);

}  // namespace orrery
