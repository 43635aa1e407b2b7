// Are perturbations read as written, and refused where a field means nothing for their kind?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <ostream>

#include "strategies/perturbations/read_perturbations.h"
#include "strategies/read_scenario.h"
#include "tests/strategies/support.h"

namespace orrery {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

const Cluster& four_nodes() {
  static const Cluster cluster = read_cluster({{"node", "dgx-h100"}, {"nodes", 4}}, {});
  return cluster;
}

std::vector<Perturbation> perturbations_of(const char* text) {
  return read_perturbations(json::parse(text), {"scenario.json", "/perturbations"}, four_nodes());
}

TEST(Perturbations, OfEveryKindAreReadAsWritten) {
  const auto all = perturbations_of(R"([
    {"kind": "slow_device", "devices": [3, 31], "factor": 0.8, "from_seconds": 1, "until_seconds": 2.5},
    {"kind": "slow_device", "count": 2, "seed": 7, "factor": 0.5, "note": "two of the 32"},
    {"kind": "slow_link", "link": "node*.nic0", "factor": 0.25, "count": 40, "seed": 1},
    {"kind": "failing_link", "link": "node1.nic3.out", "from_seconds": 0.5},
    {"kind": "failing_node", "nodes": [2]},
    {"kind": "background_traffic", "link": "leaf0.spine1.up", "bytes_per_second": 1e10},
    {"kind": "jitter", "distribution": "gamma", "coefficient_of_variation": 0.1, "seed": 3}])");
  ASSERT_EQ(all.size(), 7u);
  EXPECT_THAT(all[0].devices, ElementsAre(3, 31));
  EXPECT_EQ(all[0].factor, 0.8);
  EXPECT_EQ(all[0].from_seconds, 1);
  EXPECT_EQ(all[0].until_seconds, 2.5);
  EXPECT_EQ(all[1].count, 2);
  EXPECT_EQ(all[1].seed, 7);
  EXPECT_EQ(all[2].kind, PerturbationKind::slow_link);
  EXPECT_EQ(all[2].count, 40) << "how many links match is for the engine to know";
  EXPECT_EQ(all[3].link, "node1.nic3.out");
  EXPECT_THAT(all[4].nodes, ElementsAre(2));
  EXPECT_EQ(all[5].bytes_per_second, 1e10);
  EXPECT_EQ(all[6].distribution, JitterDistribution::gamma);
  EXPECT_EQ(all[6].coefficient_of_variation, 0.1);
}

struct BadPerturbation {
  const char* perturbation;
  const char* pointer;  // within the perturbation
  const char* sentence;

  friend std::ostream& operator<<(std::ostream& out, const BadPerturbation& r) { return out << r.perturbation; }
};

