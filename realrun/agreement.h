// Numeric comparison of two executions of one scenario: the proof that a layout computes the same.
#pragma once

#include "realrun/executor.h"

namespace orrery {

// Relative differences of the second execution from the first: the largest over steps (loss, gradient_norm) or over
// tensors (gradients, parameters). NaN if a value is NaN.
struct Agreement {
  double loss = 0, gradient_norm = 0;
  // By the Euclidean norm of each tensor, or by a ten-thousandth of the norm of all if that is larger.
  double gradients = 0, parameters = 0;
  std::string worst_gradient, worst_parameter;
  double disagreement = 0;  // within the second: between ranks that hold the same element

  bool within(double tolerance) const {
    for (const double x : {loss, gradient_norm, gradients, parameters, disagreement})
      if (!(x <= tolerance)) return false;
    return true;
  }
};

// Relative errors that rounding explains: fp32 arithmetic in another order of summation; bf16 with its 8 bits.
inline constexpr double kFp32Tolerance = 2e-5, kBf16Tolerance = 2e-2;

// Returns the tolerance for ranks on `facts`: GPUs hold tensors in their own dtypes, CPUs in fp32 unless round_to_bf16.
double tolerance_of(const BackendFacts& facts, const Scenario& scenario, bool round_to_bf16);

// Returns `options` changed for two runs that are to be compared. The runs have two steps, so that the second step sees
// the update of the first; if their steps have different Programs (parts_of), they have all `steps`. Adam divides by
// the size of a gradient and would turn the rounding errors of a gradient that is zero into full steps. Its epsilon is
// therefore set above such errors.
ExecutionOptions options_to_compare(ExecutionOptions options, const Scenario& scenario, std::int64_t steps);

// Throws std::logic_error if the two are not executions of one scenario.
Agreement agreement(const Execution& reference, const Execution& other);

}  // namespace orrery
