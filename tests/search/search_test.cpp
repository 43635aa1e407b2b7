// The search against plans evaluated one by one.
#include "study/search/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "sim/base/error.h"
#include "strategies/framework/options.h"
#include "strategies/pipeline_parallel/schedules.h"
#include "strategies/read_scenario.h"
#include "strategies/strategy.h"
#include "study/prediction/prediction.h"
#include "study/search/advice.h"
#include "study/search/plan_field.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

Scenario scenario_of(const char* model, int nodes, int sequence_length, int batch, Json plan = Json::object(),
                     const char* node = "dgx-h100") {
  const Json document{{"model", model},
                      {"cluster", {{"node", node}, {"nodes", nodes}}},
                      {"workload", {{"sequence_length", sequence_length}, {"global_batch_size", batch}}},
                      {"plan", std::move(plan)}};
  return read_scenario(document, {"test", {}});
}

struct Evaluated {
  std::vector<std::int64_t> values;
  double seconds_a_sequence = 0, bytes = 0;
};

// Every plan of the space that can be laid out, by predict(), which knows of no search.
std::vector<Evaluated> all_plans(const Space& space) {
  std::vector<Evaluated> plans;
  Calibrator calibrator;
  Scenario scenario = space.base();
  std::vector<std::int64_t> values;
  space.for_each(
      scenario, values, space.axes().size(), [&](const Scenario& plan, const std::vector<std::int64_t>& chosen) {
        try {
          const Report report = predict(calibrator.prepare(plan));
          plans.push_back({chosen, report.step_seconds / static_cast<double>(plan.workload.global_batch_size),
                           report.memory_peak_bytes});
        } catch (const InputError&) {
        }
      });
  return plans;
}

using SecondsAndBytes = std::vector<std::pair<double, double>>;

SecondsAndBytes fastest(std::vector<Evaluated> plans, double most_bytes, std::size_t top) {
  SecondsAndBytes found;
  for (const Evaluated& plan : plans)
    if (plan.bytes <= most_bytes) found.emplace_back(plan.seconds_a_sequence, plan.bytes);
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  if (found.size() > top) found.resize(top);
  return found;
}

// No other plan is as fast and as lean.
SecondsAndBytes front(const std::vector<Evaluated>& plans, double most_bytes, double times) {
  const SecondsAndBytes all = fastest(plans, most_bytes, plans.size());
  SecondsAndBytes found;
  for (const auto& plan : all) {
    const bool beaten = std::any_of(all.begin(), all.end(), [&](const auto& other) {
      return other != plan && other.first <= plan.first && other.second <= plan.second;
    });
    if (!beaten && plan.first <= times * all.front().first) found.push_back(plan);
  }
  return found;
}

SecondsAndBytes pairs(const std::vector<FoundPlan>& plans) {
  SecondsAndBytes found;
  for (const FoundPlan& plan : plans) found.emplace_back(plan.seconds_a_sequence, plan.memory_peak_bytes);
  return found;
}

struct Case {
  const char* name;
  Scenario scenario;
  SpaceOptions fields;
  double most_memory = 0;
};

