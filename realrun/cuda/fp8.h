// Quantisation to fp8 (e4m3) with one scale per tensor, from the tensor's own largest value ("current scaling":
// Micikevicius et al. 2022, arXiv 2209.05433, section 3), and the transposes that fp8 matrix units need. Pointers are
// device memory. Internal to realrun/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "sim/program/tensor.h"

namespace orrery::cuda {

// A stored value q represents q * scale.
struct alignas(16) Fp8Scale {
  float scale = 1;    // largest / 448; 1 for a tensor of zeros
  float largest = 0;  // largest |x|
};

void quantise(cudaStream_t stream, std::int64_t processors, const void* from, Dtype from_dtype, void* to,
              std::int64_t elements, Fp8Scale* scale);
// A null `scale` means 1.
void dequantise(cudaStream_t stream, const void* from, const Fp8Scale* scale, void* to, Dtype to_dtype,
                std::int64_t elements);
// Transposes a row-major [rows, columns] matrix of bytes to [columns, rows].
void transpose_bytes(cudaStream_t stream, const void* from, void* to, std::int64_t rows, std::int64_t columns);

}  // namespace orrery::cuda
