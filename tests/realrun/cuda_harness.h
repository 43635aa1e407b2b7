// Runs ops on the CUDA kernels: on the stand-in (a CPU), or, with ORRERY_ON_DEVICE, on the GPU of this machine.
// Operands lie at the beginning or flush with the end of their memory, whose surroundings are unreadable (stand-in) or
// watched.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "realrun/cpu/kernels.h"
#include "realrun/cuda/kernels.h"

#ifdef ORRERY_ON_DEVICE
#include <cuda_runtime_api.h>
#else
#include <sys/mman.h>
#include <unistd.h>

#include "tests/realrun/cuda_stand_in/stand_in.h"
#endif

namespace orrery::cuda_test {

enum class Edge { start, end };

#ifdef ORRERY_ON_DEVICE
inline void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}
#endif

// Device memory of exactly so many bytes, all 0xff at first: NaN in every floating-point dtype.
class Memory {
 public:
  explicit Memory(std::int64_t bytes, Edge place = Edge::start) : bytes_(static_cast<std::size_t>(bytes)) {
#ifdef ORRERY_ON_DEVICE
    constexpr std::size_t kAlignment = 256;
    room_ = (bytes_ + kAlignment - 1) / kAlignment * kAlignment;
    check(cudaMalloc(&whole_, room_ + 2 * kGuard));
    check(cudaMemset(whole_, kPoison, room_ + 2 * kGuard));
    first_ = kGuard + (place == Edge::end ? room_ - bytes_ : 0);
    data_ = static_cast<char*>(whole_) + first_;
#else
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    room_ = (bytes_ + page - 1) / page * page;
    whole_ = mmap(nullptr, room_ + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (whole_ == MAP_FAILED ||
        (room_ > 0 && mprotect(static_cast<char*>(whole_) + page, room_, PROT_READ | PROT_WRITE)))
      throw std::runtime_error("no memory");
    first_ = page + (place == Edge::end ? room_ - bytes_ : 0);
    room_ += 2 * page;
    data_ = static_cast<char*>(whole_) + first_;
    std::memset(static_cast<char*>(whole_) + page, kPoison, room_ - 2 * page);
#endif
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
#ifdef ORRERY_ON_DEVICE
    cudaFree(whole_);
#else
    munmap(whole_, room_);
#endif
  }
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  void upload(const void* from) {
#ifdef ORRERY_ON_DEVICE
    check(cudaMemcpy(data_, from, bytes_, cudaMemcpyHostToDevice));
#else
    if (bytes_ > 0) std::memcpy(data_, from, bytes_);
#endif
  }
  // Throws if anything was written around the memory.
  std::vector<unsigned char> download() const {
    std::vector<unsigned char> bytes(bytes_);
#ifdef ORRERY_ON_DEVICE
    check(cudaDeviceSynchronize());
    std::vector<unsigned char> all(room_ + 2 * kGuard);
    check(cudaMemcpy(all.data(), whole_, all.size(), cudaMemcpyDeviceToHost));
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (i >= first_ && i < first_ + bytes_) {
        bytes[i - first_] = all[i];
      } else if (all[i] != kPoison) {
        throw std::runtime_error("a kernel wrote outside an operand");
      }
    }
#else
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const auto* const all = static_cast<const unsigned char*>(whole_);
    const auto watch = [&](std::size_t begin, std::size_t end) {
      const std::size_t strange = end - begin - static_cast<std::size_t>(std::count(all + begin, all + end, kPoison));
      if (strange > 0) throw std::runtime_error("a kernel wrote outside an operand");
    };
    watch(page, first_);
    watch(first_ + bytes_, room_ - page);
    if (bytes_ > 0) std::memcpy(bytes.data(), data_, bytes_);
#endif
    return bytes;
  }

 private:
  static constexpr unsigned char kPoison = 0xff;
  static constexpr std::size_t kGuard = 4096;
  std::size_t bytes_, room_ = 0, first_ = 0;
  void *whole_ = nullptr, *data_ = nullptr;
};

// One number of a dtype, and back; written apart from the kernels' and the stand-in's conversions.
std::vector<unsigned char> stored(std::span<const float> values, Dtype dtype);
std::vector<float> numbers(std::span<const unsigned char> bytes, Dtype dtype);
// What is left of values when they are stored.
inline std::vector<float> rounded(std::span<const float> values, Dtype dtype) {
  return numbers(stored(values, dtype), dtype);
}

struct Environment {
  Edge place = Edge::start;
  std::int64_t processors = 3;
};

// Operands with the dtypes of their tensors. What is written begins as its values (NaN, or what is added to); operands
// of equal address and dtype are one.
void run(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes, const KernelContext& context,
         const Environment& environment = {});

}  // namespace orrery::cuda_test