std::vector<Case> cases() {
  SpaceOptions few;
  few.fixed = {"context_parallel", "mesh_order"};
  SpaceOptions offloading = few;
  offloading.over = {{"optimizer_offload", {}}, {"activation_offload", {}}, {"memo", {}}, {"recompute_layers", {}}};
  offloading.fixed.emplace_back("pipeline_schedule");
  offloading.fixed.emplace_back("mesh_order");
  SpaceOptions long_sequences;
  long_sequences.over = {{"context_parallel_type", {}}, {"zero_shard_degree", {}}};
  long_sequences.fixed = {"mesh_order", "recompute", "micro_batch_size"};
  SpaceOptions batches = few;
  batches.global_batch_sizes = {16, 48};
  batches.over = {{"tensor_parallel", {2, 4}}, {"framework", {"megatron-core", "fsdp-compiled"}}};
  SpaceOptions kernels = few;
  kernels.over = {{"attention_kernel", {"flash_attention_2", "flash_attention_3", "cudnn"}}};
  kernels.fixed.insert(kernels.fixed.end(), {"pipeline_parallel", "recompute", "sequence_parallel"});
  SpaceOptions split_backwards = few;
  split_backwards.over = {{"pipeline_schedule", {"1f1b", "zb-h1"}}, {"pipeline_parallel", {4, 8}}};
  SpaceOptions pipelines = few;
  for (const char* field : {"sequence_parallel", "recompute", "reshard_after_forward"})
    pipelines.fixed.emplace_back(field);
  SpaceOptions ranges = few;
  ranges.over = {{"zero_stage", {1, 3}}};
  return {
      {"a model that fits many ways", scenario_of("llama-3-8b", 2, 8192, 16), few},
      {"little memory", scenario_of("llama-2-13b", 2, 4096, 32), few, 40e9},
      {"offloading", scenario_of("gpt3-1.3b", 1, 2048, 16, {{"framework", "deepspeed"}}, "dgx-a100"), offloading, 6e9},
      {"long sequences", scenario_of("llama-3-8b", 2, 65536, 4), long_sequences},
      {"several batches and stacks", scenario_of("llama-2-7b", 1, 4096, 16), batches},
      {"several kernels of attention", scenario_of("llama-2-7b", 1, 4096, 16), kernels},
      {"uneven stages and nodes cut by stages", scenario_of("llama-3-8b", 3, 4096, 24, {{"framework", "nanotron"}}),
       few, 60e9},
      {"layers with plans of their own",
       scenario_of("llama-2-7b", 2, 4096, 32, {{"layers", {{{"from", 0}, {"to", 8}, {"recompute", "full"}}}}}), ranges},
      {"backward passes that are split", scenario_of("llama-3-70b", 1, 8192, 8), split_backwards, 1e13},
      {"layers of which few see the whole sequence", scenario_of("gemma3-4b", 1, 65536, 16), pipelines, 1e13},
  };
}

TEST(Search, FindsWhatAllPlansEvaluatedOneByOneHave) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const Space space(c.scenario, c.fields);
    const double most = c.most_memory > 0 ? c.most_memory : c.scenario.cluster.device.memory_bytes;
    const std::vector<Evaluated> plans = all_plans(space);
    ASSERT_GT(plans.size(), 90U);
    const SearchResult found = search(space, {.top = 7, .front = 1.5, .most_memory_bytes = most});
    EXPECT_TRUE(found.bounds_held);
    EXPECT_EQ(found.bound_slack, 0);
    EXPECT_EQ(pairs(found.best), fastest(plans, most, 7));
    EXPECT_EQ(pairs(found.front), front(plans, most, 1.5));
    EXPECT_EQ(found.considered, found.evaluated + found.too_slow + found.too_large + found.refused);
    EXPECT_EQ(found.considered, search(space, {.exhaustive = true}).considered);
  }
}

TEST(Search, OfPlansThatComeToTheSameTheFirstStands) {
  SpaceOptions fields;
  fields.fixed = {"context_parallel", "pipeline_parallel"};
  fields.over = {{"mesh_order", {}}};
  const Space space(scenario_of("llama-3-8b", 1, 8192, 8, {{"pipeline_parallel", 2}}), fields);
  const std::vector<Evaluated> plans = all_plans(space);
  int of_several = 0;
  for (const FoundPlan& found : search(space, {.exhaustive = true}).best) {
    const auto is_alike = [&](const Evaluated& plan) {
      return plan.seconds_a_sequence == found.seconds_a_sequence && plan.bytes == found.memory_peak_bytes;
    };
    const auto first = std::find_if(plans.begin(), plans.end(), is_alike);
    ASSERT_NE(first, plans.end());
    EXPECT_EQ(found.values, first->values);
    of_several += std::count_if(plans.begin(), plans.end(), is_alike) > 1 ? 1 : 0;
  }
  EXPECT_GT(of_several, 0);
}

