// How far two executions of one scenario are from each other: the numeric proof of a layout.
#pragma once

#include "realrun/executor.h"

namespace orrery {

// Relative to the first, the largest over steps or tensors; NaN where something is not a number.
struct Agreement {
  double loss = 0, gradient_norm = 0;
  double gradients = 0, parameters = 0;  // in the Euclidean norm of each tensor
  std::string worst_gradient, worst_parameter;
  double disagreement = 0;  // within the second: between ranks that hold the same element

  bool within(double tolerance) const {
    for (const double x : {loss, gradient_norm, gradients, parameters, disagreement})
      if (!(x <= tolerance)) return false;
    return true;
  }
};

// Relative errors that are rounding: fp32 arithmetic in another order of summation; bf16, which carries 8 bits.
inline constexpr double kFp32Tolerance = 2e-5, kBf16Tolerance = 2e-2;

// Which of them applies to ranks that ran where `facts` says: GPUs hold tensors in their own dtypes, CPUs in fp32
// unless round_to_bf16 was set.
double tolerance_of(const BackendFacts& facts, const Scenario& scenario, bool round_to_bf16);

// Options for two runs that are to be compared: two steps, so that the second sees the first's update, and an epsilon
// above the rounding of gradients that are zero, of which Adam would make full steps. Of a run of `steps` whose steps
// differ (parts_of) all of them.
ExecutionOptions options_to_compare(ExecutionOptions options, const Scenario& scenario, std::int64_t steps);

// Throws std::logic_error when they are not of one scenario.
Agreement agreement(const Execution& reference, const Execution& other);

}  // namespace orrery
