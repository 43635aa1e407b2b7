// Does SMPI, SimGrid's simulator of MPI programs, take the time that the engine takes? A program of plain MPI messages
// (collectives.c) runs the same algorithms over the same links, routes and max-min sharing; it shares nothing with
// sim/des but the topology. What is checked: which messages a collective sends, what each waits for, folding, and the
// engine's use of SimGrid.
//
// What differs by design:
// - SMPI sends 16 bytes of header with each message. Messages here have 96 KiB and more: 2e-4 of a ring's, and up to
//   4e-4 where the delays of a pipeline's messages add up.
// - The MPI program's rings and chains leave a node from their last device there. The engine sends from the device
//   whose NIC the channel uses (NCCL_CROSS_NIC=0) and lets the hand-over to that device pass free. Both use all NICs
//   alike; where rails meet at an oversubscribed spine, the MPI program gets routes that hand over first (PXN).
// - An MPI rank starts a step when its last one has ended, both ways: it pays the slowest link's latency at each step.
//   An edge of the engine sends on as soon as a message has left. Where a ring's links are alike this is the same.
// - Chunks of a chain or tree that meet on a port delay each other, and delays grow along the way: processes that start
//   50 ns apart lengthen a chain of 31 hops by 8 %. Hence the common start in collectives.c.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "sim/cost/collective_flows.h"
#include "sim/des/engine.h"
#include "tests/smpi/platform_xml.h"

namespace orrery {
namespace {

using Algorithm = CollectiveAlgorithm;
constexpr double kGB = 1e9;
constexpr std::int64_t kMiB = 1 << 20;
constexpr double kTolerance = 1e-3;

// Bare links: no latency, and what flows is what the algorithm sends. The model charges a tree for half of a ring's
// rate (tuning.cc); a share of 2 takes that back.
CollectiveCalibration bare_links() {
  CollectiveCalibration c;
  c.intra.ring_share = c.intra.all_to_all_share = c.intra.send_share = c.intra.host_bridge_share = 1;
  c.intra.protocol_share = {1, 1, 1};
  c.intra.tree_share = {2, 2, 2};
  c.inter.ring_share = c.inter.tree_share = c.inter.all_to_all_share = c.inter.ll_share = 1;
  return c;
}

Cluster nvswitch_nodes(std::int64_t nodes, std::int64_t devices, FabricKind fabric = FabricKind::single_switch) {
  Cluster c;
  c.device.pcie_bytes_per_second = 63 * kGB;
  c.node.devices = devices;
  c.node.intra = IntraFabric::nvswitch;
  c.node.intra_bytes_per_second = 450 * kGB;
  c.node.nics = devices;
  c.node.nic_bytes_per_second = 50 * kGB;
  c.nodes = nodes;
  c.fabric.kind = fabric;
  return c;
}
Cluster oversubscribed(FabricKind fabric) {
  Cluster c = nvswitch_nodes(8, 4, fabric);
  c.fabric.nodes_per_leaf = 2;
  c.fabric.oversubscription = 4;
  return c;
}

struct Groups {
  Mesh mesh;
  MeshGroup group;
};
Groups all_of(const Cluster& cluster) {
  Groups g;
  g.mesh.add(MeshAxis::tp, cluster.devices());
  g.group = g.mesh.group(MeshAxis::tp);
  return g;
}
// As many groups of `size` devices as there are, `apart` from each other.
Groups groups_of(const Cluster& cluster, std::int64_t size, std::int64_t apart) {
  Groups g;
  g.mesh.add(MeshAxis::tp, apart);
  g.mesh.add(MeshAxis::dp_shard, size);
  g.mesh.add(MeshAxis::dp_replicate, cluster.devices() / (size * apart));
  g.group = g.mesh.group(MeshAxis::dp_shard);
  return g;
}

// Divide by every number of members, lanes and chunks below.
const std::vector<std::int64_t> kSizes{12 * kMiB, 192 * kMiB};

class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / fmt::format("orrery_smpi_{}", getpid())) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  void write(const char* name, const std::string& text) const { std::ofstream(path_ / name) << text; }
  std::string read(const char* name) const {
    std::ostringstream text;
    text << std::ifstream(path_ / name).rdbuf();
    return text.str();
  }
  int run(const std::string& command) const {
    return std::system(fmt::format("cd '{}' && {} >out 2>err", path_.string(), command).c_str());
  }

 private:
  std::filesystem::path path_;
};

// Processes for each device: what the engine gives its channels.
std::int64_t lanes_of(Algorithm algorithm, const GroupSpan& span) {
  const std::int64_t channels = span.nodes > 1 || algorithm == Algorithm::tree ? span.ranks_per_node : 1;
  switch (algorithm) {
    case Algorithm::ring:
      return channels;
    case Algorithm::bidirectional_ring:
      return 2 * channels;
    case Algorithm::tree:
      return span.nodes > 1 ? 2 * channels : channels;
    default:
      return 1;
  }
}

