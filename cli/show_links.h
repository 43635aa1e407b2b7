// Lists the links of a cluster by kind or by name, as perturbations name them.
#pragma once

#include <string>

#include "sim/des/topology.h"

namespace orrery {

// `of`: a cluster or node preset, a bundled scenario, or the file of a scenario or cluster. Without `pattern`: one line
// per kind of link; otherwise one line per matching link (Topology::find). Throws InputError if none matches.
std::string links_text(const std::string& of, const std::string& pattern, Routing routing, bool json);

}  // namespace orrery
