// Device features beyond C++ that the kernels use, each behind a name: conversions, warp operations, tensor cores,
// asynchronous copies and launches. Compiled by nvcc, the names are PTX. Compiled by another compiler, they are those
// of a stand-in that runs blocks on a CPU (stand_in.h on the include path: tests/realrun/cuda_stand_in).
#pragma once

#include <cstdint>
#include <string>

#include "realrun/backend.h"

#ifdef __CUDACC__

#include <cuda_runtime.h>

namespace orrery::cuda {

// Converts two numbers to bf16 (to nearest, ties to even), the first into the lower half.
__device__ inline std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ inline std::uint32_t pack_half(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ inline float half_to_float(std::uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
// fp8 e4m3 (Micikevicius et al. 2022, arXiv 2209.05433); values beyond the largest number become it.
__device__ inline std::uint16_t pack_e4m3(float low, float high) {
  std::uint16_t packed;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ inline float e4m3_to_float(std::uint8_t bits) {
  std::uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<std::uint16_t>(bits)));
  return half_to_float(static_cast<std::uint16_t>(halves));
}

// 2^x within 2 ulp; 0 for -infinity.
__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Returns x, but hides from the compiler that it is the same in every iteration of a loop: values derived from it are
// recomputed instead of kept in registers.
__device__ inline int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

__device__ inline unsigned char* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  return shared_bytes;
}

// Loads four 8x8 matrices of 16-bit elements from shared memory. Lane l passes row l % 8 of matrix l / 8 (PTX:
// ldmatrix).
__device__ inline void load_matrices(std::uint32_t (&to)[4], const void* row) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}
__device__ inline void load_matrices_transposed(std::uint32_t (&to)[4], const void* row) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

// c += a b on tensor cores: m16n8k16, a by rows, b by columns (PTX ISA, "Matrix fragments for mma.m16n8k16").
__device__ inline void multiply_add_bf16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                         std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void multiply_add_half(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                         std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Copies 16 bytes from global to shared memory without registers: the first `bytes` (0 or 16), then zeros.
__device__ inline void copy_async(void* to, const void* from, int bytes) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `kPending` of this thread's latest groups are under way.
template <int kPending>
__device__ inline void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

inline void check_launch(const char* name, cudaError_t error) {
  if (error != cudaSuccess)
    throw DeviceError(std::string("kernel ") + name + " did not start: " + cudaGetErrorString(error));
}

// Converts each argument to the type of the kernel's parameter.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, int threads, std::int64_t shared_bytes,
            CUstream_st* stream, const Arguments&... arguments) {
  constexpr std::int64_t kWithoutAsking = 48 << 10;  // CUDA C++ Programming Guide, "Shared memory"
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  if (shared_bytes > kWithoutAsking)
    check_launch(
        name, cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(shared_bytes)));
  kernel<<<grid, static_cast<unsigned>(threads), static_cast<std::size_t>(shared_bytes), stream>>>(
      static_cast<Parameters>(arguments)...);
  check_launch(name, cudaGetLastError());
}

}  // namespace orrery::cuda

#else

#include "stand_in.h"

#endif

namespace orrery::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// The thread's index in a grid of one dimension, and in its warp.
__device__ inline std::int64_t thread_number() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline int lane_number() { return static_cast<int>(threadIdx.x) % kWarp; }

// A tensor whose dtype is known when the kernel runs. The branches are the same for all threads.
struct Any {
  void* data = nullptr;
  Dtype dtype = Dtype::fp32;
};

__device__ inline float bf16_to_float(std::uint16_t bits) {
  return __uint_as_float(static_cast<std::uint32_t>(bits) << 16);
}

__device__ inline float load(const Any& from, std::int64_t i) {
  switch (from.dtype) {
    case Dtype::fp32:
      return static_cast<const float*>(from.data)[i];
    case Dtype::bf16:
      return bf16_to_float(static_cast<const std::uint16_t*>(from.data)[i]);
    case Dtype::fp16:
      return half_to_float(static_cast<const std::uint16_t*>(from.data)[i]);
    case Dtype::fp8:
      return e4m3_to_float(static_cast<const std::uint8_t*>(from.data)[i]);
    case Dtype::int64:
      return static_cast<float>(static_cast<const std::int64_t*>(from.data)[i]);
    case Dtype::int32:
      return static_cast<float>(static_cast<const std::int32_t*>(from.data)[i]);
    case Dtype::uint8:
      return static_cast<float>(static_cast<const std::uint8_t*>(from.data)[i]);
    case Dtype::int8:
    case Dtype::int4:
    case Dtype::sign:
      return static_cast<float>(static_cast<const std::int8_t*>(from.data)[i]);
    case Dtype::nvfp4:
    case Dtype::fp8_blocks:
    case Dtype::nf4:
    case Dtype::mxfp8:
      break;
  }
  return 0;
}

