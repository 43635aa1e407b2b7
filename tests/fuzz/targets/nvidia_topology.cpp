#include "sim/hardware/nvidia_topology.h"

#include "sim/hardware/presets.h"
#include "tests/fuzz/targets.h"

void orrery::fuzz::nvidia_topology(std::string_view input) {
  const NvidiaTopology topology = parse_nvidia_topology(input, "topology.txt");
  require(topology.gpus > 0, "a topology has GPUs");
  static const Device device = find_device("H100-SXM5-80GB");
  static const Node dgx = find_node("dgx-h100");
  Node node = dgx;
  apply(topology, device, {"scenario.json", "/cluster/topology_file"}, node);
  require(node.devices == topology.gpus, "a node has the devices that are shown");
}
