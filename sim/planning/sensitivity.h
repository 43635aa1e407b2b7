// The sensitivity of a forecast: how far each input moves an output, and the price at which two candidates cost the
// same.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "sim/planning/candidate.h"

namespace orrery {

enum class PlanOutput : std::uint8_t { wall_seconds, ettr, goodput, device_hours, cost, energy_kwh, carbon_kg };
inline constexpr std::array<std::string_view, 7> kPlanOutputNames{
    "wall_seconds", "ettr", "goodput", "device_hours", "cost", "energy_kwh", "carbon_kg"};
double value_of(const Forecast& forecast, PlanOutput output);  // Estimate::value

struct Sensitivity {
  std::string_view input;  // "step_seconds", "price.per_device_hour", "failures.failures_per_node_day", ...
  // d log(output) / d log(input): per cent by which the output changes for one per cent of the input. Central
  // difference with a factor of 1.001 up and down.
  double exponent = 0;
  double at_less = 0, at_more = 0;  // output with the input times 1 - swing, 1 + swing: a tornado bar
};

// Sorted by the width of the bar, largest first; like ones in the order of the inputs. Inputs that are 0 are left out.
// A checkpoint interval that is not given is chosen anew for each value. REQUIRES: 0 < swing < 1, and the output is not
// 0. Throws InputError like expected_run() if an input at its worse end makes the run practically endless.
std::vector<Sensitivity> sensitivities(const Candidate& candidate, PlanOutput output, double swing = 0.2);

// The price of a's device-hour at which `a` costs as much as `b`, and its ratio to b's price: `a` pays below it. low:
// a's slowest and b's fastest steps; high: the reverse. Not above 0 if a's electricity alone costs more. Throws
// InputError if the currencies differ, or if b's price is 0.
struct BreakEven {
  Estimate price, ratio;
};
BreakEven break_even(const Candidate& a, const Candidate& b);

}  // namespace orrery