// Seconds by size.
std::vector<double> smpi_seconds(const Cluster& cluster, const Groups& groups, OpKind kind, Algorithm algorithm,
                                 const PlatformOptions& platform) {
  const GroupSpan span = span_of(groups.mesh, groups.group, cluster.node.devices);
  const std::int64_t devices = groups.mesh.ranks(), lanes = lanes_of(algorithm, span);
  Folder folder;
  folder.write("platform.xml", platform_xml(Topology(cluster), platform));
  std::string hosts;
  for (std::int64_t lane = 0; lane < lanes; ++lane)
    for (std::int64_t device = 0; device < devices; ++device) hosts += host_of_device(device) + "\n";
  folder.write("hosts", hosts);
  // The network is configure_simgrid()'s (sim/des/simgrid/network.cpp), but for a coarser maxmin/precision: at 1e-12
  // SimGrid 3.32's solver crashes once links have latencies. Every send is a rendezvous; MPI itself and computing take
  // no time; buffers are shared, so that nothing is copied.
  const std::string command = fmt::format(
      "{} -no-privatize -np {} -platform platform.xml -hostfile hosts --log=root.thres:critical"
      " --cfg=network/model:CM02 --cfg=network/TCP-gamma:0 --cfg=network/crosstraffic:0 --cfg=network/loopback-lat:0"
      " --cfg=maxmin/precision:1e-9 --cfg=surf/precision:1e-13 --cfg=smpi/simulate-computation:no"
      " --cfg=smpi/send-is-detached-thresh:0 --cfg=smpi/async-small-thresh:0 --cfg=smpi/wtime:0"
      " --cfg=smpi/os:0:0:0 --cfg=smpi/or:0:0:0 --cfg=smpi/ois:0:0:0 --cfg=smpi/shared-malloc:local"
      " --cfg=contexts/stack-size:256 '{}' {} {} {} {} {} {} {} {} {}",
      ORRERY_SMPIRUN, devices * lanes, ORRERY_SMPI_PROGRAM, name_of(kind), name_of(algorithm), devices, span.ranks,
      span.stride, span.ranks_per_node, lanes, FlowOptions{}.chunks, fmt::join(kSizes, " "));
  EXPECT_EQ(folder.run(command), 0) << command << "\n" << folder.read("err");
  std::istringstream out(folder.read("out"));
  std::vector<double> seconds;
  for (const std::int64_t size : kSizes) {
    std::int64_t bytes = 0;
    double s = 0;
    out >> bytes >> s;
    EXPECT_EQ(bytes, size) << folder.read("out");
    seconds.push_back(s);
  }
  return seconds;
}

struct Times {
  std::int64_t bytes = 0;
  double smpi = 0, exact = 0, steady = 0;
};

// Prints a line for each size: ctest -R Smpi -V shows them.
std::vector<Times> times(const Cluster& cluster, const Groups& groups, OpKind kind, Algorithm algorithm,
                         const PlatformOptions& platform = {}, const CollectiveCalibration& links = bare_links()) {
  const std::vector<double> smpi = smpi_seconds(cluster, groups, kind, algorithm, platform);
  std::vector<Times> all;
  for (std::size_t i = 0; i < kSizes.size(); ++i) {
    Times t{.bytes = kSizes[i], .smpi = smpi[i]};
    for (const Fidelity fidelity : {Fidelity::step_exact, Fidelity::steady_flow}) {
      const CollectiveRun run = run_collective(cluster, links,
                                               {.kind = kind,
                                                .bytes = static_cast<double>(t.bytes),
                                                .mesh = groups.mesh,
                                                .group = groups.group,
                                                .algorithm = algorithm,
                                                .protocol = CollectiveProtocol::simple},
                                               {}, {.fidelity = fidelity, .chunks = FlowOptions{}.chunks});
      EXPECT_EQ(run.algorithm, algorithm);
      (fidelity == Fidelity::step_exact ? t.exact : t.steady) = run.seconds;
    }
    fmt::print("{:14} {:18} {:9} bytes: SMPI {:9.3f} us, step-exact {:+.4f} %, steady-flow {:+.4f} %\n", name_of(kind),
               name_of(algorithm), t.bytes, t.smpi * 1e6, 100 * (t.exact / t.smpi - 1), 100 * (t.steady / t.smpi - 1));
    all.push_back(t);
  }
  return all;
}

