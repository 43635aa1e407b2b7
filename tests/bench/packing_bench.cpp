// How fast are documents packed? Items are documents.
#include <benchmark/benchmark.h>

#include "traces/packing/document_generator.h"
#include "traces/packing/packing.h"

namespace orrery {
namespace {

void run(benchmark::State& state, PackingPolicy policy, std::int64_t dimension) {
  const Documents documents =
      generate_documents({.count = state.range(0), .lengths = "datasculpt", .dimension = dimension});
  std::int64_t sequences = 0;
  for (auto _ : state) {
    const Packing packing = pack(documents, {.context = 32768, .policy = policy});
    sequences = packing.sequences();
    benchmark::DoNotOptimize(packing.pieces.data());
  }
  state.SetItemsProcessed(state.iterations() * documents.count());
  state.counters["sequences"] = static_cast<double>(sequences);
}

void BM_PackBestFit(benchmark::State& state) { run(state, PackingPolicy::best_fit, 0); }
// Clustering and dealing of embeddings, without their drawing: most of `orrery pack`'s time (docs/pack.md).
void BM_PackDataSculpt(benchmark::State& state) { run(state, PackingPolicy::datasculpt, 256); }

BENCHMARK(BM_PackBestFit)->Arg(1'000'000)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_PackDataSculpt)->Arg(100'000)->Arg(1'000'000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace orrery
