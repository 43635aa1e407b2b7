// The inputs that change an answer most: each input is changed by the same share down and up, with all others fixed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/planning/candidate.h"
#include "study/capacity/sized_candidate.h"

namespace orrery {

struct TornadoBar {
  std::string input;                // "network bandwidth", "price.per_device_hour"
  double at_less = 0, at_more = 0;  // the output with less and with more of the input
  bool less_fits = true;            // with less of the input, the plan still fits the memory
  double width() const { return at_more > at_less ? at_more - at_less : at_less - at_more; }
};

struct Tornado {
  PlanOutput output = PlanOutput::cost;
  double swing = 0;              // share by which inputs change
  double value = 0;              // of the unchanged output
  std::vector<TornadoBar> bars;  // widest first
};

// Hardware inputs (rates of matrix units, memory and links; the memory's size) are changed in the scenario, and the
// step is predicted again with the same plan and number of devices. Other costs of a training are changed in its
// figures (sim/planning/candidate.h). kPredictedStep is not a swing: its ends are the output at the ends of the
// step's interval. Throws InputError.
inline constexpr std::string_view kPredictedStep = "predicted step, its interval";
Tornado tornado(const CapacityPlan& plan, const SizedCandidate& sized, PlanOutput output, double swing,
                Simulator& simulator);

// A standalone SVG document.
std::string tornado_svg(const Tornado& tornado, std::string_view title, std::string_view unit);

}  // namespace orrery