class Smpi : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::string(ORRERY_SMPIRUN).empty())
      GTEST_SKIP() << "CMake found no smpicc and smpirun (Debian: libsimgrid-dev), so SMPI was not compared";
  }

  // Both fidelities: nothing is left to pipelining.
  void expect_same(const Cluster& cluster, const Groups& groups, OpKind kind, Algorithm algorithm,
                   const PlatformOptions& platform = {}, const CollectiveCalibration& links = bare_links()) {
    for (const Times& t : times(cluster, groups, kind, algorithm, platform, links)) {
      EXPECT_NEAR(t.exact / t.smpi, 1, kTolerance) << name_of(algorithm) << " " << name_of(kind) << " " << t.bytes;
      EXPECT_NEAR(t.steady / t.smpi, 1, kTolerance) << name_of(algorithm) << " " << name_of(kind) << " " << t.bytes;
    }
  }
  // Trees and chains: steady-flow leaves out that chunks must fill the pipeline.
  void expect_same_pipeline(const Cluster& cluster, const Groups& groups, OpKind kind, Algorithm algorithm,
                            const PlatformOptions& platform = {}) {
    for (const Times& t : times(cluster, groups, kind, algorithm, platform)) {
      EXPECT_NEAR(t.exact / t.smpi, 1, kTolerance) << name_of(algorithm) << " " << name_of(kind) << " " << t.bytes;
      EXPECT_LT(t.steady / t.smpi, 1 + kTolerance) << name_of(algorithm) << " " << name_of(kind) << " " << t.bytes;
    }
  }
};

TEST_F(Smpi, AgreesInANodeBehindAnNvswitch) {
  const Cluster c = nvswitch_nodes(1, 8);
  const Groups all = all_of(c);
  for (const OpKind kind : {OpKind::all_reduce, OpKind::all_gather, OpKind::reduce_scatter}) {
    expect_same(c, all, kind, Algorithm::ring);
    expect_same(c, all, kind, Algorithm::halving_doubling);
  }
  expect_same(c, all, OpKind::all_reduce, Algorithm::bidirectional_ring);
  expect_same(c, all, OpKind::all_to_all, Algorithm::direct);
  expect_same_pipeline(c, all, OpKind::all_reduce, Algorithm::tree);
  expect_same_pipeline(c, all, OpKind::broadcast, Algorithm::ring);
}

TEST_F(Smpi, AgreesOnRailsOfTwoNodes) {
  const Cluster c = nvswitch_nodes(2, 8, FabricKind::rail_fat_tree);
  const Groups all = all_of(c);
  expect_same(c, all, OpKind::all_reduce, Algorithm::ring);
  expect_same(c, all, OpKind::all_reduce, Algorithm::halving_doubling);
  expect_same(c, all, OpKind::all_reduce, Algorithm::hierarchical);
  expect_same(c, all, OpKind::all_to_all, Algorithm::direct, {.scale_up_first = true});
  expect_same(c, all, OpKind::all_to_all, Algorithm::hierarchical);
  expect_same_pipeline(c, all, OpKind::broadcast, Algorithm::ring);
}

TEST_F(Smpi, AgreesOnRailsOfFourNodes) {
  const Cluster c = nvswitch_nodes(4, 4, FabricKind::rail_fat_tree);
  const Groups all = all_of(c);
  for (const OpKind kind : {OpKind::all_reduce, OpKind::all_gather, OpKind::reduce_scatter})
    expect_same(c, all, kind, Algorithm::ring);
  expect_same(c, all, OpKind::all_gather, Algorithm::hierarchical);
  expect_same(c, all, OpKind::all_to_all, Algorithm::direct, {.scale_up_first = true});
  expect_same_pipeline(c, all, OpKind::all_reduce, Algorithm::tree);
  expect_same_pipeline(c, all, OpKind::broadcast, Algorithm::ring);
}

// The second tree is the first one shifted; four of the ranks are beyond a power of two.
TEST_F(Smpi, AgreesOnThreeNodes) {
  const Cluster c = nvswitch_nodes(3, 4, FabricKind::rail_fat_tree);
  const Groups all = all_of(c);
  expect_same(c, all, OpKind::all_reduce, Algorithm::bidirectional_ring);
  expect_same(c, all, OpKind::all_reduce, Algorithm::halving_doubling);
  expect_same_pipeline(c, all, OpKind::all_reduce, Algorithm::tree);
}

// Four to one between the leaves, each of two nodes.
TEST_F(Smpi, AgreesOnAnOversubscribedFatTree) {
  const Cluster c = oversubscribed(FabricKind::fat_tree);
  const Groups all = all_of(c);
  expect_same(c, all, OpKind::all_to_all, Algorithm::direct);
  expect_same(c, all, OpKind::all_to_all, Algorithm::hierarchical);
  expect_same(c, all, OpKind::all_reduce, Algorithm::ring);
  expect_same(c, all, OpKind::all_reduce, Algorithm::halving_doubling);
  expect_same_pipeline(c, all, OpKind::all_reduce, Algorithm::tree);
  expect_same_pipeline(c, all, OpKind::broadcast, Algorithm::ring);
}

