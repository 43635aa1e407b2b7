// Names are for people: a Program whose pieces, tensors and ops are called anything else takes the same time and memory
// and computes the same numbers.
#include <gtest/gtest.h>

#include <deque>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>

#include "realrun/executor.h"
#include "sim/analytical/engine.h"
#include "sim/cost/calibration.h"
#include "sim/cost/collective_calibration.h"
#include "sim/des/engine.h"
#include "strategies/framework/framework.h"
#include "strategies/lower.h"
#include "strategies/read_scenario.h"

namespace orrery {
namespace {

// Words of few letters, so that different things are called the same, too.
class Words {
 public:
  const char* next() {
    std::string word;
    const std::uint32_t length = static_cast<std::uint32_t>(1 + generator_() % 3);
    for (std::uint32_t i = 0; i < length; ++i) word += static_cast<char>('a' + generator_() % 4);
    return kept_.emplace_back(std::move(word)).c_str();
  }

 private:
  std::mt19937 generator_{7};
  std::deque<std::string> kept_;
};

Program renamed(const Program& program, Words& words) {
  Program other = program;
  for (Piece& piece : other.pieces) {
    piece.name = words.next();
    for (Tensor& t : piece.tensors) t.name = words.next();
    for (Block* block : {&piece.forward, &piece.backward, &piece.weight_gradient, &piece.update})
      for (Op& op : block->ops) op.name = words.next();
  }
  return other;
}

void expect_equal(const Report& a, const Report& b, const std::string& what) {
  EXPECT_EQ(a.step_seconds, b.step_seconds) << what;
  EXPECT_EQ(a.mfu, b.mfu) << what;
  EXPECT_EQ(a.memory_peak_bytes, b.memory_peak_bytes) << what;
  ASSERT_EQ(a.stages.size(), b.stages.size()) << what;
  for (std::size_t s = 0; s < a.stages.size(); ++s) {
    EXPECT_EQ(a.stages[s].memory.peak_bytes, b.stages[s].memory.peak_bytes) << what << " stage " << s;
    EXPECT_EQ(a.stages[s].memory.bytes, b.stages[s].memory.bytes) << what << " stage " << s;
    EXPECT_EQ(a.stages[s].time.matmul, b.stages[s].time.matmul) << what << " stage " << s;
    EXPECT_EQ(a.stages[s].time.optimizer, b.stages[s].time.optimizer) << what << " stage " << s;
    EXPECT_EQ(a.stages[s].time.exposed, b.stages[s].time.exposed) << what << " stage " << s;
  }
}

TEST(NamesCarryNoMeaning, ForTheEngines) {
  Words words;
  int compared = 0;
  for (const BundledDocument& bundled : bundled_scenarios()) {
    ScenarioSource source;
    const nlohmann::json document = load_scenario_document(bundled.name, {}, source);
    if (has_jobs(document)) continue;
    Scenario scenario = read_scenario(document, source);
    scenario.perturbations.clear();
    Calibration kernels = find_calibration(scenario.cluster.device);
    use_attention_kernel(kernels, framework::attention_kernel(scenario.plan, scenario.cluster.device));
    const CollectiveCalibration collectives = find_collective_calibration(scenario.cluster);
    const Dtype dtype = scenario.plan.precision.compute();
    Program program;
    lower(scenario, program);
    const Program other = renamed(program, words);
    AnalyticalEngine engine(scenario.cluster, kernels, collectives);
    Report plain, called_otherwise;
    engine.evaluate(program, dtype, {}, plain);
    engine.evaluate(other, dtype, {}, called_otherwise);
    expect_equal(plain, called_otherwise, bundled.name + ", analytical");

    ++compared;
    if (program.schedule.pairs) continue;  // which are refused event by event
    DiscreteEventJob job{.name = "job", .program = &program, .mfu_dtype = dtype, .kernels = &kernels, .placement = {}};
    const auto run = [&](const Program& p) {
      job.program = &p;
      Report report;
      run_discrete_event(scenario.cluster, collectives, {&job, 1}, {}, {}, {&report, 1});
      return report;
    };
    expect_equal(run(program), run(other), bundled.name + ", discrete-event");
  }
  EXPECT_GE(compared, 10);
}

constexpr const char* kGpt =
    R"({"layers": 4, "hidden": 32, "heads": 4, "vocab": 512, "max_positions": 16, "dropout": 0.1})";
constexpr const char* kLlama =
    R"({"layers": 4, "hidden": 32, "heads": 4, "vocab": 512, "max_positions": 16, "dropout": 0.1, "activation": "swiglu",
  "ffn": 64, "kv_heads": 2, "positions": "rotary", "norm": "rmsnorm", "tied_embeddings": false, "linear_bias": false})";
constexpr const char* kBert =
    R"({"kind": "encoder", "layers": 4, "hidden": 32, "heads": 4, "vocab": 512, "max_positions": 16, "dropout": 0.1,
  "token_types": 2, "post_norm": true, "embedding_norm": true, "pooler": true})";
constexpr const char* kVit =
    R"({"kind": "vit", "layers": 4, "hidden": 32, "heads": 4, "image_size": 12, "patch_size": 4, "classes": 10,
  "dropout": 0.1})";
