// The step on a shared production cluster (Cluster::production).
#pragma once

#include "sim/hardware/cluster.h"
#include "sim/report/report.h"

namespace orrery {

// If the cluster is in production: adds the median job's loss there to the step (sim/cost/step_calibration.h) as a term
// of its own, widens Report::expected by the differences between jobs, and notes both. For either engine's report.
void add_production(const Cluster& cluster, Report& report);

}  // namespace orrery
