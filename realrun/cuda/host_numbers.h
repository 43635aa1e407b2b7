// Converts numbers of every dtype on the CPU, between a GPU's storage and floats. Uses no CUDA.
#pragma once

#include <cstdint>

#include "sim/program/tensor.h"

namespace orrery::cuda {

// Rounding of from_floats. fp16, bf16: to nearest, ties to even. fp8: e4m3 (Micikevicius et al. 2022, arXiv
// 2209.05433), which saturates at 448 and has no infinity. Integers: towards zero, saturating; NaN gives the largest.
void to_floats(const void* from, Dtype dtype, float* to, std::int64_t elements);
void from_floats(const float* from, void* to, Dtype dtype, std::int64_t elements);

inline constexpr float kLargestFp8 = 448;

}  // namespace orrery::cuda
