// Does a plan read as it is written, and does each bad input get its sentence?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <ostream>

#include "tests/capacity/plans.h"

namespace orrery {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(CapacityPlan, ReadsWhatCandidatesShareAndWhatTheySayThemselves) {
  json document = example_plan();
  document["candidates"][1]["failures"] = "meta-rsc-1";
  document["candidates"][1]["devices"] = 64;
  document["candidates"][1]["spare_nodes"] = 2;
  const CapacityPlan plan = read_plan(document);
  EXPECT_EQ(plan.tokens, 1e11);
  EXPECT_EQ(plan.deadline_seconds, 30 * 86400);
  EXPECT_EQ(plan.budget->amount, 1e6);
  EXPECT_EQ(plan.currency, "USD");
  EXPECT_EQ(plan.clusters[0].whole.failures.name, "llama-3-405b");
  EXPECT_EQ(plan.clusters[1].whole.failures.name, "meta-rsc-1");
  EXPECT_EQ(plan.clusters[1].devices, std::vector<std::int64_t>{64});
  EXPECT_EQ(plan.clusters[1].spare_nodes, 2);
  EXPECT_FALSE(plan.clusters[0].spare_nodes);
  EXPECT_EQ(plan.clusters[0].pattern->cluster.device.name, "A100-SXM4-80GB");
}

TEST(CapacityPlan, ADeadlineIsDaysOrADate) {
  json document = example_plan();
  document.erase("deadline_days");
  EXPECT_TRUE(std::isinf(read_plan(document).deadline_seconds));
  document["start"] = "2028-02-01";
  document["deadline"] = "2028-03-01";
  EXPECT_EQ(read_plan(document).deadline_seconds, 29 * 86400);
}

TEST(CapacityPlan, TakesScenariosByNameAndBundledPlansRead) {
  json document = example_plan();
  for (const char* key : {"model", "workload"}) document.erase(key);
  document["all_candidates"].erase("plan");
  document["candidates"] = json::array({document["candidates"][1]});
  document["candidates"][0].erase("cluster");
  document["candidates"][0]["scenario"] = "llama-3-70b-512-h100";
  document["candidates"][0]["devices"] = {256, 512};
  EXPECT_EQ(read_plan(document).clusters[0].pattern->model.name, "llama-3-70b");
  ASSERT_FALSE(bundled_plans().empty());
  for (const BundledDocument& bundled : bundled_plans()) {
    ScenarioSource source;
    EXPECT_GE(
        read_capacity_plan(load_document(bundled_plans(), "plan", bundled.name, {}, source), source).clusters.size(),
        2u);
    EXPECT_EQ(source.file, bundled.path);
  }
}

struct BadValue {
  const char* pointer;  // to set, or to remove where `value` is empty
  const char* value;    // JSON
  const char* sentence;

