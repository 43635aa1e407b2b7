// Memory of one rank: device memory from the driver's stream-ordered pool, and pinned host memory that is kept for
// reuse. Internal to realrun/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <unordered_map>

#include "realrun/backend.h"

namespace orrery::cuda {

// Device memory of one op, allocated and freed in the stream's order. Where the GPU has too little, throws DeviceError,
// or (`may_lack`) has data nullptr.
class Temporary {
 public:
  Temporary(std::int64_t bytes, cudaStream_t stream, bool may_lack = false);
  ~Temporary();
  Temporary(const Temporary&) = delete;
  void* data() const { return data_; }

 private:
  cudaStream_t stream_;
  void* data_ = nullptr;
};

class Memory {
 public:
  explicit Memory(int device);
  ~Memory();
  Memory(const Memory&) = delete;

  void* allocate(std::int64_t bytes, Place place, cudaStream_t stream);
  // Device memory is reusable when `last` has passed the work issued to it so far (nullptr: at once), host memory at
  // once.
  void release(void* memory, cudaStream_t last) noexcept;
  // Bytes of the allocation that begins at `memory`; 0: not an allocation of this object.
  std::int64_t bytes_at(const void* memory) const;

 private:
  struct Block {
    std::int64_t bytes = 0;
    Place place = Place::device;
  };
  void* allocate_device(std::int64_t bytes, cudaStream_t stream);
  void* allocate_host(std::int64_t bytes);

  int device_;
  cudaMemPool_t pool_ = nullptr;
  cudaStream_t idle_ = nullptr;  // has no work, so that memory released on it is free at once
  std::unordered_map<const void*, Block> blocks_;
  std::multimap<std::int64_t, void*> kept_;         // free pinned memory, by size
  std::int64_t device_bytes_ = 0, host_bytes_ = 0;  // allocated by this rank
};

}  // namespace orrery::cuda
