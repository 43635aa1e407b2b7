// How fast and how big the discrete-event engine is: time and peak memory of its process.
#include <benchmark/benchmark.h>

#include <nlohmann/json.hpp>

#include "sim/cost/collective_calibration.h"
#include "sim/des/engine.h"
#include "sim/des/simulation.h"
#include "sim/hardware/read_cluster.h"
#include "strategies/read_scenario.h"
#include "study/prediction/prediction.h"

namespace orrery {
namespace {

constexpr double kMebibyte = 1 << 20;

void run_step(benchmark::State& state, const nlohmann::json& document, DiscreteEventOptions options) {
  const StepCalibration none;  // kernels and collectives alone
  Calibrator calibrator;
  calibrator.use(none);
  const Prepared p = calibrator.prepare(read_scenario(document, {.file = "benchmark", .sets = {}}));
  const DiscreteEventJob job{.name = "",
                             .program = p.program,
                             .mfu_dtype = p.scenario.plan.precision.compute(),
                             .kernels = p.kernels,
                             .placement = {}};
  Report report;
  double peak = 0;
  for (auto _ : state) {
    run_discrete_event(p.scenario.cluster, *p.collectives, {&job, 1}, {}, options, {&report, 1});
    peak = std::max(peak, last_child_peak_bytes());
  }
  state.counters["peak_MiB"] = peak / kMebibyte;
  state.counters["rank_classes"] = static_cast<double>(report.discrete_event->rank_classes);
  state.counters["events"] = static_cast<double>(report.discrete_event->events);
  state.counters["step_s"] = report.step_seconds;
}

nlohmann::json scenario_of(const char* model, int nodes, int batch, int pipeline) {
  return {{"model", model},
          {"cluster", {{"node", "dgx-h100"}, {"nodes", nodes}}},
          {"workload", {{"sequence_length", 8192}, {"global_batch_size", batch}}},
          {"plan",
           {{"tensor_parallel", 8},
            {"sequence_parallel", true},
            {"pipeline_parallel", pipeline},
            {"zero_stage", 1},
            {"micro_batch_size", 1}}}};
}

void Llama3_70B_1024(benchmark::State& state) { run_step(state, scenario_of("llama-3-70b", 128, 1024, 4), {}); }
void Llama31_405B_16384(benchmark::State& state) { run_step(state, scenario_of("llama-3.1-405b", 2048, 2048, 16), {}); }
void Llama31_405B_16384_Sprayed(benchmark::State& state) {
  run_step(state, scenario_of("llama-3.1-405b", 2048, 2048, 16), {.routing = Routing::sprayed});
}
void Llama31_405B_131072(benchmark::State& state) {
  run_step(state, scenario_of("llama-3.1-405b", 16384, 16384, 16), {});
}
void Llama31_405B_131072_Sprayed(benchmark::State& state) {
  run_step(state, scenario_of("llama-3.1-405b", 16384, 16384, 16), {.routing = Routing::sprayed});
}
// Fixed work for each rank: the growth with ranks.
void Llama31_405B_Ranks(benchmark::State& state) {
  const auto nodes = static_cast<int>(state.range(0)) / 8;
  run_step(state, scenario_of("llama-3.1-405b", nodes, nodes, 16), {.routing = Routing::sprayed});
}
void Gpt3_175B_Timeline(benchmark::State& state) {
  const nlohmann::json document{{"model", "gpt3-175b"},
                                {"cluster", {{"node", "dgx-a100"}, {"nodes", 8}}},
                                {"workload", {{"sequence_length", 2048}, {"global_batch_size", 64}}},
                                {"plan", {{"tensor_parallel", 8}, {"pipeline_parallel", 8}, {"micro_batch_size", 1}}}};
  run_step(state, document, {.timeline = true});
}
BENCHMARK(Llama3_70B_1024)->Unit(benchmark::kSecond);
BENCHMARK(Llama31_405B_16384)->Unit(benchmark::kSecond)->Iterations(1);
BENCHMARK(Llama31_405B_16384_Sprayed)->Unit(benchmark::kSecond);
BENCHMARK(Llama31_405B_131072)->Unit(benchmark::kSecond)->Iterations(1);
BENCHMARK(Llama31_405B_131072_Sprayed)->Unit(benchmark::kSecond);
BENCHMARK(Llama31_405B_Ranks)->RangeMultiplier(4)->Range(2048, 131072)->Unit(benchmark::kSecond);
BENCHMARK(Gpt3_175B_Timeline)->Unit(benchmark::kSecond);

// One ring all-reduce of 1 MB, every message by itself, over so many nodes of one device on one switch.
void Ring1MB(benchmark::State& state) {
  Cluster cluster = read_cluster({{"node", "dgx-h100"}, {"nodes", state.range(0)}}, {});
  cluster.node.devices = cluster.node.nics = 1;
  cluster.node.in_switch_reduction = false;
  cluster.fabric.kind = FabricKind::single_switch;
  const CollectiveCalibration collectives = find_collective_calibration(cluster);
  CollectiveRequest request;
  request.bytes = 1e6;
  request.mesh.add(MeshAxis::tp, state.range(0));
  request.group = request.mesh.group(MeshAxis::tp);
  request.algorithm = CollectiveAlgorithm::ring;
  const DiscreteEventOptions options{.fidelity = Fidelity::step_exact, .fold = state.range(1) != 0};
  CollectiveRun run;
  double peak = 0;
  for (auto _ : state) {
    run = run_collective(cluster, collectives, request, {}, options);
    peak = std::max(peak, last_child_peak_bytes());
  }
  state.counters["peak_MiB"] = peak / kMebibyte;
  state.counters["messages"] = static_cast<double>(run.messages);
}
BENCHMARK(Ring1MB)
    ->ArgNames({"ranks", "folded"})
    ->Args({256, 1})
    ->Args({1024, 1})
    ->Args({4096, 1})
    ->Args({256, 0})
    ->Args({1024, 0})
    ->Unit(benchmark::kSecond)
    ->Iterations(1);

}  // namespace
}  // namespace orrery
