// Counts the groups of a mesh that leave their node. (GroupSpan describes the worst group, but not how many are like
// it.)
#pragma once

#include <cstdint>

#include "sim/program/mesh.h"

namespace orrery {

struct CrossingGroups {
  std::int64_t groups = 1;
  std::int64_t crossing = 0;  // groups with members on more than one node
};
// Rank r is on node r / devices_per_node, as in span_of(). REQUIRES: devices_per_node >= 1. Looks at single groups only
// if node boundaries may fall inside some groups but not inside others.
CrossingGroups crossing_groups(const Mesh& mesh, MeshGroup group, std::int64_t devices_per_node);

}  // namespace orrery
