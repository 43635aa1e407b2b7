// The links of a cluster, by kind or by name: what perturbations name.
#pragma once

#include <string>

#include "sim/des/topology.h"

namespace orrery {

// `of`: a cluster or node preset, a bundled scenario, or the file of a scenario or cluster. Without `pattern` a line
// for each kind of link, else one for each link that matches (Topology::find). Throws InputError where none does.
std::string links_text(const std::string& of, const std::string& pattern, Routing routing, bool json);

}  // namespace orrery
