// Fits sim/cost/step_calibration.h to published steps, and again without each source.
#pragma once

#include <functional>
#include <string>

#include "sim/cost/step_calibration.h"
#include "study/validation/predicted_points.h"

namespace orrery {

// Minimises, by Gauss-Newton steps on Huber's loss (Huber 1964; width kHuberWidth), the sum over step times of
// (log(predicted / measured) / kSpread)^2, plus for each parameter the square of its distance from its prior value, in
// units of its expected spread. A source of more than kMostOfSource points weighs as much as that many. Priors:
//   a device's slowdown: the mean of all devices (log 0.05); that mean: 1 (log 0.4);
//   the slowdown of a stack's memory-bound kernels: the mean of the stacks whose kernels are fused in the same way
//     (framework::Kernels: by hand, not at all, by a compiler; log 0.3); that mean: 1 (log 0.5);
//   the slowdown of all collectives: 1 (log 0.5);
//   a stack's host time per op: that of stacks.json (log 0.7) times a mean of all stacks; that mean: 1 (log 1.5);
//   the host time of a collective, of an update op and of a further expert: that of another op (log 0.5).
// A device or stack with few measured steps thus stays close to similar ones.
inline constexpr double kSpread = 0.07, kHuberWidth = 1.3;

// The texts of results/calibration/steps.json and steps_left_out.json.
struct StepFit {
  std::string fitted, left_out;
};
// `progress`: called with the number of fits done and of all fits.
StepFit fit_steps(const std::function<void(std::size_t, std::size_t)>& progress);

// The same minimum over the steps that the filter leaves; not rounded.
StepCalibration fit_steps_of(const ValidationFilter& filter);

}  // namespace orrery