// The bounds of a group are of the plan that the search was given, whatever was tried before: here an order of ranks by
// which tensor-parallel ones lie on two nodes.
TEST(Search, BoundsAreOfTheGroupAlone) {
  SpaceOptions fields;
  fields.fixed = {"context_parallel"};
  fields.over = {{"mesh_order", {"tp-cp-ep-dp-pp", "dp-tp-cp-ep-pp"}}, {"tensor_parallel", {4, 8}}};
  const Space space(scenario_of("llama-3-8b", 2, 8192, 16), fields);
  const SearchResult found = search(space, {.top = 1, .front = 1});
  EXPECT_EQ(found.bound_slack, 0);
  EXPECT_EQ(pairs(found.best), pairs(search(space, {.top = 1, .front = 1, .exhaustive = true}).best));
}

TEST(Search, WhatTheHostCannotHoldDoesNotFit) {
  Scenario scenario = scenario_of("gpt3-1.3b", 1, 2048, 16, {{"framework", "deepspeed"}}, "dgx-a100");
  SpaceOptions fields;
  fields.fixed = {"context_parallel"};
  fields.over = {{"optimizer_offload", {}}};
  const auto offloads = [&](const SearchResult& found, const Space& space) {
    return std::any_of(found.best.begin(), found.best.end(), [&](const FoundPlan& plan) {
      return field_of(space.scenario(plan.values).plan, "optimizer_offload") == true;
    });
  };
  const SearchOptions little{.top = 1000, .most_memory_bytes = 4e9};
  const Space large(scenario, fields);
  EXPECT_TRUE(offloads(search(large, little), large));
  scenario.cluster.node.host_memory_bytes = 1e9;
  const Space small(scenario, fields);
  EXPECT_FALSE(offloads(search(small, little), small));
}

// Other replicas have other documents, so that no plan's micro-batches bound another's.
TEST(Search, TriesEveryPlanWhereSequencesArePackedFromDocuments) {
  SpaceOptions fields;
  fields.fixed = {"context_parallel", "mesh_order", "pipeline_parallel"};
  Scenario scenario = scenario_of("llama-3-8b", 2, 8192, 64);
  scenario.workload.documents = "wikipedia";
  const Space space(scenario, fields);
  const SearchResult found = search(space, {}), exhaustive = search(space, {.exhaustive = true});
  EXPECT_EQ(found.too_slow, 0U);
  EXPECT_EQ(found.evaluated, exhaustive.evaluated);
  EXPECT_EQ(pairs(found.best), pairs(exhaustive.best));
}

TEST(Search, BoundsSaveMostOfTheWork) {
  SpaceOptions fields;
  fields.fixed = {"context_parallel", "mesh_order"};
  const Space space(scenario_of("llama-3-8b", 8, 8192, 64), fields);
  const SearchResult found = search(space, {});
  const SearchResult exhaustive = search(space, {.exhaustive = true});
  EXPECT_LT(3 * found.evaluated, exhaustive.evaluated);
  EXPECT_GT(found.too_slow, 0U);
  EXPECT_EQ(found.considered, exhaustive.considered);
  EXPECT_EQ(pairs(found.best), pairs(exhaustive.best));
  EXPECT_EQ(pairs(found.front), pairs(exhaustive.front));
}

TEST(Search, PlansThatRestTooLargeAreNotEvaluated) {
  const Space space(scenario_of("llama-3-70b", 4, 4096, 32), {});
  const SearchResult found = search(space, {});
  EXPECT_GT(found.too_large, 0U);
  EXPECT_FALSE(found.best.empty());
}

