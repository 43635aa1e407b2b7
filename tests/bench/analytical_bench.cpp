// How fast is one prediction? Each iteration evaluates another plan, so that nothing can be reused between them.
#include <benchmark/benchmark.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "sim/analytical/engine.h"
#include "strategies/lower.h"
#include "strategies/read_scenario.h"
#include "study/prediction/prediction.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

// Turns one plan into several: what a search would try next. Every plan of a set differs from its neighbours.
using Vary = void (*)(Scenario&, int);

// Batches only: the cost of one plan.
void vary_batch(Scenario& s, int i) {
  const auto& pipeline = s.plan.pipeline;
  const std::int64_t micro_batches = pipeline.virtual_stages > 1 ? pipeline.degree : 1;  // what the schedule asks for
  s.workload.global_batch_size += i * micro_batches * data_parallel_degree(s) * s.plan.batch.micro_batch_size;
}

// All that a search turns, at the same number of devices.
void vary_plan(Scenario& s, int i) {
  using activation_recompute::Mode;
  const auto bit = [i](int b) { return (i >> b & 1) != 0; };
  s.workload.global_batch_size *= 4;  // divisible by every data-parallel degree below
  if (bit(0)) s.plan.tensor.degree /= 2;
  if (bit(1)) s.plan.pipeline.degree /= 2;
  if (bit(2)) s.plan.batch.micro_batch_size *= 2;
  s.plan.tensor.sequence_parallel = bit(0) != bit(1);
  s.plan.recompute.mode = bit(1) != bit(2) ? Mode::selective : Mode::full;
  s.plan.data.zero_stage = bit(0) != bit(2) ? 1 : 0;
  s.plan.data.overlap_gradients = bit(1);
  s.plan.precision.gradients = bit(2) ? precision::GradientDtype::bf16 : precision::GradientDtype::fp32;
}

class Variations {
 public:
  Variations(const Json& document, Vary vary) : Variations(read_scenario(document, {"bench", {}}), vary) {}
  Variations(const Scenario& base, Vary vary) {
    calibrator_.use(kernels_alone_);
    const Prepared prepared = calibrator_.prepare(base);
    for (int i = 0; i < kPlans; ++i) {
      scenarios_.push_back(base);
      vary(scenarios_.back(), i);
      programs_.emplace_back();
      lower(scenarios_.back(), programs_.back());
    }
    engine_ = std::make_unique<AnalyticalEngine>(scenarios_.front().cluster, *prepared.kernels, *prepared.collectives);
  }

  void evaluate(benchmark::State& state, const AnalyticalOptions& options = {}) {
    std::size_t i = 0;
    for (auto _ : state) {
      engine_->evaluate(programs_[++i % kPlans], Dtype::bf16, options, report_);
      benchmark::DoNotOptimize(report_.step_seconds);
    }
    state.SetItemsProcessed(state.iterations());
  }
  // From the scenario to the report, time and memory: items are evaluations.
  void lower_and_evaluate(benchmark::State& state) {
    std::size_t i = 0;
    for (auto _ : state) {
      lower(scenarios_[++i % kPlans], program_);
      engine_->evaluate(program_, Dtype::bf16, {}, report_);
      benchmark::DoNotOptimize(report_.step_seconds);
    }
    state.SetItemsProcessed(state.iterations());
  }

 private:
  static constexpr int kPlans = 8;
  std::vector<Scenario> scenarios_;
  std::vector<Program> programs_;
  Program program_;
  StepCalibration kernels_alone_;
  Calibrator calibrator_;
  std::unique_ptr<AnalyticalEngine> engine_;
  Report report_;
};

// Narayanan et al. 2021, table 1: 1T parameters on 3072 A100, t = 8, p = 64, d = 6, 512 micro-batches.
Json megatron_1t() {
  return {{"model", "megatron-1t"},
          {"cluster", {{"node", "dgx-a100"}, {"nodes", 384}}},
          {"workload", {{"sequence_length", 2048}, {"global_batch_size", 3072}}},
          {"plan",
           {{"tensor_parallel", 8},
            {"pipeline_parallel", 64},
            {"micro_batch_size", 1},
            {"recompute", "full"},
            {"framework", "megatron-2021"},
            {"flash_attention", false}}}};
}

Json llama_405b() {
  return {{"model", "llama-3.1-405b"},
          {"cluster", {{"node", "dgx-h100"}, {"nodes", 1024}}},
          {"workload", {{"sequence_length", 8192}, {"global_batch_size", 2048}}},
          {"plan",
           {{"tensor_parallel", 8},
            {"sequence_parallel", true},
            {"pipeline_parallel", 16},
            {"pipeline_stage_layers", Json::array()},
            {"zero_stage", 1},
            {"micro_batch_size", 1}}}};
}