TEST_F(Smpi, AgreesOnOversubscribedRails) {
  const Cluster c = oversubscribed(FabricKind::rail_fat_tree);
  const Groups all = all_of(c);
  expect_same(c, all, OpKind::all_to_all, Algorithm::direct, {.scale_up_first = true});
  expect_same(c, all, OpKind::all_reduce, Algorithm::ring, {.scale_up_first = true});
}

TEST_F(Smpi, AgreesOnADragonfly) {
  Cluster c = nvswitch_nodes(8, 4, FabricKind::dragonfly);
  c.fabric.nodes_per_group = 2;
  c.fabric.global_taper = 2;
  const Groups all = all_of(c);
  expect_same(c, all, OpKind::all_to_all, Algorithm::direct);
  expect_same_pipeline(c, all, OpKind::broadcast, Algorithm::ring);
}

TEST_F(Smpi, AgreesOnATorus) {
  Cluster c = nvswitch_nodes(16, 1, FabricKind::torus);
  c.fabric.dimensions = {4, 4};
  const Groups all = all_of(c);
  expect_same(c, all, OpKind::all_to_all, Algorithm::direct);
  expect_same(c, all, OpKind::all_reduce, Algorithm::bidirectional_ring);
  expect_same(c, all, OpKind::all_reduce, Algorithm::halving_doubling);
}

TEST_F(Smpi, AgreesOnLinksOfEachPair) {
  Cluster c = nvswitch_nodes(1, 8);
  c.node.intra = IntraFabric::direct_mesh;
  c.node.intra_bytes_per_second = 448 * kGB;
  c.node.pair_bytes_per_second = 64 * kGB;
  expect_same(c, all_of(c), OpKind::all_to_all, Algorithm::direct);
  expect_same(c, all_of(c), OpKind::all_reduce, Algorithm::halving_doubling);
}

TEST_F(Smpi, AgreesOnAPcieTree) {
  Cluster c = nvswitch_nodes(1, 8);
  c.node.intra = IntraFabric::pcie;
  c.node.intra_bytes_per_second = 0;
  expect_same(c, all_of(c), OpKind::all_to_all, Algorithm::direct);
  // Two interleaved groups share the switches' up-links.
  expect_same(c, groups_of(c, 4, 2), OpKind::all_reduce, Algorithm::ring);
}

TEST_F(Smpi, AgreesWhenGroupsCommunicateAtOnce) {
  const Cluster c = oversubscribed(FabricKind::fat_tree);
  // Data-parallel groups over all nodes, one for each place; groups of two whole nodes; groups within the nodes.
  expect_same(c, groups_of(c, 8, 4), OpKind::all_reduce, Algorithm::ring);
  expect_same(c, groups_of(c, 8, 4), OpKind::all_to_all, Algorithm::direct);
  expect_same_pipeline(c, groups_of(c, 8, 4), OpKind::all_reduce, Algorithm::tree);
  expect_same(c, groups_of(c, 8, 1), OpKind::all_reduce, Algorithm::ring);
  expect_same(c, groups_of(c, 4, 1), OpKind::all_reduce, Algorithm::ring);
}

// A message over the NVSwitch passes two links.
TEST_F(Smpi, AgreesOnTheLatencyOfEachStep) {
  const Cluster c = nvswitch_nodes(1, 8);
  const PlatformOptions platform{.scale_up_first = false, .link_latency_seconds = 3e-6};
  CollectiveCalibration links = bare_links();
  links.intra.step_seconds.fill(2 * platform.link_latency_seconds);
  for (const Algorithm algorithm : {Algorithm::ring, Algorithm::halving_doubling})
    expect_same(c, all_of(c), OpKind::all_reduce, algorithm, platform, links);
  // PCIe and NIC, out and in.
  const Cluster rails = nvswitch_nodes(2, 8, FabricKind::rail_fat_tree);
  links.inter.ring_step_seconds.fill(4 * platform.link_latency_seconds);
  expect_same(rails, all_of(rails), OpKind::all_reduce, Algorithm::hierarchical, platform, links);
}

// With routes that hand over first, the MPI chain also pays for what the engine lets pass free: another edge on the
// scale-up ports.
TEST_F(Smpi, ShowsWhatTheHandOverToTheChannelsNicCosts) {
  const Cluster c = nvswitch_nodes(2, 8, FabricKind::rail_fat_tree);
  for (const Times& t : times(c, all_of(c), OpKind::broadcast, Algorithm::ring, {.scale_up_first = true})) {
    EXPECT_LT(t.exact / t.smpi, 1);
    EXPECT_GT(t.exact / t.smpi, 0.9);
  }
}

}  // namespace
}  // namespace orrery
