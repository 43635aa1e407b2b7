// Reads the output of `nvidia-smi topo -m`: how the GPUs and NICs of one node are joined.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/error.h"
#include "sim/hardware/cluster.h"

namespace orrery {

// How two devices of a node meet, nearest first; nvidia-smi's words.
enum class TopologyLink : std::uint8_t {
  self,  // X
  nv,    // NV#: bonded NVLinks
  pix,   // at most one PCIe bridge
  pxb,   // several PCIe bridges, not the host bridge
  phb,   // a PCIe host bridge
  node,  // host bridges of one NUMA node
  sys,   // the link between NUMA nodes
};

struct NvidiaTopology {
  struct Path {
    TopologyLink link = TopologyLink::self;
    std::int64_t nvlinks = 0;
  };
  std::int64_t gpus = 0;
  std::vector<std::string> nics;           // by column name: NIC0, mlx5_0
  std::vector<std::vector<Path>> gpu_gpu;  // [gpu][gpu]
  std::vector<std::vector<Path>> gpu_nic;  // [gpu][nic]
  std::vector<std::string> cpu_affinity;   // [gpu]; empty where not given
};

// `file` names the text in errors. Throws InputError, with the line, when it is not such an output.
NvidiaTopology parse_nvidia_topology(std::string_view text, const std::string& file);
// Throws InputError at `where` when the file cannot be read.
NvidiaTopology read_nvidia_topology_file(const std::string& path, const InputError::Where& where);

// Sets what the topology shows of a node: its devices, how they are joined and at which rate (links x the rate of one
// of the device's), the devices behind one PCIe switch, and the NICs (those on a device's own PCIe switch; all, when
// none is). A NIC's rate is not shown: the node's stays. Throws InputError at `where` when the device cannot have the
// links.
void apply(const NvidiaTopology& topology, const Device& device, const InputError::Where& where, Node& node);

}  // namespace orrery
