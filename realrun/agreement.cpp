#include "realrun/agreement.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "strategies/strategy.h"

namespace orrery {
namespace {

void keep_worst(double& worst, double value) {
  if (std::isnan(value) || value > worst) worst = value;  // NaN stays
}

double relative(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) throw std::logic_error("executions of different length");
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) keep_worst(worst, std::abs(a[i] - b[i]) / std::max(std::abs(a[i]), 1e-30));
  return worst;
}

// Differences of small tensors are relative to this share of the norm of all tensors. Below it lies what rounding
// leaves of a gradient that is zero: of a router that chooses one expert, whose weight is always 1.
constexpr double kLeastNorm = 1e-4;

double distance(const std::vector<WholeTensor>& a, const std::vector<WholeTensor>& b, std::string& name) {
  if (a.size() != b.size()) throw std::logic_error("executions of different models");
  double worst = 0, of_all = 0;
  for (const WholeTensor& tensor : a)
    for (const float x : tensor.values) of_all += static_cast<double>(x) * x;
  for (std::size_t t = 0; t < a.size(); ++t) {
    if (a[t].values.size() != b[t].values.size()) throw std::logic_error("executions of different models");
    double norm = 0, difference = 0;
    for (std::size_t e = 0; e < a[t].values.size(); ++e) {
      const double x = a[t].values[e], y = b[t].values[e];
      norm += x * x;
      difference += (x - y) * (x - y);
    }
    const double before = worst;
    norm = std::max(norm, kLeastNorm * kLeastNorm * of_all);
    keep_worst(worst, difference == 0 ? 0 : std::sqrt(difference / norm));
    if (worst != before) name = a[t].name;
  }
  return worst;
}

constexpr std::int64_t kComparedSteps = 2;
constexpr double kComparedEpsilon = 1e-4;

}  // namespace

double tolerance_of(const BackendFacts& facts, const Scenario& scenario, bool round_to_bf16) {
  const bool narrow = facts.kind == "cuda" && scenario.plan.precision.compute() != Dtype::fp32;
  return round_to_bf16 || narrow ? kBf16Tolerance : kFp32Tolerance;
}

ExecutionOptions options_to_compare(ExecutionOptions options, const Scenario& scenario, std::int64_t steps) {
  options.steps = kComparedSteps;
  Scenario at = scenario;
  for (std::int64_t step = 1; step < steps; ++step) {
    ++at.workload.step;
    if (begins_anew(at)) options.steps = std::max(options.steps, steps);
  }
  options.epsilon = kComparedEpsilon;
  return options;
}

Agreement agreement(const Execution& reference, const Execution& other) {
  Agreement result;
  result.loss = relative(reference.losses, other.losses);
  result.gradient_norm = relative(reference.gradient_norms, other.gradient_norms);
  result.gradients = distance(reference.gradients, other.gradients, result.worst_gradient);
  result.parameters = distance(reference.parameters, other.parameters, result.worst_parameter);
  result.disagreement = std::max(other.gradient_disagreement, other.parameter_disagreement);
  return result;
}

}  // namespace orrery
