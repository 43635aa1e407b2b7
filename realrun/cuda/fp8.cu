#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "realrun/cuda/fp8.h"
#include "realrun/cuda/host_numbers.h"
#include "realrun/cuda/runtime.h"

namespace orrery::cuda {
namespace {

constexpr int kThreads = 256, kWarp = 32;
constexpr std::int64_t kBlocksPerProcessor = 8;
constexpr int kTile = 32, kTileRows = 8;       // a tile of bytes, and the number of its rows that a block moves at once
constexpr std::int64_t kMostGridRows = 65535;  // gridDim.y

__device__ float load(const float* from, std::int64_t i) { return from[i]; }
__device__ float load(const __nv_bfloat16* from, std::int64_t i) { return __bfloat162float(from[i]); }
__device__ float load(const __half* from, std::int64_t i) { return __half2float(from[i]); }
__device__ void store(float* to, std::int64_t i, float x) { to[i] = x; }
__device__ void store(__nv_bfloat16* to, std::int64_t i, float x) { to[i] = __float2bfloat16(x); }
__device__ void store(__half* to, std::int64_t i, float x) { to[i] = __float2half(x); }

__device__ std::int64_t first_element() { return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; }
__device__ std::int64_t elements_at_once() { return static_cast<std::int64_t>(gridDim.x) * kThreads; }

// Magnitudes compare like their bits, NaN above all: one atomic maximum per block gives the same result in any order.
template <class T>
__global__ void __launch_bounds__(kThreads) find_largest(const T* from, std::int64_t elements, Fp8Scale* scale) {
  int largest = 0;
  for (std::int64_t i = first_element(); i < elements; i += elements_at_once())
    largest = max(largest, __float_as_int(fabsf(load(from, i))));
  __shared__ int of_warps[kThreads / kWarp];
  largest = __reduce_max_sync(0xffffffffu, largest);
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = largest;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (const int of_warp : of_warps) largest = max(largest, of_warp);
  atomicMax(reinterpret_cast<int*>(&scale->largest), largest);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    quantise_all(const T* from, __nv_fp8_storage_t* to, std::int64_t elements, Fp8Scale* scale) {
  const float largest = scale->largest;
  const float inverse = largest == 0 ? 1 : kLargestFp8 / largest;
  for (std::int64_t i = first_element(); i < elements; i += elements_at_once())
    to[i] = __nv_cvt_float_to_fp8(load(from, i) * inverse, __NV_SATFINITE, __NV_E4M3);
  if (blockIdx.x == 0 && threadIdx.x == 0) scale->scale = largest == 0 ? 1 : largest / kLargestFp8;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    dequantise_all(const __nv_fp8_storage_t* from, const Fp8Scale* scale, T* to, std::int64_t elements) {
  const float factor = scale == nullptr ? 1 : scale->scale;
  for (std::int64_t i = first_element(); i < elements; i += elements_at_once())
    store(to, i, factor * __half2float(static_cast<__half>(__nv_cvt_fp8_to_halfraw(from[i], __NV_E4M3))));
}

__global__ void __launch_bounds__(kTile* kTileRows)
    transpose_tiles(const std::uint8_t* from, std::uint8_t* to, std::int64_t rows, std::int64_t columns) {
  __shared__ std::uint8_t tile[kTile][kTile + 4];  // padding: rows begin in different banks
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kTile;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * kTile; row < rows;
       row += static_cast<std::int64_t>(gridDim.y) * kTile) {
    for (int r = static_cast<int>(threadIdx.y); r < kTile; r += kTileRows)
      if (row + r < rows && column + threadIdx.x < columns)
        tile[r][threadIdx.x] = from[(row + r) * columns + column + threadIdx.x];
    __syncthreads();
    for (int c = static_cast<int>(threadIdx.y); c < kTile; c += kTileRows)
      if (column + c < columns && row + threadIdx.x < rows)
        to[(column + c) * rows + row + threadIdx.x] = tile[threadIdx.x][c];
    __syncthreads();
  }
}

unsigned blocks_for(std::int64_t elements, std::int64_t most) {
  return static_cast<unsigned>(std::clamp<std::int64_t>((elements + kThreads - 1) / kThreads, 1, most));
}

// Calls use() with a number of the type that has the dtype.
template <class Use>
void with_numbers(Dtype dtype, Use use) {
  switch (dtype) {
    case Dtype::fp32:
      return use(float{});
    case Dtype::bf16:
      return use(__nv_bfloat16{});
    case Dtype::fp16:
      return use(__half{});
    default:
      throw std::logic_error(std::string("fp8 numbers are made of fp32, fp16 and bf16 alone, not of ") +
                             name_of(dtype));
  }
}

}  // namespace

void quantise(cudaStream_t stream, std::int64_t processors, const void* from, Dtype from_dtype, void* to,
              std::int64_t elements, Fp8Scale* scale) {
  check(cudaMemsetAsync(scale, 0, sizeof(Fp8Scale), stream), "clearing an fp8 scale");
  const unsigned blocks = blocks_for(elements, processors * kBlocksPerProcessor);
  with_numbers(from_dtype, [&](auto number) {
    const auto* const numbers = static_cast<const decltype(number)*>(from);
    find_largest<<<blocks, kThreads, 0, stream>>>(numbers, elements, scale);
    quantise_all<<<blocks, kThreads, 0, stream>>>(numbers, static_cast<__nv_fp8_storage_t*>(to), elements, scale);
  });
  check(cudaGetLastError(), "quantising to fp8");
}

void dequantise(cudaStream_t stream, const void* from, const Fp8Scale* scale, void* to, Dtype to_dtype,
                std::int64_t elements) {
  with_numbers(to_dtype, [&](auto number) {
    dequantise_all<<<blocks_for(elements, kMostGridRows), kThreads, 0, stream>>>(
        static_cast<const __nv_fp8_storage_t*>(from), scale, static_cast<decltype(number)*>(to), elements);
  });
  check(cudaGetLastError(), "converting from fp8");
}

void transpose_bytes(cudaStream_t stream, const void* from, void* to, std::int64_t rows, std::int64_t columns) {
  if (rows == 0 || columns == 0) return;
  const dim3 grid(static_cast<unsigned>((columns + kTile - 1) / kTile),
                  static_cast<unsigned>(std::min((rows + kTile - 1) / kTile, kMostGridRows)));
  transpose_tiles<<<grid, dim3(kTile, kTileRows), 0, stream>>>(static_cast<const std::uint8_t*>(from),
                                                               static_cast<std::uint8_t*>(to), rows, columns);
  check(cudaGetLastError(), "transposing an fp8 matrix");
}

}  // namespace orrery::cuda
