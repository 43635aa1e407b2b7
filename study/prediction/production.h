// A step on a shared production cluster (Cluster::production).
#pragma once

#include "sim/hardware/cluster.h"
#include "sim/report/report.h"

namespace orrery {

// Where the cluster is in production: makes the step longer by what the median job loses there
// (sim/cost/scale_cost.h), as a term of its own, widens Report::expected by how jobs differ, and notes both. Of either
// engine's report.
void add_production(const Cluster& cluster, Report& report);

}  // namespace orrery
