// Which fields of the plan go together?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "sim/base/error.h"
#include "sim/base/fields.h"
#include "strategies/read_scenario.h"
#include "strategies/strategy.h"

namespace orrery {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

Json document(const char* model, const Json& plan, std::int64_t length = 4096, std::int64_t batch = 64) {
  return {{"model", model},
          {"cluster", {{"node", "dgx-h100"}, {"nodes", 2}}},
          {"workload", {{"sequence_length", length}, {"global_batch_size", batch}}},
          {"plan", plan}};
}

// Plans of several strategies, to which others are added.
const std::map<std::string, Json>& documents() {
  static const std::map<std::string, Json> all{
      {"dense", document("llama-3-8b", Json::object())},
      {"dense-cp",
       document(
           "llama-3-8b",
           {{"tensor_parallel", 2}, {"sequence_parallel", true}, {"context_parallel", 2}, {"pipeline_parallel", 2}})},
      {"dense-zero3", document("llama-3-8b", {{"zero_stage", 3}})},
      {"moe", document("mixtral-8x7b", Json::object())},
      {"moe-ep", document("mixtral-8x7b", {{"tensor_parallel", 2},
                                           {"sequence_parallel", true},
                                           {"expert_tensor_parallel", 1},
                                           {"expert_parallel", 8}})},
      {"memo", document("llama-3-8b", {{"memo", true}, {"pipeline_parallel", 2}})},
      {"fpdt", document("llama-3-8b", {{"context_parallel", 8}, {"context_parallel_type", "fpdt"}}, 65536, 8)},
      {"flex",
       document("mixtral-8x7b", {{"expert_parallel", 8}, {"expert_tensor_parallel", 1}, {"moe_balancer", "flexmoe"}})},
      {"fsmoe", document("mixtral-8x7b", {{"expert_parallel", 8},
                                          {"moe_schedule", "fsmoe"},
                                          {"moe_pipeline_degree_forward", 2},
                                          {"moe_pipeline_degree_backward", 2}})}};
  return all;
}

Scenario with(const char* base, const std::vector<std::string>& sets) {
  Json changed = documents().at(base);
  for (const std::string& set : sets) apply_set(changed, "plan." + set, "scenario.json");
  return read_scenario(changed, {"scenario.json", {}});
}

// The pointer of what is refused; empty: nothing.
std::string refused_at(const Scenario& scenario) {
  try {
    check(scenario);
  } catch (const InputError& error) {
    EXPECT_FALSE(error.found().empty() || error.expected().empty()) << error.what();
    return error.where().pointer;
  }
  return {};
}

struct Pair {
  const char *base, *one, *other;
  const char* field;  // that is refused
};
const std::vector<Pair>& pairs() {
  static const std::vector<Pair> all{
      {"dense", "tensor_parallel=2", "tensor_parallel_overlap=true", "tensor_parallel_overlap"},
      {"dense", "tensor_parallel_overlap=true", "memo=true", "tensor_parallel_overlap"},
      {"dense", "context_parallel=2", "context_parallel_balance=table", "context_parallel_blocks"},
      {"dense", "context_parallel=2", "context_parallel_blocks=[0, 1]", "context_parallel_blocks"},
      {"dense", "context_parallel=2", "flash_attention=false", "context_parallel"},
      {"dense", "recompute=selective", "memo=true", "recompute"},
      {"dense", "activation_offload=true", "memo=true", "activation_offload"},
      {"dense", "memo=true", "precision=fp8", "precision"},
      {"dense", "memo=true", "flash_attention=false", "flash_attention"},
      {"dense", "precision=fp16", "store_param_remainders=true", "store_param_remainders"},
      {"dense", "optimizer=sgd", "optimizer_dtype=fp8", "optimizer_dtype"},
      {"dense", "optimizer=sgd", "store_param_remainders=true", "store_param_remainders"},
      {"dense", "optimizer=sgd", "optimizer_offload=true", "optimizer_offload"},
      {"dense", "master_parameters=false", "store_param_remainders=true", "store_param_remainders"},
      {"dense-cp", "tensor_parallel_overlap=true", "context_parallel_type=fpdt", "tensor_parallel_overlap"},
      {"dense-cp", "context_parallel=1", "inner_ring_degree=2", "inner_ring_degree"},
      {"dense-cp", "context_parallel_type=ulysses", "ulysses_degree=1", "ulysses_degree"},
      {"dense-cp", "context_parallel_type=ulysses", "memo=true", "context_parallel_type"},
      {"dense-cp", "context_parallel_type=fpdt", "context_parallel_balance=contiguous", "context_parallel_balance"},
      {"dense-cp", "context_parallel_type=fpdt", "inner_ring_degree=2", "inner_ring_degree"},
      {"dense-cp", "context_parallel_type=fpdt", "recompute=selective", "recompute"},
      {"dense-cp", "pipeline_schedule=zb-h1", "memo=true", "pipeline_schedule"},
      {"dense-cp", "freeze=true", "freeze_embedding=true", "freeze_embedding"},
      {"dense-zero3", "zero_stage=0", "zero_shard_degree=1", "zero_shard_degree"},
      {"dense-zero3", "zero_stage=0", "reshard_after_forward=false", "reshard_after_forward"},
      {"dense-zero3", "zero_stage=0", "stage3_max_live_parameters=1", "stage3_max_live_parameters"},
      {"dense-zero3", "zero_stage=0", "zero_hpz_partition_size=2", "zero_hpz_partition_size"},
      {"dense-zero3", "zero_stage=0", "mics_shard_size=1", "mics_shard_size"},
      {"dense-zero3", "zero_shard_degree=1", "mics_shard_size=1", "zero_shard_degree"},
      {"dense-zero3", "reduce_gradients=once", "mics_shard_size=1", "reduce_gradients"},
      {"dense-zero3", "reshard_after_forward=false", "zero_hpz_partition_size=2", "reshard_after_forward"},
      {"dense-zero3", "zero_hpz_partition_size=2", "mics_shard_size=1", "zero_hpz_partition_size"},
      {"dense-zero3", "store_param_remainders=true", "framework=fsdp", "store_param_remainders"},
      {"moe", "moe_token_dispatcher=allgather", "moe_schedule=tutel", "moe_token_dispatcher"},
      {"moe", "moe_expert_capacity_factor=0.25", "moe_pad_to_busiest_expert=true", "moe_pad_to_busiest_expert"},
      {"moe-ep", "expert_parallel=1", "moe_fp8_dispatch=true", "moe_fp8_dispatch"},
      {"moe-ep", "expert_parallel=1", "overlap_moe_expert_parallel_comm=true", "overlap_moe_expert_parallel_comm"},
      {"moe-ep", "expert_parallel=1", "moe_balancer=flexmoe", "moe_balancer"},
      {"moe-ep", "expert_tensor_parallel=0", "moe_balancer=flexmoe", "moe_balancer"},
      {"moe-ep", "moe_token_dispatcher=allgather", "overlap_moe_expert_parallel_comm=true",
       "overlap_moe_expert_parallel_comm"},
      {"moe-ep", "moe_expert_capacity_factor=0.25", "moe_balancer=flexmoe", "moe_expert_capacity_factor"},
      {"moe-ep", "moe_pad_to_busiest_expert=true", "moe_balancer=flexmoe", "moe_pad_to_busiest_expert"},
      {"moe-ep", "overlap_moe_expert_parallel_comm=true", "moe_schedule=tutel", "moe_schedule"},
      {"moe-ep", "overlap_moe_expert_parallel_comm=true", "pipeline_parallel=2", "overlap_moe_expert_parallel_comm"},
      {"moe-ep", "overlap_moe_expert_parallel_comm=true", "pipeline_schedule=gpipe",
       "overlap_moe_expert_parallel_comm"},
      {"memo", "memo=false", "memo_alpha=0", "memo_alpha"},
      {"fpdt", "context_parallel_type=ring", "fpdt_chunk_tokens=2048", "fpdt_chunk_tokens"},
      {"fpdt", "context_parallel_type=ring", "fpdt_offload=false", "fpdt_offload"},
      {"flex", "moe_balancer=none", "moe_slots_per_rank=1", "moe_slots_per_rank"},
      {"flex", "moe_balancer=none", "moe_balance_threshold=1", "moe_balance_threshold"},
      {"flex", "moe_balancer=none", "moe_balance_busiest_rank=true", "moe_balance_busiest_rank"},
      {"flex", "moe_balancer=fastermoe", "moe_slots_per_rank=1", "moe_slots_per_rank"},
      {"fsmoe", "moe_schedule=tutel", "moe_pipeline_degree_forward=1", "moe_pipeline_degree_backward"},
      {"fsmoe", "moe_schedule=tutel", "moe_gradient_share_experts=0.25", "moe_gradient_share_experts"},
      {"fsmoe", "moe_schedule=tutel", "moe_gradient_share_dense=0.25", "moe_gradient_share_dense"},
      {"fsmoe", "moe_gradient_share_experts=0.25", "pipeline_schedule=zb-h1", "moe_gradient_share_experts"},
      {"fsmoe", "moe_gradient_share_experts=0.25", "zero_stage=1", "moe_gradient_share_experts"},
      {"fsmoe", "moe_gradient_share_experts=0.25", "reduce_gradients=every_micro_batch", "moe_gradient_share_experts"},
      {"fsmoe", "moe_gradient_share_experts=0.25", "overlap_grad_reduce=false", "moe_gradient_share_experts"},
      {"fsmoe", "moe_gradient_share_dense=0.25", "pipeline_schedule=zb-h1", "moe_gradient_share_dense"},
      {"fsmoe", "moe_gradient_share_dense=0.25", "zero_stage=1", "moe_gradient_share_dense"},
      {"fsmoe", "moe_gradient_share_dense=0.25", "reduce_gradients=every_micro_batch", "moe_gradient_share_dense"},
      {"fsmoe", "moe_gradient_share_dense=0.25", "overlap_grad_reduce=false", "moe_gradient_share_dense"},
  };
  return all;
}

TEST(FieldRules, RefuseTwoFieldsThatDoNotGoTogether) {
  std::set<std::string> laid_out;
  const auto alone = [&](const char* base, const char* set) {
    if (!laid_out.insert(std::string(base) + set).second) return;
    EXPECT_EQ(refused_at(with(base, {set})), "") << base << ": " << set;
  };
  for (const Pair& pair : pairs()) {
    alone(pair.base, pair.one);
    alone(pair.base, pair.other);
    EXPECT_EQ(refused_at(with(pair.base, {pair.one, pair.other})), "/plan/" + std::string(pair.field))
        << pair.base << ": " << pair.one << " with " << pair.other;
  }
}

// Gives field number `number` another value. Returns its name; empty: there is no such field.
std::string change(Plan& plan, std::size_t number) {
  std::string name;
  std::size_t next = 0;
  EachField each([&](const VisitedField& field, auto& value) {
    using Value = std::decay_t<decltype(value)>;
    if (next++ != number) return;
    name = field.name;
    if constexpr (std::is_same_v<Value, std::size_t>) {
      value = (value + 1) % field.names.size();
    } else if constexpr (std::is_same_v<Value, std::string>) {
      value = "tp-cp-ep-pp-dp";
    } else if constexpr (std::is_same_v<Value, std::vector<std::int64_t>>) {
      value = {0, 1};
    } else if constexpr (std::is_same_v<Value, bool>) {
      value = !value;
    } else {
      value = value == 2 ? 4 : 2;
    }
  });
  plan.visit_fields(each);
  return name;
}

TEST(FieldRules, LayOutOrRefuseAnyTwoFieldsWithASentence) {
  for (const char* base : {"dense", "moe"}) {
    const Scenario scenario = with(base, {});
    Scenario changed = scenario;
    std::size_t refused = 0, all = 0;
    for (std::size_t i = 0; !change(changed.plan, i).empty(); changed.plan = scenario.plan, ++i)
      for (std::size_t j = i + 1;; ++j, ++all) {
        changed.plan = scenario.plan;
        change(changed.plan, i);
        if (change(changed.plan, j).empty()) break;
        const std::string at = refused_at(changed);
        EXPECT_TRUE(at.empty() || at.starts_with("/plan/") || at.starts_with("/workload/")) << at;
        refused += at.empty() ? 0 : 1;
      }
    EXPECT_GT(refused, all / 2) << base;
    EXPECT_LT(refused, all) << base;
  }
}

TEST(FieldRules, RefuseFieldsThatMeanNothing) {
  const Scenario scenario = with("dense", {});
  std::vector<std::string> names;
  for (Plan plan; names.empty() || !names.back().empty();) names.push_back(change(plan, names.size()));
  std::size_t idle = 0;
  for (const Strategy& strategy : all_strategies())
    for (const FieldRule& rule : strategy.idle) {
      if (rule.holds({scenario, scenario.plan})) continue;
      for (const std::string_view field : rule.fields) {
        if (field.empty()) continue;
        Scenario changed = scenario;
        change(changed.plan, static_cast<std::size_t>(std::find(names.begin(), names.end(), field) - names.begin()));
        if (rule.holds({changed, changed.plan})) continue;
        ++idle;
        EXPECT_THROW(check_strategies(changed, strategy.name), InputError) << field;
        EXPECT_EQ(refused_at(changed), "/plan/" + std::string(field));
      }
    }
  EXPECT_GT(idle, 40u);
}

TEST(FieldRules, LetARangeOfLayersHaveTheValueOfItsPlan) {
  Json changed = documents().at("memo");
  changed["plan"]["memo_alpha"] = 0.5;
  changed["plan"]["layers"] = {{{"from", 0}, {"to", 4}, {"memo", false}}};
  EXPECT_EQ(refused_at(read_scenario(changed, {})), "");
  changed["plan"]["layers"][0]["memo_alpha"] = 0.25;
  EXPECT_EQ(refused_at(read_scenario(changed, {})), "/plan/layers/0/memo_alpha");
  // A value that only a range uses may be the plan's.
  changed["plan"]["memo"] = false;
  changed["plan"]["layers"] = {{{"from", 0}, {"to", 4}, {"memo", true}}};
  EXPECT_EQ(refused_at(read_scenario(changed, {})), "");
  // What excludes a field excludes it in its own layers alone.
  changed["plan"]["layers"][0]["recompute"] = "full";
  EXPECT_EQ(refused_at(read_scenario(changed, {})), "/plan/layers/0/recompute");
  changed["plan"]["layers"].push_back({{"from", 4}, {"to", 8}, {"recompute", "full"}});
  changed["plan"]["layers"][0].erase("recompute");
  EXPECT_EQ(refused_at(read_scenario(changed, {})), "");
}

TEST(FieldRules, SayTheDefaultAndTheReason) {
  try {
    check(with("dense", {"memo=true", "recompute=full"}));
    ADD_FAILURE();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(),
                 "/plan/recompute: found \"full\", expected \"none\": memo recomputes what it does not swap");
  }
  try {
    check(with("moe", {"moe_balance_threshold=1.5"}));
    ADD_FAILURE();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("found 1.5, expected 1.2 unless \"moe_balancer\" is \"flexmoe\""));
  }
}

}  // namespace
}  // namespace orrery
