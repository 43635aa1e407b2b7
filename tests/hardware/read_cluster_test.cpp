// Does a cluster come out as it was written, and does bad input get its sentence?
#include "sim/hardware/read_cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "sim/base/json_reader.h"

namespace orrery {
namespace {

TEST(ReadCluster, FieldsBesideANodeChangeTheDeviceItHolds) {
  const Cluster cluster = read_cluster({{"node", "dgx-h100"}, {"nodes", 2}, {"device", {{"memory_bytes", 1e11}}}}, {});
  EXPECT_EQ(cluster.device.memory_bytes, 1e11);
  EXPECT_EQ(cluster.device.memory_bytes_per_second, find_device("H100-SXM5-80GB").memory_bytes_per_second);
}

using ::testing::HasSubstr;

Cluster read(std::string_view json) { return read_cluster(parse_json(json, "s.json"), {"s.json", "/cluster"}); }

TEST(ReadCluster, ByClusterPreset) {
  const Cluster c = read(R"("selene")");
  EXPECT_EQ(c.name, "selene");
  EXPECT_EQ(c.devices(), 4480);
  EXPECT_EQ(c.node.name, "dgx-a100");
  EXPECT_EQ(c.fabric.kind, FabricKind::rail_fat_tree);
  EXPECT_EQ(c.inter_node_bytes_per_second(), 200e9);
}

TEST(ReadCluster, ByNodePresetIsOneNode) {
  const Cluster c = read(R"("dgx-h100")");
  EXPECT_EQ(c.nodes, 1);
  EXPECT_EQ(c.device.name, "H100-SXM5-80GB");
  EXPECT_EQ(c.fabric.name, "ib-ndr-rail");
}

TEST(ReadCluster, ByNodeAndCount) {
  const Cluster c = read(R"({"node": "dgx-h100", "nodes": 64})");
  EXPECT_EQ(c.devices(), 512);
  EXPECT_EQ(c.name, "64 x dgx-h100");
}

TEST(ReadCluster, ByDeviceTakesItsUsualNode) {
  const Cluster c = read(R"({"device": "a100", "nodes": 2})");
  EXPECT_EQ(c.node.name, "dgx-a100");
  EXPECT_EQ(c.node.devices, 8);
}

TEST(ReadCluster, WrittenOutRatesWin) {
  const Cluster c = read(R"({"device": "A100-SXM4-80GB", "devices_per_node": 4, "nodes": 3,
      "intra_node_bytes_per_second": 2e11, "inter_node_bytes_per_second": 2.5e10})");
  EXPECT_EQ(c.devices(), 12);
  EXPECT_EQ(c.node.intra_bytes_per_second, 2e11);
  EXPECT_DOUBLE_EQ(c.inter_node_bytes_per_second(), 2.5e10);
  EXPECT_EQ(c.node.nics, 8);  // the usual node's
}

TEST(ReadCluster, FewerDevicesKeepTheirRateAndTheNodesNics) {
  const Cluster c = read(R"({"node": "dgx-a100", "devices_per_node": 2})");
  EXPECT_EQ(c.node.devices, 2);
  EXPECT_EQ(c.node.intra_bytes_per_second, 300e9);
  EXPECT_EQ(c.inter_node_bytes_per_second(), 200e9);
}

TEST(ReadCluster, ARackOfHostsShrinksByHosts) {
  const Cluster whole = read(R"("gb200-nvl72")");
  const Cluster two = read(R"({"node": "gb200-nvl72", "devices_per_node": 8})");
  EXPECT_EQ(two.node.nics, 8);
  EXPECT_DOUBLE_EQ(two.node.host_memory_bytes, whole.node.host_memory_bytes * 2 / 18);
}

TEST(ReadCluster, OfSeveralUsualNodesTheOneOfThatSize) {
  EXPECT_EQ(read(R"({"device": "V100-SXM2-32GB", "devices_per_node": 4})").node.pair_bytes_per_second, 50e9);
  EXPECT_EQ(read(R"({"device": "V100-SXM2-32GB", "devices_per_node": 8})").node.pair_bytes_per_second, 25e9);
  EXPECT_EQ(read(R"({"device": "GB200", "devices_per_node": 4})").node.name, "gb200-tray");
}

TEST(ReadCluster, AMeshAtAnotherRateScalesItsPairs) {
  const Cluster c = read(R"({"node": "mi300x-8", "intra_node_bytes_per_second": 2.24e11})");
  EXPECT_DOUBLE_EQ(c.node.pair_bytes_per_second, 32e9);
}

// The slowest and the fastest pair, and the number of pairs.
std::tuple<double, double, std::size_t> links_of(std::string_view json) {
  double slowest = 1e16, fastest = 0;
  std::size_t pairs = 0;
  for (const PairLinks& links : read(json).node.links) {
    slowest = std::min(slowest, links.bytes_per_second);
    fastest = std::max(fastest, links.bytes_per_second);
    pairs += links.pairs.size();
  }
  return {slowest, fastest, pairs};
}

TEST(ReadCluster, LinksByPairStayAsLongAsTheyDescribeTheNode) {
  EXPECT_EQ(links_of(R"("frontier")"), std::tuple(50e9, 200e9, 12));
  EXPECT_EQ(links_of(R"({"node": "lumi-g", "devices_per_node": 4})"), std::tuple(50e9, 200e9, 4));
  EXPECT_EQ(links_of(R"({"node": "frontier", "intra_node_bytes_per_second": 7e11})"), std::tuple(100e9, 400e9, 12));
  EXPECT_EQ(links_of(R"({"node": "frontier", "links": [{"bytes_per_second": 1e9, "pairs": [[0, 1], [1, 2], [2, 3],
      [3, 4], [5, 4], [5, 6], [6, 7]]}]})"),
            std::tuple(1e9, 1e9, 7));
  for (const char* other : {R"({"node": "frontier", "pair_bytes_per_second": 2e11})",
                            R"({"node": {"base": "frontier", "pair_bytes_per_second": 2e11}})",
                            R"({"node": "frontier", "intra_fabric": "nvswitch"})",
                            R"({"node": {"base": "frontier", "devices": 9, "links": []}})", R"({"node": "mi300x-8"})"})
    EXPECT_EQ(std::get<2>(links_of(other)), 0) << other;
}

