#include "realrun/cuda/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "realrun/cuda/runtime.h"

namespace orrery::cuda {
namespace {

constexpr std::int64_t kAlignment = 256;
// Pinning costs a system call per page. Requests are rounded to this, so that a next step reuses what is released.
constexpr std::int64_t kHostGranule = 64 << 10;
// Kept pinned memory serves requests of at least this fraction of its size.
constexpr std::int64_t kWorstFitDivisor = 2;

std::int64_t rounded_up(std::int64_t bytes, std::int64_t to) { return (std::max(bytes, to) + to - 1) / to * to; }

}  // namespace

Temporary::Temporary(std::int64_t bytes, cudaStream_t stream, bool may_lack) : stream_(stream) {
  const cudaError_t error = cudaMallocAsync(&data_, static_cast<std::size_t>(bytes), stream);
  if (error == cudaSuccess) return;
  if (!may_lack) fail(error, "allocating memory for an op");
  cudaGetLastError();
  data_ = nullptr;
}

Temporary::~Temporary() {
  if (data_ != nullptr) cudaFreeAsync(data_, stream_);
}

Memory::Memory(int device) : device_(device) {
  check(cudaStreamCreateWithFlags(&idle_, cudaStreamNonBlocking), "creating a stream");
  // All ranks of the process use the default pool: memory that one has released is available to another.
  check(cudaDeviceGetDefaultMemPool(&pool_, device), "asking for the memory pool");
  std::uint64_t keep = std::numeric_limits<std::uint64_t>::max();  // return no memory to the driver at synchronisation
  check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep), "setting up the memory pool");
}

Memory::~Memory() {
  cudaSetDevice(device_);
  for (const auto& [memory, block] : blocks_) {
    if (block.place == Place::device) {
      cudaFreeAsync(const_cast<void*>(memory), idle_);
    } else {
      cudaFreeHost(const_cast<void*>(memory));
    }
  }
  for (const auto& [bytes, memory] : kept_) cudaFreeHost(memory);
  cudaStreamSynchronize(idle_);
  cudaStreamDestroy(idle_);
}

void* Memory::allocate(std::int64_t bytes, Place place, cudaStream_t stream) {
  const bool on_device = place == Place::device;
  const std::int64_t whole = rounded_up(bytes, on_device ? kAlignment : kHostGranule);
  void* const memory = on_device ? allocate_device(whole, stream) : allocate_host(whole);
  Block& block = blocks_[memory];
  block.place = place;
  if (block.bytes == 0) block.bytes = whole;
  (on_device ? device_bytes_ : host_bytes_) += block.bytes;
  return memory;
}

void* Memory::allocate_device(std::int64_t bytes, cudaStream_t stream) {
  void* memory = nullptr;
  cudaError_t error = cudaMallocAsync(&memory, static_cast<std::size_t>(bytes), stream);
  if (error == cudaErrorMemoryAllocation) {  // tries again with everything unused that the pool holds
    cudaGetLastError();
    check(cudaDeviceSynchronize(), "waiting for the GPU, which is short of memory,");
    check(cudaMemPoolTrimTo(pool_, 0), "emptying the memory pool");
    error = cudaMallocAsync(&memory, static_cast<std::size_t>(bytes), stream);
  }
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    std::size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    throw DeviceError(fmt::format(
        "CUDA: the GPU has too little memory: wanted {}, {} of {} are free and this rank holds {}; use a smaller "
        "micro-batch, recomputation, offload or more ranks",
        bytes_text(static_cast<double>(bytes)), bytes_text(static_cast<double>(free)),
        bytes_text(static_cast<double>(total)), bytes_text(static_cast<double>(device_bytes_))));
  }
  check(error, "allocating memory of the GPU");
  return memory;
}

void* Memory::allocate_host(std::int64_t bytes) {
  const auto found = kept_.lower_bound(bytes);
  if (found != kept_.end() && found->first <= kWorstFitDivisor * bytes) {
    void* const memory = found->second;
    blocks_[memory].bytes = found->first;
    kept_.erase(found);
    return memory;
  }
  void* memory = nullptr;
  cudaError_t error = cudaHostAlloc(&memory, static_cast<std::size_t>(bytes), cudaHostAllocPortable);
  if (error != cudaSuccess && !kept_.empty()) {
    cudaGetLastError();
    for (const auto& [size, unused] : kept_) cudaFreeHost(unused);
    kept_.clear();
    error = cudaHostAlloc(&memory, static_cast<std::size_t>(bytes), cudaHostAllocPortable);
  }
  if (error != cudaSuccess) {
    cudaGetLastError();
    throw DeviceError(fmt::format(
        "CUDA: the host has too little memory that can be pinned: wanted {} and this rank holds {} ({}); use ulimit -l "
        "unlimited, more ranks or no offload",
        bytes_text(static_cast<double>(bytes)), bytes_text(static_cast<double>(host_bytes_)),
        cudaGetErrorString(error)));
  }
  return memory;
}

void Memory::release(void* memory, cudaStream_t last) noexcept {
  const auto found = blocks_.find(memory);
  if (found == blocks_.end()) return;
  const Block block = found->second;
  blocks_.erase(found);
  if (block.place == Place::device) {
    const cudaStream_t behind = last == nullptr ? idle_ : last;
    cudaFreeAsync(memory, behind);  // an error stays with the device, and the next checked call reports it
    device_bytes_ -= block.bytes;
  } else {
    kept_.emplace(block.bytes, memory);
    host_bytes_ -= block.bytes;
  }
}

std::int64_t Memory::bytes_at(const void* memory) const {
  const auto found = blocks_.find(memory);
  return found == blocks_.end() ? 0 : found->second.bytes;
}

}  // namespace orrery::cuda