TEST(Search, IsTheSameOnAnyNumberOfThreads) {
  const Space space(scenario_of("llama-3-8b", 4, 8192, 64), {});
  const SearchResult one = search(space, {.threads = 1}), four = search(space, {.threads = 4});
  EXPECT_EQ(one.considered, four.considered);
  EXPECT_EQ(one.evaluated, four.evaluated);
  EXPECT_EQ(one.feasible, four.feasible);
  ASSERT_EQ(one.best.size(), four.best.size());
  for (std::size_t i = 0; i < one.best.size(); ++i) {
    EXPECT_EQ(one.best[i].values, four.best[i].values);
    EXPECT_EQ(one.best[i].step_seconds, four.best[i].step_seconds);
  }
  EXPECT_EQ(pairs(one.front), pairs(four.front));
}

TEST(Search, ReasonsAreOfAllThatIsRefused) {
  SpaceOptions options;
  options.over = {{"tensor_parallel", {1, 3, 5}}, {"zero_shard_degree", {3, 5}}};
  options.fixed = {"context_parallel", "micro_batch_size"};
  const SearchResult found = search(Space(scenario_of("llama-3.2-1b", 1, 2048, 8), options), {.exhaustive = true});
  std::uint64_t sum = 0;
  for (const auto& [why, times] : found.refusals) sum += times;
  EXPECT_GT(found.refusals.size(), 1U);
  EXPECT_EQ(sum, found.refused);
}

TEST(Search, WhereNothingFitsTheLeanestIsThatOfAllPlans) {
  const Scenario scenario = scenario_of("llama-3-70b", 1, 8192, 8);
  SpaceOptions fields;
  fields.fixed = {"context_parallel"};
  const Space space(scenario, fields);
  const SearchResult found = search(space, {.most_memory_bytes = 4e9});
  EXPECT_TRUE(found.best.empty());
  EXPECT_TRUE(found.front.empty());
  ASSERT_TRUE(found.leanest.has_value());
  double least = 1e30;
  for (const Evaluated& plan : all_plans(space)) least = std::min(least, plan.bytes);
  EXPECT_EQ(found.leanest->memory_peak_bytes, least);
}

TEST(Search, EveryRemedyFits) {
  SpaceOptions fields;
  fields.fixed = {"zero_stage", "recompute"};
  const Scenario scenario = scenario_of("llama-3-70b", 1, 8192, 16);
  ASSERT_TRUE(search(Space(scenario, fields), {}).best.empty());
  const std::vector<Remedy> relaxed = remedies(scenario, fields, {});
  ASSERT_FALSE(relaxed.empty());
  Calibrator calibrator;
  for (const Remedy& r : relaxed) {
    const Report report = predict(calibrator.prepare(r.scenario));
    EXPECT_TRUE(report.memory_fits) << r.what;
    EXPECT_EQ(report.step_seconds, r.plan.step_seconds) << r.what;
  }
  const auto more_nodes = std::find_if(relaxed.begin(), relaxed.end(), [](const Remedy& r) {
    return r.what.find("nodes instead of 1") != std::string::npos;
  });
  ASSERT_NE(more_nodes, relaxed.end());
  Scenario half = scenario;
  half.cluster.nodes = more_nodes->scenario.cluster.nodes / 2;
  EXPECT_TRUE(search(Space(half, fields), {}).best.empty()) << "half the nodes are enough";
}

