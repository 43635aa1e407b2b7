// A cluster that is named on the command line.
#pragma once

#include <string>

#include "sim/hardware/cluster.h"

namespace orrery {

// `of`: a cluster or node preset, a bundled scenario, the file of a scenario or cluster, or "-". Throws InputError.
Cluster read_cluster_argument(const std::string& of);

}  // namespace orrery