const BadPerturbation kBadPerturbations[] = {
    {"3", "", "found 3, expected an object"},
    {R"({"devices": [1], "factor": 0.5})", "/kind", "found nothing, expected one of \"slow_device\""},
    {R"({"kind": "slow_devise", "devices": [1], "factor": 0.5})", "/kind", "(did you mean \"slow_device\"?)"},
    {R"({"kind": "slow_device", "devices": [1], "factr": 0.5})", "/factr", "(did you mean \"factor\"?)"},
    // What a kind needs.
    {R"({"kind": "slow_device", "devices": [1]})", "/factor", "\"slow_device\" needs one"},
    {R"({"kind": "slow_device", "factor": 0.5})", "/devices", "or \"count\" for random ones"},
    {R"({"kind": "slow_device", "devices": [], "count": 0, "factor": 0.5})", "/devices", "or \"count\""},
    {R"({"kind": "slow_link", "factor": 0.5})", "/link", "\"slow_link\" needs one"},
    {R"({"kind": "slow_link", "link": "node0.nic0"})", "/factor", "\"slow_link\" needs one"},
    {R"({"kind": "slow_link", "link": "", "factor": 0.5})", "/link", "a link's name, or a pattern"},
    {R"({"kind": "failing_link"})", "/link", "needs one"},
    {R"({"kind": "failing_node"})", "/nodes", "the nodes that it affects, or \"count\""},
    {R"({"kind": "background_traffic", "link": "node0.nic0"})", "/bytes_per_second", "needs one"},
    {R"({"kind": "background_traffic", "link": "node0.nic0", "bytes_per_second": 0})", "/bytes_per_second",
     "expected more than 0"},
    {R"({"kind": "jitter"})", "/coefficient_of_variation", "needs one"},
    {R"({"kind": "jitter", "coefficient_of_variation": 0})", "/coefficient_of_variation", "expected more than 0"},
    // What means nothing for a kind.
    {R"({"kind": "jitter", "coefficient_of_variation": 0.1, "factor": 0.5})", "/factor",
     "found 0.5, expected no such field: \"jitter\" has only coefficient_of_variation, devices, seed, distribution, "
     "from_seconds, until_seconds"},
    {R"({"kind": "slow_device", "link": "node0.nic0", "factor": 0.5})", "/link", "\"slow_device\" has only"},
    {R"({"kind": "slow_link", "link": "node0.nic0", "devices": [0], "factor": 0.5})", "/devices", "has only"},
    {R"({"kind": "failing_link", "link": "node0.nic0", "until_seconds": 2})", "/until_seconds", "has only"},
    {R"({"kind": "failing_node", "nodes": [0], "factor": 0.1})", "/factor", "has only"},
    {R"({"kind": "slow_device", "devices": [0], "factor": 0.5, "seed": 3})", "/seed", "nothing is drawn at random"},
    // Values.
    {R"({"kind": "slow_device", "devices": [0], "factor": 0})", "/factor", "expected a number greater than 0"},
    {R"({"kind": "slow_device", "devices": [0], "factor": -1})", "/factor", "expected a number greater than 0"},
    {R"({"kind": "slow_device", "devices": [0], "factor": 1.25})", "/factor", "found 1.25, expected at most 1"},
    {R"({"kind": "slow_device", "devices": [0], "factor": 0.5, "from_seconds": 2, "until_seconds": 1})",
     "/until_seconds", "found 1, expected more than from_seconds, 2,"},
    {R"({"kind": "slow_device", "devices": [0], "factor": 0.5, "from_seconds": -1})", "/from_seconds", "at least 0"},
    {R"({"kind": "slow_device", "devices": [0, 32], "factor": 0.5})", "/devices/1",
     "found 32, expected one of the cluster's devices, 0 to 31"},
    {R"({"kind": "slow_device", "devices": [4, 4], "factor": 0.5})", "/devices/1", "found 4 a second time"},
    {R"({"kind": "failing_node", "nodes": [4]})", "/nodes/0", "found 4, expected one of the cluster's nodes, 0 to 3"},
    {R"({"kind": "slow_device", "devices": [1, 2], "count": 3, "factor": 0.5})", "/count",
     "found 3, expected at most the 2 devices that are named"},
    {R"({"kind": "slow_device", "count": 33, "factor": 0.5})", "/count", "at most the 32 devices that the cluster has"},
    {R"({"kind": "failing_node", "count": 5})", "/count", "at most the 4 nodes that the cluster has"},
    {R"({"kind": "jitter", "distribution": "uniform", "coefficient_of_variation": 0.6})", "/coefficient_of_variation",
     "found 0.6, expected at most 1 / sqrt(3) = 0.5774"},
};

TEST(Perturbations, AreRefusedInOneSentenceWithTheirPlace) {
  for (const BadPerturbation& refusal : kBadPerturbations) {
    SCOPED_TRACE(refusal.perturbation);
    const std::string first = R"({"kind": "slow_device", "devices": [0], "factor": 0.5})";
    try {
      perturbations_of(("[" + first + "," + refusal.perturbation + "]").c_str());
      ADD_FAILURE() << "is accepted";
    } catch (const InputError& error) {
      EXPECT_EQ(error.where().file, "scenario.json");
      EXPECT_EQ(error.where().pointer, std::string("/perturbations/1") + refusal.pointer);
      EXPECT_THAT(error.what(), HasSubstr(refusal.sentence));
    }
  }
}

TEST(Perturbations, AreAListOfTheScenario) {
  EXPECT_THROW(perturbations_of(R"({"kind": "failing_node", "nodes": [0]})"), InputError);
  json document{{"model", "llama-3-8b"},
                {"cluster", {{"node", "dgx-h100"}, {"nodes", 4}}},
                {"workload", {{"global_batch_size", 32}}},
                {"perturbations", json::parse(R"([{"kind": "slow_device", "devices": [31], "factor": 0.5}])")}};
  ASSERT_EQ(read_scenario(document, {"s.json", {}}).perturbations.size(), 1u);

  const std::vector<std::string> sets{"perturbations.0.factor=0.25"};
  apply_set(document, sets[0], "s.json");
  EXPECT_EQ(read_scenario(document, {"s.json", sets}).perturbations.at(0).factor, 0.25);
  const std::vector<std::string> fewer{"cluster.nodes=2"};
  apply_set(document, fewer[0], "s.json");
  try {
    read_scenario(document, {"s.json", fewer});
    ADD_FAILURE() << "a device beyond the cluster is accepted";
  } catch (const InputError& error) {
    EXPECT_EQ(error.where().pointer, "/perturbations/0/devices/0");
  }
  apply_set(document, "perturbations=[]", "s.json");
  EXPECT_TRUE(read_scenario(document, {"s.json", {}}).perturbations.empty());
  // A bundled scenario's.
  apply_set(document, "perturbations=straggler", "s.json");
  EXPECT_EQ(read_scenario(document, {"s.json", {}}).perturbations.size(), 1u);
}

}  // namespace
}  // namespace orrery
