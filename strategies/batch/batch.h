// How the global batch is cut: replicas x micro-batches x micro-batch size. Gradient accumulation is what remains.
#pragma once

#include "strategies/scenario.h"

namespace orrery::batch {

void check(const Scenario& scenario);

}  // namespace orrery::batch
