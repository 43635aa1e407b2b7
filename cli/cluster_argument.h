// Reads a cluster that is named on the command line.
#pragma once

#include <string>

#include "sim/hardware/cluster.h"

namespace orrery {

// `of`: a cluster or node preset, a bundled scenario, the file of a scenario or cluster, or "-". Throws InputError.
// `perturbed` is set if `of` is a scenario with perturbations, which the cluster does not include.
Cluster read_cluster_argument(const std::string& of, bool* perturbed = nullptr);

}  // namespace orrery