__device__ inline void store(const Any& to, std::int64_t i, float value) {
  switch (to.dtype) {
    case Dtype::fp32:
      static_cast<float*>(to.data)[i] = value;
      break;
    case Dtype::bf16:
      static_cast<std::uint16_t*>(to.data)[i] = static_cast<std::uint16_t>(pack_bf16(value, 0));
      break;
    case Dtype::fp16:
      static_cast<std::uint16_t*>(to.data)[i] = static_cast<std::uint16_t>(pack_half(value, 0));
      break;
    case Dtype::fp8:
      static_cast<std::uint8_t*>(to.data)[i] = static_cast<std::uint8_t>(pack_e4m3(value, 0));
      break;
    case Dtype::int64:
      static_cast<std::int64_t*>(to.data)[i] = static_cast<std::int64_t>(value);
      break;
    case Dtype::int32:
      static_cast<std::int32_t*>(to.data)[i] = static_cast<std::int32_t>(value);
      break;
    case Dtype::uint8:
      static_cast<std::uint8_t*>(to.data)[i] = static_cast<std::uint8_t>(value);
      break;
    case Dtype::int8:
    case Dtype::int4:
    case Dtype::sign:
      static_cast<std::int8_t*>(to.data)[i] = static_cast<std::int8_t>(value);
      break;
    case Dtype::nvfp4:
    case Dtype::fp8_blocks:
    case Dtype::nf4:
    case Dtype::mxfp8:
      break;
  }
}

// Loads an id or a target.
__device__ inline std::int64_t load_index(const Any& from, std::int64_t i) {
  return from.dtype == Dtype::int64 ? static_cast<const std::int64_t*>(from.data)[i]
                                    : static_cast<const std::int32_t*>(from.data)[i];
}

// kVector neighbouring elements as they lie in memory. All operands are loaded first and then unpacked, so that the
// loads overlap. kVector is 8 if rows and addresses allow 16-byte loads (8 bytes for fp8 and masks), else 1.
inline constexpr int kWide = 8;

template <int kVector>
struct Raw;
template <>
struct Raw<kWide> {
  uint4 words[2];
};
template <>
struct Raw<1> {
  float value;
};

template <int kVector>
__device__ inline Raw<kVector> load_raw(const Any& from, std::int64_t i);
template <>
__device__ inline Raw<1> load_raw<1>(const Any& from, std::int64_t i) {
  return {load(from, i)};
}
template <>
__device__ inline Raw<kWide> load_raw<kWide>(const Any& from, std::int64_t i) {
  Raw<kWide> raw;
  switch (from.dtype) {
    case Dtype::fp32: {
      const auto* at = reinterpret_cast<const uint4*>(static_cast<const float*>(from.data) + i);
      raw.words[0] = at[0];
      raw.words[1] = at[1];
      break;
    }
    case Dtype::bf16:
    case Dtype::fp16:
      raw.words[0] = *reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(from.data) + i);
      break;
    default: {
      const uint2 half = *reinterpret_cast<const uint2*>(static_cast<const std::uint8_t*>(from.data) + i);
      raw.words[0].x = half.x;
      raw.words[0].y = half.y;
    }
  }
  return raw;
}

template <int kVector>
__device__ inline void unpack(const Raw<kVector>& raw, Dtype dtype, float (&values)[kVector]);
template <>
__device__ inline void unpack<1>(const Raw<1>& raw, Dtype, float (&values)[1]) {
  values[0] = raw.value;
}
template <>
__device__ inline void unpack<kWide>(const Raw<kWide>& raw, Dtype dtype, float (&values)[kWide]) {
  const std::uint32_t words[kWide] = {raw.words[0].x, raw.words[0].y, raw.words[0].z, raw.words[0].w,
                                      raw.words[1].x, raw.words[1].y, raw.words[1].z, raw.words[1].w};
  switch (dtype) {
    case Dtype::fp32:
#pragma unroll
      for (int i = 0; i < kWide; ++i) values[i] = __uint_as_float(words[i]);
      break;
    case Dtype::bf16:
#pragma unroll
      for (int i = 0; i < kWide; ++i)
        values[i] = __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
      break;
    case Dtype::fp16:
#pragma unroll
      for (int i = 0; i < kWide; ++i)
        values[i] = half_to_float(static_cast<std::uint16_t>(i % 2 == 0 ? words[i / 2] : words[i / 2] >> 16));
      break;
    case Dtype::fp8:
#pragma unroll
      for (int i = 0; i < kWide; ++i) values[i] = e4m3_to_float(static_cast<std::uint8_t>(words[i / 4] >> 8 * (i % 4)));
      break;
    default:
#pragma unroll
      for (int i = 0; i < kWide; ++i) values[i] = static_cast<float>(words[i / 4] >> 8 * (i % 4) & 0xffu);
  }
}

