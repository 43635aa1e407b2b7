// Reads how the GPUs and NICs of one node are joined, from the output of `nvidia-smi topo -m`, `rocm-smi --showtopo` or
// `amd-smi topology`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/error.h"
#include "sim/hardware/cluster.h"

namespace orrery {

// How two devices of a node are connected, from the nearest to the farthest. The words are nvidia-smi's.
enum class TopologyLink : std::uint8_t {
  self,  // X
  nv,    // NV#: bonded NVLinks
  xgmi,  // AMD's links, directly or through other GPUs
  pix,   // at most one PCIe bridge
  pxb,   // several PCIe bridges, not the host bridge
  phb,   // a PCIe host bridge
  node,  // host bridges of one NUMA node
  sys,   // the link between NUMA nodes
};

struct NodeTopology {
  struct Path {
    TopologyLink link = TopologyLink::self;
    std::int64_t nvlinks = 0;  // 0 unless `link` is nv
  };
  std::string tool;     // the program that printed it, named in errors
  bool of_amd = false;  // AMD's tools show no NICs, no PCIe switches, and not how many links join a pair
  std::int64_t gpus = 0;
  std::vector<std::string> nics;           // names of their columns: NIC0, mlx5_0
  std::vector<std::vector<Path>> gpu_gpu;  // [gpu][gpu]
  std::vector<std::vector<Path>> gpu_nic;  // [gpu][nic]
};

// Parse the output of these tools. `file` names the text in errors. Both throw InputError if the text is not such an
// output, with the offending line if there is one.
NodeTopology parse_nvidia_topology(std::string_view text, const std::string& file);
NodeTopology parse_amd_topology(std::string_view text, const std::string& file);
// Calls the parser of the tool that printed the file. Throws InputError at `where` when the file cannot be read.
NodeTopology read_topology_file(const std::string& path, const InputError::Where& where);

// Whether the text is the output of rocm-smi or amd-smi.
bool is_amd_topology(std::string_view text);
// The words of a line, which spaces separate. Escape sequences are left out: nvidia-smi underlines headers on a
// terminal.
std::vector<std::string> topology_words(std::string_view line);

// Writes into `node` what the topology shows:
// - how many devices it has;
// - the fabric that joins them, and its rate. The rate of NVLinks is their number times the device's rate per link. The
//   number of xGMI links is not shown: a node that is a direct mesh already keeps its rates, and any other node gets
//   the device's rate, divided by the number of peers for a pair;
// - how many devices share a PCIe switch (PIX, or PXB where no two meet by PIX) and a PCIe root (PHB);
// - how many NICs it has: those on a PCIe switch with some device. Where there are none it counts all NICs, but no more
//   than devices, because the rest serve storage.
// No tool shows a NIC's rate, so the node keeps its own. AMD's tools show no NICs, either: the node keeps their number,
// and its devices_per_pcie_switch, unless such a switch would join devices of different NUMA nodes.
// Throws InputError at `where` when the output is that of another vendor's tool, when the device cannot have the links,
// or when some devices are joined in another way than the others.
void apply(const NodeTopology& topology, const Device& device, const InputError::Where& where, Node& node);

}  // namespace orrery
