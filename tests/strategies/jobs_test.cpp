// Do jobs that share a cluster get their part of it, and is what cannot be placed refused?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <ostream>

#include "sim/hardware/read_cluster.h"
#include "strategies/lower.h"
#include "strategies/read_scenario.h"

namespace orrery {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json two_jobs() {
  return json::parse(R"({
    "cluster": {"node": "dgx-h100", "nodes": 8},
    "jobs": [
      {"name": "a", "model": "llama-3-8b", "workload": {"sequence_length": 4096, "global_batch_size": 32},
       "plan": {"zero_stage": 1}, "nodes": 4, "node_stride": 2},
      {"name": "b", "model": "llama-2-7b", "workload": {"sequence_length": 4096, "global_batch_size": 16},
       "nodes": 2, "first_node": 1, "node_stride": 4}
    ]})");
}

JobsDocument read(const json& document, const std::vector<std::string>& sets = {}) {
  json changed = document;
  for (const std::string& set : sets) apply_set(changed, set, "jobs.json");
  return ScenarioReader().read_jobs(changed, {"jobs.json", sets});
}

TEST(Jobs, HaveTheirNodesOfTheCluster) {
  const JobsDocument document = read(two_jobs());
  EXPECT_EQ(document.cluster.nodes, 8);
  ASSERT_EQ(document.jobs.size(), 2u);
  const Job& a = document.jobs[0];
  const Job& b = document.jobs[1];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.scenario.cluster.nodes, 4);
  EXPECT_EQ(a.scenario.cluster.node.nic_bytes_per_second, document.cluster.node.nic_bytes_per_second);
  EXPECT_EQ(a.scenario.cluster.fabric.nodes_per_leaf, document.cluster.fabric.nodes_per_leaf);
  EXPECT_EQ(a.scenario.plan.data.zero_stage, 1);
  EXPECT_EQ(data_parallel_degree(a.scenario), 32) << "all devices of its own nodes";
  EXPECT_EQ(b.scenario.plan.data.zero_stage, 0);
  EXPECT_EQ(b.scenario.model.name, "llama-2-7b");
  // Rank 9 is the second device of the job's second node.
  EXPECT_EQ(a.placement.device(9, 8), 2 * 8 + 1);
  EXPECT_EQ(b.placement.device(9, 8), 5 * 8 + 1);
}

TEST(Jobs, OfAPlainScenarioAreOneOnTheWholeCluster) {
  json document = two_jobs()["jobs"][0];
  for (const char* key : {"name", "nodes", "node_stride"}) document.erase(key);
  document["cluster"] = two_jobs()["cluster"];
  document["perturbations"] = json::parse(R"([{"kind": "failing_node", "nodes": [7]}])");
  const JobsDocument read_as_jobs = read(document);
  ASSERT_EQ(read_as_jobs.jobs.size(), 1u);
  EXPECT_EQ(read_as_jobs.jobs[0].scenario.cluster.nodes, 8);
  EXPECT_EQ(read_as_jobs.jobs[0].placement.device(13, 8), 13);
  EXPECT_EQ(read_as_jobs.perturbations.size(), 1u);
}

TEST(Jobs, TakeSetsLikeAScenario) {
  const JobsDocument document =
      read(two_jobs(), {"jobs.0.plan.tensor_parallel=8", "jobs.1.model.layers=4", "jobs.1.plan=batch",
                        "jobs.1.plan.zero_stage=2", "cluster.nodes=9", "jobs.1.nodes=1"});
  EXPECT_EQ(document.cluster.nodes, 9);
  EXPECT_EQ(document.jobs[0].scenario.plan.tensor.degree, 8);
  EXPECT_EQ(document.jobs[1].scenario.model.layers, 4);
  EXPECT_EQ(document.jobs[1].scenario.plan.data.zero_stage, 2);
  EXPECT_EQ(document.jobs[1].scenario.plan.batch.micro_batch_size, 12) << "of the bundled scenario's plan";
  EXPECT_EQ(document.jobs[1].scenario.cluster.nodes, 1);
}

TEST(Jobs, ErrorsOfAPlanPointIntoTheJob) {
  const JobsDocument document = read(two_jobs(), {"jobs.1.plan.tensor_parallel=32"});
  Program program;
  try {
    lower(document.jobs[1].scenario, program);
    ADD_FAILURE() << "32-way tensor parallelism on 16 devices is accepted";
  } catch (const InputError& error) {
    EXPECT_EQ(error.where().pointer, "/plan/tensor_parallel");
    EXPECT_EQ(document.jobs[1].in_document(error).where().pointer, "/jobs/1/plan/tensor_parallel");
  }
}

