// What strategies say of themselves: ranks, words, how they are switched off, what cannot be executed yet.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/error.h"
#include "strategies/lower.h"
#include "strategies/strategy.h"
#include "tests/strategies/support.h"

namespace orrery {
namespace {

using testing::ElementsAre;

// Every strategy that there is, at once.
Scenario everything() {
  Scenario s = scenario_of("gpt3-175b", "dgx-a100", 32);
  s.workload = {2048, 0, 64};
  s.plan.tensor.degree = 4;
  s.plan.tensor.sequence_parallel = true;
  s.plan.context.degree = 2;
  s.plan.pipeline.degree = 4;
  s.plan.pipeline.virtual_stages = 2;
  s.plan.pipeline.schedule = pipeline_parallel::ScheduleKind::interleaved;
  s.plan.data.zero_stage = 1;
  s.plan.recompute.mode = activation_recompute::Mode::full;
  s.plan.offload.optimizer = true;
  return s;
}

TEST(StrategyList, DividesAReplicaOverTheProductOfItsRanks) {
  const Scenario s = everything();
  EXPECT_EQ(model_parallel_ranks(s.plan), 4 * 2 * 4);
  EXPECT_EQ(data_parallel_degree(s), 8);
  EXPECT_EQ(ranks(s), 256);
  Program program;
  lower(s, program);
  EXPECT_EQ(program.mesh.ranks(), ranks(s));
}

TEST(StrategyList, LaysRanksInTheOrderOfThePlan) {
  Scenario s = everything();
  Program program;
  const auto strides = [&](const char* order) {
    s.plan.framework.mesh_order = order;
    lower(s, program);
    const Mesh& mesh = program.mesh;
    return std::vector{mesh.stride(MeshAxis::tp), mesh.stride(MeshAxis::cp), mesh.stride(MeshAxis::dp_shard),
                       mesh.stride(MeshAxis::pp)};
  };
  EXPECT_THAT(strides("tp-cp-dp-pp"), ElementsAre(1, 4, 8, 64));
  EXPECT_THAT(strides("tp-cp-ep-pp-dp"), ElementsAre(1, 4, 32, 8));
  EXPECT_THAT(strides("pp-dp-cp-tp"), ElementsAre(64, 32, 4, 1));
}

TEST(StrategyList, SwitchesEveryStrategyOff) {
  const Scenario one = on_one_rank(everything());
  EXPECT_EQ(ranks(one), 1);
  EXPECT_THAT(plan_words(one), ElementsAre());
  Program program;
  lower(one, program);
  EXPECT_EQ(program.mesh.ranks(), 1);
  EXPECT_EQ(one.plan.batch.micro_batch_size, everything().plan.batch.micro_batch_size) << "batches are cut alike";
}

TEST(StrategyList, CallsAPlanByTheWordsOfItsStrategies) {
  EXPECT_THAT(plan_words(everything()), ElementsAre("tensor", "sequence", "context", "pipeline", "interleaved",
                                                    "recompute-full", "data", "zero-1", "offload"));
  EXPECT_THAT(
      all_plan_words(),
      ElementsAre("freeze", "lora", "tensor", "sequence", "context", "ulysses", "double-ring", "fpdt", "zeppelin",
                  "all-gather-context", "expert", "pipeline", "interleaved", "recompute-selective", "recompute-full",
                  "recompute-op", "recompute-all-but-attention", "activation-offload", "memo", "qlora", "local-updates",
                  "zero-topo", "hpz", "qwz", "int8-copy", "qgz", "mics", "data", "zero-1", "zero-2", "zero-3", "muon",
                  "adafactor", "onebit-adam", "zero-one-adam", "powersgd", "top-k", "offload"));
}

TEST(StrategyList, SaysWhatCannotBeExecutedYet) {
  struct Refused {
    const char* pointer;
    std::function<void(Scenario&)> change;
  };
  const std::vector<Refused> all{
      {"/plan/optimizer_dtype", [](Scenario& s) { s.plan.optimizer.moments = optimizer::MomentDtype::int4; }},
      {"/plan/context_parallel",
       [](Scenario& s) {
         s.model.kind = ModelKind::encoder_decoder;
         s.plan.context.degree = 2;
       }},
      {"/plan/tensor_parallel_overlap",
       [](Scenario& s) {
         s.model.kind = ModelKind::encoder_decoder;
         s.workload.decoder_sequence_length = s.workload.sequence_length / 2;
         s.plan.tensor.overlap = true;
       }},
      {"/plan/moe_expert_capacity_factor",
       [](Scenario& s) {
         s.model.experts = 8;
         s.model.experts_per_token = 2;
       }},
      {"/plan/moe_expert_capacity_factor",
       [](Scenario& s) {
         s.model.experts = 8;
         s.model.experts_per_token = 2;
         s.plan.expert.capacity_factor = 3.9;
         s.plan.context.degree = 2;
       }},
      {"/plan/moe_expert_capacity_factor",
       [](Scenario& s) {
         s.model.experts = 8;
         s.model.experts_per_token = 2;
         s.plan.expert.capacity_factor = 3.9;
         s.plan.expert.dispatcher = expert_parallel::Dispatcher::allgather;
       }},
      {"/plan/pipeline_schedule",
       [](Scenario& s) {
         s.model.experts = 8;
         s.model.experts_per_token = 2;
         s.plan.expert.capacity_factor = 4;
         s.plan.expert.tensor_degree = 2;
         s.plan.fsmoe.schedule = fsmoe::MoeSchedule::tutel;
         s.plan.fsmoe.forward_degree = 2;
         s.plan.pipeline.schedule = pipeline_parallel::ScheduleKind::zb_h1;
       }},
      {"/plan/moe_fp8_dispatch",
       [](Scenario& s) {
         s.model.experts = 8;
         s.model.experts_per_token = 2;
         s.plan.expert.capacity_factor = 4;
         s.plan.expert.fp8_dispatch = true;
       }},
  };
  for (const Refused& refused : all) {
    Scenario s = on_one_rank(everything());
    std::vector<std::string> pointers;
    const auto ask = [&] {
      for (const Strategy& strategy : all_strategies()) {
        if (strategy.check_runnable == nullptr) continue;
        try {
          strategy.check_runnable(s);
        } catch (const InputError& error) {
          pointers.push_back(error.where().pointer);
        }
      }
    };
    ask();
    EXPECT_THAT(pointers, ElementsAre()) << refused.pointer;
    refused.change(s);
    ask();
    EXPECT_THAT(pointers, ElementsAre(refused.pointer));
  }
}

TEST(StrategyList, ARunHasRoomForWhateverItsDataAre) {
  Scenario s = on_one_rank(everything());
  EXPECT_FALSE(runnable(s).plan.expert.counts_rows()) << "without experts";
  s.model.experts = 8;
  s.model.experts_per_token = 2;
  EXPECT_TRUE(runnable(s).plan.expert.counts_rows());
  EXPECT_EQ(runnable(s).plan.expert.capacity_factor, 0) << "dropless";
  EXPECT_TRUE(on_one_rank(runnable(s)).plan.expert.counts_rows());
  EXPECT_FALSE(s.plan.expert.counts_rows()) << "as it is predicted";
  s.plan.expert.capacity_factor = 1.25;
  EXPECT_FALSE(runnable(s).plan.expert.counts_rows()) << "the plan's own factor";
}

}  // namespace
}  // namespace orrery
