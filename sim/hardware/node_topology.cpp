#include "sim/hardware/node_topology.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>

#include "sim/base/input_file.h"

namespace orrery {
namespace {

using Path = NodeTopology::Path;

bool joined(Path path) { return path.link == TopologyLink::nv || path.link == TopologyLink::xgmi; }
bool over_pcie_within(Path path, TopologyLink farthest) {
  return path.link >= TopologyLink::pix && path.link <= farthest;
}

// The NVLinks of a node's GPUs.
struct NvlinkUse {
  std::int64_t most_links = 0;                     // of one GPU to all its peers together
  std::int64_t most_peers = 0;                     // peers of one GPU
  std::int64_t fewest_links = 0, most_of_one = 0;  // between the two GPUs of a joined pair
  bool all_joined = true;                          // every pair is joined
};

NvlinkUse nvlinks_of(const NodeTopology& topology) {
  NvlinkUse use;
  for (std::size_t a = 0; a < topology.gpu_gpu.size(); ++a) {
    std::int64_t links = 0, peers = 0;
    for (std::size_t b = 0; b < topology.gpu_gpu.size(); ++b) {
      if (a == b) continue;
      const Path path = topology.gpu_gpu[a][b];
      use.all_joined = use.all_joined && joined(path);
      if (!joined(path)) continue;
      links += path.nvlinks;
      ++peers;
      use.fewest_links = use.fewest_links == 0 ? path.nvlinks : std::min(use.fewest_links, path.nvlinks);
      use.most_of_one = std::max(use.most_of_one, path.nvlinks);
    }
    use.most_links = std::max(use.most_links, links);
    use.most_peers = std::max(use.most_peers, peers);
  }
  return use;
}

// Divides the GPUs into groups. Two GPUs are in one group if `together` holds for them, or if a chain of GPUs for which
// it holds leads from one to the other.
std::vector<std::vector<std::size_t>> groups_of_gpus(const NodeTopology& topology,
                                                     const std::function<bool(std::size_t, std::size_t)>& together) {
  const std::size_t gpus = topology.gpu_gpu.size();
  std::vector<std::vector<std::size_t>> groups;
  std::vector<bool> seen(gpus);
  for (std::size_t first = 0; first < gpus; ++first) {
    if (seen[first]) continue;
    std::vector<std::size_t>& group = groups.emplace_back();
    group.push_back(first);
    seen[first] = true;
    for (std::size_t i = 0; i < group.size(); ++i)
      for (std::size_t b = 0; b < gpus; ++b)
        if (!seen[b] && together(group[i], b)) {
          seen[b] = true;
          group.push_back(b);
        }
    std::sort(group.begin(), group.end());
  }
  return groups;
}

std::string names_of(const std::vector<std::size_t>& gpus) { return fmt::format("GPU{}", fmt::join(gpus, ", GPU")); }

// Throws InputError unless the node's devices are alike: each is joined with all others, with one other, or with none.
void check_alike(const NodeTopology& topology, const Device& device, const InputError::Where& where) {
  const auto groups =
      groups_of_gpus(topology, [&](std::size_t a, std::size_t b) { return joined(topology.gpu_gpu[a][b]); });
  const std::string kind = topology.of_amd ? "xGMI" : "NVLink";
  const std::size_t largest = std::max_element(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
                                return a.size() < b.size();
                              })->size();
  if (groups.size() == 1) return;
  std::vector<std::size_t> alone, pairs_apart;
  for (const auto& group : groups) {
    if (group.size() == 1) alone.push_back(group[0]);
    if (pairs_apart.empty() && group.size() == 2 && (group[0] % 2 != 0 || group[1] != group[0] + 1))
      pairs_apart = group;
  }
  if (largest == 2 && alone.empty()) {
    if (pairs_apart.empty()) return;
    throw InputError(where, fmt::format("{} between GPU{} and GPU{}", kind, pairs_apart[0], pairs_apart[1]),
                     "pairs of neighbours: GPU0 and GPU1, GPU2 and GPU3 (CUDA_VISIBLE_DEVICES numbers GPUs; renumber "
                     "the rows and columns of the file to match)");
  }
  const std::size_t rest = topology.gpu_gpu.size() - alone.size();
  // Behind a switch, a GPU shows its links once per peer.
  const bool by_switch = !topology.of_amd && nvlinks_of(topology).most_links > device.scale_up_links;
  const std::string others = by_switch && largest == rest ? "on a switch" : fmt::format("joined by {}", kind);
  throw InputError(where,
                   alone.empty()
                       ? fmt::format("GPUs that {} joins in {} groups, the largest of {}", kind, groups.size(), largest)
                       : fmt::format("{} without {}, while the other {} are {}", names_of(alone), kind, rest, others),
                   fmt::format("all GPUs joined, or pairs of them: GPUs of a node are alike (for a node of {} use "
                               "{{\"device\": \"{}\", \"devices_per_node\": {}}} without this file)",
                               largest, device.name, largest));
}

// Returns the joined pairs, those with as many NVLinks together.
std::vector<PairLinks> pairs_by_rate(const NodeTopology& topology, double link_bytes_per_second) {
  std::map<std::int64_t, std::vector<std::array<std::int64_t, 2>>> pairs;
  for (std::int64_t a = 0; a < topology.gpus; ++a)
    for (std::int64_t b = a + 1; b < topology.gpus; ++b)
      if (const Path path = topology.gpu_gpu[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)]; joined(path))
        pairs[path.nvlinks].push_back({a, b});
  std::vector<PairLinks> links;
  for (auto& [count, joined_by] : pairs)
    links.push_back({static_cast<double>(count) * link_bytes_per_second, std::move(joined_by)});
  return links;
}

