// What moves an answer most: each input by the same share down and up, all others as they are.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/planning/sensitivity.h"
#include "study/capacity/sized_candidate.h"

namespace orrery {

struct TornadoBar {
  std::string input;                // "network bandwidth", "price.per_device_hour"
  double at_less = 0, at_more = 0;  // the output
  bool less_fits = true;            // in memory, with less of it
  double width() const { return at_more > at_less ? at_more - at_less : at_less - at_more; }
};

struct Tornado {
  PlanOutput output = PlanOutput::cost;
  double swing = 0;              // the share
  double value = 0;              // of the output as it is
  std::vector<TornadoBar> bars;  // widest first
};

// Hardware (rates of matrix units, memory, links; the memory's size) is changed in the scenario and the step predicted
// anew, the plan and the number of devices staying; what a training costs beside is changed in its figures
// (sim/planning/sensitivity.h). kPredictedStep is no swing: its ends are the output at the ends of the step's interval.
// Throws InputError.
inline constexpr std::string_view kPredictedStep = "predicted step, its interval";
Tornado tornado(const CapacityPlan& plan, const SizedCandidate& sized, PlanOutput output, double swing,
                Simulator& simulator);

// A standalone SVG document.
std::string tornado_svg(const Tornado& tornado, std::string_view title, std::string_view unit);

}  // namespace orrery
