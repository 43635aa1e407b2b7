// A CPU in the place of a GPU, for the sources in realrun/cuda/kernels: compiled by an ordinary compiler with this
// folder on the include path, their kernels run here block by block, a fiber a thread. What CUDA leaves undefined is
// made to hurt: shared memory begins as NaN, ends at an unreadable page, and asynchronous copies arrive when they are
// awaited, not before; a barrier or a warp operation that not all threads reach ends the run with a sentence. Warps and
// lanes take turns in an order that tests change: a missing barrier shows in one of them.
//
// Not here: the memory model between blocks (blocks run one after the other), registers, speed.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

struct CUstream_st;

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __grid_constant__

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(8) uint2 {
  std::uint32_t x, y;
};
struct alignas(16) uint4 {
  std::uint32_t x, y, z, w;
};

inline dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace orrery::stand_in {

// The order in which warps, their lanes, and blocks take turns.
enum class Schedule { forward, reverse, shuffled };

struct Facts {
  std::int64_t launches = 0, blocks = 0, barriers = 0;
  std::int64_t bank_conflicts = 0;  // rows of an 8x8 matrix that ldmatrix reads from the same banks
  std::int64_t tensor_core_products = 0;
};
Facts& facts();
void set_schedule(Schedule schedule);

// Throws std::runtime_error: more threads, shared memory or blocks than a device of compute capability 9.0 has, a
// barrier that not all threads reach, a warp operation that not all its lanes reach, copies that are never awaited.
void run(const char* name, dim3 grid, int threads, std::int64_t shared_bytes, void (*body)(void*), void* argument);

// Of the running thread.
void barrier();
void* shared_memory();
using Slots = std::array<void*, 32>;
// All lanes of `mask` come with a slot; the last one works on all, then all go on.
void warp_operation(const char* name, unsigned mask, void* slot, void (*work)(Slots& slots, unsigned mask));
void copy_async(void* to, const void* from, int bytes);
void commit_copies();
void await_copies(int pending);
void load_matrices(std::uint32_t (&to)[4], const void* row, bool transposed);
void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                  float (*to_float)(std::uint16_t));
[[noreturn]] void fail(const char* what);  // of the running thread

template <class T>
struct Exchange {
  T value, result;
  unsigned source;
};
template <class T>
T exchange(const char* name, unsigned mask, T value, unsigned source) {
  Exchange<T> slot{value, value, source % 32};
  warp_operation(name, mask, &slot, [](Slots& slots, unsigned lanes) {
    for (unsigned lane = 0; lane < 32; ++lane) {
      if ((lanes >> lane & 1) == 0) continue;
      auto* own = static_cast<Exchange<T>*>(slots[lane]);
      if ((lanes >> own->source & 1) == 0) fail("a shuffle reads a lane that takes no part");
      own->result = static_cast<Exchange<T>*>(slots[own->source])->value;
    }
  });
  return slot.result;
}

float half_to_float(std::uint16_t bits);
std::uint16_t float_to_half(float value);
std::uint16_t float_to_bf16(float value);
float bf16_to_float(std::uint16_t bits);
std::uint8_t float_to_e4m3(float value);
float e4m3_to_float(std::uint8_t bits);

}  // namespace orrery::stand_in

inline void __syncthreads() { orrery::stand_in::barrier(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  int nothing = 0;
  orrery::stand_in::warp_operation("__syncwarp", mask, &nothing, [](orrery::stand_in::Slots&, unsigned) {});
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int distance) {
  return orrery::stand_in::exchange("__shfl_xor_sync", mask, value,
                                    (threadIdx.x % 32) ^ static_cast<unsigned>(distance));
}
template <class T>
T __shfl_sync(unsigned mask, T value, int lane) {
  return orrery::stand_in::exchange("__shfl_sync", mask, value, static_cast<unsigned>(lane));
}
inline unsigned __ballot_sync(unsigned mask, bool predicate) {
  struct Slot {
    bool predicate;
    unsigned result;
  } slot{predicate, 0};
  orrery::stand_in::warp_operation("__ballot_sync", mask, &slot, [](orrery::stand_in::Slots& slots, unsigned lanes) {
    unsigned votes = 0;
    for (unsigned lane = 0; lane < 32; ++lane)
      if (lanes >> lane & 1) votes |= static_cast<unsigned>(static_cast<Slot*>(slots[lane])->predicate) << lane;
    for (unsigned lane = 0; lane < 32; ++lane)
      if (lanes >> lane & 1) static_cast<Slot*>(slots[lane])->result = votes;
  });
  return slot.result;
}
inline bool __any_sync(unsigned mask, bool predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int atomicAdd(int* at, int value) {  // threads take turns
  const int before = *at;
  *at += value;
  return before;
}
inline int atomicMax(int* at, int value) {
  const int before = *at;
  *at = before > value ? before : value;
  return before;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline float __uint_as_float(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline std::uint32_t __float_as_uint(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

namespace orrery::cuda {

inline std::uint32_t pack_bf16(float low, float high) {
  return stand_in::float_to_bf16(low) | static_cast<std::uint32_t>(stand_in::float_to_bf16(high)) << 16;
}
inline std::uint32_t pack_half(float low, float high) {
  return stand_in::float_to_half(low) | static_cast<std::uint32_t>(stand_in::float_to_half(high)) << 16;
}
inline float half_to_float(std::uint16_t bits) { return stand_in::half_to_float(bits); }
inline std::uint16_t pack_e4m3(float low, float high) {
  return static_cast<std::uint16_t>(stand_in::float_to_e4m3(low) | stand_in::float_to_e4m3(high) << 8);
}
inline float e4m3_to_float(std::uint8_t bits) { return stand_in::e4m3_to_float(bits); }
inline int opaque(int x) { return x; }
inline float fast_exp2(float x) { return std::exp2(x); }
inline unsigned char* dynamic_shared() { return static_cast<unsigned char*>(stand_in::shared_memory()); }
inline void load_matrices(std::uint32_t (&to)[4], const void* row) { stand_in::load_matrices(to, row, false); }
inline void load_matrices_transposed(std::uint32_t (&to)[4], const void* row) {
  stand_in::load_matrices(to, row, true);
}
inline void multiply_add_bf16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  stand_in::multiply_add(c, a, b0, b1, stand_in::bf16_to_float);
}
inline void multiply_add_half(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  stand_in::multiply_add(c, a, b0, b1, stand_in::half_to_float);
}
inline void copy_async(void* to, const void* from, int bytes) { stand_in::copy_async(to, from, bytes); }
inline void commit_copies() { stand_in::commit_copies(); }
template <int kPending>
inline void await_copies() {
  stand_in::await_copies(kPending);
}

template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, int threads, std::int64_t shared_bytes,
            CUstream_st*, const Arguments&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  std::tuple<void (*)(Parameters...), std::remove_cv_t<Parameters>...> call(
      kernel, static_cast<std::remove_cv_t<Parameters>>(arguments)...);
  constexpr std::size_t kParameterBytes = 4096;  // CUDA C++ Programming Guide, "__global__ function parameters"
  static_assert((sizeof(Parameters) + ... + 0) <= kParameterBytes);
  stand_in::run(
      name, grid, threads, shared_bytes,
      [](void* argument) {
        auto& c = *static_cast<decltype(call)*>(argument);
        std::apply([](auto k, auto&... a) { k(a...); }, c);
      },
      &call);
}

}  // namespace orrery::cuda