// A remedy changes what it says and nothing else, and is the smallest of its kind.
TEST(Search, ARemedyIsOneChange) {
  SpaceOptions fields;
  fields.fixed = {"recompute", "zero_stage"};
  const Scenario scenario = scenario_of("llama-3-8b", 1, 8192, 16);
  const std::vector<Remedy> found = remedies(scenario, fields, {.most_memory_bytes = 20 * 0x1p30});
  int freed = 0, nodes = 0, sequences = 0;
  for (const Remedy& remedy : found) {
    SCOPED_TRACE(remedy.what);
    for (const std::string& field : fields.fixed) {
      if (remedy.what == "plan." + field + " searched") continue;
      EXPECT_EQ(field_of(remedy.scenario.plan, field), field_of(scenario.plan, field));
    }
    freed += remedy.what.ends_with(" searched") ? 1 : 0;
    if (remedy.what.find("nodes instead of") != std::string::npos) {
      EXPECT_EQ(remedy.what, "2 nodes instead of 1");
      ++nodes;
    }
    sequences += remedy.what.find("tokens instead of") != std::string::npos ? 1 : 0;
  }
  EXPECT_GE(freed, 1);
  EXPECT_EQ(nodes, 1);
  EXPECT_EQ(sequences, 1);
}

TEST(Search, MemoryThatIsAllowedIsKept) {
  const Scenario scenario = scenario_of("llama-3-8b", 2, 8192, 32);
  const Space space(scenario, {});
  for (const double margin : {1.0, 1.14})
    for (const FoundPlan& plan : search(space, {.most_memory_bytes = 45e9, .memory_margin = margin}).best)
      EXPECT_LE(plan.memory_peak_bytes * margin, 45e9);
}

TEST(Search, TheNetworkThatIsNeededIsTheSlowestThatIsEnough) {
  const Scenario scenario = scenario_of("llama-3-8b", 8, 8192, 64, {{"zero_stage", 3}, {"recompute", "full"}});
  const NetworkNeed need = network_need(scenario, 0.05);
  ASSERT_TRUE(need.any);
  Calibrator calibrator;
  const auto step_at = [&](double rate) {
    Scenario slower = scenario;
    slower.cluster.node.nic_bytes_per_second = rate;
    return predict(calibrator.prepare(slower)).step_seconds;
  };
  const double most = 1.05 * step_at(need.nic_bytes_per_second);
  EXPECT_LT(need.bytes_per_second, need.nic_bytes_per_second);
  EXPECT_LE(step_at(need.bytes_per_second), most);
  EXPECT_GT(step_at(need.bytes_per_second / 1.02), most);
  EXPECT_FALSE(network_need(scenario_of("llama-3-8b", 1, 8192, 8, {{"zero_stage", 3}}), 0.05).any);
  EXPECT_FALSE(network_need(scenario, 1e6).any) << "a thousandth of the rate does not slow it by so much";
}

