// Lower bounds of plans without evaluating them (study/search/search.h gives the reasons).
#pragma once

#include "sim/analytical/engine.h"
#include "strategies/scenario.h"

namespace orrery {

// Seconds on the compute stream, for plans that run the same micro-batch with the same kernels.
struct ComputeBound {
  double micro_batch = 0;  // one micro-batch through the whole model, without waiting between stages
  double layer = 0;        // products and attention of the fastest layer

  double step_seconds(const Scenario& scenario) const;
};

// The bound from the program that `engine` has evaluated last, without contention. REQUIRES: the program recomputes
// nothing, and replicas communicate only once a step.
ComputeBound compute_bound(const Program& program, const AnalyticalEngine& engine);

}  // namespace orrery