constexpr const char* kT5 =
    R"({"kind": "encoder_decoder", "layers": 2, "decoder_layers": 2, "hidden": 32, "heads": 4, "vocab": 512,
  "max_positions": 16, "positions": "relative", "relative_buckets": 8, "norm": "rmsnorm", "activation": "relu",
  "linear_bias": false, "dropout": 0.1})";

struct Layout {
  const char* model;
  const char* plan;
};
constexpr Layout kLayouts[] = {
    {kGpt, R"({"data_parallel": 1, "recompute": "full", "recompute_every": 2})"},
    {kGpt, R"({"data_parallel": 2, "zero_stage": 1, "tensor_parallel": 2, "sequence_parallel": true})"},
    {kGpt, R"({"data_parallel": 2, "zero_stage": 3, "tensor_parallel": 2, "sequence_parallel": true})"},
    {kGpt, R"({"data_parallel": 2, "zero_stage": 2, "optimizer_offload": true, "precision": "bf16"})"},
    {kGpt, R"({"data_parallel": 2, "optimizer_offload": true})"},
    {kGpt, R"({"data_parallel": 1, "flash_attention": false, "recompute": "selective", "tensor_parallel": 2})"},
    {kGpt, R"({"data_parallel": 1, "pipeline_parallel": 2, "virtual_pipeline": 2, "tensor_parallel": 2})"},
    {kGpt, R"({"data_parallel": 1, "pipeline_parallel": 2, "tensor_parallel": 2, "sequence_parallel": true,
      "recompute": "full", "recompute_every": 2})"},
    {kLlama, R"({"data_parallel": 1, "tensor_parallel": 4, "sequence_parallel": true})"},
    {kLlama, R"({"data_parallel": 1, "context_parallel": 2, "tensor_parallel": 2})"},
    {kLlama, R"({"data_parallel": 1, "pipeline_parallel": 2, "pipeline_schedule": "zb-h1", "precision": "fp8"})"},
    {kBert, R"({"data_parallel": 2, "tensor_parallel": 2})"},
    {kVit, R"({"data_parallel": 2, "zero_stage": 1, "tensor_parallel": 2})"},
    {kT5, R"({"data_parallel": 2, "zero_stage": 1, "tensor_parallel": 2})"},
    {kT5, R"({"data_parallel": 1, "pipeline_parallel": 2, "recompute": "full"})"},
    {kGpt, R"({"data_parallel": 1, "context_parallel": 2, "context_parallel_type": "ulysses", "tensor_parallel": 2})"},
    {kLlama, R"({"data_parallel": 1, "context_parallel": 4, "context_parallel_type": "usp", "ulysses_degree": 2,
      "context_parallel_balance": "striped"})"},
    {kLlama, R"({"data_parallel": 1, "context_parallel": 2, "context_parallel_type": "all_gather"})"},
    {kGpt, R"({"data_parallel": 4, "zero_stage": 3, "zero_hpz_partition_size": 2})"},
    {kGpt, R"({"data_parallel": 4, "zero_stage": 3, "mics_shard_size": 2, "tensor_parallel": 2})"},
    {kLlama, R"({"data_parallel": 2, "zero_stage": 1, "freeze_embedding": true,
      "layers": [{"to": 2, "freeze": true}]})"},
    {kLlama, R"({"tensor_parallel": 2, "sequence_parallel": true, "zero_stage": 1, "lora_rank": 4})"},
    {kGpt, R"({"data_parallel": 2, "zero_stage": 3, "layers": [{"to": 2, "reshard_after_forward": false},
      {"from": 2, "to": 3, "prefetch": 2, "recompute": "full"}]})"},
    {kGpt, R"({"data_parallel": 1, "context_parallel": 2, "pipeline_parallel": 2, "layers": [
      {"from": 1, "to": 3, "context_parallel_balance": "striped", "recompute": "full"}]})"},
};

TEST(NamesCarryNoMeaning, ForTheExecutor) {
  Words words;
  for (const Layout& layout : kLayouts) {
    nlohmann::json document{{"model", nlohmann::json::parse(layout.model)},
                            {"cluster", {{"node", "dgx-h100"}, {"nodes", 2}}},
                            {"workload", {{"sequence_length", 16}, {"global_batch_size", 8}}},
                            {"plan", {{"precision", "fp32"}}}};
    document["plan"].merge_patch(nlohmann::json::parse(layout.plan));
    const Scenario scenario = read_scenario(document, {});
    Program program;
    lower(scenario, program);
    ExecutionOptions options;
    options.steps = 2;
    const Execution plain = execute(scenario, program, options);
    const Execution other = execute(scenario, renamed(program, words), options);
    EXPECT_EQ(plain.losses, other.losses) << layout.plan;
    EXPECT_EQ(plain.gradient_norms, other.gradient_norms) << layout.plan;
    for (const auto& [expected, found] : {std::pair(&plain.gradients, &other.gradients),  // of what is frozen none
                                          std::pair(&plain.parameters, &other.parameters)}) {
      ASSERT_EQ(expected->size(), found->size()) << layout.plan;
      for (std::size_t t = 0; t < expected->size(); ++t)
        EXPECT_EQ((*expected)[t].values, (*found)[t].values) << layout.plan << " " << (*expected)[t].name;
    }
  }
}

}  // namespace
}  // namespace orrery
