// What bounds plans from below without evaluating them (study/search/search.h says why).
#pragma once

#include "sim/analytical/engine.h"
#include "strategies/scenario.h"

namespace orrery {

// Of plans that run the same micro-batch by the same kernels, seconds on the compute stream.
struct ComputeBound {
  double micro_batch = 0;  // of one through the whole model, no stage waiting for another
  double layer = 0;        // products and attention of the quickest of its layers

  double step_seconds(const Scenario& scenario) const;
};

// Of the program that `engine` has evaluated last, without contention. REQUIRES: nothing is recomputed in it, and what
// replicas do is once a step.
ComputeBound compute_bound(const Program& program, const AnalyticalEngine& engine);

}  // namespace orrery