Json llama_70b_fsdp() {
  return {{"model", "llama-3-70b"},
          {"cluster", {{"node", "dgx-h100"}, {"nodes", 32}}},
          {"workload", {{"sequence_length", 8192}, {"global_batch_size", 256}}},
          {"plan", {{"zero_stage", 3}, {"framework", "fsdp-compiled"}, {"recompute", "full"}}}};
}

Json llama_70b_512() {
  return {{"model", "llama-3-70b"},
          {"cluster", {{"node", "dgx-h100"}, {"nodes", 64}}},
          {"workload", {{"sequence_length", 8192}, {"global_batch_size", 1024}}},
          {"plan",
           {{"tensor_parallel", 8},
            {"sequence_parallel", true},
            {"pipeline_parallel", 4},
            {"virtual_pipeline", 5},
            {"zero_stage", 1},
            {"micro_batch_size", 1}}}};
}

// As it was trained, but without its pairs of micro-batches; experts balanced, or with four loads.
Json deepseek_v3(const char* routing) {
  return {{"model", "deepseek-v3"},
          {"cluster", {{"node", "hgx-h800"}, {"nodes", 256}}},
          {"workload",
           {{"sequence_length", 4096},
            {"global_batch_size", 15360},
            {"routing", routing},
            {"routing_skew", std::string_view(routing) == "zipf" ? 0.5 : 0}}},
          {"plan",
           {{"pipeline_parallel", 16},
            {"expert_parallel", 64},
            {"zero_stage", 1},
            {"moe_token_dispatcher", "flex"},
            {"recompute", "full"},
            {"micro_batch_size", 1}}}};
}

void BM_LowerAndEvaluateDeepSeekV3(benchmark::State& state) {
  Variations(deepseek_v3("balanced"), vary_batch).lower_and_evaluate(state);
}
void BM_LowerAndEvaluateDeepSeekV3OfFourLoads(benchmark::State& state) {
  Variations(deepseek_v3("zipf"), vary_batch).lower_and_evaluate(state);
}
void BM_LowerAndEvaluateMegatron1T(benchmark::State& state) {
  Variations(megatron_1t(), vary_batch).lower_and_evaluate(state);
}
void BM_SearchAroundMegatron1T(benchmark::State& state) {
  Variations(megatron_1t(), vary_plan).lower_and_evaluate(state);
}
void BM_LowerAndEvaluateLlama70BOn512(benchmark::State& state) {
  Variations(llama_70b_512(), vary_batch).lower_and_evaluate(state);
}
void BM_EvaluateMegatron1T(benchmark::State& state) { Variations(megatron_1t(), vary_batch).evaluate(state); }
void BM_EvaluateLlama405B(benchmark::State& state) { Variations(llama_405b(), vary_batch).evaluate(state); }
void BM_EvaluateLlama70BFsdp(benchmark::State& state) { Variations(llama_70b_fsdp(), vary_batch).evaluate(state); }
void BM_TimelineOfLlama405B(benchmark::State& state) {
  Variations(llama_405b(), vary_batch).evaluate(state, {.timeline = true});
}
BENCHMARK(BM_LowerAndEvaluateDeepSeekV3)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_LowerAndEvaluateDeepSeekV3OfFourLoads)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_LowerAndEvaluateMegatron1T)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_SearchAroundMegatron1T)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_LowerAndEvaluateLlama70BOn512)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_EvaluateMegatron1T)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_EvaluateLlama405B)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_EvaluateLlama70BFsdp)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_TimelineOfLlama405B)->Unit(benchmark::kMicrosecond);

// What costs nothing: more replicas, and more equal layers on the same 64 stages.
void BM_Replicas(benchmark::State& state) {
  Scenario s = read_scenario(megatron_1t(), {"bench", {}});
  s.cluster.nodes = 64 * state.range(0);  // a replica is 8 x 64 devices
  s.workload.global_batch_size = 512 * state.range(0);
  Variations(s, vary_batch).lower_and_evaluate(state);
}
void BM_Layers(benchmark::State& state) {
  Scenario s = read_scenario(megatron_1t(), {"bench", {}});
  s.model.layers = state.range(0);
  Variations(s, vary_batch).lower_and_evaluate(state);
}
BENCHMARK(BM_Replicas)->ArgName("data_parallel")->Arg(6)->Arg(96)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_Layers)->ArgName("layers")->Arg(128)->Arg(1024)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace orrery