// Loads elements of one tensor or several: load_vector<kVector>(tensor, index, values, ...).
template <int kVector>
__device__ inline void load_vector() {}
template <int kVector, class... More>
__device__ inline void load_vector(const Any& from, std::int64_t i, float (&values)[kVector], More&&... more) {
  const Raw<kVector> raw = load_raw<kVector>(from, i);
  load_vector<kVector>(more...);
  unpack<kVector>(raw, from.dtype, values);
}

// sum += factor * the elements.
template <int kVector>
__device__ inline void add_vector(const Any& from, std::int64_t i, float (&sum)[kVector], float factor = 1) {
  float values[kVector];
  load_vector<kVector>(from, i, values);
#pragma unroll
  for (int j = 0; j < kVector; ++j) sum[j] += factor * values[j];
}

template <int kVector>
__device__ inline void store_vector(const Any& to, std::int64_t i, const float (&values)[kVector]);
template <>
__device__ inline void store_vector<1>(const Any& to, std::int64_t i, const float (&values)[1]) {
  store(to, i, values[0]);
}
template <>
__device__ inline void store_vector<kWide>(const Any& to, std::int64_t i, const float (&values)[kWide]) {
  switch (to.dtype) {
    case Dtype::fp32: {
      auto* at = reinterpret_cast<uint4*>(static_cast<float*>(to.data) + i);
      at[0] = {__float_as_uint(values[0]), __float_as_uint(values[1]), __float_as_uint(values[2]),
               __float_as_uint(values[3])};
      at[1] = {__float_as_uint(values[4]), __float_as_uint(values[5]), __float_as_uint(values[6]),
               __float_as_uint(values[7])};
      break;
    }
    case Dtype::bf16:
      *reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(to.data) + i) = {
          pack_bf16(values[0], values[1]), pack_bf16(values[2], values[3]), pack_bf16(values[4], values[5]),
          pack_bf16(values[6], values[7])};
      break;
    case Dtype::fp16:
      *reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(to.data) + i) = {
          pack_half(values[0], values[1]), pack_half(values[2], values[3]), pack_half(values[4], values[5]),
          pack_half(values[6], values[7])};
      break;
    case Dtype::fp8:
      *reinterpret_cast<uint2*>(static_cast<std::uint8_t*>(to.data) + i) = {
          pack_e4m3(values[0], values[1]) | static_cast<std::uint32_t>(pack_e4m3(values[2], values[3])) << 16,
          pack_e4m3(values[4], values[5]) | static_cast<std::uint32_t>(pack_e4m3(values[6], values[7])) << 16};
      break;
    default: {
      std::uint32_t words[2] = {0, 0};
#pragma unroll
      for (int j = 0; j < kWide; ++j) words[j / 4] |= static_cast<std::uint32_t>(values[j]) << 8 * (j % 4);
      *reinterpret_cast<uint2*>(static_cast<std::uint8_t*>(to.data) + i) = {words[0], words[1]};
    }
  }
}

__device__ inline float larger(float a, float b) { return a > b ? a : b; }
__device__ inline float minus_infinity() { return __uint_as_float(0xff800000u); }

// Reduces over the lanes of a warp; every lane gets the result. All lanes combine in the same order.
template <class Number, class Combine>
__device__ inline Number warp_reduce(Number value, Combine combine) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    value = combine(value, __shfl_xor_sync(kAllLanes, value, distance));
  return value;
}
template <class Number>
__device__ inline Number warp_sum(Number value) {
  return warp_reduce(value, [](Number a, Number b) { return a + b; });
}
__device__ inline float warp_max(float value) { return warp_reduce(value, larger); }

// Reduces over a block, for every thread. `room`: shared memory for one number per warp. All threads must call it.
// `none`: what combines with any number to this number.
template <class Number, class Combine>
__device__ inline Number block_reduce(Number value, Number* room, Number none, Combine combine) {
  value = warp_reduce(value, combine);
  if (blockDim.x <= kWarp) return value;
  __syncthreads();  // waits for an earlier use of the room
  if (threadIdx.x % kWarp == 0) room[threadIdx.x / kWarp] = value;
  __syncthreads();
  Number all = none;
  for (unsigned w = 0; w < blockDim.x / kWarp; ++w) all = combine(all, room[w]);
  return all;
}
template <class Number>
__device__ inline Number block_sum(Number value, Number* room) {
  return block_reduce(value, room, Number{0}, [](Number a, Number b) { return a + b; });
}

}  // namespace orrery::cuda
