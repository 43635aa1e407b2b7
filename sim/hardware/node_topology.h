// Reads how the GPUs and NICs of one node are joined: `nvidia-smi topo -m`, `rocm-smi --showtopo`, `amd-smi topology`.
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
  xgmi,  // of AMD, directly or past other GPUs
  pix,   // at most one PCIe bridge
  pxb,   // several PCIe bridges, not the host bridge
  phb,   // a PCIe host bridge
  node,  // host bridges of one NUMA node
  sys,   // the link between NUMA nodes
};

struct NodeTopology {
  struct Path {
    TopologyLink link = TopologyLink::self;
    std::int64_t nvlinks = 0;
  };
  std::string tool;     // which wrote it, for errors
  bool of_amd = false;  // AMD's tools show neither NICs, PCIe switches nor how many links a pair has
  std::int64_t gpus = 0;
  std::vector<std::string> nics;           // by column name: NIC0, mlx5_0
  std::vector<std::vector<Path>> gpu_gpu;  // [gpu][gpu]
  std::vector<std::vector<Path>> gpu_nic;  // [gpu][nic]
  std::vector<std::string> cpu_affinity;   // [gpu]; empty where not given
};

// `file` names the text in errors. Throw InputError, with the line, when it is not such an output.
NodeTopology parse_nvidia_topology(std::string_view text, const std::string& file);
NodeTopology parse_amd_topology(std::string_view text, const std::string& file);
// That of the tool that wrote the file. Throws InputError at `where` when the file cannot be read.
NodeTopology read_topology_file(const std::string& path, const InputError::Where& where);

bool is_amd_topology(std::string_view text);
// What spaces divide, without the escape sequences that underline headers on a terminal.
std::vector<std::string> topology_words(std::string_view line);

// Sets what the topology shows of a node: its devices, how they are joined and at which rate (links x the rate of one
// of the device's; xGMI: the node's stays, or the device's links divided by its peers), the devices behind one PCIe
// switch (PIX, of others PXB) and under one root (PHB), and the NICs (those on a device's own PCIe switch; when none
// is, all, but no more than devices, as others serve storage). A NIC's rate is not shown: the node's stays. Of AMD NICs
// stay too, and the node's PCIe switches where none would join devices of different NUMA nodes. Throws InputError at
// `where` when the device cannot have the links, or some devices are joined otherwise than others.
void apply(const NodeTopology& topology, const Device& device, const InputError::Where& where, Node& node);

}  // namespace orrery
