// Is the JSON Schema what the reader accepts, and does it explain every field?
#include "strategies/schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/base/json_reader.h"
#include "strategies/read_scenario.h"
#include "tests/cli/command.h"

namespace orrery {
namespace {

using nlohmann::json;

TEST(Schema, IsPrintedByTheCommand) { EXPECT_EQ(Workplace().orrery("schema").out, scenario_schema().dump(2) + "\n"); }

TEST(Schema, ExplainsEveryField) {
  std::size_t fields = 0;
  for (const ScenarioField& field : scenario_fields()) {
    ++fields;
    EXPECT_NE(field.summary, "") << field.name;
  }
  EXPECT_GT(fields, 300u);
}

TEST(Schema, KnowsEveryFieldOfThePlanWithItsDefault) {
  const auto schema = scenario_schema();
  const auto& plan = schema["$defs"]["plan"]["anyOf"][1]["properties"];
  const auto documentation = documentation_keys();
  std::size_t fields = 0;
  for (const auto& [field, rule] : plan.items()) {
    if (std::find(documentation.begin(), documentation.end(), field) != documentation.end() || field == "layers")
      continue;
    ++fields;
    EXPECT_TRUE(rule.contains("default")) << field;
    EXPECT_NE(rule.value("description", ""), "") << field;
  }
  EXPECT_GT(fields, 100u);
  EXPECT_EQ(plan["zero_stage"]["maximum"], 3);
  EXPECT_EQ(plan["pipeline_schedule"]["enum"][0], "gpipe");
}

// Scenarios that are wrong in themselves (not only against their model and cluster): the schema must refuse them too.
std::vector<json> wrong_scenarios() {
  const json good = json::parse(example_scenario());
  const std::pair<const char*, json> changes[] = {
      {"/plan/tensor_paralel", 8},
      {"/plan/tensor_parallel", 0},
      {"/plan/tensor_parallel", "8"},
      {"/plan/zero_stage", 4},
      {"/plan/recompute", "some"},
      {"/plan/sequence_parallel", 1},
      {"/workload/sequence", 1},
      {"/workload", 3},
      {"/cluster/nodes", 0},
      {"/cluster/node/devices", 1.5},
      {"/models", "llama-3-8b"},
      {"/model", json{{"layres", 3}}},
      {"/cluster/fabric", true},
      {"/plan/pipeline_stage_layers", json{1, -1}},
      {"/plan/layers", 3},
      {"/plan/layers", json::array({{{"from", -1}, {"recompute", "full"}}})},
      {"/plan/layers", json::array({{{"from", 3}}})},
      {"/plan/layers", json::array({{{"tensor_parallel", 4}}})},
      {"/plan/layers", json::array({{{"recompute", "some"}}})}};
  std::vector<json> wrong;
  for (const auto& [pointer, value] : changes) {
    json scenario = good;
    if (std::string_view(pointer).starts_with("/cluster/node/"))
      scenario["cluster"]["node"] = json{{"base", "dgx-h100"}};
    scenario[json::json_pointer(pointer)] = value;
    wrong.push_back(std::move(scenario));
  }
  wrong.push_back(good);
  wrong.back().erase("cluster");
  for (const char* perturbation :
       {R"({"devices": [0], "factor": 0.5})", R"({"kind": "slow", "devices": [0], "factor": 0.5})",
        R"({"kind": "slow_device", "devices": [0]})", R"({"kind": "slow_device", "factor": 0.5})",
        R"({"kind": "slow_device", "devices": [0], "factor": 0})",
        R"({"kind": "slow_device", "devices": [0], "factor": 0.5, "link": "node0.nic0"})",
        R"({"kind": "slow_link", "factor": 0.5})", R"({"kind": "failing_node"})",
        R"({"kind": "background_traffic", "link": "node0.nic0"})", R"({"kind": "jitter"})",
        R"({"kind": "jitter", "coefficient_of_variation": 0.1, "distribution": "normal"})"}) {
    wrong.push_back(good);
    wrong.back()["perturbations"] = json::array({json::parse(perturbation)});
  }
  wrong.push_back(good);
  wrong.back()["perturbations"] = json::object();
  return wrong;
}

json two_jobs() {
  json job = json::parse(example_scenario());
  json document{{"cluster", job["cluster"]}};
  job.erase("cluster");
  job["nodes"] = 32;
  for (const char* name : {"a", "b"}) {
    job["name"] = name;
    document["jobs"].push_back(job);
    job["first_node"] = 32;
  }
  return document;
}

std::vector<json> wrong_jobs() {
  std::vector<json> wrong(6, two_jobs());
  wrong[0]["model"] = "llama-3-8b";
  wrong[1]["plan"] = json::object();
  wrong[2].erase("cluster");
  wrong[3]["jobs"] = json::array();
  wrong[4]["jobs"][1].erase("nodes");
  wrong[5]["jobs"][1]["node_stride"] = 0;
  return wrong;
}

TEST(Schema, AcceptsAndRefusesWhatTheReaderDoes) {
  const Workplace place;
  place.write("schema.json", scenario_schema().dump());
  std::string valid, invalid;
  std::size_t number = 0;
  const auto add = [&](std::string& list, const json& scenario) {
    const std::string name = "scenario" + std::to_string(number++) + ".json";
    place.write(name, scenario.dump());
    list += " " + name;
  };
  for (const BundledDocument& scenario : bundled_scenarios())
    add(valid, parse_json(scenario.text, std::string(scenario.path)));
  json written_out = json::parse(example_scenario());
  written_out["model"] = json{{"preset", "llama-3-8b"}, {"layers", 16}};
  written_out["cluster"]["node"] = json{{"base", "dgx-h100"}, {"nics", 4}};
  written_out["note"] = "a remark";
  add(valid, written_out);
  json perturbed = json::parse(example_scenario());
  perturbed["perturbations"] = json::parse(R"([
    {"kind": "slow_device", "count": 2, "seed": 7, "factor": 0.5},
    {"kind": "slow_link", "link": "node*.nic0", "factor": 0.25, "from_seconds": 1, "until_seconds": 2},
    {"kind": "failing_link", "link": "node1.nic3.out", "from_seconds": 0.5},
    {"kind": "failing_node", "nodes": [2], "note": "gone"},
    {"kind": "background_traffic", "link": "leaf0.spine1.up", "bytes_per_second": 1e10},
    {"kind": "jitter", "distribution": "gamma", "coefficient_of_variation": 0.1}])");
  EXPECT_EQ(read_scenario(perturbed, {"scenario.json", {}}).perturbations.size(), 6u);
  add(valid, perturbed);
  EXPECT_EQ(ScenarioReader().read_jobs(two_jobs(), {"scenario.json", {}}).jobs.size(), 2u);
  add(valid, two_jobs());
  for (const json& scenario : wrong_scenarios()) {
    EXPECT_THROW(read_scenario(scenario, {"scenario.json", {}}), InputError) << scenario;
    add(invalid, scenario);
  }
  for (const json& document : wrong_jobs()) {
    EXPECT_THROW(ScenarioReader().read_jobs(document, {"scenario.json", {}}), InputError) << document;
    add(invalid, document);
  }
  const int code = place.python(std::string(ORRERY_SOURCE_DIR) + "/tests/cli/validate_schema.py schema.json" + valid +
                                " --" + invalid);
  if (code == 77 || code == 127) GTEST_SKIP() << "python3 with the package jsonschema is not here";
  EXPECT_EQ(code, 0) << place.read(".stdout") << place.read(".stderr");
}

}  // namespace
}  // namespace orrery
