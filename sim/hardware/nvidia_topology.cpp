#include "sim/hardware/nvidia_topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <optional>
#include <utility>

#include "sim/base/input_file.h"

namespace orrery {
namespace {

using Path = NvidiaTopology::Path;
using Words = std::vector<std::string>;

// nvidia-smi underlines its header with escape sequences when it writes to a terminal.
std::string without_escapes(std::string_view line) {
  std::string result;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b' && i + 1 < line.size() && line[i + 1] == '[') {
      i += 2;
      while (i < line.size() && std::isalpha(static_cast<unsigned char>(line[i])) == 0) ++i;
      continue;
    }
    result += line[i];
  }
  return result;
}

Words words_of(std::string_view line) {
  Words words;
  std::string word;
  for (const char c : without_escapes(line) + ' ') {
    if (std::isspace(static_cast<unsigned char>(c)) == 0) {
      word += c;
    } else if (!word.empty()) {
      words.push_back(std::exchange(word, {}));
    }
  }
  return words;
}

std::optional<std::int64_t> number_of(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

bool is_gpu(const std::string& word) { return word.starts_with("GPU") && number_of(word.substr(3)).has_value(); }

std::optional<Path> path_of(const std::string& word) {
  constexpr std::array<std::pair<std::string_view, TopologyLink>, 6> kWords{{{"X", TopologyLink::self},
                                                                             {"PIX", TopologyLink::pix},
                                                                             {"PXB", TopologyLink::pxb},
                                                                             {"PHB", TopologyLink::phb},
                                                                             {"NODE", TopologyLink::node},
                                                                             {"SYS", TopologyLink::sys}}};
  for (const auto& [name, link] : kWords)
    if (word == name) return Path{link};
  if (word.starts_with("NV"))
    if (const auto links = number_of(std::string_view(word).substr(2)); links && *links > 0 && *links < 1000)
      return Path{TopologyLink::nv, *links};
  return std::nullopt;
}

// Reads the matrix line by line.
class Parser {
 public:
  explicit Parser(std::string file) : file_(std::move(file)) {}

  NvidiaTopology parse(std::string_view text) {
    while (!text.empty() && !done_) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      ++line_;
      read_line(words_of(text.substr(0, end)));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    if (columns_.empty()) fail("no line of column names", "a line \"GPU0 GPU1 ...\", as nvidia-smi topo -m prints");
    if (rows_ < topology_.gpus)
      fail(fmt::format("{} GPU rows", rows_), fmt::format("a row for each of the {} GPUs", topology_.gpus));
    check_symmetric();
    return std::move(topology_);
  }

 private:
  [[noreturn]] void fail(const std::string& found, const std::string& expected) const {
    throw InputError({file_, ""}, found, expected);
  }

  void read_line(const Words& words) {
    if (columns_.empty()) {
      if (!words.empty() && words[0] == "GPU0" && (words.size() == 1 || words[1] != "X")) read_columns(words);
      return;
    }
    if (words.empty()) return;
    if (words[0] == "Legend:" || words[0] == "NIC" || rows_ == topology_.gpus) {
      done_ = true;  // what follows are the rows of the NICs, which repeat, and the legend
      return;
    }
    read_gpu_row(words);
  }

  void read_columns(const Words& words) {
    for (const std::string& word : words) {
      if (word == "CPU" || word == "NUMA") break;  // "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"
      columns_.push_back(word);
      if (!is_gpu(word)) {
        topology_.nics.push_back(word);
      } else if (word != fmt::format("GPU{}", topology_.gpus)) {
        fail(fmt::format("the column {} in line {}", word, line_), fmt::format("GPU{}", topology_.gpus));
      } else if (!topology_.nics.empty()) {
        fail(fmt::format("the column {} after {} in line {}", word, topology_.nics.back(), line_), "the GPUs first");
      } else {
        ++topology_.gpus;
      }
    }
  }

  void read_gpu_row(const Words& words) {
    const std::string name = fmt::format("GPU{}", rows_);
    if (words[0] != name) fail(fmt::format("\"{}\" at the start of line {}", words[0], line_), "the row of " + name);
    if (words.size() < 1 + columns_.size())
      fail(fmt::format("{} entries in the row of {} (line {})", words.size() - 1, name, line_),
           fmt::format("one for each of the {} columns", columns_.size()));
    auto& to_gpus = topology_.gpu_gpu.emplace_back();
    auto& to_nics = topology_.gpu_nic.emplace_back();
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const std::string& word = words[1 + i];
      const auto path = path_of(word);
      if (!path)
        fail(fmt::format("\"{}\" between {} and {} (line {})", word, name, columns_[i], line_),
             "X, NV#, PIX, PXB, PHB, NODE or SYS");
      const bool diagonal = static_cast<std::int64_t>(i) == rows_;
      if (diagonal != (path->link == TopologyLink::self))
        fail(fmt::format("\"{}\" between {} and {} (line {})", word, name, columns_[i], line_),
             diagonal ? "X" : "a link, as they differ");
      (static_cast<std::int64_t>(i) < topology_.gpus ? to_gpus : to_nics).push_back(*path);
    }
    topology_.cpu_affinity.push_back(words.size() > 1 + columns_.size() ? words[1 + columns_.size()] : "");
    ++rows_;
  }

  void check_symmetric() const {
    for (std::size_t a = 0; a < topology_.gpu_gpu.size(); ++a)
      for (std::size_t b = 0; b < a; ++b)
        if (topology_.gpu_gpu[a][b].link != topology_.gpu_gpu[b][a].link ||
            topology_.gpu_gpu[a][b].nvlinks != topology_.gpu_gpu[b][a].nvlinks)
          fail(fmt::format("different links from GPU{} to GPU{} and back", b, a), "a symmetric matrix");
  }

  std::string file_;
  NvidiaTopology topology_;
  Words columns_;
  std::int64_t line_ = 0, rows_ = 0;
  bool done_ = false;
};

bool behind_one_switch(Path path) { return path.link == TopologyLink::pix || path.link == TopologyLink::pxb; }

// NVLinks of each GPU to its peers.
struct NvlinkUse {
  std::int64_t most_links = 0;    // of one GPU to all peers
  std::int64_t most_peers = 0;    // joined to one GPU
  std::int64_t fewest_links = 0;  // of a joined pair
  bool all_pairs_equal = true;    // every pair is joined by as many links
};

NvlinkUse nvlinks_of(const NvidiaTopology& topology) {
  NvlinkUse use;
  const Path first = topology.gpus > 1 ? topology.gpu_gpu[0][1] : Path{};
  for (std::size_t a = 0; a < topology.gpu_gpu.size(); ++a) {
    std::int64_t links = 0, peers = 0;
    for (std::size_t b = 0; b < topology.gpu_gpu.size(); ++b) {
      if (a == b) continue;
      const Path path = topology.gpu_gpu[a][b];
      use.all_pairs_equal = use.all_pairs_equal && path.nvlinks == first.nvlinks;
      if (path.nvlinks == 0) continue;
      links += path.nvlinks;
      ++peers;
      use.fewest_links = use.fewest_links == 0 ? path.nvlinks : std::min(use.fewest_links, path.nvlinks);
    }
    use.most_links = std::max(use.most_links, links);
    use.most_peers = std::max(use.most_peers, peers);
  }
  return use;
}

void join_by_nvlink(const NvlinkUse& use, const NvidiaTopology& topology, const Device& device,
                    const InputError::Where& where, Node& node) {
  const double link = device.scale_up_link_bytes_per_second;
  if (link <= 0) throw InputError(where, "NVLinks", "a device that has some; " + device.name + " has none");
  // Through a switch every pair shows all links of the device.
  if (use.all_pairs_equal && topology.gpus > 2 && use.most_links > device.scale_up_links) {
    if (use.fewest_links > device.scale_up_links)
      throw InputError(where, fmt::format("{} NVLinks per GPU", use.fewest_links),
                       fmt::format("at most the {} of {}", device.scale_up_links, device.name));
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
}

// The largest set of GPUs that share a PCIe switch, with each other or by way of a NIC.
std::int64_t gpus_per_pcie_switch(const NvidiaTopology& topology) {
  std::int64_t most = 1;
  for (const auto& row : topology.gpu_gpu)
    most = std::max<std::int64_t>(most, 1 + std::count_if(row.begin(), row.end(), behind_one_switch));
  for (std::size_t nic = 0; nic < topology.nics.size(); ++nic)
    most = std::max<std::int64_t>(most, std::count_if(topology.gpu_nic.begin(), topology.gpu_nic.end(),
                                                      [&](const auto& row) { return behind_one_switch(row[nic]); }));
  return most;
}

std::int64_t nics_of(const NvidiaTopology& topology) {
  std::int64_t near = 0;
  for (std::size_t nic = 0; nic < topology.nics.size(); ++nic)
    near += std::any_of(topology.gpu_nic.begin(), topology.gpu_nic.end(),
                        [&](const auto& row) { return behind_one_switch(row[nic]); });
  return near > 0 ? near : static_cast<std::int64_t>(topology.nics.size());
}

}  // namespace

NvidiaTopology parse_nvidia_topology(std::string_view text, const std::string& file) {
  return Parser(file).parse(text);
}

NvidiaTopology read_nvidia_topology_file(const std::string& path, const InputError::Where& where) {
  return parse_nvidia_topology(read_file(path, "a readable file", where), path);
}

void apply(const NvidiaTopology& topology, const Device& device, const InputError::Where& where, Node& node) {
  node.devices = topology.gpus;
  const NvlinkUse use = nvlinks_of(topology);
  if (use.most_links > 0) {
    join_by_nvlink(use, topology, device, where, node);
  } else {
    node.intra = IntraFabric::pcie;
    node.intra_bytes_per_second = 0;  // the device's PCIe rate
    node.pair_bytes_per_second = 0;
    node.in_switch_reduction = false;
  }
  node.devices_per_pcie_switch = gpus_per_pcie_switch(topology);
  node.nics = nics_of(topology);
  node.name = "node of " + std::to_string(topology.gpus) + " " + device.name;
}

}  // namespace orrery
