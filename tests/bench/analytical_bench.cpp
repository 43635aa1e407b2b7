// How fast is one prediction? Each iteration evaluates another plan, so that nothing can be reused between them.
#include <benchmark/benchmark.h>

#include <nlohmann/json.hpp>

#include "sim/analytical/engine.h"
#include "sim/cost/calibration.h"
#include "sim/cost/collective_calibration.h"
#include "strategies/lower.h"
#include "strategies/read_scenario.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

// A scenario whose global batch differs a little from iteration to iteration.
class Variations {
 public:
  Variations(const Json& document, std::int64_t batch_step) {
    base_ = read_scenario(document, {"bench", {}});
    for (int i = 0; i < kPlans; ++i) {
      Scenario s = base_;
      s.workload.global_batch_size += i * batch_step;
      scenarios_.push_back(s);
      programs_.emplace_back();
      lower(s, programs_.back());
    }
    kernels_ = find_calibration(base_.cluster.device);
    collectives_ = find_collective_calibration(base_.cluster);
    engine_ = std::make_unique<AnalyticalEngine>(base_.cluster, kernels_, collectives_);
  }

  void evaluate(benchmark::State& state, const AnalyticalOptions& options = {}) {
    std::size_t i = 0;
    for (auto _ : state) {
      engine_->evaluate(programs_[++i % kPlans], Dtype::bf16, options, report_);
      benchmark::DoNotOptimize(report_.step_seconds);
    }
  }
  void lower_and_evaluate(benchmark::State& state) {
    std::size_t i = 0;
    for (auto _ : state) {
      lower(scenarios_[++i % kPlans], program_);
      engine_->evaluate(program_, Dtype::bf16, {}, report_);
      benchmark::DoNotOptimize(report_.step_seconds);
    }
  }

 private:
  static constexpr int kPlans = 8;
  Scenario base_;
  std::vector<Scenario> scenarios_;
  std::vector<Program> programs_;
  Program program_;
  Calibration kernels_;
  CollectiveCalibration collectives_;
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

void BM_LowerAndEvaluateMegatron1T(benchmark::State& state) { Variations(megatron_1t(), 6).lower_and_evaluate(state); }
void BM_EvaluateMegatron1T(benchmark::State& state) { Variations(megatron_1t(), 6).evaluate(state); }
void BM_EvaluateLlama405B(benchmark::State& state) { Variations(llama_405b(), 64).evaluate(state); }
void BM_EvaluateLlama70BFsdp(benchmark::State& state) { Variations(llama_70b_fsdp(), 256).evaluate(state); }
void BM_TimelineOfLlama405B(benchmark::State& state) {
  Variations(llama_405b(), 64).evaluate(state, {.timeline = true});
}
BENCHMARK(BM_LowerAndEvaluateMegatron1T)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_EvaluateMegatron1T)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_EvaluateLlama405B)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_EvaluateLlama70BFsdp)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_TimelineOfLlama405B)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace orrery
