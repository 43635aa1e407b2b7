#include "sim/hardware/node_topology.h"
#include "sim/hardware/presets.h"
#include "tests/fuzz/targets.h"

void orrery::fuzz::nvidia_topology(std::string_view input) {
  const bool amd = is_amd_topology(input);
  const NodeTopology topology =
      amd ? parse_amd_topology(input, "topology.txt") : parse_nvidia_topology(input, "topology.txt");
  require(topology.gpus > 0, "a topology has GPUs");
  static const Device h100 = find_device("H100-SXM5-80GB"), mi300x = find_device("MI300X");
  static const Node dgx = find_node("dgx-h100"), mi300x_node = find_node("mi300x-8");
  Node node = amd ? mi300x_node : dgx;
  apply(topology, amd ? mi300x : h100, {"scenario.json", "/cluster/topology_file"}, node);
  require(node.devices == topology.gpus, "a node has the devices that are shown");
  require(node.devices_per_pcie_switch >= 1, "a device is behind a switch");
}