std::string error_of(const SpaceOptions& fields) {
  try {
    const Space space(scenario_of("llama-3-8b", 1, 8192, 8), fields);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(SearchSpace, SaysWhatIsWrongWithWhatIsAsked) {
  SpaceOptions fields;
  fields.fixed = {"tensor_paralel"};
  EXPECT_THAT(error_of(fields), testing::HasSubstr("tensor_parallel"));
  fields.fixed = {"zero_stage"};
  fields.over = {{"zero_stage", {1}}};
  EXPECT_THAT(error_of(fields), testing::HasSubstr("both fixed and searched"));
  fields.fixed = {};
  fields.over = {{"zero_stage", {7}}};
  EXPECT_THAT(error_of(fields), testing::HasSubstr("/plan/zero_stage"));
  fields.over = {{"clip_grad", {}}};
  EXPECT_THAT(error_of(fields), testing::HasSubstr("no values"));
  fields.over = {{"recompute", {"full", "full"}}};
  EXPECT_THAT(error_of(fields), testing::HasSubstr("a second time"));
}

// The values of all axes from `first` on, of every plan.
std::vector<std::vector<std::int64_t>> values_of(const Space& space, std::size_t first = 0) {
  std::vector<std::vector<std::int64_t>> all;
  Scenario scenario = space.base();
  std::vector<std::int64_t> values;
  space.for_each(scenario, values, space.axes().size(), [&](const Scenario&, const std::vector<std::int64_t>& chosen) {
    all.emplace_back(chosen.begin() + static_cast<std::ptrdiff_t>(first), chosen.end());
  });
  return all;
}

TEST(SearchSpace, AStackHasItsPlansWhetherItIsNamedOrNot) {
  std::vector<std::vector<std::vector<std::int64_t>>> of_stack;
  Json names = Json::array();
  std::size_t sum = 0;
  for (const std::string_view name : framework::kStackNames) {
    names.push_back(name);
    const Scenario base = scenario_of("llama-3-8b", 2, 8192, 16, {{"framework", name}});
    SpaceOptions named;
    named.over = {{"framework", {name}}};
    of_stack.push_back(values_of(Space(base, {})));
    EXPECT_EQ(values_of(Space(base, named), 1), of_stack.back()) << name;
    sum += of_stack.back().size();
  }
  EXPECT_LT(of_stack[1].size(), of_stack[0].size());  // Megatron of 2021 has less than Megatron-Core
  SpaceOptions all;
  all.over = {{"framework", names}};
  EXPECT_EQ(values_of(Space(scenario_of("llama-3-8b", 2, 8192, 16), all)).size(), sum);
}

TEST(SearchSpace, PlansThatOnlyDifferInWhatIsSwitchedOffAreOne) {
  SpaceOptions options;
  options.all = true;
  options.over = {{"overlap_p2p_communication", {true, false}},
                  {"scatter_gather_tensors_in_pipeline", {"on", "off"}},
                  {"overlap_grad_reduce", {true, false}},
                  {"overlap_param_gather", {true, false}},
                  {"memo_alpha", {0.25, 0.5}},
                  {"sequence_parallel", {true, false}},
                  {"reshard_after_forward", {true, false}},
                  {"virtual_pipeline", {1, 2}}};
  options.fixed = {"micro_batch_size", "recompute_layers", "pipeline_schedule"};
  const Space space(scenario_of("llama-3.2-1b", 1, 2048, 8, {{"pipeline_schedule", "1f1b"}}), options);
  std::map<std::string_view, bool (*)(const Scenario&)> acts;
  for (const Strategy& strategy : all_strategies())
    for (const SearchAxis& axis : strategy.search_axes) acts[axis.field] = axis.acts;
  std::set<std::vector<std::int64_t>> unlike;
  std::size_t plans = 0, off = 0;
  Scenario scenario = space.base();
  std::vector<std::int64_t> values;
  space.for_each(scenario, values, space.axes().size(), [&](const Scenario& plan, std::vector<std::int64_t> chosen) {
    ++plans;
    for (std::size_t i = 0; i < chosen.size(); ++i)
      if (const auto of = acts[space.axes()[i].field]; of != nullptr && !of(plan)) chosen[i] = 0, ++off;
    unlike.insert(chosen);
  });
  EXPECT_GT(off, plans);
  EXPECT_EQ(unlike.size(), plans);
}

// A search bounds plans by what they are without their strategies that trade time for memory.
TEST(Search, StrategiesThatSpareActivationsSaySo) {
  std::size_t strategies = 0;
  for (const Strategy& strategy : all_strategies()) {
    const auto spares = [](const SearchAxis& axis) { return axis.chosen_with == ChosenWith::activations; };
    if (std::ranges::none_of(strategy.search_axes, spares)) continue;
    ++strategies;
    EXPECT_NE(strategy.relax, nullptr) << strategy.name;
    ASSERT_NE(strategy.spares_activations, nullptr) << strategy.name;
    EXPECT_FALSE(strategy.spares_activations(Plan())) << strategy.name;
  }
  EXPECT_GE(strategies, 3u);
}

TEST(SearchSpace, NothingIsSwappedWhereItCannotBe) {
  SpaceOptions options;
  options.over = {{"memo", {}}, {"memo_alpha", {}}};
  const auto plans = [&](const Json& plan) {
    return values_of(Space(scenario_of("llama-3.2-1b", 1, 2048, 8, plan), options)).size();
  };
  const std::size_t without = values_of(Space(scenario_of("llama-3.2-1b", 1, 2048, 8), {})).size();
  EXPECT_GT(plans(Json::object()), without);
  EXPECT_EQ(plans({{"precision", "fp8"}}), without);
}

TEST(SearchSpace, LayersDivideIntoChunksWhereTheStackAsksForIt) {
  const auto uneven = [](const char* stack, const SpaceOptions& options, int nodes) {
    const Space space(scenario_of("llama-3-70b", nodes, 8192, 8 * nodes, {{"framework", stack}}), options);
    std::size_t count = 0;
    for (const auto& values : values_of(space)) {
      const Scenario plan = space.scenario(values);
      const std::vector<std::int64_t> split =
          pipeline_parallel::split_layers(plan.model.total_layers(), plan.plan.pipeline);
      count += std::all_of(split.begin(), split.end(), [&](std::int64_t n) { return n == split.front(); }) ? 0 : 1;
    }
    return count;
  };
  SpaceOptions few;
  few.fixed = {"micro_batch_size", "recompute", "context_parallel", "zero_stage", "reshard_after_forward"};
  for (const int nodes : {3, 4}) {
    EXPECT_EQ(uneven("megatron-core", few, nodes), 0U);
    EXPECT_GT(uneven("fsdp", few, nodes), 0U);
  }
  few.over = {{"virtual_pipeline", {7}}};
  EXPECT_GT(uneven("megatron-core", few, 4), 0U) << "what is named is tried";
}

TEST(SearchSpace, AnEncoderAndADecoderAreNotInterleaved) {
  const auto interleaved = [](const char* model) {
    Scenario scenario = scenario_of(model, 4, 512, 64);
    const Space space(scenario, {});
    std::vector<std::int64_t> values;
    std::int64_t count = 0;
    space.for_each(scenario, values, space.axes().size(), [&](const Scenario& chosen, const auto&) {
      count += chosen.plan.pipeline.schedule == pipeline_parallel::ScheduleKind::interleaved ? 1 : 0;
    });
    return count;
  };
  EXPECT_EQ(interleaved("t5-3b"), 0);
  EXPECT_GT(interleaved("llama-3-8b"), 0);
}

TEST(SearchSpace, AxesOfStrategiesAreFieldsOfThePlanEachWithItsSetter) {
  SpaceOptions fields;
  fields.all = true;
  const Scenario scenario = scenario_of("llama-3-8b", 4, 8192, 64);
  const Space space(scenario, fields);
  const std::vector<std::string> names = plan_field_names();
  for (const Space::Axis& axis : space.axes()) EXPECT_THAT(names, testing::Contains(axis.field));
  // What an axis sets is its field and no other.
  Scenario working = scenario;
  std::vector<std::int64_t> values;
  int seen = 0;
  space.for_each(working, values, space.axes().size(),
                 [&](const Scenario& chosen, const std::vector<std::int64_t>& of) {
                   if (++seen % 997 != 0) return;
                   for (std::size_t i = 0; i < of.size(); ++i) {
                     const auto number = number_of(chosen.plan, space.axes()[i].field);
                     EXPECT_EQ(number.value_or(of[i]), of[i]) << space.axes()[i].field;
                   }
                 });
  EXPECT_GT(seen, 10000);
}

TEST(PlanField, IsWhatIsSet) {
  Plan plan;
  set_field(plan, "recompute", "full");
  EXPECT_EQ(field_of(plan, "recompute"), "full");
  EXPECT_EQ(number_of(plan, "recompute"), 2);
  set_field(plan, "mesh_order", "tp-cp-ep-pp-dp");
  EXPECT_EQ(field_of(plan, "mesh_order"), "tp-cp-ep-pp-dp");
  EXPECT_EQ(number_of(plan, "mesh_order"), std::nullopt);
  EXPECT_THROW(set_field(plan, "recompute", 3), InputError);
}

}  // namespace
}  // namespace orrery