void join_by_nvlink(const NvlinkUse& use, const NodeTopology& topology, const Device& device,
                    const InputError::Where& where, Node& node) {
  const double link = device.scale_up_link_bytes_per_second;
  node.links.clear();  // the file's are others
  if (use.most_of_one > device.scale_up_links)
    throw InputError(where, fmt::format("{} NVLinks per GPU", use.most_of_one),
                     fmt::format("at most the {} of {}", device.scale_up_links, device.name));
  // Behind a switch every pair shows all links of the device; the device with the fewest links limits the others.
  if (use.all_joined && topology.gpus > 2 && use.most_links > device.scale_up_links) {
    node.in_switch_reduction = node.in_switch_reduction && node.intra == IntraFabric::nvswitch;
    node.intra = IntraFabric::nvswitch;
    node.intra_bytes_per_second = static_cast<double>(use.fewest_links) * link;
    node.pair_bytes_per_second = 0;
    return;
  }
  if (use.most_links > device.scale_up_links)
    throw InputError(where, fmt::format("{} NVLinks on one GPU", use.most_links),
                     fmt::format("at most the {} of {}", device.scale_up_links, device.name));
  node.in_switch_reduction = false;
  node.intra = use.most_peers == 1 ? IntraFabric::nvlink_pairs : IntraFabric::direct_mesh;
  node.intra_bytes_per_second =
      use.most_peers == 1 ? 0 : static_cast<double>(use.most_links) * link;  // pairs: 0, the rate of PCIe
  node.pair_bytes_per_second = static_cast<double>(use.fewest_links) * link;
  if (use.most_peers > 1 && (!use.all_joined || use.most_of_one > use.fewest_links))
    node.links = pairs_by_rate(topology, link);
}

// AMD's tools do not show how many links join a pair: rates come from the node or the device.
void join_by_xgmi(const NvlinkUse& use, const NodeTopology& topology, const Device& device, Node& node) {
  node.in_switch_reduction = false;
  if (use.most_peers == 1 && topology.gpus > 2) {
    node.intra = IntraFabric::nvlink_pairs;
    node.intra_bytes_per_second = 0;
    node.pair_bytes_per_second = device.scale_up_bytes_per_second();
  } else if (node.intra != IntraFabric::direct_mesh) {
    node.intra = IntraFabric::direct_mesh;
    node.intra_bytes_per_second = device.scale_up_bytes_per_second();
    node.pair_bytes_per_second = device.scale_up_bytes_per_second() / static_cast<double>(use.most_peers);
  }
}