TEST(ReadCluster, BoxesTakeAnyDeviceAtItsOwnRates) {
  const Cluster pcie = read(R"({"node": "pcie-8", "device": "RTX-4090"})");
  EXPECT_EQ(pcie.node.intra_bytes_per_second, 31.5e9);
  const Cluster pairs = read(R"({"node": "nvlink-pairs-4", "device": "RTX-A6000"})");
  EXPECT_EQ(pairs.node.pair_bytes_per_second, 56.25e9);
  EXPECT_EQ(pairs.node.intra_bytes_per_second, 31.5e9);
}

TEST(ReadCluster, OneDeviceNeedsNoNetwork) {
  const Cluster c = read(R"({"node": "workstation", "device": "RTX-3090"})");
  EXPECT_EQ(c.devices(), 1);
  EXPECT_EQ(c.node.nics, 0);
  EXPECT_EQ(read(R"({"node": "workstation", "device": "RTX-3090", "nodes": 2, "inter_node_bytes_per_second": 1e9})")
                .inter_node_bytes_per_second(),
            1e9);
}

// A node that states the rate of its links joins any devices.
TEST(ReadCluster, DevicesWithoutLinksTakeAStatedRate) {
  for (const char* text : {R"({"node": "dgx-h100", "device": "L40S", "intra_node_bytes_per_second": 1e11})",
                           R"({"node": {"base": "dgx-h100", "device": "L40S", "intra_node_bytes_per_second": 1e11}})"})
    EXPECT_EQ(read(text).node.intra_bytes_per_second, 1e11) << text;
  EXPECT_EQ(read(R"({"node": "dgx-h100", "device": "L40S", "devices_per_node": 1})").device.name, "L40S");
}

TEST(ReadCluster, APresetChanged) {
  const Cluster c = read(R"({"base": "selene", "nodes": 96, "fabric": {"oversubscription": 2}})");
  EXPECT_EQ(c.nodes, 96);
  EXPECT_EQ(c.fabric.oversubscription, 2);
  EXPECT_EQ(c.fabric.nodes_per_leaf, 20);  // the rest stays the preset's
  EXPECT_EQ(read(R"({"base": "selene", "device": "A100-SXM4-40GB"})").device.memory_bytes, 40.0 * (1 << 30));
}

