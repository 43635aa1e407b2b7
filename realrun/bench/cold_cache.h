// Puts out of a device's caches what lies in them, so that the next kernel finds its operands in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "realrun/backend.h"

namespace orrery::bench {

// Of this machine's CPU, as the system says it; 0: it does not.
double largest_cpu_cache_bytes();
// The L2 cache of a GPU by its preset's data sheet (facts.h: preset_named). Throws InputError where there is no preset,
// or it does not say.
double gpu_cache_bytes(const std::string& device, const std::string& preset);

// Twice the cache, as replacement is not strictly by age: a CPU reads a word of each line, a GPU writes all of it, on
// the stream of the kernel that follows.
class CacheEvictor {
 public:
  // Of a CPU. Throws InputError for 0 bytes.
  explicit CacheEvictor(double cache_bytes);
  // Of a GPU, which must outlive it.
  CacheEvictor(Backend& backend, double cache_bytes);
  ~CacheEvictor();
  CacheEvictor(const CacheEvictor&) = delete;
  CacheEvictor& operator=(const CacheEvictor&) = delete;

  void evict(Stream stream);
  std::int64_t bytes() const { return bytes_; }

 private:
  std::int64_t bytes_;
  std::vector<std::uint64_t> words_;  // of a CPU
  Backend* backend_ = nullptr;
  void* memory_ = nullptr;
};

}  // namespace orrery::bench
