// The level of a fabric whose links between switches may be narrower than the links below: leaf switches and their
// up-links, or dragonfly groups and their global links.
#pragma once

#include <cstdint>

#include "sim/hardware/cluster.h"

namespace orrery {

struct UpLinks {
  std::int64_t nodes = 0;       // under one leaf or set of rail switches, in a dragonfly group; 0: no such level
  std::int64_t rails = 1;       // leaf switches side by side, one for each NIC of a node (rail_fat_tree)
  std::int64_t nics = 1;        // NICs of a node, as links: at most its number of devices
  std::int64_t ways = 1;        // up-links of a leaf; the destination of a message chooses which it takes
  double bytes_per_second = 0;  // of each up-link, one direction

  std::int64_t nic_of(std::int64_t device_of_node, std::int64_t devices) const {
    return device_of_node * nics / devices;
  }
  std::int64_t leaf_of(std::int64_t node, std::int64_t nic) const {
    return rails > 1 ? node / nodes * rails + nic : node / nodes;
  }
  std::int64_t nics_per_leaf() const { return rails > 1 ? nodes : nodes * nics; }
  // D-mod-k (Zahavi, JPDC 72(11), 2012): the up-link to destination j, counted leaf by leaf, is j mod k.
  std::int64_t way_to(std::int64_t node, std::int64_t nic) const {
    const std::int64_t at = rails > 1 ? node % nodes : node % nodes * nics + nic;
    return (leaf_of(node, nic) * nics_per_leaf() + at) % ways;
  }
};

// The up-links for all nodes of the fabric (Cluster::fabric_nodes). `sprayed`: packets use all up-links of a switch
// evenly, so that these count as one link; global links of a dragonfly always do. REQUIRES: NICs with a rate.
UpLinks up_links_of(const Cluster& cluster, bool sprayed);

}  // namespace orrery