struct Refusal {
  const char* pointer;  // of a value to set, or to remove where `value` is empty
  const char* value;
  const char* sentence;

  friend std::ostream& operator<<(std::ostream& out, const Refusal& r) { return out << r.pointer << " = " << r.value; }
};

const Refusal kRefusals[] = {
    {"/cluster", "", "/cluster: found nothing, expected a cluster"},
    {"/jobs", "[]", "/jobs: found an empty array, expected an array of jobs"},
    {"/jobs", "{}", "/jobs: found an empty object, expected an array of jobs"},
    {"/model", "\"llama-3-8b\"", "/model: found \"llama-3-8b\", expected nothing next to \"jobs\""},
    {"/plan", "{}", "/plan: found an empty object, expected nothing next to \"jobs\""},
    {"/joobs", "[]", "/joobs: found the unknown key"},
    {"/jobs/0", "7", "/jobs/0: found 7, expected an object"},
    {"/jobs/0/name", "", "/jobs/0/name: found nothing, expected a name"},
    {"/jobs/0/name", "\"b\"", "/jobs/1/name: found \"b\" a second time"},
    {"/jobs/0/nodes", "", "/jobs/0/nodes: found nothing, expected the number"},
    {"/jobs/0/nodes", "0", "/jobs/0/nodes: found 0, expected an integer from 1 to 8"},
    {"/jobs/0/nodes", "9", "/jobs/0/nodes: found 9, expected an integer from 1 to 8"},
    {"/jobs/0/nodes", "5", "/jobs/0/nodes: found 5 nodes from 0 on, 2 apart, expected nodes of the cluster, 0 to 7"},
    {"/jobs/0/node_stride", "9223372036854775807", "/jobs/0/nodes: found 4 nodes from 0 on"},
    {"/jobs/0/node_stride", "0", "/jobs/0/node_stride: found 0, expected an integer of at least 1"},
    {"/jobs/1/first_node", "8", "/jobs/1/nodes: found 2 nodes from 8 on"},
    {"/jobs/1/first_node", "2",
     "/jobs/1/first_node: found 2 nodes from 2 on, 4 apart, expected other nodes than those of job \"a\": "
     "it has node 2 (4 nodes from 0 on, 2 apart)"},
    {"/jobs/1/node_stride", "3", "it has node 4"},
    {"/jobs/1/workload", "", "/jobs/1/workload: found nothing"},
    {"/jobs/1/model", "\"lama-2-7b\"", "/jobs/1/model: found \"lama-2-7b\""},
    {"/jobs/1/plan", "{\"zero_stage\": 7}", "/jobs/1/plan/zero_stage: found 7"},
    {"/jobs/1/plan", "\"two-jobs-one-spine\"",
     "/jobs/1/plan: found \"two-jobs-one-spine\", expected a bundled scenario"},
    {"/jobs/1/cluster", "\"eos\"", "/jobs/1/cluster: found the unknown key"},
    {"/perturbations", "[{\"kind\": \"failing_node\", \"nodes\": [8]}]", "/perturbations/0/nodes/0: found 8"},
};

TEST(Jobs, ThatCannotBePlacedAreRefusedInOneSentence) {
  for (const Refusal& refusal : kRefusals) {
    SCOPED_TRACE(testing::PrintToString(refusal));
    json document = two_jobs();
    const json::json_pointer pointer(refusal.pointer);
    if (*refusal.value == '\0') {
      document[pointer.parent_pointer()].erase(pointer.back());
    } else {
      document[pointer] = json::parse(refusal.value);
    }
    try {
      read(document);
      ADD_FAILURE() << "is accepted";
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr(refusal.sentence));
      EXPECT_EQ(error.where().file, "jobs.json");
    }
  }
}

TEST(Jobs, AreNoPlainScenario) {
  try {
    read_scenario(two_jobs(), {"jobs.json", {}});
    ADD_FAILURE() << "is accepted";
  } catch (const InputError& error) {
    EXPECT_EQ(error.where().pointer, "/jobs");
    EXPECT_THAT(error.what(), HasSubstr("--engine des"));
  }
}

TEST(Jobs, LieOnTheClusterThatIsReadByItself) {
  EXPECT_EQ(ScenarioReader().read_cluster_of(two_jobs(), {"jobs.json", {}}).nodes, 8);
}

}  // namespace
}  // namespace orrery
