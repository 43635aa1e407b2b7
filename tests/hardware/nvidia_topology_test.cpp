// Does the output of `nvidia-smi topo -m` give the node it was taken on?
#include "sim/hardware/nvidia_topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

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
  const NvidiaTopology t = read_nvidia_topology_file(data("dgx_1v.txt"), {});
  EXPECT_EQ(t.nics, (std::vector<std::string>{"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"}));
  EXPECT_EQ(t.cpu_affinity[7], "20-39,60-79");
  EXPECT_EQ(t.gpu_gpu[0][3].nvlinks, 2);
  EXPECT_EQ(t.gpu_nic[2][1].link, TopologyLink::pix);
}

TEST(NvidiaTopology, SpacesForTabsAndATextAboveDoNotMatter) {
  const NvidiaTopology t = parse_nvidia_topology(
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
    {"GpuAfterNic", "GPU0 NIC0 GPU1\nGPU0 X PIX SYS\n", "the column GPU1 after NIC0", "the GPUs first"},
};
INSTANTIATE_TEST_SUITE_P(Input, BadTopology, ::testing::ValuesIn(kBadMatrices),
                         [](const auto& bad) { return std::string(bad.param.name); });

}  // namespace
}  // namespace orrery
