// Are a sweep's points those that its document says, and is what is wrong in it said where it stands?
#include "study/sweep/document.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sim/base/error.h"

namespace orrery {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

json scenario() {
  return {{"model", "llama-3-8b"},
          {"cluster", {{"node", "dgx-h100"}, {"nodes", 2}}},
          {"workload", {{"sequence_length", 8192}, {"global_batch_size", 32}}},
          {"plan", {{"tensor_parallel", 2}}}};
}

json with(const json& more) {
  json document = more;
  document["scenario"] = scenario();
  return document;
}

// The fields of all points, in order.
std::vector<std::string> points_of(const json& document) {
  const SweepDocument sweep = read_sweep(document, "sweep.json");
  SweepLines lines(sweep);
  SweepCursor cursor(sweep.axes);
  std::vector<std::string> all;
  do {
    EXPECT_EQ(cursor.number(), static_cast<std::int64_t>(all.size()));
    all.push_back(lines.fields(cursor.choices()));
  } while (cursor.advance());
  EXPECT_EQ(count_points(sweep), static_cast<std::int64_t>(all.size()));
  EXPECT_EQ(lines.fields(cursor.choices()), all.front()) << "after the last comes the first";
  return all;
}

TEST(SweepDocument, ListsRangesAndFactorsAreTheirProduct) {
  EXPECT_THAT(points_of(with({{"axes", {{"cluster.nodes", {2, 4}}, {"plan.zero_stage", {1, 3}}}}})),
              ElementsAre(R"({"cluster.nodes":2,"plan.zero_stage":1})", R"({"cluster.nodes":2,"plan.zero_stage":3})",
                          R"({"cluster.nodes":4,"plan.zero_stage":1})", R"({"cluster.nodes":4,"plan.zero_stage":3})"));
  EXPECT_THAT(points_of(with({{"axes", {{"cluster.nodes", {{"from", 2}, {"to", 9}, {"step", 3}}}}}})),
              ElementsAre(R"({"cluster.nodes":2})", R"({"cluster.nodes":5})", R"({"cluster.nodes":8})"));
  EXPECT_THAT(points_of(with({{"axes", {{"cluster.nodes", {{"from", 2}, {"to", 16}, {"factor", 2}}}}}})),
              ElementsAre(R"({"cluster.nodes":2})", R"({"cluster.nodes":4})", R"({"cluster.nodes":8})",
                          R"({"cluster.nodes":16})"));
  // Rounding does not lose the last value of a range.
  EXPECT_EQ(
      points_of(with({{"axes", {{"cluster.fabric.oversubscription", {{"from", 1.1}, {"to", 1.4}, {"step", 0.1}}}}}}))
          .size(),
      4U);
}

TEST(SweepDocument, WholeNumbersOfARangeAreThoseUpToItsEnd) {
  const auto seeds = [](const json& from, const json& to, const char* by, int much) {
    const json range = {{"from", from}, {"to", to}, {by, much}};
    return points_of(with({{"axes", {{"cluster.nodes", {2}}, {"workload.routing_seed", range}}}}));
  };
  const std::int64_t large = std::int64_t{1} << 32;
  EXPECT_EQ(seeds(large - 2, large, "step", 1).size(), 3U);
  EXPECT_EQ(seeds(large, large, "factor", 1 << 30).size(), 1U);
  EXPECT_EQ(seeds(2000000000, 2000000000.5, "step", 1).size(), 1U);
  for (const json& from : {json(std::uint64_t{1} << 63), json(INT64_MAX), json(INT64_MIN)})
    EXPECT_THROW(seeds(from, 0x1p63, "step", 1), InputError) << from;
}

TEST(SweepDocument, ZippedFieldsChangeTogetherAndConditionalOnesWhereTheyApply) {
  EXPECT_THAT(
      points_of(with({{"zip", json::array({{{"cluster.nodes", {2, 4}}, {"workload.global_batch_size", {32, 64}}}})}})),
      ElementsAre(R"({"cluster.nodes":2,"workload.global_batch_size":32})",
                  R"({"cluster.nodes":4,"workload.global_batch_size":64})"));
  EXPECT_THAT(
      points_of(with({{"axes", {{"plan.tensor_parallel", {1, 2, 4}}}},
                      {"when", json::array({{{"if", {{"plan.tensor_parallel", {2, 4}}}},
                                             {"axes", {{"plan.sequence_parallel", {false, true}}}}},
                                            {{"if", {{"plan.sequence_parallel", true}}},
                                             {"axes", {{"plan.zero_stage", {1, 2}}}}}})}})),
      ElementsAre(R"({"plan.tensor_parallel":1})", R"({"plan.tensor_parallel":2,"plan.sequence_parallel":false})",
                  R"({"plan.tensor_parallel":2,"plan.sequence_parallel":true,"plan.zero_stage":1})",
                  R"({"plan.tensor_parallel":2,"plan.sequence_parallel":true,"plan.zero_stage":2})",
                  R"({"plan.tensor_parallel":4,"plan.sequence_parallel":false})",
                  R"({"plan.tensor_parallel":4,"plan.sequence_parallel":true,"plan.zero_stage":1})",
                  R"({"plan.tensor_parallel":4,"plan.sequence_parallel":true,"plan.zero_stage":2})"));
}

TEST(SweepDocument, ConditionsHoldTogether) {
  EXPECT_THAT(
      points_of(with({{"axes", {{"cluster.nodes", {2, 4}}, {"plan.tensor_parallel", {1, 2}}}},
                      {"when", json::array({{{"if", {{"cluster.nodes", 4}, {"plan.tensor_parallel", 2}}},
                                             {"axes", {{"plan.zero_stage", {1, 2}}}}}})}})),
      ElementsAre(R"({"cluster.nodes":2,"plan.tensor_parallel":1})", R"({"cluster.nodes":2,"plan.tensor_parallel":2})",
                  R"({"cluster.nodes":4,"plan.tensor_parallel":1})",
                  R"({"cluster.nodes":4,"plan.tensor_parallel":2,"plan.zero_stage":1})",
                  R"({"cluster.nodes":4,"plan.tensor_parallel":2,"plan.zero_stage":2})"));
}

TEST(SweepDocument, SeedsAreThoseOfAllThatIsDrawn) {
  json document = with({{"engine", "des"}, {"seeds", {5, 6}}});
  document["scenario"]["perturbations"] =
      json::array({{{"kind", "slow_device"}, {"devices", json::array({1})}, {"factor", 0.5}},
                   {{"kind", "slow_device"}, {"count", 2}, {"factor", 0.9}}});
  EXPECT_THAT(points_of(document), ElementsAre(R"({"perturbations.1.seed":5})", R"({"perturbations.1.seed":6})"));
  document["scenario"]["perturbations"][0] = {{"kind", "jitter"}, {"coefficient_of_variation", 0.1}};
  EXPECT_THAT(points_of(document), ElementsAre(R"({"perturbations.0.seed":5,"perturbations.1.seed":5})",
                                               R"({"perturbations.0.seed":6,"perturbations.1.seed":6})"));
}

// A point is the scenario with its fields set, whether or not the part was made for another point already.
TEST(SweepDocument, PointsAreTheScenarioWithTheirFieldsSet) {
  const SweepDocument sweep = read_sweep(
      with({{"axes",
             {{"model", {"llama-3-8b", "llama-2-7b"}}, {"plan.tensor_parallel", {1, 2}}, {"plan.zero_stage", {0, 1}}}},
            {"when", json::array({{{"if", {{"plan.zero_stage", 1}}}, {"axes", {{"cluster.nodes", {4}}}}}})}}),
      "sweep.json");
  SweepLines lines(sweep);
  SweepCursor cursor(sweep.axes);
  int points = 0;
  for (int round = 0; round < 2; ++round) do {
      json expected = scenario();
      const json fields = json::parse(lines.fields(cursor.choices()));
      expected["model"] = fields["model"];
      for (const char* field : {"tensor_parallel", "zero_stage"})
        expected["plan"][field] = fields[std::string("plan.") + field];
      if (fields.contains("cluster.nodes")) expected["cluster"]["nodes"] = fields["cluster.nodes"];
      EXPECT_EQ(json::parse(lines.line(cursor.choices())), expected);
      ++points;
    } while (cursor.advance());
  EXPECT_EQ(points, 16);
}

struct BadSweep {
  const char* name;
  json document;
  const char* says;
};

TEST(SweepDocument, SaysWhatIsWrongAndWhere) {
  json without_scenario = with({{"axes", {{"cluster.nodes", {2}}}}});
  without_scenario.erase("scenario");
  for (
      const BadSweep& bad : {
          BadSweep{"unknown field", with({{"axes", {{"plan.tensor_paralel", {1}}}}}),
                   R"(sweep.json: /axes/plan.tensor_paralel: found the unknown key "tensor_paralel")"},
          {"its nearest", with({{"axes", {{"plan.tensor_paralel", {1}}}}}), R"(did you mean "plan.tensor_parallel"?)"},
          {"of another part", with({{"axes", {{"cluster.node_count", {1}}}}}), "/axes/cluster.node_count"},
          {"key", with({{"axis", {{"cluster.nodes", {1}}}}}), R"(did you mean "axes"?)"},
          {"no axes", with(json::object()), "/axes: found nothing"},
          {"no scenario", without_scenario, "/scenario: found nothing"},
          {"a value that the field cannot hold", with({{"axes", {{"cluster.nodes", {2, -1}}}}}), "/axes/cluster.nodes"},
          {"a value of a condition's axis",
           with({{"axes", {{"cluster.nodes", {2, 4}}}},
                 {"when", json::array({{{"if", {{"cluster.nodes", 4}}}, {"axes", {{"plan.zero_stage", {9}}}}}})}}),
           "/when/0/axes/plan.zero_stage"},
          {"no values", with({{"axes", {{"cluster.nodes", json::array()}}}}), "a list of values"},
          {"a value twice", with({{"axes", {{"cluster.nodes", {2, 2}}}}}), "2 a second time"},
          {"a range without a step", with({{"axes", {{"cluster.nodes", {{"from", 1}, {"to", 2}}}}}}), "neither a step"},
          {"a step of nothing", with({{"axes", {{"cluster.nodes", {{"from", 1}, {"to", 2}, {"step", 0}}}}}}),
           "more than 0"},
          {"a factor of one", with({{"axes", {{"cluster.nodes", {{"from", 1}, {"to", 2}, {"factor", 1}}}}}}),
           "more than 1"},
          {"backwards", with({{"axes", {{"cluster.nodes", {{"from", 4}, {"to", 2}, {"step", 1}}}}}}), "at least"},
          {"two axes of a field",
           with({{"axes", {{"cluster.nodes", {2}}}}, {"zip", json::array({{{"cluster.nodes", {4}}}})}}),
           R"("cluster.nodes" on a second axis)"},
          {"zipped of two lengths",
           with({{"zip", json::array({{{"cluster.nodes", {2, 4}}, {"workload.global_batch_size", {32}}}})}}),
           "found 1 values, expected as many"},
          {"a condition on no axis",
           with({{"axes", {{"cluster.nodes", {2}}}},
                 {"when", json::array({{{"if", {{"cluster.node", 2}}}, {"axes", {{"plan.zero_stage", {1}}}}}})}}),
           R"(did you mean "cluster.nodes"?)"},
          {"a condition that never holds",
           with(
               {{"axes", {{"cluster.nodes", {2}}}},
                {"when", json::array({{{"if", {{"cluster.nodes", 3}}}, {"axes", {{"plan.zero_stage", {1}}}}}})}}),
           "3, which its axis does not have"},
          {"seeds of nothing", with({{"seeds", {1}}}), "a scenario without random draws"},
          {"a field that no plan has",
           with({{"axes", {{"cluster.nodes", {2}}}}, {"search", {{"over", {{"zero_stag", {1}}}}}}}),
           R"(/search/over/zero_stag: found no field of a plan, expected one of them (orrery list fields) (did you mean "zero_stage"?))"},
          {"a value that the search cannot try",
           with({{"axes", {{"cluster.nodes", {2}}}}, {"search", {{"over", {{"zero_stage", {1, 7}}}}}}}),
           "/search/over/zero_stage: found 7"},
          {"a field both fixed and searched",
           with({{"axes", {{"cluster.nodes", {2}}}},
                 {"search", {{"over", {{"zero_stage", {1, 3}}}}, {"fix", {"plan.zero_stage"}}}}}),
           "/search/fix/0: found a field both fixed and searched"},
          {"an axis that the search is to turn",
           with({{"axes", {{"plan.zero_stage", {1, 3}}}}, {"search", {{"over", {{"zero_stage", {1, 2}}}}}}}),
           "/search/over/zero_stage: found a field that an axis sets"},
          {"an engine", with({{"engine", "dse"}, {"axes", {{"cluster.nodes", {2}}}}}), R"(did you mean "des"?)"},
          {"a fidelity of no engine", with({{"fidelity", "step-exact"}, {"axes", {{"cluster.nodes", {2}}}}}),
           "/fidelity"},
          {"a key of the search", with({{"search", {{"fixed", {"recompute"}}}}, {"axes", {{"cluster.nodes", {2}}}}}),
           "/search/fixed"},
      }) {
    try {
      read_sweep(bad.document, "sweep.json");
      ADD_FAILURE() << bad.name << " is taken";
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr(bad.says)) << bad.name;
    }
  }
  const json ten = {{"from", 1}, {"to", 1000}, {"step", 1}};
  EXPECT_THROW(
      count_points(read_sweep(
          with({{"axes",
                 {{"cluster.nodes", ten}, {"workload.sequence_length", ten}, {"workload.global_batch_size", ten}}}}),
          "sweep.json")),
      InputError);
}

TEST(SweepDocument, BundledOnesCanBeRead) {
  ASSERT_FALSE(bundled_sweeps().empty());
  for (const BundledDocument& sweep : bundled_sweeps())
    EXPECT_GT(count_points(read_sweep(json::parse(sweep.text), std::string(sweep.path))), 1) << sweep.name;
}

}  // namespace
}  // namespace orrery
