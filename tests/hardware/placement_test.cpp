// Is a placement read as it is written, and does every wrong one get its sentence?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "sim/hardware/read_cluster.h"
#include "sim/hardware/read_placement.h"

namespace orrery {
namespace {

using Json = nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Json cluster_json(const Json& placement, int nodes = 8) {
  return {{"node", "dgx-h100"},
          {"nodes", nodes},
          {"fabric", {{"base", "ib-ndr-rail"}, {"nodes_per_leaf", 4}}},
          {"placement", placement}};
}
Cluster with(const Json& placement, int nodes = 8) { return read_cluster(cluster_json(placement, nodes), {}); }

std::vector<std::int64_t> nodes_of(std::string_view text, std::optional<std::int64_t> first = {},
                                   std::int64_t devices = 8) {
  return read_node_list(text, {.most = 10000, .first = first, .devices_per_node = devices},
                        {"", "/cluster/placement/nodes"});
}

TEST(NodeList, ReadsWhatSchedulersPrint) {
  EXPECT_THAT(nodes_of("node[001-004,010]"), ElementsAre(1, 2, 3, 4, 10));
  EXPECT_THAT(nodes_of("node[009-011],gpu-a07,rack2n[3]"), ElementsAre(9, 10, 11, 7, 3));
  EXPECT_THAT(nodes_of("3-6,12"), ElementsAre(3, 4, 5, 6, 12));
  EXPECT_THAT(nodes_of("12,3"), ElementsAre(12, 3));
  EXPECT_THAT(nodes_of("dgx0"), ElementsAre(0));
  EXPECT_THAT(nodes_of("SLURM_JOB_NODELIST=cn[3-4]"), ElementsAre(3, 4));
  EXPECT_THAT(nodes_of("n[0-8:4,9],n[20-24/2]"), ElementsAre(0, 4, 8, 9, 20, 22, 24));
  EXPECT_THAT(nodes_of("node[1-2]x"), ElementsAre(1, 2));
  EXPECT_THAT(nodes_of("node1[0-2],node[1-2]05,n[1-2][08-09]"), ElementsAre(10, 11, 12, 105, 205, 108, 109, 208, 209));
  EXPECT_THAT(nodes_of("cn[3-5]-ib0"), ElementsAre(3, 4, 5)) << "the last number is the same in all";
}

struct Form {
  const char* of;
  const char* text;
};

TEST(NodeList, ReadsEveryFormThatLaunchersWrite) {
  for (const Form& form : {
           Form{"spaces", "node2 node3 node5"},
           Form{"commas and spaces", "node2, node3,\n node5"},
           Form{"lines", "node2\r\nnode3\nnode5\n"},
           Form{"semicolons", "node2;node3;node5"},
           Form{"domains", "node2.cluster.local,node3.cluster.local.,node5.cluster.local"},
           Form{"bracket and domain", "node[2-3,5].dc1.example.com"},
           Form{"DeepSpeed", "# three nodes\nnode2 slots=8\nnode3 slots=8  # slow\n\nnode5 slots=8\n"},
           Form{"Open MPI", "node2 slots=8 max_slots=16\nnode3 slots = 8 max-slots=8\nnode5"},
           Form{"MPICH", "node2:8\nnode3:8 binding=core\nnode5:8"},
           Form{"mpirun --host", "node2:8,node3:8,node5:8"},
           Form{"PBS_NODEFILE", "node2\nnode2\nnode3\nnode3\nnode5\nnode5\n"},
           Form{"PBS exec_host", "node2/0*8+node3/0*8+node5/1*8"},
           Form{"PBS exec_vnode", "(node2:ncpus=64:ngpus=8:mem=8gb)+(node3:ncpus=64:ngpus=8)+(node5:ncpus=64)"},
           Form{"PBS virtual nodes",
                "(node2[0]:ncpus=4:ngpus=4+node2[1]:ncpus=4:ngpus=4)+(node3[0]:ncpus=4)+(node5[1]:ncpus=1)"},
           Form{"Torque", "node2/0-7+node3/0,2-3+node5/0+node5/1"},
           Form{"Torque -l nodes", "nodes=node2:ppn=8+node3:ppn=8+node5:ppn=8"},
           Form{"LSB_HOSTS", "node2 node2 node3 node3 node5 node5"},
           Form{"LSB_MCPU_HOSTS", "node2 42 node3 42 node5 42"},
           Form{"LSF EXEC_HOST", "8*node2:8*node3:8*node5"},
           Form{"PE_HOSTFILE",
                "node2 8 all.q@node2 UNDEFINED\nnode3 8 all.q@node3 <NULL>\nnode5 8 all.q@node5 UNDEFINED"},
           Form{"arbitrary", "node2*8\nnode3*8\nnode5*8"},
           Form{"Kubernetes",
                "job-worker-2.job.ns.svc slots=8\njob-worker-3.job.ns.svc slots=8\njob-worker-5.job.ns.svc"},
           Form{"numbers", "2 3 5"},
       })
    EXPECT_THAT(nodes_of(form.text), ElementsAre(2, 3, 5)) << form.of;
}

TEST(NodeList, NumbersOfOneNameCountLikeDigits) {
  EXPECT_THAT(nodes_of("rack[1-2]-node[01-03]", 1), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(nodes_of("c[1-2]r[1-3]n[1-4]", 1).size(), 24);
  EXPECT_THAT(nodes_of("r0n0,r1n3,r0n1,r0n3", 0), ElementsAre(0, 7, 1, 3));
  EXPECT_THAT(nodes_of("r[0-1]n[0-1]"), ElementsAre(0, 1, 2, 3)) << "they count from 0";
  EXPECT_THAT(nodes_of("row7r[1-2]-3n[1-2]", 1), ElementsAre(1, 2, 3, 4))
      << "numbers that are all the same do not count";
  EXPECT_THAT(nodes_of("rack1-1 rack1-2 rack2-1", 1), ElementsAre(1, 2, 3)) << "no ranges: one would run from 1 to 1";
  EXPECT_THAT(nodes_of("r1n1,r2n17,r2n18"), ElementsAre(1, 17, 18)) << "the last numbers say it all";
}

TEST(NodeList, RefusesWhatIsNone) {
  for (const char* text : {"",
                           "node",
                           "node[",
                           "node[]",
                           "node[1-]",
                           "node[4-2]",
                           "node[1,]",
                           "1-",
                           "5-3",
                           "a1,",
                           "a1,\n",
                           ",1",
                           "a1,,a2",
                           "node]1[",
                           "node[a-b]",
                           "1-2-3",
                           "node[-1]",
                           "node[99999]",
                           "node1 and",
                           "n1 8 n2",
                           "n1 8 9",
                           "8x4",
                           "8(x2)",
                           "node{1..4}",
                           "node[1..4]",
                           "node1!node2",
                           "node1:ssh",
                           "node1/x",
                           "(n1:ncpus=8",
                           "1:ncpus=4",
                           "cn001..cn003",
                           "cn001 - cn003",
                           "cn001 to cn4",
                           "n1@w-2:0,1",
                           "n[1-2]:8:",
                           "user@node1",
                           "rank 0=n1 slot=0",
                           "../hostfile1",
                           "n[0-8:0]",
                           "n[3:2]",
                           "node1;;node2",
                           "slots=8"})
    EXPECT_THROW(nodes_of(text), InputError) << text;
}

// Fast: nothing of their size is laid out.
TEST(NodeList, RefusesWhatIsTooLong) {
  for (const char* text :
       {"node[1-1000000000000]", "node[1-999999999999999999999999]", "n[1-9999]n[1-9999]n[1-9999]",
        "n[1-9999],m[1-9999]", "node[0-1000000000000:500000000000]", "node123456789012345", "a[0-1]b[0-99999]"})
    EXPECT_THROW(nodes_of(text, 0), InputError) << text;
}

TEST(NodeList, SaysWhatIsWrong) {
  struct Wrong {
    const char* text;
    const char* sentence;
  };
  for (const Wrong& wrong : {
           Wrong{"dgx[001-256],hgx[001-256]", "which differ only in their prefix"},
           Wrong{"a[3-5],b4", "which differ only in their prefix"},
           Wrong{"7,node7", "which differ only in their prefix"},
           Wrong{"n1.east.example.com n1.west.example.com", "which differ only in their prefix"},
           Wrong{"cn001-cn004", R"("cn[001-004]" for a range, "cn001-cn[004]" for one name)"},
           Wrong{"cn001.local-cn004.local", "a name or a range"},
           Wrong{"cn001-cn004.local", R"("cn[001-004]" for a range)"},
           Wrong{"ec2-54-1-2-3.compute-1.amazonaws.com", "an address"},
           Wrong{"8", "either a number of nodes or the number of one"},
           Wrong{"node1-4", R"("node[1-4]" for a range, "node1-[4]" for one name)"},
           Wrong{"node1-4,node7-9", "a name or a range"},
           Wrong{"10.0.0.1,10.0.0.2", "an address"},
           Wrong{"10.0.0.[1-4]", "an address"},
           Wrong{"fe80::1", "an address"},
           Wrong{"[fe80::1] slots=8", "an address"},
           Wrong{"ip-10-0-3-17.ec2.internal", "an address"},
           Wrong{"login,node2", "a name without a number"},
           Wrong{"r[1-2]n[1-2]", "\"first\" as well"},
           Wrong{"node1 slots=8\nnode2 slots=4", "found 4 slots on node2, expected 8, the devices of a node"},
           Wrong{"node1:4,node2:4", "4 slots on node1"},
           Wrong{"(node1:ncpus=64:ngpus=4)", "4 slots on node1"},
           // LSF lists the launch host first.
           Wrong{"login1 1 node2 8 node3 8",
                 "found 1 slot on login1 and 8 on node2, expected equally many on every host: login1 differs; leave it "
                 "out if it is the launch host"},
           Wrong{"batch5 1 h22n07 42 h22n08 42", "batch5 differs"},
           Wrong{"1*batch5:42*h22n07:42*h22n08", "batch5 differs"},
           Wrong{"LSB_HOSTS=batch5 h22n07 h22n07 h22n08 h22n08", "batch5 differs"},
           Wrong{"batch5 4 h22n07 42 h22n08 42", "batch5 differs; leave out the launch host"},
           Wrong{"node1 8 node2 8 node3 4",
                 "found 8 slots on node1 and 4 on node3, expected equally many on every host: node3 differs"},
           Wrong{"node1 slots=0\nnode2 slots=8", "found 0 slots on node1, expected hosts with slots"},
           Wrong{"node1:0,node2:8", "found 0 slots on node1"},
           Wrong{"(node1:ncpus=8:ngpus=0)+(node2:ncpus=8:ngpus=8)", "found 0 slots on node1"},
           Wrong{"node1 0 node2 8", "found 0 slots on node1"},
           Wrong{"node1,node2,", "found \"node1,node2,\", which ends in a comma"},
           Wrong{"node[1,2,]", "which ends in a comma"},
           Wrong{"hostfile.txt", "found \"hostfile.txt\", a file's path, expected the lines of that file"},
           Wrong{"nodes2.txt", "a file's path"},
           Wrong{"hostfile", "a file's path"},
           Wrong{"PBS_NODEFILE=/var/spool/pbs/aux/12.server", "a file's path"},
           Wrong{"jobs/hosts", "a file's path"},
       }) {
    try {
      nodes_of(wrong.text);
      ADD_FAILURE() << wrong.text;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr(wrong.sentence)) << wrong.text;
    }
  }
  EXPECT_EQ(nodes_of("dgx[1-4],hgx[5-8]").size(), 8);
}

TEST(ReadPlacement, NodesInTheirOrder) {
  EXPECT_FALSE(with(Json::object()).is_scattered());
  EXPECT_FALSE(with({{"nodes", "contiguous"}}).is_scattered());
  EXPECT_EQ(with({{"nodes", "contiguous"}, {"of", 64}}).fabric_nodes(), 64);
  EXPECT_THAT(with({{"fill", 3}}).placement.nodes, ElementsAre(0, 1, 2, 4, 5, 6, 8, 9));
  EXPECT_EQ(with({{"fill", 3}}).fabric_nodes(), 10);
  EXPECT_THAT(with({{"nodes", Json{9, 3, 4}}}, 3).placement.nodes, ElementsAre(9, 3, 4));
  EXPECT_THAT(with({{"nodes", Json{9, 3, 4}}, {"sorted", true}}, 3).placement.nodes, ElementsAre(3, 4, 9));
  EXPECT_THAT(with({{"nodes", "node[003-004,010]"}, {"first", 1}}, 3).placement.nodes, ElementsAre(2, 3, 9));
  EXPECT_THAT(with({{"nodes", Json{"node3", "node4.local", "node10"}}, {"first", 1}}, 3).placement.nodes,
              ElementsAre(2, 3, 9));
  EXPECT_EQ(with({{"nodes", "contiguous"}, {"ring_order", "leaf"}}).placement.ring_order, RingOrder::leaf);
  // The fabric's first nodes are no other placement.
  EXPECT_FALSE(with({{"nodes", "0-7"}}).is_scattered());
  EXPECT_THAT(with({{"nodes", "node[1-3]"}, {"first", 0}}, 3).placement.nodes, ElementsAre(1, 2, 3));
  const Cluster c = with({{"nodes", Json{9, 3, 4}}}, 3);
  EXPECT_EQ(c.devices(), 24);
  EXPECT_EQ(c.fabric_nodes(), 10);
  EXPECT_EQ(c.fabric_device(8 + 5), 3 * 8 + 5);
}

TEST(ReadPlacement, ZerosInFrontMakeAnotherName) {
  EXPECT_THROW(with({{"nodes", "node01 node1"}, {"first", 0}}, 1), InputError) << "no name that repeats";
}

TEST(ReadPlacement, AListSaysHowManyNodesThereAre) {
  Json json = cluster_json({{"nodes", "node[2-3,7]"}});
  json.erase("nodes");
  EXPECT_EQ(read_cluster(json, {}).nodes, 3);
  EXPECT_EQ(read_cluster({{"base", "eos"}, {"placement", {{"nodes", "0-15,64-79"}}}}, {}).nodes, 32);
}

TEST(ReadPlacement, NodesOfWholeLeavesAreNotScattered) {
  EXPECT_TRUE(lie_leaf_by_leaf(with({{"nodes", "0-7"}})));
  EXPECT_TRUE(lie_leaf_by_leaf(with({{"nodes", "8-15"}})));
  EXPECT_TRUE(lie_leaf_by_leaf(with({{"nodes", "node[009-016]"}, {"first", 1}})));
  EXPECT_FALSE(lie_leaf_by_leaf(with({{"nodes", "9-16"}}))) << "parts of three leaves";
  EXPECT_FALSE(lie_leaf_by_leaf(with({{"nodes", "8-11,16-19"}})));
  EXPECT_FALSE(lie_leaf_by_leaf(with({{"nodes", "9,8,10-15"}})));
}

TEST(ReadPlacement, DrawnNodesAreTheSameForTheSameSeed) {
  const auto drawn = [](int seed, int fill = 0) {
    return with({{"nodes", "scattered"}, {"seed", seed}, {"of", 32}, {"fill", fill}}).placement.nodes;
  };
  EXPECT_EQ(drawn(5), drawn(5));
  EXPECT_NE(drawn(5), drawn(6));
  for (const int seed : {1, 2, 3}) {
    auto nodes = drawn(seed);
    EXPECT_LT(*std::max_element(nodes.begin(), nodes.end()), 32);
    std::sort(nodes.begin(), nodes.end());
    EXPECT_EQ(std::adjacent_find(nodes.begin(), nodes.end()), nodes.end());
    for (const std::int64_t node : drawn(seed, 1)) EXPECT_EQ(node % 4, 0);
  }
  // As on every platform: std::mt19937_64 is specified.
  EXPECT_THAT(with({{"nodes", "scattered"}, {"seed", 1}, {"of", 32}}, 4).placement.nodes, ElementsAre(8, 17, 2, 30));
}

TEST(ReadPlacement, WrittenOutItIsReadAgain) {
  for (const Json& placement : {Json{{"nodes", "scattered"}, {"of", 100}}, Json{{"fill", 2}, {"ring_order", "leaf"}},
                                Json{{"of", 64}}, Json{{"nodes", "3,1,2,9-13"}}}) {
    const Cluster c = with(placement), again = read_cluster(to_json(c), {});
    EXPECT_EQ(to_json(again), to_json(c));
    EXPECT_EQ(again.placement.nodes, c.placement.nodes);
    EXPECT_EQ(again.fabric_nodes(), c.fabric_nodes());
    EXPECT_EQ(again.placement.ring_order, c.placement.ring_order);
  }
  EXPECT_FALSE(to_json(with(Json::object())).contains("placement"));
}

TEST(ReadPlacement, SaysWhatIsWrongAndWhere) {
  const auto expect = [](const Json& placement, const char* field, const char* text, Json more = Json::object()) {
    Json json = cluster_json(placement);
    json.update(more);
    try {
      read_cluster(json, {"", "/cluster"});
      ADD_FAILURE() << placement;
    } catch (const InputError& error) {
      EXPECT_EQ(error.where().pointer, std::string("/cluster/placement") + field) << placement;
      EXPECT_THAT(error.what(), HasSubstr(text)) << placement;
    }
  };
  expect({{"nodes", "scatered"}}, "/nodes", "scattered");
  expect({{"nodes", 3}}, "/nodes", "contiguous");
  for (const char* path : {"hostfile.txt", "hostfile", "../nodes"})
    expect({{"nodes", path}}, "/nodes", "a file's path");
  expect({{"nodes", "node[1-"}}, "/nodes", "node[001-004,010]");
  expect({{"nodes", "0-3"}}, "/nodes", "the cluster's 8 nodes");
  expect({{"nodes", "0-6,3"}}, "/nodes", "node 3 twice");
  expect({{"nodes", Json{0, 1, -2}}}, "/nodes", "-2");
  expect({{"nodes", Json{0, 1, "a"}}}, "/nodes", "\"a\"");
  expect({{"nodes", Json::array()}}, "/nodes", "no nodes");
  expect({{"nodes", "0-7"}, {"first", 1}}, "/nodes", "nodes from 1 (\"first\") on");
  expect({{"nodes", "node[001-008]"}}, "/nodes", "\"first\": 1 if names count from 1");
  expect({{"nodes", "node[001-008]"}, {"of", 8}}, "/nodes", "\"first\": 1 if names count from 1");
  expect({{"nodes", "8-15"}, {"of", 12}}, "/of", "more than the 15 nodes");
  expect({{"nodes", "scattered"}, {"of", 7}}, "/of", "at least 8");
  expect({{"fill", 2}, {"of", 12}}, "/of", "at least 14");
  expect({{"fill", 5}}, "/fill", "at most the 4 nodes of a leaf");
  expect({{"fill", 2}}, "/fill", "has one", {{"fabric", "single-switch"}});
  expect({{"nodes", "0-7"}, {"seed", 2}}, "/seed", "scattered nodes");
  expect({{"nodes", "scattered"}, {"first", 1}}, "/first", "a list of nodes");
  expect({{"node", "scattered"}}, "/node", "nodes");
  expect({{"ring_order", "rail"}}, "/ring_order", "rank");
  expect({{"nodes", "scattered"}}, "", "torus", {{"fabric", "torus"}});
  expect({{"nodes", "scattered"}, {"of", 1 << 30}}, "/of", "at most");
}

TEST(ReadCluster, OnlyFabricsOfSwitchesReduce) {
  EXPECT_TRUE(read_cluster({{"node", "dgx-h100"}, {"nodes", 4}, {"fabric", {{"in_network_reduction", true}}}}, {})
                  .fabric.in_network_reduction);
  for (const char* kind : {"torus", "dragonfly"}) {
    try {
      read_cluster({{"node", "dgx-h100"}, {"nodes", 4}, {"fabric", {{"base", kind}, {"in_network_reduction", true}}}},
                   {"", "/cluster"});
      ADD_FAILURE() << kind;
    } catch (const InputError& error) {
      EXPECT_EQ(error.where().pointer, "/cluster/fabric/in_network_reduction");
      EXPECT_THAT(error.what(), HasSubstr(kind));
    }
  }
}

}  // namespace
}  // namespace orrery
