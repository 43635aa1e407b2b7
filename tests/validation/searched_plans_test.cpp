// Does a search find plans as fast as those that experts, and other planners, have published, by the same clock?
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/json_reader.h"
#include "sim/report/format.h"
#include "strategies/read_scenario.h"
#include "study/prediction/prediction.h"
#include "study/search/plan_field.h"
#include "study/search/search.h"
#include "study/validation/published.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

// results/published/plans.json
struct PublishedPlan {
  std::string id;
  Scenario given;    // what the planner was: model, cluster, batch, and the stack by which its plan is run here
  Scenario planned;  // with the plan that it chose
  double memory_bytes = 0;
};

std::vector<PublishedPlan> published_plans() {
  std::vector<PublishedPlan> plans;
  const Json document = parse_json_file(ORRERY_SOURCE_DIR "/results/published/plans.json");
  for (const Json& planner : document.at("planners"))
    for (const Json& plan : planner.at("plans")) {
      Json given = planner.at("scenario");
      given.merge_patch(plan.at("scenario"));
      given["model"] = planner.at("models").at(plan.at("scenario").at("model").get<std::string>());
      Json planned = given;
      planned["plan"].merge_patch(plan.at("plan"));
      const std::string id = plan.at("id");
      plans.push_back({id, read_scenario(given, {id, {}}), read_scenario(planned, {id, {}}), plan.at("memory_bytes")});
    }
  return plans;
}

struct Found {
  double step_seconds = 0;
  Plan plan;
};

Found fastest(const Scenario& given, const SpaceOptions& fields, double most_memory_bytes) {
  const Space space(given, fields);
  const SearchResult found =
      search(space, {.top = 1, .front = 1, .leanest = false, .most_memory_bytes = most_memory_bytes, .threads = 2});
  EXPECT_TRUE(found.bounds_held);
  if (found.best.empty()) {
    ADD_FAILURE() << "nothing found";
    return {};
  }
  return {found.best.front().step_seconds, space.scenario(found.best.front().values).plan};
}

// "tp 2, pp 4, micro-batches of 1, sequence parallel"
std::string what_is_unusual(const Plan& plan) {
  std::string what;
  const auto say = [&](const std::string& text) { what += (what.empty() ? "" : ", ") + text; };
  const auto value = [&](const char* field) { return number_of(plan, field).value(); };
  const auto count = [&](const char* field, const char* unit, std::int64_t usual) {
    if (value(field) != usual) say(unit + std::to_string(value(field)));
  };
  count("tensor_parallel", "tp ", 1);
  count("context_parallel", "cp ", 1);
  count("pipeline_parallel", "pp ", 1);
  count("zero_stage", "ZeRO-", 0);
  count("micro_batch_size", "micro-batches of ", 0);
  if (value("virtual_pipeline") != 1) say(std::to_string(value("virtual_pipeline")) + " chunks a stage");
  if (value("sequence_parallel") != 0) say("sequence parallel");
  if (value("account_for_loss") != 0) say("the head split as a layer");
  if (value("recompute") != 0) {
    say(field_of(plan, "recompute").get<std::string>() + " recomputation");
    if (value("recompute_layers") >= 0) what += " of " + std::to_string(value("recompute_layers")) + " layers a stage";
  }
  return what;
}

// The search is told nothing of the published plan, but for the memory that it is predicted to take where that is more
// than its planner was given. Prints the rows of docs/search.md.
TEST(SearchedPlans, TieOrBeatThoseOfOtherPlanners) {
  SpaceOptions all;
  all.over = {{"pipeline_schedule", {"1f1b", "interleaved"}},
              {"recompute_layers", {}},
              {"account_for_loss", {false, true}},
              {"pipeline_parallel", {1, 2, 4, 8, 16}}};  // by name, so that stages may be uneven, as Mist's are
  // What these planners had themselves: no sequence or context parallelism, one chunk a stage, layers recomputed whole.
  SpaceOptions theirs = all;
  theirs.fixed = {"sequence_parallel", "context_parallel", "virtual_pipeline"};
  theirs.over[0].values = {"1f1b"};
  theirs.over.push_back({"recompute", {"none", "full"}});
  int compared = 0, alike = 0;
  for (const PublishedPlan& plan : published_plans()) {
    SCOPED_TRACE(plan.id);
    Calibrator calibrator;
    const Report published = predict(calibrator.prepare(plan.planned));
    const double memory = std::max(plan.memory_bytes, published.memory_peak_bytes);
    const Found found = fastest(plan.given, all, memory), by_theirs = fastest(plan.given, theirs, memory);
    const double most_seconds = published.step_seconds * (1 + 1e-9);
    EXPECT_LE(found.step_seconds, most_seconds);
    ++compared;
    // Of some of Mist's each stage recomputes another number of layers, for which there is no axis.
    if (plan.planned.plan.pipeline.degree == 1 || plan.planned.plan.layers.empty()) {
      EXPECT_LE(by_theirs.step_seconds, most_seconds) << "in its planner's own dimensions";
      ++alike;
    }
    const auto faster_by = [&](const Found& f) { return percent_text(published.step_seconds / f.step_seconds - 1); };
    fmt::print("| `{}`{} | {} | {} | {} | {} | {} |\n", plan.id,
               published.memory_peak_bytes > plan.memory_bytes ? " *" : "", seconds_text(published.step_seconds),
               seconds_text(found.step_seconds), faster_by(found), faster_by(by_theirs), what_is_unusual(found.plan));
  }
  EXPECT_EQ(compared, 28);
  EXPECT_EQ(alike, 21);
}

TEST(SearchedPlans, TieOrBeatThosePublishedByExperts) {
  // Korthikanti et al. 2022, table 5, and NVIDIA's recipes of 2025. Schedules are those that the stack has.
  for (const char* id :
       {"korth-t5-megatron-22B-selsp", "korth-t5-gpt3-175B-selsp", "korth-t5-mt-nlg-530B-selsp",
        "korth-t5-megatron-1T-selsp", "dgxc-v25.04-llama3-8b-h100-32-bf16", "dgxc-v25.04-llama3-70b-h100-64-bf16"}) {
    SCOPED_TRACE(id);
    const PublishedPoint* point = find_published(id);
    ASSERT_NE(point, nullptr);
    const Scenario published = read_scenario(*point->scenario, {id, {}});
    Calibrator calibrator;
    const Report report = predict(calibrator.prepare(published));
    ASSERT_TRUE(report.memory_fits);
    SpaceOptions fields;
    fields.over = {{"pipeline_schedule", {"1f1b", "interleaved"}}};
    const SearchResult found = search(Space(published, fields), {.top = 1, .front = 1});
    ASSERT_FALSE(found.best.empty());
    EXPECT_TRUE(found.bounds_held);
    EXPECT_LE(found.best.front().step_seconds, report.step_seconds * (1 + 1e-9));
  }
}

}  // namespace
}  // namespace orrery
