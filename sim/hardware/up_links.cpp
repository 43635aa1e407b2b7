#include "sim/hardware/up_links.h"

#include <algorithm>
#include <cmath>

namespace orrery {

UpLinks up_links_of(const Cluster& cluster, bool sprayed) {
  const Fabric& fabric = cluster.fabric;
  const std::int64_t all = cluster.fabric_nodes();
  UpLinks up{.nics = std::min(cluster.node.nics, cluster.node.devices)};
  const double injection = cluster.inter_node_bytes_per_second();
  const auto reached = [all](std::int64_t nodes) { return nodes > 0 ? std::min(nodes, all) : all; };
  if (fabric.kind == FabricKind::dragonfly) {
    up.nodes = reached(fabric.nodes_per_group > 0 ? fabric.nodes_per_group
                       : fabric.groups > 0        ? (all + fabric.groups - 1) / fabric.groups
                                                  : 0);
    up.bytes_per_second = static_cast<double>(up.nodes) * injection / fabric.global_taper;
  } else if (fabric.kind == FabricKind::fat_tree || fabric.kind == FabricKind::rail_fat_tree) {
    up.nodes = reached(fabric.nodes_per_leaf);
    if (fabric.kind == FabricKind::rail_fat_tree) up.rails = up.nics;
    // In units of NICs.
    const double narrowed = static_cast<double>(up.nics_per_leaf()) / std::max(1.0, fabric.oversubscription);
    up.ways = sprayed ? 1 : std::max<std::int64_t>(1, std::llround(narrowed));
    up.bytes_per_second = narrowed * injection / static_cast<double>(up.nics) / static_cast<double>(up.ways);
  }
  return up;
}

}  // namespace orrery