TEST(ReadCluster, InlineDeviceNodeAndFabric) {
  const Cluster c = read(R"({
      "device": {"base": "h100", "name": "H100-fast", "memory_bytes_per_second": 4e12},
      "node": {"base": "dgx-h100", "nics": 4},
      "nodes": 27, "fabric": {"base": "torus", "dimensions": [3, 9]}})");
  EXPECT_EQ(c.device.name, "H100-fast");
  EXPECT_EQ(c.device.memory_bytes_per_second, 4e12);
  EXPECT_EQ(c.device.peak(Dtype::bf16), 989e12);
  EXPECT_EQ(c.inter_node_bytes_per_second(), 200e9);
  EXPECT_EQ(c.fabric.dimensions, (std::vector<std::int64_t>{3, 9}));
}

TEST(ReadCluster, AWholeNewDevice) {
  const Cluster c = read(R"({"device": {"name": "X1", "bf16_flops_per_second": 1e15, "vector_flops_per_second": 5e13,
      "memory_bytes": 1e11, "memory_bytes_per_second": 5e12, "multiprocessors": 100, "pcie_bytes_per_second": 6e10},
      "devices_per_node": 4, "intra_fabric": "nvswitch", "intra_node_bytes_per_second": 5e11})");
  EXPECT_EQ(c.devices(), 4);
  EXPECT_EQ(c.node.intra, IntraFabric::nvswitch);
  EXPECT_EQ(c.node.pcie_bytes_per_second, 6e10);
  EXPECT_EQ(c.device.peak(Dtype::fp8), 1e15);
}

TEST(ReadCluster, ATorusIsAsCubicAsItsNodesAllow) {
  EXPECT_EQ(read(R"({"node": "dgx-a100", "nodes": 64, "fabric": "torus"})").fabric.dimensions,
            (std::vector<std::int64_t>{4, 4, 4}));
  EXPECT_EQ(read(R"({"node": "dgx-a100", "nodes": 12, "fabric": "torus"})").fabric.dimensions,
            (std::vector<std::int64_t>{2, 2, 3}));
  EXPECT_EQ(read(R"({"node": "dgx-a100", "nodes": 7, "fabric": "torus"})").fabric.dimensions,
            (std::vector<std::int64_t>{1, 1, 7}));
}

TEST(ReadCluster, ADragonflyFillsAsManyGroupsAsItNeeds) {
  EXPECT_EQ(read(R"({"node": "frontier", "nodes": 9408})").fabric.groups, 74);
  EXPECT_EQ(read(R"({"node": "frontier", "nodes": 64})").fabric.groups, 1);
  EXPECT_EQ(read(R"({"base": "frontier-full", "nodes": 20000})").fabric.groups, 157);
  EXPECT_EQ(read(R"({"node": "frontier", "nodes": 64, "fabric": {"nodes_per_group": 16}})").fabric.groups, 4);
}

TEST(ReadCluster, WhatIsWrittenReadsBackTheSame) {
  std::vector<std::string> sources{
      R"({"node": "pcie-8", "device": "L40S", "nodes": 2})", R"({"node": "dgx-a100", "nodes": 12, "fabric": "torus"})",
      R"({"node": "frontier", "nodes": 300})", R"({"device": "V100", "devices_per_node": 2})",
      R"({"node": "mi300x-8", "intra_node_bytes_per_second": 1e11})"};
  for (const std::string& name : cluster_names()) sources.push_back('"' + name + '"');
  for (const std::string& source : sources) {
    const nlohmann::json once = to_json(read(source));
    EXPECT_EQ(to_json(read_cluster(once, {})), once) << source;
  }
}

struct BadValue {
  const char* name;
  const char* json;
  const char* pointer;
  const char* found;
  const char* expected;
  const char* nearest = "";
};
void PrintTo(const BadValue& bad, std::ostream* out) { *out << bad.name; }

class BadCluster : public ::testing::TestWithParam<BadValue> {};

