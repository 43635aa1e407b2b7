// Quantisation to fp8, and the transposes that fp8 matrix units need.
#include "realrun/cuda/host_numbers.h"
#include "realrun/cuda/kernels/call.cuh"

namespace orrery::cuda {
namespace {

constexpr std::int64_t kBlocksPerProcessor = 8;
constexpr int kTile = 32;                      // sides of a tile of bytes
constexpr std::int64_t kMostGridRows = 65535;  // gridDim.y

// Magnitudes compare like their bits, NaN above all: one atomic maximum per block gives the same result in any order.
template <int kVector>
__global__ void find_largest_kernel(std::int64_t elements, Any from, Fp8Scale* scale) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads * kVector;
  int largest = 0;
  const auto more = [](int a, int b) { return a > b ? a : b; };
  for (std::int64_t i = thread_number() * kVector; i < elements; i += step) {
    float values[kVector];
    load_vector<kVector>(from, i, values);
#pragma unroll
    for (int j = 0; j < kVector; ++j) largest = more(largest, static_cast<int>(__float_as_uint(fabsf(values[j]))));
  }
  largest = block_reduce(largest, reinterpret_cast<int*>(dynamic_shared()), 0, more);
  if (threadIdx.x == 0) atomicMax(reinterpret_cast<int*>(&scale->largest), largest);
}

template <int kVector>
__global__ void quantise_fp8_kernel(std::int64_t elements, Any from, Any to, Fp8Scale* scale) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads * kVector;
  const float largest = scale->largest, inverse = largest == 0 ? 1 : kLargestFp8 / largest;
  for (std::int64_t i = thread_number() * kVector; i < elements; i += step) {
    float values[kVector];
    load_vector<kVector>(from, i, values);
#pragma unroll
    for (int j = 0; j < kVector; ++j) values[j] *= inverse;
    store_vector<kVector>(to, i, values);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) scale->scale = largest == 0 ? 1 : largest / kLargestFp8;
}

template <int kVector>
__global__ void dequantise_fp8_kernel(std::int64_t elements, Any from, const Fp8Scale* scale, Any to) {
  const std::int64_t i = thread_number() * kVector;
  if (i >= elements) return;
  const float factor = scale == nullptr ? 1 : scale->scale;
  float values[kVector];
  load_vector<kVector>(from, i, values);
#pragma unroll
  for (int j = 0; j < kVector; ++j) values[j] *= factor;
  store_vector<kVector>(to, i, values);
}

__global__ void transpose_bytes_kernel(const std::uint8_t* from, std::uint8_t* to, std::int64_t rows,
                                       std::int64_t columns) {
  constexpr int kPitch = kTile + 4, kTileRows = kThreads / kTile;  // padding: rows begin in different banks
  unsigned char* const tile = dynamic_shared();                    // [kTile][kPitch]
  const int lane = static_cast<int>(threadIdx.x) % kTile, first = static_cast<int>(threadIdx.x) / kTile;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kTile;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * kTile; row < rows;
       row += static_cast<std::int64_t>(gridDim.y) * kTile) {
    for (int r = first; r < kTile; r += kTileRows)
      if (row + r < rows && column + lane < columns)
        tile[r * kPitch + lane] = from[(row + r) * columns + column + lane];
    __syncthreads();
    for (int c = first; c < kTile; c += kTileRows)
      if (column + c < columns && row + lane < rows) to[(column + c) * rows + row + lane] = tile[lane * kPitch + c];
    __syncthreads();
  }
}

Any wider_than_fp8(const void* data, Dtype dtype) {
  if (dtype != Dtype::fp32 && dtype != Dtype::bf16 && dtype != Dtype::fp16)
    throw std::logic_error(std::string("fp8 numbers are made of fp32, fp16 and bf16 alone, not of ") + name_of(dtype));
  return {const_cast<void*>(data), dtype};
}

}  // namespace

void quantise(CUstream_st* stream, std::int64_t processors, const void* from, Dtype from_dtype, void* to,
              std::int64_t elements, Fp8Scale* scale) {
  const Any in = wider_than_fp8(from, from_dtype), out{to, Dtype::fp8};
  const bool is_wide = wide(elements, {in, out});
  const dim3 grid = blocks(std::clamp<std::int64_t>(divide_up(elements, kThreads * (is_wide ? kWide : 1)), 1,
                                                    processors * kBlocksPerProcessor));
  fill(stream, {scale, Dtype::fp32, 0, sizeof *scale / sizeof(float)}, 0);
  ORRERY_LAUNCH_WIDE(stream, is_wide, find_largest_kernel, grid, kSumBytes, elements, in, scale);
  ORRERY_LAUNCH_WIDE(stream, is_wide, quantise_fp8_kernel, grid, 0, elements, in, out, scale);
}

void dequantise(CUstream_st* stream, const void* from, const Fp8Scale* scale, void* to, Dtype to_dtype,
                std::int64_t elements) {
  const Any in{const_cast<void*>(from), Dtype::fp8}, out = wider_than_fp8(to, to_dtype);
  ORRERY_LAUNCH_WIDE(stream, wide(elements, {in, out}), dequantise_fp8_kernel, Elements{elements}, 0, elements, in,
                     scale, out);
}

void transpose_bytes(CUstream_st* stream, const void* from, void* to, std::int64_t rows, std::int64_t columns) {
  dim3 grid = blocks(divide_up(columns, kTile));
  grid.y = static_cast<unsigned>(std::min(divide_up(rows, kTile), kMostGridRows));
  ORRERY_LAUNCH(stream, transpose_bytes_kernel, grid, kTile * (kTile + 4), static_cast<const std::uint8_t*>(from),
                static_cast<std::uint8_t*>(to), rows, columns);
}

}  // namespace orrery::cuda