  friend std::ostream& operator<<(std::ostream& out, const BadValue& bad) {
    return out << bad.pointer << " = " << bad.value;
  }
};
constexpr BadValue kBadValues[]{
    {"/tokens", "", "/tokens: found nothing, expected either tokens or steps"},
    {"/steps", "3", "/tokens: found 100000000000.0, expected either tokens or steps"},
    {"/tokens", "-1", "/tokens: found -1, expected a number"},
    {"/deadline_days", "0", "/deadline_days: found 0, expected a number greater than 0"},
    {"/deadline_days", "-60", "/deadline_days: found -60, expected a number greater than 0"},
    {"/start", "\"2027-01-01\"", "/deadline_days: found 30, expected either it or a start and a deadline"},
    {"/budget", "20", "/budget: found 20, expected an object"},
    {"/budget/amount", "-5", "/budget/amount: found -5, expected a number greater than 0"},
    {"/budget/currency", "", "/budget/currency: found nothing, expected the budget's currency"},
    {"/budget/currency", "\"EUR\"", "/budget/currency: found \"EUR\", expected USD, in which the prices are"},
    {"/candidates", "[]", "/candidates: found an empty array, expected an array of the clusters"},
    {"/candidates/0", "7", "/candidates/0: found 7, expected an object"},
    {"/candidates/0/name", "", "/candidates/0/name: found nothing, expected a name"},
    {"/candidates/1/name", "\"old\"", "/candidates/1/name: found \"old\", expected a name that no other"},
    {"/candidates/0/cluster", "", "/candidates/0/cluster: found nothing, expected a cluster"},
    {"/candidates/0/cluster/node", "\"dgx-a10\"", "/candidates/0/cluster/node: found \"dgx-a10\""},
    {"/all_candidates/plan/tensor_paralel", "8", "/all_candidates/plan/tensor_paralel: found the unknown key"},
    {"/model", "\"lama\"", "plan.json: /model: found \"lama\""},
    {"/workload/global_batch_size", "0", "plan.json: /workload/global_batch_size: found 0"},
    {"/all_candidates/devices", "{\"least\": 3, \"most\": 5}",
     "/all_candidates/devices: found an object, expected a range"},
    {"/all_candidates/devices/least", "900", "/all_candidates/devices/most: found 128, expected at least least, 900"},
    {"/all_candidates/devices/most", "", "/all_candidates/devices/most: found nothing, expected the largest"},
    {"/all_candidates/failures", "{\"failures_per_node_day\": -0.1}",
     "/all_candidates/failures/failures_per_node_day: found -0.1, expected a number from 0"},
    {"/all_candidates/failures", "", "/candidates/0/failures: found nothing, expected a failure rate"},
    {"/candidates/0/price", "{\"per_device_hour\": 2, \"date\": \"2026\"}",
     "/candidates/0/price/currency: found nothing, expected the price's currency"},
    {"/candidates/0/price", "{\"per_device_hour\": 2, \"currency\": \"USD\"}",
     "/candidates/0/price/date: found nothing, expected the day of the price"},
    {"/candidates/0/price", "{\"per_device_hour\": -2, \"currency\": \"USD\", \"date\": \"2026\"}",
     "/candidates/0/price/per_device_hour: found -2, expected a number from 0"},
    {"/candidates/1/price", "{\"per_device_hour\": 2, \"currency\": \"EUR\", \"date\": \"2026\"}",
     "/candidates/1/price: found a price in EUR, expected one in USD, the currency of old"},
    {"/candidates/0/price", "\"lambda-h100\"",
     "/candidates/0/power: found \"a100-node-rated\", expected power of H100"},
    {"/candidates/0/cluster/node", "\"dgx-h200\"",
     "/candidates/0/price: found that of A100-SXM4-80GB, expected that of H200-SXM5-141GB, the cluster's device"},
    {"/candidates/0/scenario", "\"llama-3-70b-512-h100\"",
     "/candidates/0/cluster: found an object, expected nothing next to a scenario"},
    {"/candidates/0/spare_nodes", "-1", "/candidates/0/spare_nodes: found -1"},
    {"/candidates/0/colour", "1", "/candidates/0/colour: found the unknown key"},
    {"/colour", "1", "/colour: found the unknown key"},
};

TEST(CapacityPlan, EveryBadInputGetsItsSentence) {
  for (const BadValue& bad : kBadValues) {
    json document = example_plan();
    const json::json_pointer at{std::string(bad.pointer)};
    if (*bad.value == '\0')
      document.at(at.parent_pointer()).erase(at.back());
    else
      document[at] = json::parse(bad.value);
    try {
      read_plan(document);
      ADD_FAILURE() << bad << " is read";
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr(bad.sentence)) << bad;
      EXPECT_THAT(error.where().file, "plan.json") << bad;
    }
  }
}

TEST(CapacityPlan, CandidatesTrainOneModel) {
  json document = example_plan();
  for (const char* key : {"model", "workload"}) document.erase(key);
  document["all_candidates"].erase("plan");
  document["all_candidates"]["devices"] = 64;
  for (json& candidate : document["candidates"]) {
    candidate["scenario"] = {{"model", "llama-3-8b"},
                             {"cluster", candidate["cluster"]},
                             {"workload", {{"sequence_length", 8192}, {"global_batch_size", 128}}},
                             {"plan", {{"tensor_parallel", 8}}}};
    candidate.erase("cluster");
  }
  EXPECT_EQ(read_plan(document).clusters.size(), 2u);
  document["candidates"][1]["scenario"]["model"] = "llama-2-7b";
  EXPECT_THAT([&] { read_plan(document); },
              testing::ThrowsMessage<InputError>(HasSubstr(
                  "/candidates/1: found a training of llama-2-7b, expected one of llama-3-8b, the model of old")));
  document["candidates"][1]["scenario"]["model"] = "llama-3-8";
  EXPECT_THAT([&] { read_plan(document); },
              testing::ThrowsMessage<InputError>(HasSubstr("/candidates/1/scenario/model: found \"llama-3-8\"")));
}

}  // namespace
}  // namespace orrery
