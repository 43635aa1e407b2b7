// Machines made in code, apart from the presets.
#pragma once

#include "sim/hardware/cluster.h"

namespace orrery {

inline Cluster dgx_h100(std::int64_t nodes) {
  Cluster c;
  c.device.architecture = "Hopper";
  c.device.pcie_bytes_per_second = 63e9;
  c.node.devices = 8;
  c.node.intra = IntraFabric::nvswitch;
  c.node.intra_bytes_per_second = 450e9;
  c.node.in_switch_reduction = true;
  c.node.nics = 8;
  c.node.nic_bytes_per_second = 50e9;
  c.nodes = nodes;
  c.fabric.name = "ib-ndr-rail";
  c.fabric.kind = FabricKind::rail_fat_tree;
  c.fabric.latency_seconds = 1e-6;
  c.fabric.hop_latency_seconds = 2e-7;
  return c;
}

}  // namespace orrery