// Returns the largest k for which the GPUs of each block (0 to k - 1, k to 2 k - 1, ...) are joined over PCIe no
// farther than `farthest`. If NVLink hides how two GPUs are joined over PCIe, a NIC that is near both shows it. AMD's
// tools show no NICs: GPUs that xGMI joins count as near.
std::int64_t gpus_within(const NodeTopology& topology, TopologyLink farthest) {
  const auto groups = groups_of_gpus(topology, [&](std::size_t a, std::size_t b) {
    if (!joined(topology.gpu_gpu[a][b])) return over_pcie_within(topology.gpu_gpu[a][b], farthest);
    if (topology.of_amd) return true;
    for (std::size_t nic = 0; nic < topology.nics.size(); ++nic)
      if (over_pcie_within(topology.gpu_nic[a][nic], farthest) && over_pcie_within(topology.gpu_nic[b][nic], farthest))
        return true;
    return false;
  });
  std::vector<std::size_t> group_of(topology.gpu_gpu.size());
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (const std::size_t gpu : groups[g]) group_of[gpu] = g;
  for (std::size_t k = group_of.size(); k > 1; --k) {
    bool whole = true;
    for (std::size_t gpu = 0; gpu < group_of.size(); ++gpu) whole = whole && group_of[gpu] == group_of[gpu / k * k];
    if (whole) return static_cast<std::int64_t>(k);
  }
  return 1;
}

std::int64_t nics_of(const NodeTopology& topology) {
  std::int64_t near = 0;
  for (std::size_t nic = 0; nic < topology.nics.size(); ++nic)
    near += std::any_of(topology.gpu_nic.begin(), topology.gpu_nic.end(),
                        [&](const auto& row) { return over_pcie_within(row[nic], TopologyLink::pxb); });
  return near > 0 ? near : std::min(static_cast<std::int64_t>(topology.nics.size()), topology.gpus);
}

}  // namespace

NodeTopology read_topology_file(const std::string& path, const InputError::Where& where) {
  const std::string text = read_file(path, "a readable file", where);
  return is_amd_topology(text) ? parse_amd_topology(text, path) : parse_nvidia_topology(text, path);
}

void apply(const NodeTopology& topology, const Device& device, const InputError::Where& where, Node& node) {
  const std::string vendor = topology.of_amd ? "AMD" : "NVIDIA";
  if (!device.vendor.empty() && device.vendor != vendor)
    throw InputError(where, fmt::format("the output of {}", topology.tool),
                     fmt::format("the topology of a node of {} by {}", device.name, device.vendor));
  node.devices = topology.gpus;
  const NvlinkUse use = nvlinks_of(topology);
  if (use.most_peers > 0 && device.scale_up_bytes_per_second() <= 0)
    throw InputError(where, topology.of_amd ? "xGMI links" : "NVLinks",
                     "a device that has some; " + device.name + " has none");
  if (use.most_peers > 0) check_alike(topology, device, where);
  if (use.most_peers == 0) {
    node.intra = IntraFabric::pcie;
    node.intra_bytes_per_second = 0;  // the device's PCIe rate
    node.pair_bytes_per_second = 0;
    node.in_switch_reduction = false;
  } else if (topology.of_amd) {
    join_by_xgmi(use, topology, device, node);
  } else {
    join_by_nvlink(use, topology, device, where, node);
  }
  if (topology.of_amd) {
    node.devices_per_pcie_switch = std::min(node.devices_per_pcie_switch, gpus_within(topology, TopologyLink::node));
  } else {
    const std::int64_t near = gpus_within(topology, TopologyLink::pix);
    node.devices_per_pcie_switch = near > 1 ? near : gpus_within(topology, TopologyLink::pxb);
    node.nics = nics_of(topology);
  }
  node.devices_per_pcie_root =
      std::max(node.devices_per_pcie_switch, topology.of_amd ? 1 : gpus_within(topology, TopologyLink::phb));
  if (node.intra != IntraFabric::pcie && node.intra != IntraFabric::nvlink_pairs) node.devices_per_pcie_root = 0;
  node.name = fmt::format("node of {} {}", topology.gpus, device.name);
}

}  // namespace orrery
