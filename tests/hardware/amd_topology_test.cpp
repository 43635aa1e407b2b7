// Do the tables of `rocm-smi --showtopo` and `amd-smi topology` give the node they were taken on?
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "sim/hardware/node_topology.h"
#include "sim/hardware/presets.h"
#include "sim/hardware/read_cluster.h"

namespace orrery {
namespace {

using ::testing::HasSubstr;

Cluster of_amd_topology(const std::string& device, const std::string& file, nlohmann::json json = {}) {
  json["device"] = device;
  json["topology_file"] = ORRERY_SOURCE_DIR "/tests/hardware/data/" + file;
  return read_cluster(json, {"s.json", "/cluster"});
}

// What rocm-smi prints where GPUs a and b meet by `type(a, b)`.
std::string tables(int gpus, const std::function<std::string(int, int)>& type, const char* hops = "1") {
  std::string text;
  for (const bool of_hops : {true, false}) {
    text += of_hops ? "==== Hops between two GPUs ====\n" : "==== Link Type between two GPUs ====\n";
    for (int b = 0; b < gpus; ++b) text += fmt::format(" GPU{}", b);
    for (int a = 0; a < gpus; ++a) {
      text += fmt::format("\nGPU{}", a);
      for (int b = 0; b < gpus; ++b) text += a == b ? " 0" : of_hops ? fmt::format(" {}", hops) : " " + type(a, b);
    }
    text += "\n\n";
  }
  return text;
}

TEST(AmdTopology, Mi300x) {
  const Cluster c = of_amd_topology("MI300X", "rocm_mi300x.txt", {{"nodes", 2}}), preset = read_cluster("mi300x-8", {});
  EXPECT_EQ(c.devices(), 16);
  EXPECT_EQ(c.node.intra, IntraFabric::direct_mesh);
  EXPECT_EQ(c.node.intra_bytes_per_second, preset.node.intra_bytes_per_second);
  EXPECT_EQ(c.node.pair_bytes_per_second, preset.node.pair_bytes_per_second);
  EXPECT_EQ(c.node.nics, preset.node.nics) << "no NIC is shown";
  EXPECT_EQ(c.node.devices_per_pcie_switch, preset.node.devices_per_pcie_switch);
}

TEST(AmdTopology, OverPcie) {  // pairs of one NUMA node
  const Cluster c = of_amd_topology("MI100-32GB", "rocm_pcie.txt");
  EXPECT_EQ(c.node.devices, 4);
  EXPECT_EQ(c.node.intra, IntraFabric::pcie);
  EXPECT_EQ(c.node.intra_bytes_per_second, c.device.pcie_bytes_per_second);
  EXPECT_EQ(c.node.devices_per_pcie_switch, 2);
  Node node = find_node("mi100-4");
  apply(parse_amd_topology(tables(
                               4, [](int, int) { return "PCIE"; }, "3"),
                           "t"),
        c.device, {}, node);
  EXPECT_EQ(node.devices_per_pcie_switch, 1) << "no switch joins NUMA nodes";
}

TEST(AmdTopology, TheTablesOfAmdSmi) {
  const Cluster c = of_amd_topology("MI210-64GB", "amd_smi_xgmi_of_4.txt");
  EXPECT_EQ(c.node.devices, 4);
  EXPECT_EQ(c.node.intra, IntraFabric::direct_mesh);
  EXPECT_EQ(c.node.pair_bytes_per_second, 50e9);
}

TEST(AmdTopology, BridgedPairs) {
  Node node = find_node("mi210-4");
  apply(parse_amd_topology(tables(
                               4, [](int a, int b) { return a / 2 == b / 2 ? "XGMI" : "PCIE"; }, "2"),
                           "t"),
        find_device("MI210-64GB"), {}, node);
  EXPECT_EQ(node.intra, IntraFabric::nvlink_pairs);
  EXPECT_EQ(node.pair_bytes_per_second, 150e9);
}

TEST(AmdTopology, SaysWhatIsWrong) {
  struct Wrong {
    std::string text;
    const char* device;
    const char* sentence;
  };
  const auto xgmi = [](int, int) { return "XGMI"; };
  for (const Wrong& wrong : {
           Wrong{tables(8, [](int a, int b) { return a / 4 == b / 4 ? "XGMI" : "PCIE"; }), "MI210-64GB",
                 "found GPUs that xGMI joins in 2 groups, the largest of 4"},
           Wrong{tables(4, xgmi), "H100-SXM5-80GB", "found the output of rocm-smi, expected the topology of a node of H100"},
           Wrong{tables(2, [](int, int) { return "HCCS"; }), "MI300X", "\"HCCS\" between GPU0 and GPU1"},
           Wrong{tables(
                     2, [](int, int) { return "PCIE"; }, "x"),
                 "MI100-32GB", "\"x\" hops between GPU0 and GPU1"},
           Wrong{"==== Hops between two GPUs ====\n GPU0\nGPU0 0\n", "MI300X", "no table of link types"},
           Wrong{"=== Link Type between two GPUs ===\n GPU0 GPU1\nGPU0 0 XGMI\n", "MI300X", "1 rows of the table"},
           Wrong{"=== Link Type between two GPUs ===\n GPU0 GPU1\nGPU1 0 XGMI\n", "MI300X", "\"GPU1\" at the start"},
           Wrong{"=== Link Type between two GPUs ===\n GPU0 GPU1\nGPU0 0\n", "MI300X", "1 entries in the row of GPU0"},
           Wrong{"=== Link Type between two GPUs ===\n GPU0 GPU1\nGPU0 0 XGMI\nGPU1 PCIE 0\n", "MI300X",
                 "different entries from"},
           Wrong{tables(2, xgmi) + tables(2, xgmi), "MI300X", "again in line"},
       }) {
    try {
      Node node = find_node("mi210-4");
      apply(parse_amd_topology(wrong.text, "t"), find_device(wrong.device), {}, node);
      ADD_FAILURE() << wrong.sentence;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr(wrong.sentence));
    }
  }
  EXPECT_FALSE(is_amd_topology("GPU0 GPU1\nGPU0 X NV4\nGPU1 NV4 X\n"));
}

}  // namespace
}  // namespace orrery
