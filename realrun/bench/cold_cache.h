// Evicts a device's caches, so that the next kernel finds its operands in memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "realrun/backend.h"

namespace orrery::bench {

// Returns the largest cache of this machine's CPU as the system reports it; 0: unknown.
double largest_cpu_cache_bytes();
// Returns the L2 cache of a GPU, from its preset's data sheet (facts.h: preset_named). Throws InputError if it is not
// known.
double gpu_cache_bytes(const std::string& device);

// Reads or writes twice the cache's size, because caches do not replace strictly the oldest lines. On a CPU it reads a
// word of each line; on a GPU it writes all of it, on the stream of the next kernel.
class CacheEvictor {
 public:
  // For a CPU. Throws InputError for 0 bytes.
  explicit CacheEvictor(double cache_bytes);
  // For a GPU. `backend` must outlive this object.
  CacheEvictor(Backend& backend, double cache_bytes);
  ~CacheEvictor();
  CacheEvictor(const CacheEvictor&) = delete;
  CacheEvictor& operator=(const CacheEvictor&) = delete;

  void evict(Stream stream);
  std::int64_t bytes() const { return bytes_; }

 private:
  std::int64_t bytes_;
  std::vector<std::uint64_t> words_;  // on a CPU
  Backend* backend_ = nullptr;
  void* memory_ = nullptr;
};

}  // namespace orrery::bench
