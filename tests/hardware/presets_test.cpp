// Are the bundled presets complete, plausible, and what the data sheets say?
#include "sim/hardware/presets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "sim/base/input_file.h"
#include "sim/base/json_reader.h"
#include "sim/hardware/read_cluster.h"

namespace orrery {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::Le;

// A hardware thread of a host, measured: far from the figures of GPUs.
bool is_cpu(const Device& device) { return device.architecture == "CPU"; }

void expect_rate(double value, double least, double most, const std::string& what) {
  EXPECT_TRUE(std::isfinite(value)) << what;
  EXPECT_THAT(value, AllOf(Ge(least), Le(most))) << what;
}

TEST(Presets, FilesAreStrictJson) {  // the catalog reads them without these checks
  int files = 0;
  for (const EmbeddedFile& file : embedded_files("sim/hardware/presets/")) {
    EXPECT_NO_THROW(parse_json(file.text, std::string(file.path)));
    ++files;
  }
  EXPECT_GE(files, 5);
}

TEST(Presets, EveryDeviceHasPlausibleFiguresAndASource) {
  const auto names = device_names();
  EXPECT_GE(names.size(), 50u);
  for (const std::string& name : names) {
    const Device d = find_device(name);
    EXPECT_EQ(d.name, name);
    EXPECT_GT(d.source.size(), 10u) << name;
    EXPECT_FALSE(d.vendor.empty() || d.architecture.empty()) << name;
    ASSERT_FALSE(d.usual_nodes.empty()) << name;
    for (const std::string& node : d.usual_nodes) EXPECT_NO_THROW(find_node(node)) << name;
    if (is_cpu(d)) {
      EXPECT_EQ(d.multiprocessors, 1) << name;
      expect_rate(d.peak(Dtype::fp32), 1e9, 1e12, name);
      expect_rate(d.memory_bytes, 1e8, 1e12, name);
      expect_rate(d.memory_bytes_per_second, 1e9, 1e12, name);
      expect_rate(d.pcie_bytes_per_second, 1e9, 1e11, name);
      continue;
    }
    for (const Dtype dtype : {Dtype::fp32, Dtype::fp16, Dtype::bf16, Dtype::fp8, Dtype::nvfp4})
      expect_rate(d.peak(dtype), 1e11, 2e16, name);
    EXPECT_GE(d.peak(Dtype::fp8), d.peak(Dtype::bf16)) << name;
    EXPECT_GE(d.peak(Dtype::nvfp4), d.peak(Dtype::fp8)) << name;
    const bool blackwell = d.architecture.starts_with("Blackwell");
    EXPECT_EQ(d.peak_flops_per_second[static_cast<std::size_t>(Dtype::nvfp4)] > 0, blackwell) << name;
    expect_rate(d.vector_flops_per_second, 1e12, 1e15, name);
    expect_rate(d.memory_bytes, 8e9, 4e11, name);
    expect_rate(d.memory_bytes_per_second, 1e11, 1e13, name);
    expect_rate(d.l2_bytes, 1e6, 3e8, name);
    expect_rate(d.pcie_bytes_per_second, 1e10, 2e11, name);
    expect_rate(d.tdp_watts, 50, 2000, name);
    expect_rate(static_cast<double>(d.multiprocessors), 20, 400, name);
    EXPECT_EQ(d.scale_up_links == 0, d.scale_up_link_bytes_per_second == 0) << name;
  }
}

TEST(Presets, EveryNodeHasPlausibleFiguresAndASource) {
  const auto names = node_names();
  EXPECT_GE(names.size(), 60u);
  for (const std::string& name : names) {
    Node node = find_node(name);
    EXPECT_EQ(node.name, name);
    EXPECT_GT(node.source.size(), 10u) << name;
    EXPECT_NO_THROW(find_fabric(node.fabric)) << name;
    nlohmann::json json{{"node", name}};
    if (node.device.empty()) json["device"] = "A100-PCIe-80GB";
    const Cluster c = read_cluster(json, {});
    EXPECT_EQ(c.nodes, 1);
    node = c.node;
    if (is_cpu(c.device)) {
      expect_rate(node.intra_bytes_per_second, 1e9, 1e11, name);
      expect_rate(node.nic_bytes_per_second, 1e8, 1e11, name);
      expect_rate(node.host_memory_bytes, 1e9, 4e13, name);
      expect_rate(node.host_memory_bytes_per_second, 1e9, 1e12, name);
      expect_rate(node.host_flops_per_second, 1e10, 1e14, name);
      continue;
    }
    if (node.devices > 1) expect_rate(node.intra_bytes_per_second, 1e10, 2e12, name);
    expect_rate(node.pair_bytes_per_second, node.intra == IntraFabric::direct_mesh ? 1e10 : 0, 1e12, name);
    expect_rate(node.pcie_bytes_per_second, 1e10, 5e11, name);
    if (node.nics > 0) expect_rate(node.nic_bytes_per_second, 1e10, 1.1e11, name);
    expect_rate(node.host_memory_bytes, 6e10, 4e13, name);
    expect_rate(node.host_memory_bytes_per_second, 5e10, 4e13, name);
    expect_rate(node.host_flops_per_second, 1e12, 1e15, name);
    EXPECT_EQ(node.nvme_bytes > 0, node.nvme_read_bytes_per_second > 0) << name;
    EXPECT_EQ(node.nvme_bytes > 0, node.nvme_write_bytes_per_second > 0) << name;
  }
}

TEST(Presets, EveryFabricHasPlausibleFiguresAndASource) {
  for (const std::string& name : fabric_names()) {
    const Fabric f = find_fabric(name);
    EXPECT_EQ(f.name, name);
    EXPECT_GT(f.source.size(), 10u) << name;
    expect_rate(f.latency_seconds, 5e-7, 1e-4, name);
    expect_rate(f.hop_latency_seconds, 5e-8, 1e-5, name);
    expect_rate(f.oversubscription, 1, 10, name);
    EXPECT_EQ(f.kind == FabricKind::dragonfly, f.nodes_per_group > 0) << name;
  }
}

TEST(Presets, EveryClusterLoads) {
  for (const std::string& name : cluster_names()) {
    const Cluster c = find_cluster(name);
    EXPECT_EQ(c.name, name);
    EXPECT_GT(c.source.size(), 10u) << name;
    EXPECT_GT(c.nodes, 1) << name;
    EXPECT_GT(c.inter_node_bytes_per_second(), 1e10) << name;
  }
}

TEST(Presets, ANodesLinksFitItsDevice) {
  for (const std::string& name : node_names()) {
    const Node node = find_node(name);
    if (node.device.empty() || node.intra_bytes_per_second == 0) continue;
    const Device device = find_device(node.device);
    EXPECT_LE(node.intra_bytes_per_second, 1.001 * device.scale_up_bytes_per_second()) << name;
    EXPECT_LT(node.pair_bytes_per_second, node.intra_bytes_per_second) << name;  // one link, or 0: as intra
    if (node.links.empty()) continue;
    std::vector<double> of_devices(static_cast<std::size_t>(node.devices), 0);
    for (const PairLinks& links : node.links)
      for (const auto& pair : links.pairs)
        for (const std::int64_t d : pair) of_devices[static_cast<std::size_t>(d)] += links.bytes_per_second;
    EXPECT_DOUBLE_EQ(*std::max_element(of_devices.begin(), of_devices.end()), node.intra_bytes_per_second) << name;
  }
}

// Vendors' data sheets.
TEST(Presets, AgreeWithDatasheets) {
  const Device a100 = find_device("A100-SXM4-80GB");
  EXPECT_EQ(a100.peak(Dtype::bf16), 312e12);
  EXPECT_EQ(a100.peak(Dtype::fp32), 156e12);  // TF32
  EXPECT_EQ(a100.vector_flops_per_second, 19.5e12);
  EXPECT_EQ(a100.memory_bytes, 80.0 * (1 << 30));
  EXPECT_EQ(a100.memory_bytes_per_second, 2039e9);
  EXPECT_EQ(a100.scale_up_bytes_per_second(), 300e9);
  EXPECT_EQ(a100.multiprocessors, 108);
  const Device h100 = find_device("H100-SXM5-80GB");
  EXPECT_EQ(h100.peak(Dtype::fp8), 1979e12);
  EXPECT_EQ(h100.peak(Dtype::fp16), 989e12);
  EXPECT_EQ(h100.scale_up_bytes_per_second(), 450e9);
  EXPECT_EQ(h100.multiprocessors, 132);
  const Device gcd = find_device("MI250X-GCD");  // half of the module's 383 TFLOP/s, 128 GB, 220 CUs
  EXPECT_EQ(gcd.peak(Dtype::bf16), 191.5e12);
  EXPECT_EQ(gcd.memory_bytes, 64.0 * (1 << 30));
  EXPECT_EQ(gcd.multiprocessors, 110);
  EXPECT_EQ(find_device("V100-SXM2-32GB").peak(Dtype::fp16), 125e12);
  EXPECT_EQ(find_device("B200-SXM-180GB").memory_bytes_per_second, 8e12);
  EXPECT_EQ(find_device("MI300X").memory_bytes, 192.0 * (1 << 30));
  EXPECT_EQ(find_device("RTX-4090").peak(Dtype::fp16), 165.2e12);  // with fp32 accumulation
}

TEST(Presets, NodesAgreeWithTheirMakers) {
  const Node dgx = find_node("dgx-h100");
  EXPECT_EQ(dgx.devices, 8);
  EXPECT_EQ(dgx.nics, 8);
  EXPECT_EQ(dgx.nic_bytes_per_second, 50e9);
  EXPECT_TRUE(dgx.in_switch_reduction);
  EXPECT_EQ(find_node("hgx-h800").intra_bytes_per_second, 200e9);
  EXPECT_EQ(find_node("hgx-a800").intra_bytes_per_second, 200e9);
  EXPECT_EQ(find_node("gb200-nvl72").devices, 72);
  EXPECT_EQ(find_node("frontier").devices, 8);
  EXPECT_EQ(find_node("aws-p5").nics, 32);
  EXPECT_EQ(find_node("aws-p5").nic_bytes_per_second, 12.5e9);
}

TEST(Presets, AreFoundByAliasInAnyLetterCase) {
  EXPECT_EQ(find_device("h100").name, "H100-SXM5-80GB");
  EXPECT_EQ(find_device("A100_80GB").name, "A100-SXM4-80GB");
  EXPECT_EQ(find_device("mi250x-gcd").name, "MI250X-GCD");
  EXPECT_EQ(find_device("GH200").name, "GH200-96GB");
  EXPECT_EQ(find_device("B300-SXM").name, "B300-SXM-270GB");
  EXPECT_EQ(find_node("DGX-H100").name, "dgx-h100");
  EXPECT_EQ(find_node("AWS-p4d.24xlarge").name, "aws-p4d");
  EXPECT_EQ(find_node("Azure-ND96isr_MI300X_v5").name, "mi300x-8");
  EXPECT_EQ(find_cluster("Selene").device.name, "A100-SXM4-80GB");
}

TEST(DevicePeak, FallsBackToTheNextWiderType) {
  Device d;
  d.vector_flops_per_second = 1;
  EXPECT_EQ(d.peak(Dtype::fp8), 1);
  EXPECT_EQ(d.peak(Dtype::int64), 1);
  d.peak_flops_per_second[static_cast<std::size_t>(Dtype::fp32)] = 2;
  EXPECT_EQ(d.peak(Dtype::bf16), 2);
  EXPECT_EQ(d.peak(Dtype::fp16), 2);
  d.peak_flops_per_second[static_cast<std::size_t>(Dtype::fp16)] = 3;
  EXPECT_EQ(d.peak(Dtype::fp8), 3);
  EXPECT_EQ(d.peak(Dtype::bf16), 2);  // fp16 is not wider than bf16: V100 has no bf16 units
  d.peak_flops_per_second[static_cast<std::size_t>(Dtype::bf16)] = 4;
  EXPECT_EQ(d.peak(Dtype::fp8), 4);
  d.peak_flops_per_second[static_cast<std::size_t>(Dtype::fp8)] = 5;
  EXPECT_EQ(d.peak(Dtype::fp8), 5);
  EXPECT_EQ(d.peak(Dtype::nvfp4), 5);
  d.peak_flops_per_second[static_cast<std::size_t>(Dtype::nvfp4)] = 6;
  EXPECT_EQ(d.peak(Dtype::nvfp4), 6);
  EXPECT_EQ(d.peak(Dtype::fp8), 5);
  EXPECT_EQ(d.peak(Dtype::fp16), 3);
}

}  // namespace
}  // namespace orrery
