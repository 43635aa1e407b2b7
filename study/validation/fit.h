// Fits sim/cost/step_calibration.h to published steps, and once more without each source.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "sim/cost/step_calibration.h"
#include "study/validation/intervals.h"
#include "study/validation/predicted_points.h"

namespace orrery {

// Minimises, by Gauss-Newton steps on Huber's loss (Huber 1964; width kHuberWidth), the sum over step times of
// (log(predicted / measured) / kSpread)^2, in which a source of more than kMostOfSource points weighs no more than so
// many, and for each parameter the square of its distance from what is known without it, in units of how far such a
// parameter is expected to lie:
//   a device's slowdown from the mean of devices (log 0.05), and that from 1 (log 0.4);
//   of a stack's memory-bound kernels from the mean of stacks whose kernels are joined alike (framework::Kernels: by
//     hand, not at all, by a compiler; log 0.3), and that from 1 (log 0.5);
//   of all collectives from 1 (log 0.5);
//   a stack's host time per op from stacks.json's (log 0.7) times a mean of all stacks, and that from 1 (log 1.5);
//   a collective's, an update's and a further expert's host time from that of another op (log 0.5).
// So a device or stack that few steps were measured on stays near its like.
inline constexpr double kSpread = 0.07, kHuberWidth = 1.3;

// The texts of results/calibration/steps.json and steps_left_out.json.
struct StepFit {
  std::string fitted, left_out;
};
// `progress`: fits done, of how many.
StepFit fit_steps(const std::function<void(std::size_t, std::size_t)>& progress);

// The same minimum over the steps that the filter leaves, not rounded.
StepCalibration fit_steps_of(const ValidationFilter& filter);

}  // namespace orrery
