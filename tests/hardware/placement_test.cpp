// Is a placement read as it is written, and does every wrong one get its sentence?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sim/hardware/node_list.h"
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

TEST(NodeList, ReadsWhatSchedulersPrint) {
  const auto read = [](std::string_view text) { return read_node_list(text, 10000, {}); };
  EXPECT_THAT(read("node[001-004,010]"), ElementsAre(1, 2, 3, 4, 10));
  EXPECT_THAT(read("node[009-011],gpu-a07,rack2n[3]"), ElementsAre(9, 10, 11, 7, 3));
  EXPECT_THAT(read("3-6,12"), ElementsAre(3, 4, 5, 6, 12));
  EXPECT_THAT(read("12,3"), ElementsAre(12, 3));
  EXPECT_THAT(read("dgx0"), ElementsAre(0));
}

TEST(NodeList, RefusesWhatIsNone) {
  for (const char* text : {"", "node", "node[", "node[]", "node[1-]", "node[4-2]", "node[1,]", "1-", "5-3", "a1,", ",1",
                           "node]1[", "node[1-2]x", "node[a-b]", "1-2-3", "node[-1]", "node[99999]", "1 2"})
    EXPECT_THROW(read_node_list(text, 10000, {"", "/cluster/placement/nodes"}), InputError) << text;
}

TEST(NodeList, HasAnEndHoweverOftenARangeComes) {
  EXPECT_EQ(read_node_list("n[0-9998],n9999", 10000, {}).size(), 10000U);
  std::string text = "0-9999";
  for (int i = 0; i < 3; ++i) text += ",0-9999";
  try {
    read_node_list(text, 10000, {"", "/nodes"});
    ADD_FAILURE();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "/nodes: found more than 10000 nodes, expected each node once");
  }
}

TEST(NodeList, SaysThatNamesAreNotLookedAt) {
  for (const char* text : {"dgx[001-256],hgx[001-256]", "a[3-5],b4", "7,node7"}) {
    try {
      read_node_list(text, 10000, {"", "/cluster/placement/nodes"});
      ADD_FAILURE() << text;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr("which differ in their prefix alone")) << text;
    }
  }
  EXPECT_EQ(read_node_list("dgx[1-4],hgx[5-8]", 10000, {}).size(), 8);
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
  EXPECT_EQ(with({{"nodes", "contiguous"}, {"ring_order", "leaf"}}).placement.ring_order, RingOrder::leaf);
  // The fabric's first nodes are no other placement.
  EXPECT_FALSE(with({{"nodes", "0-7"}}).is_scattered());
  EXPECT_THAT(with({{"nodes", "node[1-3]"}, {"first", 0}}, 3).placement.nodes, ElementsAre(1, 2, 3));
  const Cluster c = with({{"nodes", Json{9, 3, 4}}}, 3);
  EXPECT_EQ(c.devices(), 24);
  EXPECT_EQ(c.fabric_devices(), 80);
  EXPECT_EQ(c.fabric_device(8 + 5), 3 * 8 + 5);
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
  expect({{"nodes", "node[1-"}}, "/nodes", "node[001-004,010]");
  expect({{"nodes", "0-3"}}, "/nodes", "the cluster's 8 nodes");
  expect({{"nodes", "0-6,3"}}, "/nodes", "node 3 twice");
  expect({{"nodes", Json{0, 1, -2}}}, "/nodes", "-2");
  expect({{"nodes", Json{0, 1, "a"}}}, "/nodes", "\"a\"");
  expect({{"nodes", Json::array()}}, "/nodes", "no nodes");
  expect({{"nodes", "0-7"}, {"first", 1}}, "/nodes", "nodes from 1 on");
  expect({{"nodes", "node[001-008]"}}, "/nodes", "\"first\": 1 beside them, if names count from 1");
  expect({{"nodes", "node[001-008]"}, {"of", 8}}, "/nodes", "\"first\": 1 beside them, if names count from 1");
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
