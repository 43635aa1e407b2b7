// Does check() accept every Program that is predicted: of each bundled model under each kind of plan, of the bundled
// scenarios, of the published steps?
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <ostream>
#include <string>

#include "sim/program/check.h"
#include "strategies/read_scenario.h"
#include "study/validation/published.h"
#include "tests/simulation/support.h"

namespace orrery {
namespace {

void expect_accepted(const Scenario& scenario, Program& program, const std::string& what) {
  lower(scenario, program);
  for (const Violation& v : check(program))
    ADD_FAILURE() << what << ": rule " << static_cast<int>(v.rule) << ": " << v.text;
}

struct KindOfPlan {
  const char *name, *plan;
};
void PrintTo(const KindOfPlan& of, std::ostream* out) { *out << of.plan; }

class Proofs : public testing::TestWithParam<KindOfPlan> {};
TEST_P(Proofs, OfEveryModel) {
  const std::vector<std::string> names = model_names();
  ScenarioReader reader;
  Program program;
  std::size_t accepted = 0;
  for (const std::string& name : names) {
    const nlohmann::json document = {{"model", name},
                                     {"cluster", {{"node", "dgx-h100"}, {"nodes", 2}}},
                                     {"workload", {{"global_batch_size", 32}}},
                                     {"plan", nlohmann::json::parse(GetParam().plan)}};
    Scenario s = reader.read(document, {});
    if (!s.model.vision()) s.workload.sequence_length = 512;
    try {
      expect_accepted(s, program, name + " " + GetParam().plan);
      ++accepted;
    } catch (const InputError& error) {  // heads, patches or layers that do not divide
      EXPECT_THAT(error.where().pointer, testing::StartsWith("/plan/")) << name << ": " << error.what();
    }
  }
  EXPECT_GT(accepted, names.size() * 3 / 4);
}

const KindOfPlan kPlans[] = {
    {"None", R"({})"},
    {"StoredScores", R"({"flash_attention": false, "framework": "deepspeed"})"},
    {"Zero3", R"({"zero_stage": 3})"},
    {"Zero2Fp8", R"({"zero_stage": 2, "precision": "fp8", "reduce_gradients": "every_micro_batch"})"},
    {"Zero3Offload", R"({"zero_stage": 3, "recompute": "full", "optimizer_offload": true})"},
    {"Zero3Frozen",
     R"({"zero_stage": 3, "freeze": true, "layers": [{"step": 2, "freeze": false, "recompute": "full"}]})"},
    {"Zero3Adapters", R"({"zero_stage": 3, "recompute": "full", "lora_rank": 4})"},
    {"Tensor", R"({"tensor_parallel": 2})"},
    {"TensorStoredScores", R"({"tensor_parallel": 2, "flash_attention": false, "zero_stage": 1})"},
    {"Sequence", R"({"tensor_parallel": 2, "sequence_parallel": true})"},
    {"SequenceZero3",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "zero_stage": 3, "recompute": "selective"})"},
    {"SequenceOverlap",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "tensor_parallel_overlap": true, "precision": "fp8"})"},
    {"SequenceOverlapRecomputeEvery2",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "tensor_parallel_overlap": true, "recompute": "full",
         "recompute_every": 2})"},
    {"FrozenEmbeddingRecomputeEvery2", R"({"freeze_embedding": true, "recompute": "full", "recompute_every": 2})"},
    {"Pipeline", R"({"pipeline_parallel": 2})"},
    {"ZbH1", R"({"pipeline_parallel": 2, "pipeline_schedule": "zb-h1", "zero_stage": 2})"},
    {"SequencePipeline",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "pipeline_parallel": 2, "zero_stage": 1})"},
    {"SequenceZbV",
     R"({"tensor_parallel": 2, "sequence_parallel": true, "pipeline_parallel": 2, "pipeline_schedule": "zb-v"})"},
    {"SequenceContext", R"({"context_parallel": 2, "tensor_parallel": 2, "sequence_parallel": true, "zero_stage": 1})"},
    {"UlyssesPipeline", R"({"context_parallel": 2, "context_parallel_type": "ulysses", "pipeline_parallel": 2})"},
};
INSTANTIATE_TEST_SUITE_P(All, Proofs, testing::ValuesIn(kPlans),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(Proofs, OfBundledScenarios) {
  ScenarioReader reader;
  Program program;
  for (const BundledDocument& bundled : bundled_scenarios()) {
    ScenarioSource source;
    for (const Job& job : reader.read_jobs(load_scenario_document(bundled.name, {}, source), source).jobs)
      expect_accepted(job.scenario, program, bundled.name);
  }
}

TEST(Proofs, OfPublishedSteps) {
  ScenarioReader reader;
  Program program;
  std::size_t steps = 0;
  for (const PublishedSource& source : published_sources())
    for (const PublishedPoint& point : source.points) {
      if (point.scenario == nullptr || !point.not_predicted.empty()) continue;
      expect_accepted(reader.read(*point.scenario, {point.id, {}}), program, point.id);
      ++steps;
    }
  EXPECT_GT(steps, 2000u);
}

}  // namespace
}  // namespace orrery
