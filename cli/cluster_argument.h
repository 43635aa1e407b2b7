// A cluster that is named on the command line.
#pragma once

#include <string>

#include "sim/hardware/cluster.h"

namespace orrery {

// `of`: a cluster or node preset, a bundled scenario, the file of a scenario or cluster, or "-". Throws InputError.
// `perturbed`: set if it is a scenario whose perturbations the cluster leaves out.
Cluster read_cluster_argument(const std::string& of, bool* perturbed = nullptr);

}  // namespace orrery
