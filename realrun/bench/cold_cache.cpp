#include "realrun/bench/cold_cache.h"

#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "realrun/bench/facts.h"
#include "sim/base/error.h"
#include "sim/hardware/presets.h"

namespace orrery::bench {
namespace {

constexpr double kTimesTheCache = 2;

}  // namespace

double largest_cpu_cache_bytes() {
  long largest = 0;
  for (const benchmark::CPUInfo::CacheInfo& cache : benchmark::CPUInfo::Get().caches)
    largest = std::max(largest, long{cache.size});
#ifdef _SC_LEVEL3_CACHE_SIZE
  // A virtual machine's kernel may not report its processor's caches.
  if (largest == 0)
    for (const int level : {_SC_LEVEL1_DCACHE_SIZE, _SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE})
      largest = std::max(largest, sysconf(level));
#endif
  return static_cast<double>(largest);
}

double gpu_cache_bytes(const std::string& device) {
  const std::string preset = preset_named(device);
  const double bytes = preset.empty() ? 0 : find_device(preset).l2_bytes;
  if (!(bytes > 0))
    throw InputError({"--cold-cache", ""}, fmt::format("a device whose L2 cache is not known ({})", device),
                     "a device whose preset has l2_bytes (orrery list devices)");
  return bytes;
}

CacheEvictor::CacheEvictor(double cache_bytes)
    : bytes_(static_cast<std::int64_t>(kTimesTheCache * cache_bytes)),
      words_(static_cast<std::size_t>(bytes_) / sizeof(std::uint64_t), 1) {
  if (words_.empty())
    throw InputError({"--cold-cache", ""}, "a machine that does not report its cache sizes", "a machine that does");
}

CacheEvictor::CacheEvictor(Backend& backend, double cache_bytes)
    : bytes_(static_cast<std::int64_t>(kTimesTheCache * cache_bytes)),
      backend_(&backend),
      memory_(backend.allocate(bytes_ / bytes_of(Dtype::fp32, 1), Dtype::fp32, Place::device, Stream::compute)) {}

CacheEvictor::~CacheEvictor() {
  if (memory_ != nullptr) backend_->release(memory_);
}

void CacheEvictor::evict(Stream stream) {
  if (backend_ != nullptr) {
    backend_->fill(stream, {memory_, Dtype::fp32, 0, bytes_ / bytes_of(Dtype::fp32, 1)}, 0);
    return;
  }
  constexpr std::size_t kLine = 64 / sizeof(std::uint64_t);  // x86 and most ARM; a longer line is read twice
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < words_.size(); i += kLine) sum += words_[i];
  benchmark::DoNotOptimize(sum);
}

}  // namespace orrery::bench
