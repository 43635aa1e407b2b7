// A Program's kernels on an NVIDIA GPU, except matrix products (cuBLASLt, matmul.h): launchers, callable from host code
// that does not include CUDA headers. All pointers are device memory unless noted. All calls issue to launch.stream and
// return at once; the work of one call needs no host synchronisation.
//
// Operand::data holds elements of its tensor's dtype: fp32, bf16, fp16 (fp8: e4m3, cast only). Ids and targets are
// int64 or int32, dropout masks uint8, statistics and log-sum-exps fp32. Sums are in fp32 or better, in an order that
// depends only on shapes and `processors`: the same input gives the same bits.
//
// Alignment: multiples of the element's size are correct; 16 bytes (and rows of a multiple of 16 bytes) are fast.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "realrun/kernel.h"
#include "sim/program/op.h"
#include "sim/program/tensor.h"

struct CUstream_st;  // *: cudaStream_t

namespace orrery::cuda {

struct Launch {
  CUstream_st* stream = nullptr;
  std::int64_t processors = 1;  // multiprocessors: sets how finely reductions are divided
  // At least scratch_bytes() of the call, aligned to 256 bytes. The next call on the same stream may reuse it.
  void* scratch = nullptr;
  std::int64_t scratch_bytes = 0;
  // Device copies of KernelContext::query_positions, key_positions and expert_of_slot, which are host memory; nullptr
  // if those are empty. Positions are used by attention, softmax, rotary, dropout and routers; expert_of_slot by
  // kernels that put tokens into rows. The spans of KernelContext must be given too.
  const std::int64_t* query_positions = nullptr;
  const std::int64_t* key_positions = nullptr;
  const std::int64_t* expert_of_slot = nullptr;
};

// Scratch memory that a call needs; 0 for most kinds. `processors` as in Launch.
std::int64_t scratch_bytes(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes,
                           std::int64_t processors);

// Runs any kind except products (is_matmul), communication and copies. realrun/cpu/kernels.h defines operands,
// statistics, masks, positions and dropout. Absent operands have data nullptr or are omitted at the end.
// KernelContext::round_to_bf16 is ignored, as the storage itself rounds.
//
// Differences from that contract: ids outside any table contribute nothing. Attention needs head_dim <= 256, a scale >
// 0 and fewer than 2^31 positions; it uses tensor cores for bf16 and fp16 if head_dim is a multiple of 8 and operands
// are aligned to 16 bytes, else fp32 arithmetic. Norms normalise at most kMaxNormWidth elements. cast saturates if fp8
// overflows.
//
// Throws std::logic_error as the CPU's run_kernel does, and for a dtype that a kernel does not support; DeviceError
// (realrun/backend.h) if a launch fails.
void run_kernel(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes,
                const KernelContext& context, const Launch& launch);
inline constexpr std::int64_t kMaxNormWidth = 16384;

// ---- Operations of a Backend other than ops, for all dtypes ----

// An index list as runs of `run` contiguous elements: element i of the list is starts[i / run] + i % run. A list
// without contiguous runs has run 1. Host memory: plan once, and keep a device copy of `starts`.
struct IndexPlan {
  std::vector<std::int64_t> starts;
  std::int64_t run = 1;
  std::int64_t alignment = 1;  // greatest common divisor of the starts and the run, in elements
};
IndexPlan plan_index(std::span<const std::int64_t> index);

// Part of one allocation: elements [offset, offset + elements), or, with a device copy `starts` of a plan's, the
// plan's.
struct DeviceSlice {
  void* base = nullptr;
  Dtype dtype = Dtype::fp32;
  std::int64_t offset = 0, elements = 0;
  const std::int64_t* starts = nullptr;
  std::int64_t run = 1, alignment = 1;
};

void fill(CUstream_st* stream, const DeviceSlice& to, float value);  // integers: NaN becomes the largest value
// `to` and `from` are dense, in the slice's dtype. `add`: adds to the slice.
void gather(CUstream_st* stream, const DeviceSlice& from, void* to);
void scatter(CUstream_st* stream, const void* from, const DeviceSlice& to, bool add);

// to[i] = from[i] in another dtype (or the same). Buffers may only overlap if they are equal and so are element sizes.
void convert(CUstream_st* stream, const void* from, Dtype from_dtype, void* to, Dtype to_dtype, std::int64_t elements);

// As Backend::sum and Backend::merge_statistics. `parts` is host memory and is read before the call returns.
void sum(CUstream_st* stream, std::span<const void* const> parts, void* to, std::int64_t elements, Dtype dtype);
void merge_statistics(CUstream_st* stream, std::span<const void* const> parts, void* to, std::int64_t tokens);

// Sets *flag (int32 in device memory) to 1 if any element is NaN; leaves it otherwise. Integers are never NaN.
void find_nan(CUstream_st* stream, const DeviceSlice& slice, std::int32_t* flag);

// ---- fp8 (e4m3) with one scale per tensor, from the tensor's own largest value ("current scaling": Micikevicius et
// al. 2022, arXiv 2209.05433, section 3)

// A stored value q represents q * scale.
struct alignas(16) Fp8Scale {
  float scale = 1;    // largest / 448; 1 for a tensor of zeros
  float largest = 0;  // largest |x|
};
void quantise(CUstream_st* stream, std::int64_t processors, const void* from, Dtype from_dtype, void* to,
              std::int64_t elements, Fp8Scale* scale);
// A null `scale` means 1.
void dequantise(CUstream_st* stream, const void* from, const Fp8Scale* scale, void* to, Dtype to_dtype,
                std::int64_t elements);
// Transposes a row-major [rows, columns] matrix of bytes to [columns, rows], as fp8 matrix units need it.
void transpose_bytes(CUstream_st* stream, const void* from, void* to, std::int64_t rows, std::int64_t columns);

}  // namespace orrery::cuda
