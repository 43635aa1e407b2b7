// How fast is a search? Items are plans: evaluated, or proven to be no answer.
#include <benchmark/benchmark.h>

#include <nlohmann/json.hpp>

#include "strategies/read_scenario.h"
#include "study/search/search.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

void run(benchmark::State& state, const Scenario& scenario, const SpaceOptions& fields, SearchOptions options) {
  options.threads = static_cast<int>(state.range(0));
  const Space space(scenario, fields);
  std::uint64_t plans = 0, evaluated = 0;
  for (auto _ : state) {
    const SearchResult found = search(space, options);
    plans += found.considered;
    evaluated += found.evaluated;
    benchmark::DoNotOptimize(found.best.front().step_seconds);
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(plans));
  const auto searches = static_cast<double>(state.iterations());
  state.counters["plans"] = static_cast<double>(plans) / searches;
  state.counters["evaluated"] = static_cast<double>(evaluated) / searches;
}

// The usual fields of Llama-3-70B on 1,024 H100s.
void BM_SearchLlama70BOn1024(benchmark::State& state) {
  const Json document{{"model", "llama-3-70b"},
                      {"cluster", {{"node", "dgx-h100"}, {"nodes", 128}}},
                      {"workload", {{"sequence_length", 8192}, {"global_batch_size", 512}}},
                      {"plan", Json::object()}};
  run(state, read_scenario(document, {"bench", {}}), {}, {});
}

// As docs/search.md has it: a trillion parameters on 4,096 A100s, four and a half million plans.
void BM_SearchTrillionOn4096(benchmark::State& state) {
  const Json document{{"model", "megatron-1t"},
                      {"cluster", {{"node", "dgx-a100"}, {"nodes", 512}}},
                      {"workload", {{"sequence_length", 2048}, {"global_batch_size", 4096}}},
                      {"plan", {{"framework", "megatron-core"}, {"flash_attention", false}}}};
  SpaceOptions fields;
  fields.all = true;
  fields.fixed = {"context_parallel", "zero_shard_degree"};
  fields.over = {{"overlap_grad_reduce", {true, false}},
                 {"overlap_param_gather", {true, false}},
                 {"overlap_p2p_communication", {true, false}},
                 {"scatter_gather_tensors_in_pipeline", {"on", "off"}}};
  run(state, read_scenario(document, {"bench", {}}), fields, {});
}

BENCHMARK(BM_SearchLlama70BOn1024)->Arg(1)->Arg(2)->Unit(benchmark::kSecond)->UseRealTime();
BENCHMARK(BM_SearchTrillionOn4096)->Arg(2)->Unit(benchmark::kSecond)->UseRealTime()->Iterations(1);

}  // namespace
}  // namespace orrery
