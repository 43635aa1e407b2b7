// How fast is the programme that gives each layer a choice within a memory budget?
#include <benchmark/benchmark.h>

#include <random>

#include "study/search/layer_programme.h"

namespace orrery {
namespace {

// One batch on 8 GPUs with recomputation as a choice: 44 hybrids over all pipeline degrees, 96 layers, 80 GiB in MiB.
// Costs and memory are drawn, so that every unit of the budget matters.
void BM_NinetySixLayersOfAllDegrees(benchmark::State& state) {
  constexpr std::int64_t kLayers = 96, kBudget = 80 * 1024;
  struct Degree {
    std::int64_t stages;
    std::size_t hybrids;
  };
  std::mt19937 random(1);
  std::uniform_real_distribution<double> cost(0.02, 0.1), change(0, 0.002);
  for (auto _ : state) {
    double total = 0;
    for (const Degree& degree : {Degree{1, 22}, {2, 14}, {4, 6}, {8, 2}}) {
      const std::int64_t layers = kLayers / degree.stages, even = kBudget / layers;
      std::uniform_int_distribution<std::int64_t> memory(even / 4, 2 * even);
      for (std::int64_t stage = 0; stage < degree.stages; ++stage) {
        LayerKind kind;
        for (std::size_t s = 0; s < degree.hybrids; ++s) kind.options.push_back({cost(random), memory(random)});
        for (std::size_t i = 0; i < degree.hybrids * degree.hybrids; ++i)
          kind.entering.push_back(i % (degree.hybrids + 1) == 0 ? 0 : change(random));
        const LayerProgramme programme({kind}, std::vector<std::int32_t>(static_cast<std::size_t>(layers), 0), kBudget);
        total += programme.cheapest()->cost;
      }
    }
    benchmark::DoNotOptimize(total);
  }
}

BENCHMARK(BM_NinetySixLayersOfAllDegrees)->Unit(benchmark::kSecond)->UseRealTime();

}  // namespace
}  // namespace orrery