TEST_P(BadCluster, GetsItsSentence) {
  const BadValue& bad = GetParam();
  try {
    read(bad.json);
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_EQ(error.where().file, "s.json");
    EXPECT_EQ(error.where().pointer, std::string("/cluster") + bad.pointer);
    EXPECT_THAT(error.found(), HasSubstr(bad.found));
    EXPECT_THAT(error.expected(), HasSubstr(bad.expected));
    EXPECT_EQ(error.nearest(), bad.nearest);
  }
}

constexpr BadValue kBadValues[]{
    {"UnknownName", R"("dgx-h10")", "", "\"dgx-h10\"", "the name of a cluster or node preset", "dgx-h100"},
    {"UnknownCluster", R"("seleen")", "", "\"seleen\"", "the name of a cluster or node preset", "selene"},
    {"NotAnObject", "3", "", "3", "the name of a cluster or node preset, or an object"},
    {"Array", "[]", "", "an empty array", "or an object"},
    {"Empty", "{}", "/node", "nothing", "a node preset"},
    {"UnknownDevice", R"({"device": "A100-SXM4-80G"})", "/device", "\"A100-SXM4-80G\"", "the name of a device preset",
     "A100-SXM4-80GB"},
    {"DeviceOfAnotherType", R"({"device": 100})", "/device", "100", "the name of a device preset, or an object"},
    {"UnknownNode", R"({"node": "dgx-a10"})", "/node", "\"dgx-a10\"", "the name of a node preset", "dgx-a100"},
    {"UnknownFabric", R"({"node": "dgx-a100", "fabric": "ib-hdr-rails"})", "/fabric", "\"ib-hdr-rails\"",
     "the name of a fabric preset", "ib-hdr-rail"},
    {"UnknownBase", R"({"base": "selena"})", "/base", "\"selena\"", "the name of a cluster preset", "selene"},
    {"BaseOfAnotherType", R"({"base": {}})", "/base", "an empty object", "the name of a cluster preset"},
    {"NoNodes", R"({"node": "dgx-a100", "nodes": 0})", "/nodes", "0", "an integer from 1 to"},
    {"NegativeNodes", R"({"node": "dgx-a100", "nodes": -4})", "/nodes", "-4", "an integer from 1 to"},
    {"NodesBeyondCounting", R"({"node": "dgx-a100", "nodes": 9000000000000000000})", "/nodes", "9000000000000000000",
     "an integer from 1 to 1073741824"},
    {"NodesNotWhole", R"({"node": "dgx-a100", "nodes": 1.5})", "/nodes", "1.5", "an integer from 1 to"},
    {"NodesAsText", R"({"node": "dgx-a100", "nodes": "64"})", "/nodes", "\"64\"", "an integer from 1 to"},
    {"NoDevices", R"({"node": "dgx-a100", "devices_per_node": 0})", "/devices_per_node", "0", "an integer from 1 to"},
    {"NegativeBandwidth", R"({"node": "dgx-a100", "intra_node_bytes_per_second": -1})", "/intra_node_bytes_per_second",
     "-1", "0 or a number from 1000 to 1e+16"},
    {"BandwidthInTheWrongUnit", R"({"node": "dgx-a100", "intra_node_bytes_per_second": 600})",
     "/intra_node_bytes_per_second", "600", "0 or a number from 1000 to 1e+16"},
    {"ReductionWithoutSwitch", R"({"node": "dgx-h100", "intra_fabric": "pcie", "in_switch_reduction": true})",
     "/in_switch_reduction", "true", "false: pcie has no switch that can reduce"},
    {"RateOfNothing", R"({"device": {"base": "h100", "bf16_flops_per_second": 1e-300}})",
     "/device/bf16_flops_per_second", "1e-300", "0 or a number from 1000000 to 1e+20"},
    {"NoInterBandwidth", R"({"node": "dgx-a100", "inter_node_bytes_per_second": 0})", "/inter_node_bytes_per_second",
     "0", "a number from 1000 to 1e+16"},
    {"BandwidthAsText", R"({"node": "dgx-a100", "inter_node_bytes_per_second": "200 Gb/s"})",
     "/inter_node_bytes_per_second", "\"200 Gb/s\"", "a number from 1000 to 1e+16"},
    {"UnknownKey", R"({"node": "dgx-a100", "node_count": 4})", "/node_count", "the unknown key \"node_count\"",
     "one of"},
    {"MistypedKey", R"({"node": "dgx-a100", "device_per_node": 4})", "/device_per_node", "the unknown key",
     "a known key", "devices_per_node"},
    {"BothNicRateAndTotal", R"({"node": "dgx-a100", "nic_bytes_per_second": 1e9, "inter_node_bytes_per_second": 1e9})",
     "/nic_bytes_per_second", "1000000000.0", "either this or inter_node_bytes_per_second"},
    {"NicsZeroWithTotal", R"({"node": "dgx-a100", "nics": 0, "inter_node_bytes_per_second": 1e9})", "/nics", "0",
     "at least 1"},
    {"NodesWithoutNetwork", R"({"node": "workstation", "device": "L4", "nodes": 2})", "/inter_node_bytes_per_second",
     "nothing", "a rate (5e10 is 400 Gbit/s): node workstation has no network"},
    {"BoxWithoutDevice", R"({"node": "pcie-8"})", "/device", "nothing", "a device: node pcie-8 accepts any"},
    {"LinksAsNumber", R"({"node": "mi210-4", "links": 3})", "/links", "3", "an array of rates with the pairs"},
    {"LinksOnASwitch", R"({"node": "dgx-a100", "links": [{"bytes_per_second": 1e9, "pairs": [[0, 1]]}]})", "/links",
     "an array", "none: devices joined by intra_fabric nvswitch"},
    {"LinksOfTooManyDevices", R"({"node": {"base": "mi210-4", "devices": 17, "links": []}})", "/node/links",
     "links by pair of 17 devices", "at most 16"},
    {"LinksWithoutRate", R"({"node": "mi210-4", "links": [{"pairs": [[0, 1]]}]})", "/links/0/bytes_per_second",
     "nothing", "the rate of the pairs"},
    {"LinksWithoutPairs", R"({"node": "mi210-4", "links": [{"bytes_per_second": 1e9}]})", "/links/0/pairs", "nothing",
     "the pairs of devices"},
    {"LinkOfThreeDevices", R"({"node": "mi210-4", "links": [{"bytes_per_second": 1e9, "pairs": [[0, 1, 2]]}]})",
     "/links/0/pairs/0", "an array of 3", "two devices, such as [0, 1]"},
    {"LinkToNoDevice", R"({"node": "mi210-4", "links": [{"bytes_per_second": 1e9, "pairs": [[0, 1], [3, 4]]}]})",
     "/links/0/pairs/1", "[3,4]", "devices of the node, from 0 to 3"},
    {"LinkToItself", R"({"node": "mi210-4", "links": [{"bytes_per_second": 1e9, "pairs": [[2, 2]]}]})",
     "/links/0/pairs/0", "[2,2]", "two different devices"},
    {"LinkTwice", R"({"node": "mi210-4", "links": [{"bytes_per_second": 1e9, "pairs": [[0, 1]]},
      {"bytes_per_second": 2e9, "pairs": [[1, 0]]}]})",
     "/links/1/pairs/0", "[1,0]", "a pair that is not listed before"},
    {"LinksThatJoinNotAll", R"({"node": "mi210-4", "links": [{"bytes_per_second": 1e9, "pairs": [[0, 1], [2, 3]]}]})",
     "/links", "an array", "none lead from device 0 to device 2"},
    {"LinksOfFewerDevices", R"({"node": {"base": "frontier", "devices": 9}})", "/node/links", "nothing",
     "links of all 9 devices, or [] if all pairs are alike"},
    {"LinksOfFewerDevicesPerNode", R"({"node": "frontier", "devices_per_node": 12})", "/links", "nothing",
     "do not lead from device 0 to device 8"},
    {"PairsWithoutNvlink", R"({"node": "nvlink-pairs-4", "device": "L40S"})", "/pair_bytes_per_second", "nothing",
     "L40S has no scale-up links"},
    {"DeviceWithoutLinksOnASwitch", R"({"node": "dgx-h100", "device": "L40S"})", "/device", "\"L40S\"",
     "L40S has none, its own node is l40s-8"},
    {"DeviceWithoutLinksInAMesh", R"({"node": {"base": "dgx-1v", "device": "P100-PCIe-16GB"}})", "/node",
     "\"P100-PCIe-16GB\"", "its own node is pcie-8"},
    {"DeviceWithoutLinksInACluster", R"({"base": "eos", "device": "RTX-4090"})", "/device", "\"RTX-4090\"",
     "its own node is rtx-4090-8"},
    {"UnknownIntraFabric", R"({"node": "dgx-a100", "intra_fabric": "nvswich"})", "/intra_fabric", "\"nvswich\"",
     "one of \"nvswitch\"", "nvswitch"},
    {"UnknownKeyOfTheNode", R"({"node": {"base": "dgx-a100", "nic": 4}})", "/node/nic", "the unknown key \"nic\"",
     "a known key", "nics"},
    {"UnknownBaseOfTheNode", R"({"node": {"base": "dgx"}})", "/node/base", "\"dgx\"", "the name of a node preset",
     "dgx1"},
    {"UnknownDeviceOfTheNode", R"({"node": {"base": "dgx-a100", "device": "B2000"}})", "/node/device", "\"B2000\"",
     "the name of a device preset", "b200"},
    {"DeviceWithoutMemory", R"({"device": {"name": "X1"}})", "/device/memory_bytes", "nothing", "the device's memory"},
    {"DeviceWithoutName", R"({"device": {}})", "/device/name", "nothing", "the device's name"},
    {"DeviceMemoryNegative", R"({"device": {"base": "h100", "memory_bytes": -1}})", "/device/memory_bytes", "-1",
     "a number from 1000 to 1e+18"},
    {"UsualNodeUnknown", R"({"device": {"base": "h100", "usual_nodes": ["dgx-h1000"]}})", "/device/usual_nodes/0",
     "\"dgx-h1000\"", "the name of a node preset", "dgx-h100"},
    {"UndersubscribedFabric", R"({"node": "dgx-a100", "fabric": {"oversubscription": 0.5}})",
     "/fabric/oversubscription", "0.5", "a number from 1 to 1000"},
    {"TorusOfOtherSize", R"({"node": "dgx-a100", "nodes": 8, "fabric": {"kind": "torus", "dimensions": [2, 3]}})",
     "/fabric/dimensions", "an array of 2", "whose product is the 8 nodes"},
    {"TorusDimensionZero", R"({"node": "dgx-a100", "nodes": 8, "fabric": {"kind": "torus", "dimensions": [8, 0]}})",
     "/fabric/dimensions/1", "0", "an integer from 1 to 1048576"},
    {"TorusOverflow",
     R"({"node": "dgx-a100", "nodes": 8, "fabric": {"kind": "torus", "dimensions": [1048576, 1048576]}})",
     "/fabric/dimensions", "an array of 2", "whose product is the 8 nodes"},
    {"DragonflyWithoutGroups", R"({"node": "dgx-a100", "nodes": 8, "fabric": {"kind": "dragonfly"}})",
     "/fabric/nodes_per_group", "nothing", "the nodes of a dragonfly group"},
    {"DragonflyTooSmall",
     R"({"node": "dgx-a100", "nodes": 8, "fabric": {"kind": "dragonfly", "groups": 1, "nodes_per_group": 4}})",
     "/fabric/groups", "1", "at least 2 groups of 4 for 8 nodes"},
    {"TopologyFileMissing", R"({"device": "h100", "topology_file": "/nonexistent/topo.txt"})", "/topology_file",
     "/nonexistent/topo.txt", "a readable file"},
    {"TopologyFileIsAFolder", R"({"device": "h100", "topology_file": "/"})", "/topology_file", "\"/\"",
     "a readable file"},
    {"TopologyFileOfAnotherType", R"({"device": "h100", "topology_file": 3})", "/topology_file", "3",
     "the path of a file"},
};
INSTANTIATE_TEST_SUITE_P(Input, BadCluster, ::testing::ValuesIn(kBadValues),
                         [](const auto& bad) { return std::string(bad.param.name); });

}  // namespace
}  // namespace orrery
