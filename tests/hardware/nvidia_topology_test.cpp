// Does the output of `nvidia-smi topo -m` give the node it was taken on?
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "sim/hardware/node_topology.h"
#include "sim/hardware/presets.h"
#include "sim/hardware/read_cluster.h"

namespace orrery {
namespace {

using ::testing::HasSubstr;

std::string data(const std::string& name) { return ORRERY_SOURCE_DIR "/tests/hardware/data/" + name; }

Cluster of_topology(const std::string& device, const std::string& file, nlohmann::json json = {}) {
  json["device"] = device;
  json["topology_file"] = data(file);
  return read_cluster(json, {"s.json", "/cluster"});
}

TEST(NvidiaTopology, DgxH100) {
  const Cluster c = of_topology("H100-SXM5-80GB", "dgx_h100.txt");
  EXPECT_EQ(c.node.devices, 8);
  EXPECT_EQ(c.node.intra, IntraFabric::nvswitch);
  EXPECT_EQ(c.node.intra_bytes_per_second, 450e9);
  EXPECT_TRUE(c.node.in_switch_reduction);
  EXPECT_EQ(c.node.nics, 8);  // not the four of the storage network
  EXPECT_EQ(c.node.nic_bytes_per_second, 50e9);
  EXPECT_EQ(c.node.devices_per_pcie_switch, 1);
}

TEST(NvidiaTopology, TheSameMatrixWithAnotherDevicesLinkRate) {
  nlohmann::json b200 = {{"base", "B200-SXM-180GB"}};
  const Cluster c = read_cluster({{"device", b200}, {"topology_file", data("dgx_h100.txt")}}, {});
  EXPECT_EQ(c.node.intra_bytes_per_second, 900e9);
}

TEST(NvidiaTopology, Dgx1V) {
  const Cluster c = of_topology("V100-SXM2-32GB", "dgx_1v.txt", {{"nodes", 4}});
  EXPECT_EQ(c.devices(), 32);
  EXPECT_EQ(c.node.intra, IntraFabric::direct_mesh);
  EXPECT_EQ(c.node.intra_bytes_per_second, 150e9);
  EXPECT_EQ(c.node.pair_bytes_per_second, 25e9);
  ASSERT_EQ(c.node.links.size(), 2u);  // a cube of NVLinks, doubled on a ring: other pairs have none
  EXPECT_EQ(c.node.links[0].bytes_per_second, 25e9);
  EXPECT_EQ(c.node.links[0].pairs.size(), 8u);
  EXPECT_EQ(c.node.links[1].bytes_per_second, 50e9);
  EXPECT_EQ(c.node.links[1].pairs.size(), 8u);
  EXPECT_EQ(c.node.nics, 4);
  EXPECT_EQ(c.node.devices_per_pcie_switch, 2);
}

TEST(NvidiaTopology, PcieBox) {
  const Cluster c = of_topology("L40S", "pcie_l40s.txt");
  EXPECT_EQ(c.node.devices, 8);
  EXPECT_EQ(c.node.intra, IntraFabric::pcie);
  EXPECT_EQ(c.node.intra_bytes_per_second, 31.5e9);
  EXPECT_EQ(c.node.devices_per_pcie_switch, 2);
  EXPECT_EQ(c.node.nics, 2);
}

TEST(NvidiaTopology, BridgedPairs) {
  const Cluster c = of_topology("RTX-A6000", "rtx_a6000_pairs.txt");
  EXPECT_EQ(c.node.devices, 4);
  EXPECT_EQ(c.node.intra, IntraFabric::nvlink_pairs);
  EXPECT_EQ(c.node.pair_bytes_per_second, 56.25e9);
  EXPECT_EQ(c.node.intra_bytes_per_second, 31.5e9);
  EXPECT_EQ(c.node.nics, 0);
}

TEST(NvidiaTopology, SeveralNodesNeedARateWhereTheFileListsNoNic) {
  try {
    of_topology("RTX-A6000", "rtx_a6000_pairs.txt", {{"nodes", 2}});
    ADD_FAILURE() << "read";
  } catch (const InputError& error) {
    EXPECT_EQ(error.where().pointer, "/cluster/inter_node_bytes_per_second");
    EXPECT_EQ(error.expected(), "a rate (5e10 is 400 Gbit/s): the topology file lists no NIC");
  }
}

TEST(NvidiaTopology, MeshOfFour) {  // equal pairs, but the links add up to the device's: no switch
  const Cluster c = of_topology("A100-SXM4-40GB", "a100_mesh_of_4.txt");
  EXPECT_EQ(c.node.intra, IntraFabric::direct_mesh);
  EXPECT_EQ(c.node.intra_bytes_per_second, 300e9);
  EXPECT_EQ(c.node.pair_bytes_per_second, 100e9);
  EXPECT_EQ(c.node.nics, 4);  // none on a device's own PCIe switch: all count
  EXPECT_FALSE(c.node.in_switch_reduction);
}

TEST(NvidiaTopology, OneGpu) {
  const Cluster c = of_topology("H200", "one_gpu.txt");
  EXPECT_EQ(c.devices(), 1);
}

TEST(NvidiaTopology, KeepsNamesAndAffinity) {
  const NodeTopology t = read_topology_file(data("dgx_1v.txt"), {});
  EXPECT_EQ(t.nics, (std::vector<std::string>{"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"}));
  EXPECT_EQ(t.gpu_gpu[0][3].nvlinks, 2);
  EXPECT_EQ(t.gpu_nic[2][1].link, TopologyLink::pix);
}

TEST(NvidiaTopology, SpacesForTabsAndATextAboveDoNotMatter) {
  const NodeTopology t = parse_nvidia_topology(
      "$ nvidia-smi topo -m\r\n     GPU0 GPU1 CPU Affinity\r\nGPU0  X NV4 0-7\r\nGPU1 NV4 X 0-7\r\n", "t");
  EXPECT_EQ(t.gpus, 2);
  EXPECT_EQ(t.gpu_gpu[1][0].nvlinks, 4);
}

TEST(NvidiaTopology, RejectsLinksThatTheDeviceCannotHave) {
  for (const auto& [device, found] : {std::pair{"A100-SXM4-80GB", "18 NVLinks"}, std::pair{"L40S", "NVLinks"}}) {
    try {
      of_topology(device, "dgx_h100.txt");
      FAIL() << device;
    } catch (const InputError& error) {
      EXPECT_EQ(error.where().pointer, "/cluster/topology_file");
      EXPECT_THAT(error.found(), HasSubstr(found));
    }
  }
}

TEST(NvidiaTopology, RejectsAnotherDeviceCount) {
  try {
    of_topology("H100", "dgx_h100.txt", {{"devices_per_node", 4}});
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(error.where().pointer, "/cluster/devices_per_node");
    EXPECT_THAT(error.expected(), HasSubstr("the 8 devices of the topology file"));
  }
}

// What nvidia-smi prints where GPUs a and b meet by `link(a, b)`.
std::string matrix(int gpus, const std::function<std::string(int, int)>& link) {
  std::string text;
  for (int b = 0; b < gpus; ++b) text += fmt::format("\tGPU{}", b);
  text += "\tCPU Affinity\n";
  for (int a = 0; a < gpus; ++a) {
    text += fmt::format("GPU{}", a);
    for (int b = 0; b < gpus; ++b) text += "\t" + (a == b ? "X" : link(std::min(a, b), std::max(a, b)));
    text += "\t0-31\n";
  }
  return text;
}

Node node_of(const std::string& text, const char* device = "L40S") {
  Node node = find_node("pcie-8");
  apply(parse_nvidia_topology(text, "t"), find_device(device), {"s.json", "/cluster/topology_file"}, node);
  return node;
}

TEST(NvidiaTopology, TheDistanceOfBoardsIsTheirSwitchAndRoot) {
  struct Box {
    const char* what;
    std::function<std::string(int, int)> link;
    std::int64_t per_switch, per_root;
  };
  const auto within = [](int size, const char* near, const char* far) {
    return [=](int a, int b) { return a / size == b / size ? near : far; };
  };
  for (const Box& box : {
           Box{"one switch", within(8, "PIX", ""), 8, 8},
           Box{"a switch at each processor", within(4, "PIX", "SYS"), 4, 4},
           Box{"switches that only PXB shows", within(4, "PXB", "SYS"), 4, 4},
           Box{"two switches in a row", [&](int a, int b) { return a / 4 == b / 4 ? "PIX" : "PXB"; }, 4, 8},
           Box{"pairs below one root", within(2, "PIX", "PHB"), 2, 8},
           Box{"pairs, two roots",
               [&](int a, int b) { return a / 2 == b / 2   ? "PIX"
                                          : a / 4 == b / 4 ? "PHB"
                                                           : "SYS"; }, 2, 4},
           Box{"lanes of one root", within(8, "PHB", ""), 1, 8},
           Box{"lanes of several roots", within(8, "NODE", ""), 1, 1},
           Box{"all over sockets", within(8, "SYS", ""), 1, 1},
           Box{"no neighbours", [](int a, int b) { return a % 4 == b % 4 ? "PIX" : "SYS"; }, 1, 1},
           Box{"four and twice two", [](int a, int b) { return (a < 4 && b < 4) || a / 2 == b / 2 ? "PIX" : "SYS"; }, 2,
               2},
       }) {
    const Node node = node_of(matrix(8, box.link));
    EXPECT_EQ(node.intra, IntraFabric::pcie) << box.what;
    EXPECT_EQ(node.devices_per_pcie_switch, box.per_switch) << box.what;
    EXPECT_EQ(node.devices_per_pcie_root, box.per_root) << box.what;
  }
}

TEST(NvidiaTopology, AGpuWithFewerLinksHoldsTheOthersUp) {
  const Node node =
      node_of(matrix(8, [](int a, int b) { return a == 3 || b == 3 ? "NV16" : "NV18"; }), "B200-SXM-180GB");
  EXPECT_EQ(node.intra, IntraFabric::nvswitch);
  EXPECT_EQ(node.intra_bytes_per_second, 16 * 50e9);
}

TEST(NvidiaTopology, RefusesGpusThatAreJoinedOtherwiseThanOthers) {
  struct Odd {
    const char* device;
    std::function<std::string(int, int)> link;
    const char* sentence;
  };
  for (const Odd& odd : {
           Odd{"B200-SXM-180GB", [](int a, int b) { return a == 2 || b == 2 ? "NODE" : "NV18"; },
               "found GPU2 without NVLink, while the other 7 are on a switch"},
           Odd{"H100-SXM5-80GB", [](int a, int b) { return a == 1 || b == 1 || a == 6 || b == 6 ? "SYS" : "NV18"; },
               "found GPU1, GPU6 without NVLink, while the other 6 are on a switch"},
           Odd{"H200-SXM5-141GB", [](int a, int b) { return a / 4 == b / 4 ? "NV6" : "SYS"; },
               "found GPUs that NVLink joins in 2 groups, the largest of 4"},
           Odd{"RTX-A6000", [](int a, int b) { return b < 6 && a / 2 == b / 2 ? "NV4" : "SYS"; },
               "found GPU6, GPU7 without NVLink, while the other 6 are joined by NVLink"},
           Odd{"RTX-A6000", [](int a, int b) { return b == a + 4 ? "NV4" : "SYS"; }, "NVLink between GPU0 and GPU4"},
       }) {
    try {
      node_of(matrix(8, odd.link), odd.device);
      ADD_FAILURE() << odd.sentence;
    } catch (const InputError& error) {
      EXPECT_EQ(error.where().pointer, "/cluster/topology_file");
      EXPECT_THAT(error.what(), HasSubstr(odd.sentence));
    }
  }
}

TEST(NvidiaTopology, NamesAndLinksThatHaveRunTogether) {
  const NodeTopology t = parse_nvidia_topology(
      "GPU0GPU1 NIC0 NIC1NIC2 mlx5_10mlx5_11CPU Affinity\n"
      "GPU0 XNV4 PIX SYSSYS NODE NODE0-7\n"
      "GPU1 NV4X PIX SYSSYS NODE NODE 0-7\n",
      "t");
  EXPECT_EQ(t.gpus, 2);
  EXPECT_EQ(t.nics, (std::vector<std::string>{"NIC0", "NIC1", "NIC2", "mlx5_10", "mlx5_11"}));
  EXPECT_EQ(t.gpu_gpu[0][1].nvlinks, 4);
  EXPECT_EQ(t.gpu_nic[1][4].link, TopologyLink::node);
}

TEST(NvidiaTopology, ATrayHasTheHostOfATray) {
  const auto tray = [](nlohmann::json json) {
    json["topology_file"] = data("gb200_tray.txt");
    return read_cluster(json, {"s.json", "/cluster"});
  };
  const Cluster whole = read_cluster({{"device", "GB200"}, {"devices_per_node", 4}}, {});
  for (const nlohmann::json& json : {nlohmann::json{{"device", "GB200"}}, nlohmann::json{{"node", "gb200-nvl72"}},
                                     nlohmann::json{{"node", "gb200-tray"}}}) {
    const Cluster c = tray(json);
    EXPECT_EQ(c.node.devices, 4) << json;
    EXPECT_DOUBLE_EQ(c.node.host_memory_bytes, whole.node.host_memory_bytes) << json;
    EXPECT_DOUBLE_EQ(c.node.host_memory_bytes_per_second, whole.node.host_memory_bytes_per_second) << json;
    EXPECT_DOUBLE_EQ(c.node.host_flops_per_second, whole.node.host_flops_per_second) << json;
    EXPECT_EQ(c.node.intra, IntraFabric::nvswitch) << json;
    EXPECT_EQ(c.node.nics, 4) << json << ": those of storage are no devices'";
  }
  // One of the four devices of a node that are usual: its processor, not all four.
  const Cluster one = read_cluster({{"device", "GH200-96GB"}, {"topology_file", data("one_gpu.txt")}}, {});
  EXPECT_DOUBLE_EQ(one.node.host_memory_bytes, find_node("gh200-1").host_memory_bytes);
}

struct BadMatrix {
  const char* name;
  const char* text;
  const char* found;
  const char* expected;
};
void PrintTo(const BadMatrix& bad, std::ostream* out) { *out << bad.name; }
class BadTopology : public ::testing::TestWithParam<BadMatrix> {};

TEST_P(BadTopology, GetsItsSentence) {
  try {
    parse_nvidia_topology(GetParam().text, "topo.txt");
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_EQ(error.where().file, "topo.txt");
    EXPECT_THAT(error.found(), HasSubstr(GetParam().found));
    EXPECT_THAT(error.expected(), HasSubstr(GetParam().expected));
  }
}

constexpr BadMatrix kBadMatrices[]{
    {"Empty", "", "no line of column names", "GPU0 GPU1"},
    {"AnotherFile", "name, memory\nH100, 80\n", "no line of column names", "nvidia-smi topo -m"},
    {"UnknownLink", "GPU0 GPU1 CPU Affinity\nGPU0 X NVX 0\nGPU1 NVX X 0\n", "\"NVX\" between GPU0 and GPU1 (line 2)",
     "NV#"},
    {"NoLinks", "GPU0 GPU1\nGPU0 X NV0\nGPU1 NV0 X\n", "\"NV0\"", "NV#"},
    {"HugeLinkCount", "GPU0 GPU1\nGPU0 X NV99999999999999999999\nGPU1 X X\n", "\"NV99999999999999999999\"", "NV#"},
    {"ShortRow", "GPU0 GPU1\nGPU0 X\nGPU1 SYS X\n", "1 entries in the row of GPU0 (line 2)", "each of the 2 columns"},
    {"RowMissing", "GPU0 GPU1 CPU Affinity\nGPU0 X SYS 0-3\n", "1 GPU rows", "each of the 2 GPUs"},
    {"RowsSwapped", "GPU0 GPU1\nGPU1 SYS X\nGPU0 X SYS\n", "\"GPU1\" at the start of line 2", "the row of GPU0"},
    {"NotSymmetric", "GPU0 GPU1\nGPU0 X NV2\nGPU1 NV1 X\n", "different links from GPU0 to GPU1", "symmetric"},
    {"SelfOffTheDiagonal", "GPU0 GPU1\nGPU0 X X\nGPU1 X X\n", "\"X\" between GPU0 and GPU1", "a link"},
    {"NoSelf", "GPU0 GPU1\nGPU0 SYS SYS\nGPU1 SYS X\n", "\"SYS\" between GPU0 and GPU0", "X"},
    {"ColumnSkipped", "GPU0 GPU2\nGPU0 X SYS\nGPU2 SYS X\n", "the column GPU2 in line 1", "GPU1"},
    {"UnknownNamesRunTogether", "GPU0 GPU1 roce0roce1\nGPU0 X SYS PIX PIX 0\nGPU1 SYS X PIX PIX 0\n",
     "4 links in the row of GPU0 (line 2)", "two names written as one"},
    {"GpuAfterNic", "GPU0 NIC0 GPU1\nGPU0 X PIX SYS\n", "the column GPU1 after NIC0", "the GPUs first"},
};
INSTANTIATE_TEST_SUITE_P(Input, BadTopology, ::testing::ValuesIn(kBadMatrices),
                         [](const auto& bad) { return std::string(bad.param.name); });

}  // namespace
}  // namespace orrery
